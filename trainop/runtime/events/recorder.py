"""Writes core/v1 Events about what a controller did, without ever keeping the controller waiting."""

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
from trainop.runtime.events.correlator import Correlator, EventLimits, Occurrence
from trainop.runtime.metrics.metrics import Metrics
from trainop.runtime.objects.metadata import Json, ObjectReference
from trainop.runtime.objects.resource import EVENTS, Resource

__all__ = ["EventLimits", "Recorder"]

TYPES = frozenset({"Normal", "Warning"})
WORKERS = 4
CAPACITY = 1000
LIFETIME = 120.0
"""Seconds after which an event that could not be written is given up."""
RETRY_AFTER = 10.0

log = structlog.get_logger(__name__)


class EventClient(Protocol):
    """The part of `Client` that a recorder uses."""

    async def create(self, resource: Resource, body: Json, *, namespace: str | None = None) -> Json: ...

    async def patch(
        self, resource: Resource, name: str, namespace: str | None, patch: Json, *, kind: PatchKind = PatchKind.MERGE
    ) -> Any: ...


@dataclass(slots=True)
class _Pending:
    occurrence: Occurrence
    born: float
    stored: bool
    """The API server should have the Event already, with a lower count."""
    tries: int = 0


class Recorder:
    """`component` is the events' source, such as `pytorchjob-controller`. Events about one object are written in
    their order; a slow one keeps back no others. Repeats that are not yet written are written as one.

    Give it a client without the leader's gate, so that it can tell the last events when the lead is given back."""

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
        """By object, in the order of writing."""
        self._count = 0
        self._objects: WorkQueue[tuple[str, ...]] = WorkQueue(f"events-{component}", self._clock)
        self._empty = asyncio.Event()
        self._empty.set()

    def event(self, about: ObjectReference, type_: str, reason: str, message: str) -> None:
        """Writes it soon, or never: a lost event harms nobody. Raises `ValueError` unless `type_` is Normal or
        Warning."""
        if type_ not in TYPES:
            raise ValueError(f"event type {type_!r} is neither Normal nor Warning")
        occurrence = self._correlator.correlate(about, type_, reason, message)
        if occurrence is None:
            self._metrics.events_dropped.labels("spam").inc()
            return
        queue = self._pending.get(about.identity, ())
        waiting = next((pending for pending in queue if pending.occurrence.name == occurrence.name), None)
        if waiting is not None:
            waiting.occurrence = occurrence
        else:
            self._append(occurrence)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(WORKERS):
                tasks.create_task(self._work(), name=f"events-{self._component}-{number}")

    async def flush(self, within: float) -> None:
        """Returns when all events are written, or after so many seconds."""
        try:
            async with asyncio.timeout(within):
                await self._empty.wait()
        except TimeoutError:
            log.warning("events not written in time", component=self._component, events=self._count)

    def _append(self, occurrence: Occurrence) -> None:
        if self._count >= CAPACITY:
            self._drop(occurrence, "overflow", "too many are waiting")
            return
        queue = self._pending.setdefault(occurrence.about.identity, deque())
        queue.append(_Pending(occurrence, self._clock.monotonic(), stored=occurrence.count > 1))
        self._count += 1
        self._empty.clear()
        if len(queue) == 1:
            self._objects.add(occurrence.about.identity)

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
        """Writes the first of an object's events; seconds until the next is due, None if there is none."""
        pending = queue[0]
        occurrence = pending.occurrence
        delay = await self._write(pending, occurrence)
        if delay is not None:
            return delay
        if pending.stored and pending.occurrence is not occurrence:
            pending.tries, pending.born = 0, self._clock.monotonic()
            return 0.0  # it happened again meanwhile
        queue.popleft()
        self._count -= 1
        if not self._count:
            self._empty.set()
        return 0.0 if queue else None

    async def _write(self, pending: _Pending, occurrence: Occurrence) -> float | None:
        """Seconds until the next try; None if it is written or given up."""
        pending.tries += 1
        try:
            async with asyncio.timeout(pending.born + LIFETIME - self._clock.monotonic()):
                await self._send(pending, occurrence)
        except (ConnectionError, TimeoutError) as error:
            return self._retry_in(pending, None, error)
        except NotLeaderError as error:
            self._give_up(pending, "refused", error)
            return None
        except ApiError as error:
            if error.code == 429 or error.code >= 500:
                return self._retry_in(pending, error.retry_after, error)
            self._give_up(pending, "refused", error)
            return None
        pending.stored = True
        self._metrics.events_written.inc()
        return None

    async def _send(self, pending: _Pending, occurrence: Occurrence) -> None:
        if pending.stored:
            try:
                await self._client.patch(
                    EVENTS, occurrence.name, occurrence.namespace, occurrence.patch(), kind=PatchKind.STRATEGIC
                )
            except NotFoundError:
                pending.stored = False  # its time to live is over
            else:
                return
        await self._client.create(EVENTS, occurrence.body(self._component), namespace=occurrence.namespace)

    def _retry_in(self, pending: _Pending, asked: float | None, error: Exception) -> float | None:
        delay = self._rng.uniform(0, RETRY_AFTER) if pending.tries == 1 else RETRY_AFTER
        delay = max(delay, asked or 0.0)
        if self._clock.monotonic() + delay - pending.born > LIFETIME:
            self._give_up(pending, "expired", error)
            return None
        return delay

    def _give_up(self, pending: _Pending, why: str, error: Exception) -> None:
        pending.stored = False
        self._drop(pending.occurrence, why, str(error))

    def _drop(self, occurrence: Occurrence, why: str, error: str) -> None:
        self._metrics.events_dropped.labels(why).inc()
        log.warning("event dropped", about=occurrence.about.name, reason=occurrence.reason, why=why, error=error)

    def _new_uuid(self) -> str:
        return str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
