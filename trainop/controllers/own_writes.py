"""What the operator itself writes on a job: annotations and status, and whether the cache shows it yet.

A pass that starts from a job older than the last write would decide on what it has already changed, and write into a
conflict. And the event that shows nothing but our own write is no reason for another pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from trainop.controllers.job_state import JobStates, LastWrite
from trainop.runtime.cache.store import is_older
from trainop.runtime.client.client import Client
from trainop.runtime.clock import Clock
from trainop.runtime.controller.enqueue import Predicate
from trainop.runtime.errors import ConflictError
from trainop.runtime.objects.metadata import Json, Metadata, Unstructured
from trainop.runtime.objects.resource import Resource

READ_LIVE_AFTER = 5.0
"""Seconds to wait for the cache to show a write before the API server is asked."""

SPACING = 0.2
"""Seconds between two statuses of a job that tell no more than how far it is."""

GATHER = 2.0
"""Seconds from the first news until such a status is written while pods of the job are still to start, or some have
ended and others not: mostly these follow, and are told of together (kubernetes' job controller has 1 s,
`syncJobBatchPeriod`)."""


class OwnWrites:
    """Of one controller."""

    def __init__(self, client: Client, resource: Resource, states: JobStates, clock: Clock) -> None:
        self._client = client
        self._resource = resource
        self._states = states
        self._clock = clock

    def seconds_until_live(self, job: Unstructured) -> float | None:
        """None if the cached `job` shows our last write. Else how long to wait for it at most: 0 if that is over and
        the API server is to be asked, whose answer is told by `confirm`."""
        written = self._last_write(job)
        if written is None:
            return None
        version = job.metadata.resource_version
        if not is_older(version, written.version) and version != written.stale:
            written.awaited = False
            return None
        written.awaited = True
        return max(0.0, written.at + READ_LIVE_AFTER - self._clock.monotonic())

    def seconds_until_calm(self, job: Unstructured, *, unsettled: bool) -> float:
        """How long a status that can wait should wait, so that what comes at once is written at once."""
        written = self._last_write(job)
        if written is None:
            return 0.0
        now = self._clock.monotonic()
        if written.news is None:
            written.news = now
        due = written.news + GATHER if unsettled else written.at + SPACING
        return max(0.0, due - now)

    def confirm(self, job: Unstructured) -> None:
        """`job` was just read from the API server: whatever the cache shows has to be as new."""
        written = self._ensure(job)
        written.version, written.stale = job.metadata.resource_version, ""

    def shows_only_own_status(self, old: Unstructured, new: Unstructured) -> bool:
        """Whether this update of the cache is nothing but the status that we sent ourselves. An update that leaves the
        status as it was is somebody else's."""
        written = self._last_write(new)
        if written is None or written.awaited or written.status is None:
            return False
        if new.raw.get("status") != written.status or old.raw.get("status") == written.status:
            return False
        return _apart_from_status(old) == _apart_from_status(new)

    async def annotate(self, job: Unstructured, changes: Mapping[str, str | None], version: str) -> str:
        """Merges `changes` into the annotations of the job as it is at `version`; returns its new resourceVersion.
        Raises `ConflictError` if the job is at another version by now."""
        return await self._patch(job, {"metadata": {"annotations": dict(changes)}}, version)

    async def write_status(self, job: Unstructured, status: Json, version: str) -> str:
        """Makes `status` the job's status; otherwise as `annotate`."""
        changes = merge_patch_between(job.raw.get("status") or {}, status)
        written = self._remember(job)
        written.status = status
        try:
            return await self._patch(job, {"status": changes}, version, "status")
        except BaseException:
            written.status = None
            raise

    async def _patch(self, job: Unstructured, body: Json, version: str, subresource: str | None = None) -> str:
        key = job.metadata.key
        body = body | {"metadata": body.get("metadata", {}) | {"resourceVersion": version}}
        written = self._remember(job)
        try:
            answer = await self._client.patch(
                self._resource, key.name, key.namespace, body, subresource=subresource, metadata_only=True
            )
        except ConflictError:
            written.stale = job.metadata.resource_version
            raise
        written.version = str(answer["metadata"]["resourceVersion"])
        return written.version

    def _remember(self, job: Unstructured) -> LastWrite:
        written = self._ensure(job)
        written.at, written.news = self._clock.monotonic(), None
        return written

    def _ensure(self, job: Unstructured) -> LastWrite:
        state = self._states.ensure(job.metadata.uid)
        if state.last_write is None:
            state.last_write = LastWrite(0.0)
        return state.last_write

    def _last_write(self, job: Unstructured) -> LastWrite | None:
        state = self._states.find(job.metadata.uid)
        return state.last_write if state else None


def _apart_from_status(job: Unstructured) -> Metadata:
    """All that a write of the status leaves as it is; `generation` stands for the spec."""
    return msgspec.structs.replace(job.metadata, resource_version="")


def merge_patch_between(old: Json, new: Json) -> Json:
    """The JSON merge patch (RFC 7386) that turns `old` into `new`; lists are replaced as a whole."""
    patch: Json = {name: None for name in old if name not in new}
    for name, value in new.items():
        before = old.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            if inner := merge_patch_between(before, value):
                patch[name] = inner
        elif before != value or name not in old:
            patch[name] = value
    return patch


class NotOwnStatus(Predicate):
    """Lets pass what is more than the echo of our own status write."""

    def __init__(self, writes: OwnWrites) -> None:
        self._writes = writes

    def update(self, old: Any, new: Any, /) -> bool:
        return not self._writes.shows_only_own_status(old, new)
