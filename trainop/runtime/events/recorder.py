"""Writes core/v1 Events asynchronously, so that controllers never wait for them.

`Recorder.event` correlates and queues an event; workers write the queue of each object in order and retry failures.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from trainop.runtime.client.client import PatchKind
from trainop.runtime.clock import Clock, SystemClock
from trainop.runtime.controller.workqueue import WorkQueue
from trainop.runtime.errors import ApiError, NotFoundError, NotLeaderError
from trainop.runtime.events.correlator import Correlator, EventLimits, EventRecord
from trainop.runtime.metrics.metrics import Metrics
from trainop.runtime.objects.metadata import EVENTS, Json, ObjectReference, Resource

__all__ = ["EventLimits", "Recorder"]

TYPES = frozenset({"Normal", "Warning"})
WORKERS = 4
MAX_PENDING = 1000
"""Limit of events that are queued."""

EXPIRY = 120.0
"""Seconds after which an event that could not be written is dropped."""

RETRY_DELAY = 10.0
"""Seconds between attempts; the first retry is jittered between 0 and this."""

log = structlog.get_logger(__name__)


class EventClient(Protocol):
    """The part of `Client` that a recorder uses."""

    async def create(self, resource: Resource, body: Json, *, namespace: str | None = None) -> Json: ...

    async def patch(
        self, resource: Resource, name: str, namespace: str | None, patch: Json, *, kind: PatchKind = PatchKind.MERGE
    ) -> Any: ...


@dataclass(slots=True)
class _Pending:
    record: EventRecord
    created_at: float
    exists: bool
    """The Event is expected to exist with a lower count, so that it is patched."""
    attempts: int = 0


class Recorder:
    """Records the events of one component, such as `pytorchjob-controller`. A runnable for `Manager.add_recorder`.

    Events about one object are written in order; a slow write delays no other objects. Repeats of an event that is
    still queued are merged into it. `client` should not be subject to the gate of leader election, so that the last
    events can be written after the leases are released.
    """

    def __init__(
        self,
        client: EventClient,
        component: str,
        clock: Clock | None = None,
        *,
        rng: random.Random | None = None,
        metrics: Metrics | None = None,
        limits: EventLimits | None = None,
    ) -> None:
        self._client = client
        self._component = component
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()  # noqa: S311  # names and jitter, no secrets
        self._metrics = metrics or Metrics()
        self._correlator = Correlator(self._clock, self._new_uuid, limits)
        self._pending: dict[tuple[str, ...], deque[_Pending]] = {}
        """By object; each queue in the order of writing."""
        self._count = 0
        self._objects: WorkQueue[tuple[str, ...]] = WorkQueue(f"events-{component}", self._clock)
        self._empty = asyncio.Event()
        self._empty.set()

    def event(self, about: ObjectReference, type_: str, reason: str, message: str) -> None:
        """Queues an event. Delivery is best effort: events are dropped if there are too many or writing fails.

        Raises `ValueError` unless `type_` is Normal or Warning.
        """
        if type_ not in TYPES:
            raise ValueError(f"event type {type_!r} is neither Normal nor Warning")
        record = self._correlator.correlate(about, type_, reason, message)
        if record is None:
            self._metrics.events_dropped.labels("spam").inc()
            return
        queue = self._pending.get(about.identity, ())
        queued = next((pending for pending in queue if pending.record.name == record.name), None)
        if queued is not None:
            queued.record = record
        else:
            self._append(record)

    async def run(self) -> None:
        """Writes events until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(WORKERS):
                tasks.create_task(self._work(), name=f"events-{self._component}-{number}")

    async def flush(self, within: float) -> None:
        """Returns when all queued events are written, or after `within` seconds."""
        try:
            async with asyncio.timeout(within):
                await self._empty.wait()
        except TimeoutError:
            log.warning("events not written in time", component=self._component, events=self._count)

    def _append(self, record: EventRecord) -> None:
        if self._count >= MAX_PENDING:
            self._drop(record, "overflow", "too many events are queued")
            return
        queue = self._pending.setdefault(record.about.identity, deque())
        queue.append(_Pending(record, self._clock.monotonic(), exists=record.count > 1))
        self._count += 1
        self._empty.clear()
        if len(queue) == 1:
            self._objects.add(record.about.identity)

    async def _work(self) -> None:
        while True:
            about = await self._objects.get()
            try:
                delay = await self._write_first(self._pending[about])
                if delay is not None:
                    self._objects.add_after(about, delay)
                elif not self._pending[about]:
                    del self._pending[about]
            finally:
                self._objects.done(about)

    async def _write_first(self, queue: deque[_Pending]) -> float | None:
        """Writes the first event of an object's queue. Returns seconds until the next write, None if it is empty."""
        pending = queue[0]
        record = pending.record
        delay = await self._write(pending, record)
        if delay is not None:
            return delay
        if pending.exists and pending.record is not record:
            pending.attempts, pending.created_at = 0, self._clock.monotonic()
            return 0.0  # the event was repeated during the write
        queue.popleft()
        self._count -= 1
        if not self._count:
            self._empty.set()
        return 0.0 if queue else None

    async def _write(self, pending: _Pending, record: EventRecord) -> float | None:
        """Seconds until the next attempt; None if the event was written or dropped."""
        pending.attempts += 1
        try:
            async with asyncio.timeout(pending.created_at + EXPIRY - self._clock.monotonic()):
                await self._send(pending, record)
        except (ConnectionError, TimeoutError) as error:
            return self._retry_in(pending, None, error)
        except NotLeaderError as error:
            self._drop_failed(pending, "refused", error)
            return None
        except ApiError as error:
            if error.code == 429 or error.code >= 500:
                return self._retry_in(pending, error.retry_after, error)
            self._drop_failed(pending, "refused", error)
            return None
        pending.exists = True
        self._metrics.events_written.inc()
        return None

    async def _send(self, pending: _Pending, record: EventRecord) -> None:
        if pending.exists:
            try:
                await self._client.patch(
                    EVENTS, record.name, record.namespace, record.patch(), kind=PatchKind.STRATEGIC
                )
            except NotFoundError:
                pending.exists = False  # deleted, as the TTL of events has expired
            else:
                return
        await self._client.create(EVENTS, record.body(self._component), namespace=record.namespace)

    def _retry_in(self, pending: _Pending, retry_after: float | None, error: Exception) -> float | None:
        delay = self._rng.uniform(0, RETRY_DELAY) if pending.attempts == 1 else RETRY_DELAY
        delay = max(delay, retry_after or 0.0)
        if self._clock.monotonic() + delay - pending.created_at > EXPIRY:
            self._drop_failed(pending, "expired", error)
            return None
        return delay

    def _drop_failed(self, pending: _Pending, why: str, error: Exception) -> None:
        pending.exists = False
        self._drop(pending.record, why, str(error))

    def _drop(self, record: EventRecord, why: str, error: str) -> None:
        self._metrics.events_dropped.labels(why).inc()
        log.warning("event dropped", about=record.about.name, reason=record.reason, why=why, error=error)

    def _new_uuid(self) -> str:
        return str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
