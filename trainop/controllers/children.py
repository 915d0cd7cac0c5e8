"""Writes the objects that a job owns: pods, services, PodGroups and companions.

Every write is idempotent: a create tolerates an existing object only if the job controls it, everything else carries a
precondition. Objects that the caches will show are registered as expectations. An object of the same name that the job
does not control is never changed. API and connection errors become part of the `Outcome` and are not raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec
import structlog

from trainop.controllers.consequences import Consequences
from trainop.controllers.evictions import answer_eviction
from trainop.controllers.live_job import controls_live
from trainop.controllers.outcome import Outcome
from trainop.controllers.report import Reporter
from trainop.engine.actions import (
    LOOK_AGAIN,
    Action,
    Adopt,
    Answer,
    Count,
    DeleteJob,
    Ensure,
    Event,
    How,
    Need,
    Notice,
    Patch,
    Release,
    Remove,
)
from trainop.engine.gang_scheduler import KUBE_WORKLOADS
from trainop.engine.in_place import without_rules
from trainop.engine.kind import Kind
from trainop.engine.kueue import WORKLOADS
from trainop.runtime import (
    PODS,
    SERVICES,
    AlreadyExistsError,
    ApiError,
    Client,
    ConflictError,
    Expectations,
    InvalidError,
    Json,
    Key,
    NotFoundError,
    PatchKind,
    ReconcileError,
    Resource,
    Unstructured,
    owner_reference,
)
from trainop.runtime.lowlevel import BodyBudget, read_object

LOOK_SOON = 1.0
"""Seconds until the next pass if an object has changed since the snapshot. Usually its event comes first."""

_API_FAILURES = (ApiError, ConnectionError, TimeoutError)

NOTHING = Unstructured({})
"""Has the UID "", with which an apply creates the object."""

log = structlog.get_logger(__name__)


class NameTakenError(ReconcileError):
    """The name is taken by an object that the job does not control."""


class UnusableError(ReconcileError):
    """An object of the job must get other content, and the API server refuses that."""


class ChildWriter:
    """One per kind."""

    def __init__(
        self,
        kind: Kind,
        client: Client,
        expectations: Expectations,
        report: Reporter,
        after: Consequences,
        *,
        bodies: BodyBudget | None = None,
    ) -> None:
        self._kind = kind
        self._client = client
        self._expectations = expectations
        self._report = report
        self._after = after
        self._bodies = bodies or BodyBudget()
        self._watched = {each.resource for each in kind.companion_kinds} | {PODS, SERVICES, KUBE_WORKLOADS, WORKLOADS}

    async def carry_out(self, job: Unstructured, action: Action, outcome: Outcome) -> None:
        match action:
            case Ensure():
                await self._ensure(job, action, outcome)
            case Patch():
                await self._patch(job, action, outcome)
            case Remove():
                await self._remove(job, action, outcome)
            case Adopt():
                resource = self._kind.resource
                owner = owner_reference(resource.api_version, resource.kind, job.metadata.name, job.metadata.uid)
                await self._set_owner(job, action, owner, outcome)
            case Release():
                await self._set_owner(job, action, {"$patch": "delete", "uid": job.metadata.uid}, outcome)
            case Answer():
                await answer_eviction(self._client, job, action, outcome)
            case DeleteJob():
                await self._delete_job(job, outcome)

    # Ensure -----------------------------------------------------------------------------------------------------------

    async def _ensure(self, job: Unstructured, action: Ensure, outcome: Outcome) -> None:
        key, gates = Key(job.metadata.namespace, action.name), action.need is Need.PODS
        done = False
        try:
            if not (gates and self._after.is_disputed(job, outcome)):
                done = await self._write(job, action, key, outcome)
        except NameTakenError as error:
            self._after.name_taken(job, action, error, outcome)
        except UnusableError as error:
            event = Event("Warning", f"{action.resource.kind}Unusable", str(error))
            self._report.notices(job, [Notice(f"unusable/{action.name}", event)])
            outcome.halt(action.need)
            outcome.wait(LOOK_AGAIN)
        except ConflictError:  # the observed object was replaced
            outcome.wait(LOOK_SOON)
        except _API_FAILURES as error:
            self._after.failed(job, action, error, outcome)
        outcome.pods_wait |= gates and not done

    async def _write(self, job: Unstructured, action: Ensure, key: Key, outcome: Outcome) -> bool:
        """Returns whether the object exists now."""
        if action.how is How.APPLY:
            await self._apply(job, action, key)
        elif action.how is How.FILL:
            await self._fill(job, action, key)
        else:
            try:
                await self._post(job, action, key)
            except AlreadyExistsError as error:
                return await self._is_ours(job, action, key, error, outcome)
            outcome.consecutive_refusals = 0
        return True

    async def _post(self, job: Unstructured, action: Ensure, key: Key) -> None:
        owner, resource, watched = job.metadata.uid, action.resource, self._shows(action)
        if watched:
            self._expectations.expect_create(owner, resource, key)
        uid, warnings = None, list[str]()
        try:
            async with self._body(action) as body:
                answer = await self._client.create(
                    resource,
                    body,
                    namespace=key.namespace,
                    metadata_only=not action.has_rules,
                    own_fields=resource != PODS and not action.template,
                    warned=warnings.append,
                )
            uid = str(answer["metadata"]["uid"])
            self._after.created(job, action, answer)
            if action.content is not None:
                self._after.filled(job, uid)
        finally:  # also on cancellation: the next pass finds an object that exists by its name
            if action.template and (warnings or uid is not None):  # a dropped field may be why a pod is refused
                told = without_rules(warnings) if action.has_rules else warnings
                self._report.dropped_fields(job, action.template, told)
            if watched and uid is None:
                self._expectations.create_failed(owner, resource, key)
            elif watched and uid is not None:
                self._expectations.created(owner, resource, key, uid)

    @asynccontextmanager
    async def _body(self, action: Ensure) -> AsyncIterator[Json | msgspec.Raw]:
        if action.encode is None:
            yield action.manifest | await _content(action)
        else:
            async with self._bodies.reserve(action.encode) as body:
                yield body

    def _shows(self, action: Ensure | Patch) -> bool:
        """Whether the caches will show the object."""
        return action.resource in self._watched or action.need is Need.PODS

    def _expect(self, job: Unstructured, action: Ensure | Patch, uid: str) -> None:
        """Registers an object that the caches do not hold yet."""
        if self._shows(action):
            owner, key = job.metadata.uid, Key(job.metadata.namespace, action.name)
            self._expectations.expect_create(owner, action.resource, key)
            self._expectations.created(owner, action.resource, key, uid)

    async def _is_ours(
        self, job: Unstructured, action: Ensure, key: Key, error: AlreadyExistsError, outcome: Outcome
    ) -> bool:
        """Whether the job controls the existing object, and the caches can show it. Raises `NameTakenError` if somebody
        else has it; of a PodGroup, the next plan says that."""
        kind, gates = action.resource.kind, action.need is Need.PODS
        try:
            metadata = (await self._read(action.resource, key)).metadata
        except NotFoundError:  # deleted in between
            outcome.wait(LOOK_SOON)
            return False
        except _API_FAILURES as fault:
            outcome.errors.append(fault)
            return False
        if metadata.controlled_by(job.metadata.uid) and not metadata.terminating:
            if gates or self._kind.children.is_of(self._kind.controller, metadata):
                self._expect(job, action, metadata.uid)
                return True
        elif gates or metadata.terminating or self._kind.owned_by_namesake(metadata, job.metadata.name):
            if not gates:
                outcome.hinder(kind, key.name, error)
            outcome.wait(LOOK_AGAIN)  # its deletion triggers an earlier reconcile
            return False
        raise NameTakenError(str(error))

    async def _find(self, job: Unstructured, action: Ensure, key: Key) -> Unstructured | None:
        """Returns the object of that name, or None if there is none. Asks the API server, because the cache holds only
        objects with the labels of a job. Raises `NameTakenError` if the job does not control it."""
        try:
            found = await self._read(action.resource, key)
        except NotFoundError:
            return None
        if not found.metadata.controlled_by(job.metadata.uid):
            raise NameTakenError(f"{action.resource.kind} {key.name} is not controlled by the job")
        return found

    async def _read(self, resource: Resource, key: Key) -> Unstructured:
        return read_object(resource, await self._client.get(resource, key.name, key.namespace))

    async def _apply(self, job: Unstructured, action: Ensure, key: Key) -> None:
        """With a UID only that object is written. Without one the apply is not forced: a field that another manager
        owns is a conflict."""
        if not action.uid and action.posted:
            with suppress(AlreadyExistsError):
                await self._post(job, action, key)
                return
        uid = action.uid or (await self._find(job, action, key) or NOTHING).metadata.uid
        manifest = action.manifest
        if uid:
            manifest = manifest | {"metadata": manifest["metadata"] | {"uid": uid}}
        answer = await self._client.patch(
            action.resource, key.name, key.namespace, manifest, kind=PatchKind.APPLY, force=bool(uid)
        )
        if not action.uid:
            self._expect(job, action, read_object(action.resource, answer).metadata.uid)

    async def _fill(self, job: Unstructured, action: Ensure, key: Key) -> None:
        """Creates the object, or completes the one of a former operator or an interrupted pass."""
        if action.posted:
            with suppress(AlreadyExistsError):
                await self._post(job, action, key)
                return
        found = await self._find(job, action, key)
        if found is None:
            await self._post(job, action, key)
            return
        labels = action.manifest["metadata"]["labels"]
        trusted = self._after.has_filled(job, found.metadata.uid)
        filled = {} if await _is_usable(action, found, trusted=trusted) else await _content(action)
        if filled or not labels.items() <= found.metadata.labels.items():
            body = {**filled, "metadata": {"labels": labels, "uid": found.metadata.uid}}
            try:
                await self._client.patch(action.resource, key.name, key.namespace, body, metadata_only=True)
            except NotFoundError:  # deleted since it was read
                await self._post(job, action, key)
                return
            except InvalidError as error:
                if not filled:
                    raise
                text = f"{action.resource.kind} {key.name} cannot get new content, so delete it: {error}"
                raise UnusableError(text) from error
            if filled:
                self._after.filled(job, found.metadata.uid)
            self._expect(job, action, found.metadata.uid)

    # Patch, remove, adopt ---------------------------------------------------------------------------------------------

    async def _patch(self, job: Unstructured, action: Patch, outcome: Outcome) -> None:
        if action.need is Need.PODS and self._after.is_disputed(job, outcome):
            return
        given = action.body.get("metadata", {})
        conditions = {"uid": action.uid, "resourceVersion": action.version}
        body = {**action.body, "metadata": given | {name: value for name, value in conditions.items() if value}}
        try:
            await self._client.patch(
                action.resource,
                action.name,
                job.metadata.namespace,
                body,
                subresource=action.subresource,
                metadata_only=True,
            )
        except (NotFoundError, ConflictError):  # deleted or changed, as the caches will show
            outcome.halt(action.need)
            outcome.wait(LOOK_SOON)
        except _API_FAILURES as error:
            self._after.failed(job, action, error, outcome)
        else:
            if action.need is Need.PODS:
                self._after.written_gate(job, action)
            if "labels" in given:  # by which the caches will hold an object of a former operator
                self._expect(job, action, action.uid)

    async def _remove(self, job: Unstructured, action: Remove, outcome: Outcome) -> None:
        owner, resource, key = job.metadata.uid, action.resource, Key(job.metadata.namespace, action.name)
        try:
            if action.unless_pod and await controls_live(self._client, PODS, action.name, job):
                outcome.wait(LOOK_AGAIN)  # the event of the pod usually triggers an earlier reconcile
                return
        except _API_FAILURES as error:
            outcome.errors.append(error)
            return
        self._expectations.expect_delete(owner, resource, key, action.uid)
        sent = False
        try:
            how = None if resource in (PODS, SERVICES) else "Background"  # the default of batch Jobs is Orphan
            grace = 0 if action.force else action.grace
            await self._client.delete(
                resource, key.name, key.namespace, uid=action.uid, grace_seconds=grace, propagation=how
            )
            sent = True
            self._after.removed(job, action)
        except (NotFoundError, ConflictError):  # already deleted or replaced, as the caches will show
            sent = True
        except _API_FAILURES as error:
            texts = self._kind.child_events
            event = texts.event(texts.not_deleted, resource.kind, key.name, error)
            if action.then:
                self._report.notices(job, [Notice(f"delete {resource.kind}", event)])
            else:
                self._report.event(job, event)
            outcome.errors.append(error)
        finally:
            if not sent:
                self._expectations.delete_failed(owner, resource, key, action.uid)

    async def _set_owner(self, job: Unstructured, action: Adopt | Release, owner: Json, outcome: Outcome) -> None:
        body = {"metadata": {"ownerReferences": [owner], "uid": action.uid}}
        try:
            await self._client.patch(
                action.resource, action.name, job.metadata.namespace, body, kind=PatchKind.STRATEGIC
            )
        except (NotFoundError, ConflictError):  # deleted or replaced
            return
        except _API_FAILURES as error:
            if not (isinstance(action, Release) and isinstance(error, InvalidError)):  # already without owners
                outcome.errors.append(error)

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


async def _is_usable(action: Ensure, found: Unstructured, *, trusted: bool) -> bool:
    """Whether the content of an existing object may stay; `trusted`: this process has made it."""
    content = action.content
    if content is None:
        return True
    if not (trusted or content.is_trusted):
        return False
    return content.is_valid is None or await asyncio.to_thread(content.is_valid, found.raw)


async def _content(action: Ensure) -> Json:
    """The part of the manifest that is made right before it is written."""
    return {} if action.content is None else await asyncio.to_thread(action.content.fill)
