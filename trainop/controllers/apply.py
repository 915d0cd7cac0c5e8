"""Carries out the actions of a plan.

Every action is idempotent: creates tolerate an existing object only if the job controls it, deletes carry a UID
precondition. Creates and deletes are registered as expectations before they are sent. Batches start slowly, as in the
controllers of kubernetes, so that an error which concerns all children is met once and not for each of them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import structlog
from prometheus_client import Counter

from trainop.controllers.api_errors import CreateFailure, classify
from trainop.controllers.body_budget import BodyBudget
from trainop.controllers.companion_writer import CompanionWriter
from trainop.controllers.group_writer import GroupWriter
from trainop.controllers.outcome import Outcome
from trainop.controllers.owner_check import AdoptionError, controls_live, find_obstacle
from trainop.controllers.refused_children import RefusedChild
from trainop.controllers.report import Reporter
from trainop.engine.actions import (
    Action,
    Adopt,
    Apply,
    CompanionAction,
    Count,
    CreateGroup,
    CreateOnce,
    CreatePod,
    CreateService,
    Delete,
    DeleteGroup,
    DeleteJob,
    DeletePod,
    DeleteService,
    Event,
    GroupAction,
    Notice,
    Patch,
    Release,
    UpdateGroup,
)
from trainop.engine.framework import NameTaken
from trainop.engine.kind import Kind
from trainop.runtime.client.client import Client, PatchKind
from trainop.runtime.client.decoding import read_object
from trainop.runtime.controller.expectations import Expectations
from trainop.runtime.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    InvalidError,
    NotFoundError,
)
from trainop.runtime.objects.metadata import Json, Key, OwnerReference, Unstructured, owner_reference
from trainop.runtime.objects.resource import PODS, SERVICES, Resource

MAX_WRITES_PER_PASS = 500
"""Limit of writes per pass. The next pass continues, so that a large job does not block a worker."""

MAX_CONCURRENT = 4
"""Limit of requests in flight for the pods of one job, and the same again for its services. These eight saturate an
API server with two processors. With twice as many, a large job completes no sooner and a small one beside it waits
twice as long; with half as many, the large one takes a third longer (docs/performance.md)."""

RETRY_WITHOUT_EVENT = 30.0
"""Seconds until the next attempt if a name is taken or the namespace terminates: there may be no event at its end."""

_API_FAILURES = (ApiError, ConnectionError, TimeoutError)

_RESOURCES = {"Pod": PODS, "Service": SERVICES}

log = structlog.get_logger(__name__)


_Create = CreatePod | CreateService


def _is_of_predecessor(kind: Kind, job: Unstructured, owner: OwnerReference | None) -> bool:
    """Whether the owner is an earlier job of the same kind and name, whose children the garbage collector deletes."""
    return owner is not None and (owner.kind, owner.name) == (kind.resource.kind, job.metadata.name)


def _group_key(action: Action) -> object:
    """Adjacent actions with the same key are carried out concurrently. Companions are written one by one, in the order
    of the plan: they are few, and an obstacle to one ends the pass."""
    if isinstance(action, CompanionAction):
        return id(action)
    return _Create if isinstance(action, _Create) else type(action)


def _makes_pods(action: Action) -> bool:
    return isinstance(action, CreatePod) or (isinstance(action, CreateOnce) and action.makes_pods)


class _Child(NamedTuple):
    """A child of the job, and its names in events."""

    resource: Resource
    key: Key
    noun: str
    """`pod` or `service`, as in messages. Reasons end with `Pod` or `Service`."""

    @property
    def kind(self) -> str:
        return self.resource.kind


def _child(job: Unstructured, resource: Resource, name: str) -> _Child:
    return _Child(resource, Key(job.metadata.namespace, name), resource.kind.lower())


class Applier:
    """One per kind. Carries out at most `max_writes` actions per pass."""

    def __init__(
        self,
        kind: Kind,
        client: Client,
        expectations: Expectations,
        report: Reporter,
        groups: GroupWriter,
        *,
        bodies: BodyBudget | None = None,
        max_writes: int = MAX_WRITES_PER_PASS,
    ) -> None:
        self._kind = kind
        self._client = client
        self._expectations = expectations
        self._report = report
        self._groups = groups
        self._companions = CompanionWriter(kind, client, expectations, report)
        self._bodies = bodies or BodyBudget()
        self._max_writes = max_writes

    async def carry_out(self, job: Unstructured, actions: Sequence[Action], *, begun: bool = False) -> Outcome:
        """Carries out the actions in groups. Adjacent actions of one class form a group and run concurrently, and so do
        adjacent creates of pods and services; groups run one after another. A failure does not stop the following
        groups, except for a refused template of a job that has not `begun` and for a name that is taken."""
        outcome = Outcome(begun=begun, unfinished=len(actions) >= self._max_writes)
        for kind, neighbours in itertools.groupby(actions[: self._max_writes], _group_key):
            group = list(neighbours)
            if kind is Adopt and (reason := await find_obstacle(self._client, self._kind.source, job)):
                outcome.errors += [AdoptionError(job, each, reason) for each in group if isinstance(each, Adopt)]
                continue
            if outcome.pods_wait:
                group = [action for action in group if not _makes_pods(action)]
            if kind is _Create:
                outcome.merge(await self._create_all(job, group, begun))
            else:
                outcome.merge(await self._carry_out_together(job, group, MAX_CONCURRENT, begun))
            if outcome.refused is not None or outcome.halted:
                break
        return outcome

    async def _create_all(self, job: Unstructured, actions: Sequence[Action], begun: bool) -> Outcome:
        """Creates pods and services side by side: a pod needs its service only once it runs."""
        outcome = Outcome()
        async with asyncio.TaskGroup() as tasks:
            made = [
                tasks.create_task(self._carry_out_together(job, group, 1, begun))
                for kind in (CreateService, CreatePod)
                if (group := [action for action in actions if isinstance(action, kind)])
            ]
        for task in made:
            outcome.merge(task.result())
        return outcome

    async def _carry_out_together(
        self, job: Unstructured, actions: Sequence[Action], width: int, begun: bool
    ) -> Outcome:
        """Slow start: runs `width` actions concurrently at first, and one more after each success, because what fails
        for one child usually fails for all. Starts no more once `Outcome.should_stop` holds."""
        outcome = Outcome(begun=begun)
        todo = iter(actions)

        async def work() -> None:
            nonlocal width
            for action in todo:
                if outcome.should_stop:
                    return
                await self._carry_out_one(job, action, outcome)
                if width < MAX_CONCURRENT and not outcome.should_stop:
                    width += 1
                    tasks.create_task(work())

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(width, len(actions))):
                tasks.create_task(work())
        return outcome

    async def _carry_out_one(self, job: Unstructured, action: Action, outcome: Outcome) -> None:
        match action:
            case CreatePod(name, encode):
                await self._create(job, _child(job, PODS, name), encode, outcome)
            case CreateService(name, encode):
                await self._create(job, _child(job, SERVICES, name), encode, outcome)
            case DeletePod(name, uid, force):
                await self._delete(job, _child(job, PODS, name), uid, outcome, grace=0 if force else None)
            case DeleteService():
                await self._delete_service(job, action, outcome)
            case Delete(resource, name, uid):
                await self._delete(job, _child(job, resource, name), uid, outcome)
            case Apply() | CreateOnce() | Patch() | CreateGroup() | UpdateGroup() | DeleteGroup():
                await self._write_companion(job, action, outcome)
            case Adopt():
                await self._adopt(job, action, outcome)
            case Release():
                await self._release(job, action, outcome)
            case DeleteJob():
                await self._delete_job(job, outcome)

    async def _write_companion(
        self, job: Unstructured, action: CompanionAction | GroupAction, outcome: Outcome
    ) -> None:
        if isinstance(action, CompanionAction):
            outcome.add_companion(action, await self._companions.write(job, action))
        else:
            await self._groups.carry_out(job, action, outcome)

    # Children: create and delete --------------------------------------------------------------------------------------

    async def _create(self, job: Unstructured, child: _Child, encode: Callable[[], bytes], outcome: Outcome) -> None:
        uid, key = job.metadata.uid, child.key
        self._expectations.expect_create(uid, child.resource, key)
        created_uid = None
        try:
            async with self._bodies.reserve(encode) as body:
                own = child.resource == SERVICES  # misspelt fields of a pod's template cause warnings
                answer = await self._client.create(
                    child.resource, body, namespace=key.namespace, metadata_only=True, own_fields=own
                )
            created_uid = str(answer["metadata"]["uid"])
            outcome.consecutive_refusals = 0
            self._count_created(child)
            log.debug("child created", resource=str(child.resource), child=key.name)
            self._report.child_event(job, self._kind.child_events.created, child.kind, key.name)
        except AlreadyExistsError as error:
            created_uid = await self._uid_if_ours(job, child, error, outcome)
        except _API_FAILURES as error:
            self._record_failure(job, child, error, outcome)
        finally:  # also on cancellation: the next pass finds a child that exists by its name
            if created_uid is None:
                self._expectations.create_failed(uid, child.resource, key)
            else:
                self._expectations.created(uid, child.resource, key, created_uid)

    def _count_created(self, child: _Child) -> None:
        metrics = self._report.metrics
        counter: Counter = metrics.pods_created if child.resource == PODS else metrics.services_created
        counter.inc()

    async def _uid_if_ours(
        self, job: Unstructured, child: _Child, error: AlreadyExistsError, outcome: Outcome
    ) -> str | None:
        """The UID of the existing object, if the job controls it and the caches can show it."""
        try:
            found = await self._client.get(child.resource, child.key.name, child.key.namespace)
            metadata = read_object(child.resource, found).metadata
        except NotFoundError:  # deleted in between
            outcome.wait(1.0)
            return None
        except _API_FAILURES as fault:
            outcome.errors.append(fault)
            return None
        owner = metadata.controller
        if owner and owner.uid == job.metadata.uid and not metadata.terminating:
            if self._kind.children.is_of(self._kind.controller, metadata):
                return metadata.uid
        elif metadata.terminating or _is_of_predecessor(self._kind, job, owner):
            outcome.wait(RETRY_WITHOUT_EVENT)  # its deletion triggers an earlier reconcile
            return None
        self._report_once(job, child, error)
        outcome.wait(RETRY_WITHOUT_EVENT)
        return None

    def _record_failure(self, job: Unstructured, child: _Child, error: Exception, outcome: Outcome) -> None:
        """Adds the consequence of a failed create to the outcome, and reports it."""
        failure = classify(error)
        if failure is CreateFailure.NAMESPACE_TERMINATING:
            outcome.wait(RETRY_WITHOUT_EVENT)
            return
        if child.resource == SERVICES:
            self._report.metrics.services_failed.inc()
        if failure is CreateFailure.REFUSED and (outcome.begun or child.resource == SERVICES):
            # A job can run without a service, whose name may be too long, and a begun job goes on with its other pods.
            outcome.refuse(RefusedChild(child.kind, child.key.name, str(error).replace(child.key.name, "*")))
            return
        self._report.event(job, self._failed_to_create(child, error))
        if failure in (CreateFailure.QUOTA, CreateFailure.NOT_PERMITTED):
            outcome.blocked = True
        elif failure is CreateFailure.REFUSED:
            outcome.refused = outcome.refused or str(error)
        else:
            outcome.errors.append(error)

    def _report_once(self, job: Unstructured, child: _Child, error: Exception) -> None:
        """One event per message, however often the create is retried."""
        identity = f"create {child.noun} {child.key.name}"
        self._report.notices(job, [Notice(identity, self._name_taken(job, child, error))])

    def _name_taken(self, job: Unstructured, child: _Child, error: Exception) -> Event:
        """In the words of the kind, if it has its own."""
        taken, about = self._kind.name_taken, {"kind": child.kind, "name": child.key.name, "job": job.metadata.name}
        if taken == NameTaken():
            return self._failed_to_create(child, error)
        return Event("Warning", taken.reason.format_map(about), taken.message.format_map(about))

    def _failed_to_create(self, child: _Child, error: Exception) -> Event:
        texts = self._kind.child_events
        return texts.event(texts.not_created, child.kind, child.key.name, error)

    async def _delete(
        self, job: Unstructured, child: _Child, uid: str, outcome: Outcome, grace: int | None = None
    ) -> None:
        owner, key = job.metadata.uid, child.key
        self._expectations.expect_delete(owner, child.resource, key, uid)
        sent = False
        try:
            how = None if child.resource in (PODS, SERVICES) else "Background"  # the default of batch Jobs is Orphan
            await self._client.delete(
                child.resource, key.name, key.namespace, uid=uid, grace_seconds=grace, propagation=how
            )
            sent = True
            log.debug("child deleted", resource=str(child.resource), child=key.name)
            if child.resource == PODS:
                self._report.metrics.pods_deleted.inc()
            self._report.child_event(job, self._kind.child_events.deleted, child.kind, key.name)
        except (NotFoundError, ConflictError):  # already deleted or replaced, as the caches will show
            sent = True
        except _API_FAILURES as error:
            texts = self._kind.child_events
            self._report.event(job, texts.event(texts.not_deleted, child.kind, key.name, error))
            outcome.errors.append(error)
        finally:
            if not sent:
                self._expectations.delete_failed(owner, child.resource, key, uid)

    async def _delete_service(self, job: Unstructured, action: DeleteService, outcome: Outcome) -> None:
        try:
            if action.unless_pod and await controls_live(self._client, PODS, action.name, job):
                outcome.wait(RETRY_WITHOUT_EVENT)  # the event of the pod usually triggers an earlier reconcile
                return
        except _API_FAILURES as error:
            outcome.errors.append(error)
            return
        await self._delete(job, _child(job, SERVICES, action.name), action.uid, outcome)

    # Children: adopt and release --------------------------------------------------------------------------------------

    async def _adopt(self, job: Unstructured, action: Adopt, outcome: Outcome) -> None:
        resource, metadata = self._kind.resource, job.metadata
        owner = owner_reference(resource.api_version, resource.kind, metadata.name, metadata.uid)
        body = {"metadata": {"ownerReferences": [owner], "uid": action.uid}}
        try:
            await self._patch_child(job, action, body)
        except (NotFoundError, ConflictError):  # the observed object was replaced
            return
        except _API_FAILURES as error:
            outcome.errors.append(error)

    async def _release(self, job: Unstructured, action: Release, outcome: Outcome) -> None:
        owner = {"$patch": "delete", "uid": job.metadata.uid}
        body = {"metadata": {"ownerReferences": [owner], "uid": action.uid}}
        try:
            await self._patch_child(job, action, body)
        except (NotFoundError, ConflictError, InvalidError):  # deleted, replaced, or already without owners
            return
        except _API_FAILURES as error:
            outcome.errors.append(error)

    async def _patch_child(self, job: Unstructured, action: Adopt | Release, body: Json) -> None:
        namespace = job.metadata.namespace
        await self._client.patch(_RESOURCES[action.kind], action.name, namespace, body, kind=PatchKind.STRATEGIC)

    # The job itself ---------------------------------------------------------------------------------------------------

    async def _delete_job(self, job: Unstructured, outcome: Outcome) -> None:
        key, kind = job.metadata.key, self._kind
        try:
            await self._client.delete(kind.source, key.name, key.namespace, uid=job.metadata.uid)
        except (NotFoundError, ConflictError):
            return
        except _API_FAILURES as error:
            reason = f"FailedDelete{kind.deleted_as}"
            self._report.event(job, Event("Warning", reason, f"Error deleting: {error}"))
            outcome.errors.append(error)
            return
        self._report.event(job, Event("Normal", f"SuccessfulDelete{kind.deleted_as}", f"Deleted job: {key.name}"))
        self._report.count(job, Count("deleted"))
