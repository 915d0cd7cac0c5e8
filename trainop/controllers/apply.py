"""Carries out the actions of a plan: idempotently, by identity, ever more at once while all goes well."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import structlog
from prometheus_client import Counter

from trainop.controllers.api_errors import CreateFailure, classify
from trainop.controllers.body_budget import BodyBudget
from trainop.controllers.companions import CompanionWriter
from trainop.controllers.outcome import Outcome
from trainop.controllers.refused_children import RefusedChild
from trainop.controllers.report import Reporter
from trainop.engine.actions import (
    Action,
    Adopt,
    Apply,
    Count,
    CreatePod,
    CreateService,
    Delete,
    DeleteJob,
    DeletePod,
    DeleteService,
    Event,
    Notice,
    Release,
)
from trainop.engine.framework import OPERATOR_NAME
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
    ReconcileError,
)
from trainop.runtime.objects.metadata import Json, Key, OwnerReference, Unstructured, owner_reference
from trainop.runtime.objects.resource import PODS, SERVICES, Resource

MOST_PER_PASS = 500
"""Writes of one pass; the rest is left to the next, so that a big job does not keep a worker from the others."""

MOST_AT_ONCE = 4
"""Requests in flight for the pods of one job, and for its services: these eight keep an API server of two processors
busy. With twice as many a big job is no sooner complete, and a small one beside it waits twice as long for its pods;
with half as many the big one takes a third longer (docs/performance.md)."""

LOOK_AGAIN_AFTER = 30.0
"""Seconds until the next try where a name is taken or a service refused: nothing tells when that ends."""

_FAULTS = (ApiError, ConnectionError, TimeoutError)

_RESOURCES = {"Pod": PODS, "Service": SERVICES}

log = structlog.get_logger(__name__)


class AdoptionError(ReconcileError):
    """An orphan could not be adopted."""


_Create = CreatePod | CreateService


def _is_predecessors(kind: Kind, job: Unstructured, owner: OwnerReference | None) -> bool:
    """Its owner was an earlier job of the same kind and name, so that the garbage collector will delete it."""
    return owner is not None and (owner.kind, owner.name) == (kind.resource.kind, job.metadata.name)


def _kind_of_group(action: Action) -> object:
    return _Create if isinstance(action, _Create) else type(action)


class _Child(NamedTuple):
    """One child of the job, and the names under which what becomes of it is told."""

    resource: Resource
    key: Key
    word: str
    """`pod` or `service`, as in messages; `Pod` or `Service` ends reasons."""

    @property
    def kind(self) -> str:
        return self.resource.kind


def _child(job: Unstructured, resource: Resource, name: str) -> _Child:
    return _Child(resource, Key(job.metadata.namespace, name), resource.kind.lower())


class Applier:
    """Of one kind. No more than `most` writes in one go."""

    def __init__(
        self,
        kind: Kind,
        client: Client,
        expectations: Expectations,
        report: Reporter,
        *,
        bodies: BodyBudget | None = None,
        most: int = MOST_PER_PASS,
    ) -> None:
        self._kind = kind
        self._client = client
        self._expectations = expectations
        self._report = report
        self._companions = CompanionWriter(kind, client, expectations, report)
        self._bodies = bodies or BodyBudget()
        self._most = most

    async def carry_out(self, job: Unstructured, actions: Sequence[Action], *, begun: bool = False) -> Outcome:
        """Neighbours of one class are carried out together, the groups one after another as the plan has them, but for
        pods and services, which are made side by side. What fails keeps no other group from being carried out, but for
        a refused template, which ends it all unless the job has `begun`."""
        outcome = Outcome(begun=begun, unfinished=len(actions) >= self._most)
        for kind, neighbours in itertools.groupby(actions[: self._most], _kind_of_group):
            group = list(neighbours)
            if kind is Adopt and (reason := await self._why_not_adopt(job)):
                outcome.errors += [_why_not(job, orphan, reason) for orphan in group if isinstance(orphan, Adopt)]
                continue
            if kind is _Create:
                outcome.merge(await self._create_all(job, group, begun))
            else:
                outcome.merge(await self._carry_out_together(job, group, MOST_AT_ONCE, begun))
            if outcome.refused is not None:
                break
        return outcome

    async def _create_all(self, job: Unstructured, actions: Sequence[Action], begun: bool) -> Outcome:
        """Neither waits for the other: what a pod needs of its service, it needs once it runs."""
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
        """At first `width` at once, and one more after each success: what fails for one mostly fails for all, and is
        then tried once. After a failure no more are begun, or after some refusals in a row."""
        outcome = Outcome(begun=begun)
        todo = iter(actions)

        async def work() -> None:
            nonlocal width
            for action in todo:
                if outcome.should_stop:
                    return
                await self._carry_out_one(job, action, outcome)
                if width < MOST_AT_ONCE and not outcome.should_stop:
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
            case DeleteService(name, uid):
                await self._delete(job, _child(job, SERVICES, name), uid, outcome)
            case Apply():
                outcome.add_companion(action, await self._companions.apply(job, action))
            case Delete(resource, name, uid):
                await self._delete(job, _child(job, resource, name), uid, outcome)
            case Adopt():
                await self._adopt(job, action, outcome)
            case Release():
                await self._release(job, action, outcome)
            case DeleteJob():
                await self._delete_job(job, outcome)

    # Children: create and delete --------------------------------------------------------------------------------------

    async def _create(self, job: Unstructured, child: _Child, encode: Callable[[], bytes], outcome: Outcome) -> None:
        uid, key = job.metadata.uid, child.key
        self._expectations.expect_create(uid, child.resource, key)
        created_uid = None
        try:
            async with self._bodies.reserve(encode) as body:
                answer = await self._client.create(child.resource, body, namespace=key.namespace, metadata_only=True)
            created_uid = str(answer["metadata"]["uid"])
            outcome.consecutive_refusals = 0
            self._count_created(child)
            log.debug("child created", resource=str(child.resource), child=key.name)
            self._report.child_event(job, f"SuccessfulCreate{child.kind}", f"Created {child.word}: {key.name}")
        except AlreadyExistsError as error:
            created_uid = await self._uid_if_ours(job, child, error, outcome)
        except _FAULTS as error:
            self._judge(job, child, error, outcome)
        finally:  # also when cancelled: by its name the next pass finds what was created nevertheless
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
        """The UID of the object that has the name already, if it is the job's and the caches can show it."""
        try:
            found = await self._client.get(child.resource, child.key.name, child.key.namespace)
            metadata = read_object(child.resource, found).metadata
        except NotFoundError:  # it went away in between
            outcome.wait(1.0)
            return None
        except _FAULTS as fault:
            outcome.errors.append(fault)
            return None
        owner = metadata.controller
        if owner and owner.uid == job.metadata.uid and not metadata.terminating:
            if metadata.labels.get(OPERATOR_NAME) == self._kind.controller:
                return metadata.uid
        elif metadata.terminating or _is_predecessors(self._kind, job, owner):
            outcome.wait(LOOK_AGAIN_AFTER)  # the end of a predecessor's child wakes the job before that
            return None
        self._notice_failure(job, child, error)
        outcome.wait(LOOK_AGAIN_AFTER)
        return None

    def _judge(self, job: Unstructured, child: _Child, error: Exception, outcome: Outcome) -> None:
        """What an error of a POST means for the job."""
        failure = classify(error)
        if failure is CreateFailure.NAMESPACE_TERMINATING:
            outcome.wait(LOOK_AGAIN_AFTER)
            return
        if child.resource == SERVICES:
            self._report.metrics.services_failed.inc()
        if failure is CreateFailure.REFUSED and (outcome.begun or child.resource == SERVICES):
            # A job can do without a service, whose name may be too long; and one that has begun goes on with its pods.
            outcome.refuse(RefusedChild(child.kind, child.key.name, str(error).replace(child.key.name, "*")))
            return
        self._report.event(job, _failed_to_create(child, error))
        if failure is CreateFailure.QUOTA:
            outcome.over_quota = True
        elif failure is CreateFailure.REFUSED:
            outcome.refused = outcome.refused or str(error)
        else:
            outcome.errors.append(error)

    def _notice_failure(self, job: Unstructured, child: _Child, error: Exception) -> None:
        """Once, however often it is tried."""
        identity = f"create {child.word} {child.key.name}"
        self._report.notices(job, [Notice(identity, _failed_to_create(child, error))])

    async def _delete(
        self, job: Unstructured, child: _Child, uid: str, outcome: Outcome, grace: int | None = None
    ) -> None:
        owner, key = job.metadata.uid, child.key
        self._expectations.expect_delete(owner, child.resource, key, uid)
        sent = False
        try:
            await self._client.delete(child.resource, key.name, key.namespace, uid=uid, grace_seconds=grace)
            sent = True
            log.debug("child deleted", resource=str(child.resource), child=key.name)
            if child.resource == PODS:
                self._report.metrics.pods_deleted.inc()
            self._report.child_event(job, f"SuccessfulDelete{child.kind}", f"Deleted {child.word}: {key.name}")
        except (NotFoundError, ConflictError):  # gone, or its name belongs to a successor: the caches will show it
            sent = True
        except _FAULTS as error:
            self._report.event(job, Event("Warning", f"FailedDelete{child.kind}", f"Error deleting: {error}"))
            outcome.errors.append(error)
        finally:
            if not sent:
                self._expectations.delete_failed(owner, child.resource, key, uid)

    # Children: adopt and release --------------------------------------------------------------------------------------

    async def _why_not_adopt(self, job: Unstructured) -> str | None:
        """One live look at the job: a job that is gone or going must not get new children."""
        key = job.metadata.key
        try:
            found = await self._client.get(self._kind.resource, key.name, key.namespace)
        except _FAULTS as error:
            return f"can't recheck DeletionTimestamp: {error}"
        live = read_object(self._kind.resource, found).metadata
        if live.uid != job.metadata.uid:
            return f"original Job {key} is gone: got uid {live.uid}, wanted {job.metadata.uid}"
        if live.terminating:
            return f"{key} has just been deleted at {live.deletion_timestamp}"
        return None

    async def _adopt(self, job: Unstructured, action: Adopt, outcome: Outcome) -> None:
        resource, metadata = self._kind.resource, job.metadata
        owner = owner_reference(resource.api_version, resource.kind, metadata.name, metadata.uid)
        body = {"metadata": {"ownerReferences": [owner], "uid": action.uid}}
        try:
            await self._patch_child(job, action, body)
        except (NotFoundError, ConflictError):  # it is not the object that was seen any more
            return
        except _FAULTS as error:
            outcome.errors.append(error)

    async def _release(self, job: Unstructured, action: Release, outcome: Outcome) -> None:
        owner = {"$patch": "delete", "uid": job.metadata.uid}
        body = {"metadata": {"ownerReferences": [owner], "uid": action.uid}}
        try:
            await self._patch_child(job, action, body)
        except (NotFoundError, ConflictError, InvalidError):  # gone, replaced, or without owners already
            return
        except _FAULTS as error:
            outcome.errors.append(error)

    async def _patch_child(self, job: Unstructured, action: Adopt | Release, body: Json) -> None:
        namespace = job.metadata.namespace
        await self._client.patch(_RESOURCES[action.kind], action.name, namespace, body, kind=PatchKind.STRATEGIC)

    # The job itself ---------------------------------------------------------------------------------------------------

    async def _delete_job(self, job: Unstructured, outcome: Outcome) -> None:
        key, kind = job.metadata.key, self._kind
        try:
            await self._client.delete(kind.resource, key.name, key.namespace, uid=job.metadata.uid)
        except (NotFoundError, ConflictError):
            return
        except _FAULTS as error:
            reason = f"FailedDelete{kind.deleted_as}"
            self._report.event(job, Event("Warning", reason, f"Error deleting: {error}"))
            outcome.errors.append(error)
            return
        self._report.event(job, Event("Normal", f"SuccessfulDelete{kind.deleted_as}", f"Deleted job: {key.name}"))
        self._report.count(job, Count("deleted"))


def _failed_to_create(child: _Child, error: Exception) -> Event:
    return Event("Warning", f"FailedCreate{child.kind}", f"Error creating: {error}")


def _why_not(job: Unstructured, orphan: Adopt, reason: str) -> AdoptionError:
    """In upstream's words."""
    return AdoptionError(f"can't adopt {orphan.kind} {job.metadata.namespace}/{orphan.name} ({orphan.uid}): {reason}")
