"""The job as the API server has it: the operator's own writes of it, and reads where the caches may be outdated.

A reconcile that starts from a job older than the last write would repeat decisions and run into a conflict, so it waits
for the cache. The watch event that only returns the operator's own status triggers no reconcile (`OwnWrites`).

When children disappear that the operator did not delete, the garbage collector may have deleted them together with
their job, and the watch of jobs may lag behind that of pods. Recreated children would be collected again, in a hot
loop. So the job is read from the API server first (`OwnerCheck`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from typing import Any

import msgspec
import structlog

from trainop.controllers.job_state import JobStates, LastWrite
from trainop.engine.actions import Adopt
from trainop.engine.progress import TRAINER_STATUS
from trainop.engine.stalls import awaits_report
from trainop.engine.steps.checkpoints import AWAITED
from trainop.runtime import (
    ApiError,
    Client,
    Clock,
    ConflictError,
    HasMetadata,
    Json,
    Key,
    Metadata,
    NotFoundError,
    Predicate,
    ReconcileError,
    Resource,
    Unstructured,
)
from trainop.runtime.lowlevel import is_older, merge_patch_between, read_object

READ_LIVE_AFTER = 5.0
"""Seconds to wait for the cache to show a write before the job is read from the API server."""

PROGRESS_INTERVAL = 0.2
"""Minimum seconds between a write to the job and a progress-only status update."""

UNSETTLED_INTERVAL = 2.0
"""Seconds by which a progress-only status update is delayed while pods are still starting, or some have ended and
others have not. The others usually follow soon, and one update covers all (kubernetes' job controller waits 1 s,
`syncJobBatchPeriod`)."""

_SENT_METADATA = ("name", "namespace", "uid", "labels", "annotations", "finalizers", "ownerReferences")
"""The metadata that a new status is sent with."""


log = structlog.get_logger(__name__)


class OwnWrites:
    """One per controller. Remembers the last write of each job in `JobState.last_write`."""

    def __init__(self, client: Client, resource: Resource, states: JobStates, clock: Clock) -> None:
        self._client = client
        self._resource = resource
        self._states = states
        self._clock = clock

    def seconds_until_live(self, job: Unstructured) -> float | None:
        """None if the cached `job` includes the last write. Otherwise the seconds to wait for it; 0 if the wait is
        over: the caller then uses `read_live`."""
        written = self._last_write(job)
        if written is None:
            return None
        version = job.metadata.resource_version
        if not is_older(version, written.version) and version != written.stale:
            written.awaited = False
            return None
        written.awaited = True
        return max(0.0, written.at + READ_LIVE_AFTER - self._clock.monotonic())

    def progress_delay(self, job: Unstructured, *, unsettled: bool) -> float:
        """Seconds by which a progress-only status update should still be delayed, so that simultaneous changes share
        one update. `unsettled`: more changes are expected soon."""
        written = self._last_write(job)
        if written is None:
            return 0.0
        now = self._clock.monotonic()
        if written.pending_since is None:
            written.pending_since = now
        due = written.pending_since + UNSETTLED_INTERVAL if unsettled else written.at + PROGRESS_INTERVAL
        return max(0.0, due - now)

    async def read_live(self, cached: Unstructured) -> Unstructured | None:
        """Reads the job from the API server, after which older cached versions do not count any more; None if it was
        deleted. A new job of the same name counts as deleted until the cache shows it: otherwise the next pass, from
        the stale cache, would forget the state of the new job."""
        log.warning("cache is stale, reading job from API server")
        try:
            found = await self._client.get(self._resource, cached.metadata.name, cached.metadata.namespace)
            job = read_object(self._resource, found)
        except NotFoundError:
            return None
        if job.metadata.uid != cached.metadata.uid:
            return None
        written = self._ensure(job)
        written.version, written.stale = job.metadata.resource_version, ""
        return job

    def shows_only_own_status(self, old: Unstructured, new: Unstructured) -> bool:
        """Whether this cache update contains nothing but the status that the operator sent, for the first time. An
        update that does not change the status, or brings it back, is from another client."""
        written, status = self._last_write(new), new.raw.get("status")
        if written is None or written.status is None or status != written.status:
            return False
        written.status = None  # the cache has it now; a second copy would cost an idle job 2.5 KiB
        if written.awaited or old.raw.get("status") == status:
            return False
        return _without_status(old) == _without_status(new)

    async def annotate(self, job: Unstructured, changes: Mapping[str, str | None], version: str) -> str:
        """Merges `changes` into the annotations of the job; None deletes one. Returns the new resourceVersion. Raises
        `ConflictError` if the job is no longer at `version`."""
        key, body = job.metadata.key, {"metadata": {"annotations": dict(changes), "resourceVersion": version}}
        return await self._send(
            job, self._client.patch(self._resource, key.name, key.namespace, body, metadata_only=True)
        )

    async def suspend(self, job: Unstructured, version: str, value: bool) -> None:
        """Sets `spec.runPolicy.suspend`. `version` is the latest resourceVersion that this pass knows, unless it has
        written the status meanwhile. Raises `ConflictError` if the job is no longer at it."""
        written, key = self._ensure(job), job.metadata.key
        latest = written.version if written.version and is_older(version, written.version) else version
        body = {"metadata": {"resourceVersion": latest}, "spec": {"runPolicy": {"suspend": value}}}
        await self._send(job, self._client.patch(self._resource, key.name, key.namespace, body, metadata_only=True))

    async def write_status(self, job: Unstructured, status: Json, version: str) -> str:
        """Replaces the job's status; otherwise like `annotate`."""
        written = self._ensure(job)
        written.status = status
        try:
            if job.reduced or job.fault is not None:
                return await self._send(job, self._patch_status(job, status, version))
            return await self._send(job, self._replace_status(job, status, version))
        except BaseException:
            written.status = None
            raise

    def _replace_status(self, job: Unstructured, status: Json, version: str) -> Coroutine[None, None, Json]:
        """PUT costs the API server less than a patch. It ignores all but the status, so that the body has no spec; but
        a label, annotation, finalizer or owner that the body lacks would lose its managers in `managedFields`, and
        server-side apply would not remove it any more. All fields are the operator's own, so that it need not compare
        them with the schema."""
        resource, stored = self._resource, job.raw["metadata"]
        metadata = {name: stored[name] for name in _SENT_METADATA if name in stored} | {"resourceVersion": version}
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "status": status}
        return self._client.replace(resource, body, subresource="status", metadata_only=True, own_fields=True)

    def _patch_status(self, job: Unstructured, status: Json, version: str) -> Coroutine[None, None, Json]:
        """A patch needs nothing of the job that the cache does not hold, such as the annotation of `kubectl apply`."""
        key, changes = job.metadata.key, merge_patch_between(job.raw.get("status") or {}, status)
        body = {"metadata": {"resourceVersion": version}, "status": changes}
        return self._client.patch(
            self._resource, key.name, key.namespace, body, subresource="status", metadata_only=True
        )

    async def _send(self, job: Unstructured, write: Awaitable[Json]) -> str:
        """Awaits a write to the job; returns the new resourceVersion."""
        written = self._ensure(job)
        written.at, written.pending_since = self._clock.monotonic(), None
        try:
            answer = await write
        except ConflictError:
            written.stale = job.metadata.resource_version
            raise
        written.version = str(answer["metadata"]["resourceVersion"])
        return written.version

    def _ensure(self, job: Unstructured) -> LastWrite:
        state = self._states.ensure(job.metadata.uid)
        if state.last_write is None:
            state.last_write = LastWrite(0.0)
        return state.last_write

    def _last_write(self, job: Unstructured) -> LastWrite | None:
        state = self._states.find(job.metadata.uid)
        return state.last_write if state else None


def _without_status(job: Unstructured) -> Metadata:
    """Everything that a status write does not change; `generation` represents the spec."""
    return msgspec.structs.replace(job.metadata, resource_version="")


class NotOwnStatus(Predicate):
    """Drops updates that only return the operator's own status write."""

    def __init__(self, writes: OwnWrites) -> None:
        self._writes = writes

    def update(self, old: Any, new: Any, /) -> bool:
        return not self._writes.shows_only_own_status(old, new)


class NotProgress(Predicate):
    """Drops updates that change nothing but the progress that pods report. Only the plans of two jobs depend on it: of
    one that waits for its next checkpoint, and of one that is watched, if it has stalled or is yet to report."""

    def update(self, old: Any, new: Any, /) -> bool:
        if AWAITED in new.metadata.annotations:
            return True
        before, after = (job.raw.get("status") or {} for job in (old, new))
        if before.get(TRAINER_STATUS) == after.get(TRAINER_STATUS) or awaits_report(new):
            return True
        others = ({name: value for name, value in each.items() if name != TRAINER_STATUS} for each in (before, after))
        return next(others) != next(others) or _without_status(old) != _without_status(new)


class AdoptionError(ReconcileError):
    """An orphan could not be adopted."""

    def __init__(self, job: Unstructured, orphan: Adopt, reason: str) -> None:
        """With upstream's message."""
        name = f"{job.metadata.namespace}/{orphan.name}"
        super().__init__(f"can't adopt {orphan.resource.kind} {name} ({orphan.uid}): {reason}")


class OwnerCheck:
    """One per controller. Also tracks deletions while on standby, because the replica may become leader."""

    def __init__(self, client: Client, resource: Resource, states: JobStates) -> None:
        self._client = client
        self._resource = resource
        self._states = states

    def expect_deleted(self, job: Unstructured, children: Sequence[str]) -> None:
        """Registers children that the operator is about to delete: their deletion is no sign that the job is gone."""
        if children:
            state = self._states.ensure(job.metadata.uid)
            state.deleting = (state.deleting or set()).union(children)

    def observe_deleted(self, child: HasMetadata | None, _key: Key) -> None:
        """The delete handler of each kind of child, which informs the expectations, too."""
        if child is None or (owner := child.metadata.controller) is None:
            return
        self._states.expectations.observe_deleted(child.metadata)
        state = self._states.observe(owner.uid)
        if state.deleting and child.metadata.uid in state.deleting:
            state.deleting.discard(child.metadata.uid)
        else:
            state.owner_unconfirmed = True

    async def confirm(self, job: Unstructured) -> bool:
        """Whether children may be created: the job exists, and the cache holds its current version. Reads the job from
        the API server if a child has disappeared, and raises its errors."""
        metadata, state = job.metadata, self._states.find(job.metadata.uid)
        if state is None or not state.owner_unconfirmed:
            return True
        try:
            found = await self._client.get(self._resource, metadata.name, metadata.namespace)
        except NotFoundError:
            return False
        live = read_object(self._resource, found).metadata
        if (live.uid, live.resource_version) != (metadata.uid, metadata.resource_version):
            log.debug("job changed or deleted, cache is stale")
            return False
        state.owner_unconfirmed = False
        return True

    async def find_obstacle(self, job: Unstructured) -> str | None:
        """Why the job may not adopt children; None if it may. Reads the job from the API server, because a deleted or
        terminating job must not get new children (kubernetes `pkg/controller/controller_ref_manager.go`)."""
        key = job.metadata.key
        try:
            found = await self._client.get(self._resource, key.name, key.namespace)
        except (ApiError, ConnectionError, TimeoutError) as error:
            return f"can't recheck DeletionTimestamp: {error}"
        live = read_object(self._resource, found).metadata
        if live.uid != job.metadata.uid:
            return f"original Job {key} is gone: got uid {live.uid}, wanted {job.metadata.uid}"
        if live.terminating:
            return f"{key} has just been deleted at {live.deletion_timestamp}"
        return None


async def controls_live(client: Client, resource: Resource, name: str, job: Unstructured) -> bool:
    """Whether the API server has an object of this name that the job controls. Raises API errors."""
    try:
        found = await client.get(resource, name, job.metadata.namespace)
    except NotFoundError:
        return False
    return read_object(resource, found).metadata.controlled_by(job.metadata.uid)
