"""A queue of keys to reconcile: each at most once at a time, the urgent first, none starved.

Semantics of controller-runtime's `priorityqueue`, on one event loop. There is one entry per key:

- adding a key that is ready keeps its place, with the higher priority of the two;
- adding a key that waits makes it ready at once, and its delay is gone; of two delays the shorter holds;
- adding a key that is being worked on makes it ready once that work is done, once for any number of adds.

Of every ten keys handed out one is the key that has been ready longest, whatever its priority.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from trainop.runtime.clock import Clock
from trainop.runtime.controller.ratelimit import RateLimiter, RetryLimiter
from trainop.runtime.metrics.metrics import Metrics, QueueMetrics

K = TypeVar("K", bound=Hashable)

LOW_PRIORITY = -100
"""For what is not news: the initial list and resyncs (controller-runtime `handler.LowPriority`)."""

FAIR_SHARE = 10
"""One of so many hand-outs goes to the entry that has been ready longest."""


class QueueShutDownError(Exception):
    """The queue hands out nothing any more."""


class _Entry(Generic[K]):
    __slots__ = ("added", "key", "order", "priority", "ready_at", "taken")

    def __init__(self, key: K, priority: int, added: float) -> None:
        self.key = key
        self.priority = priority
        self.added = added
        """When it became due, for the queue duration."""
        self.order = 0
        """Its place in the heap it is in; any other tuple in a heap is a leftover."""
        self.ready_at: float | None = None
        """When it becomes due; None if it is."""
        self.taken = False


class WorkQueue(Generic[K]):
    """`name` labels the metrics. For one event loop: nothing here is safe to call from another thread."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        limiter: RateLimiter[K] | None = None,
        metrics: QueueMetrics | None = None,
    ) -> None:
        self.name = name
        self._clock = clock
        self._limiter: RateLimiter[K] = limiter or RetryLimiter(clock)
        self._metrics = metrics or Metrics().queue(name)
        self._metrics.observe(self)
        self._entries: dict[K, _Entry[K]] = {}
        self._working: dict[K, float] = {}
        self._priorities: dict[K, int] = {}
        """With which what is worked on was handed out."""
        # Both hold every entry that may be handed out, and leftovers; keys being worked on are in neither.
        self._ready: list[tuple[int, int, _Entry[K]]] = []
        self._oldest: deque[_Entry[K]] = deque()
        self._ready_count = 0
        self._waiting: list[tuple[float, int, _Entry[K]]] = []
        self._orders = 0
        self._handed_out = 0
        self._getters: deque[asyncio.Future[None]] = deque()
        self._alarm: asyncio.TimerHandle | None = None
        self._shut_down = False

    # What is asked for ------------------------------------------------------------------------------------------------

    def add(self, key: K, priority: int = 0) -> None:
        """Due now. Ignored after `shutdown`."""
        if self._shut_down:
            return
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(key, priority, self._clock.monotonic())
            self._make_due(entry)
            return
        raised = priority > entry.priority
        if raised:
            entry.priority = priority
        if entry.ready_at is not None:
            self._make_due(entry)
        elif raised and key not in self._working:
            self._push_ready(entry)

    def add_after(self, key: K, seconds: float, priority: int = 0) -> None:
        """Due in so many seconds, at once if not above 0, or earlier if the key is asked for earlier."""
        if seconds <= 0:
            self.add(key, priority)
            return
        if self._shut_down:
            return
        self._metrics.retries.inc()
        now = self._clock.monotonic()
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(key, priority, now)
            self._push_waiting(entry, now + seconds)
            return
        if entry.ready_at is None:
            self.add(key, priority)  # it is due already; only the priority may rise
            return
        entry.priority = max(entry.priority, priority)
        if now + seconds < entry.ready_at:
            self._push_waiting(entry, now + seconds)

    def add_again(self, key: K, seconds: float) -> None:
        """For a key that is being worked on: due in so many seconds, as urgent as it was when it was handed out."""
        self.add_after(key, seconds, max(0, self._priorities.get(key, 0)))

    def add_rate_limited(self, key: K) -> float:
        """Due when the limiter allows one more try; returns the seconds until then. Priority 0."""
        delay = self._limiter.delay(key)
        self.add_after(key, delay)
        return delay

    def retries(self, key: K) -> int:
        """Rate-limited adds since the last `forget`."""
        return self._limiter.retries(key)

    def forget(self, key: K) -> None:
        """The key did well or is gone: its next failure starts with the shortest delay."""
        self._limiter.forget(key)

    # What is handed out -----------------------------------------------------------------------------------------------

    async def get(self) -> K:
        """The next key, which is nobody else's until `done`. Raises `QueueShutDownError` after `shutdown`."""
        while True:
            if self._shut_down:
                raise QueueShutDownError(self.name)
            self._promote()
            if self._ready_count:
                return self._hand_out()
            await self._wait()

    def done(self, key: K) -> None:
        """The work on a key has really ended; if it was asked for meanwhile, it is ready again."""
        started = self._working.pop(key)
        del self._priorities[key]
        self._metrics.work_duration.observe(self._clock.monotonic() - started)
        entry = self._entries.get(key)
        if entry is not None and entry.ready_at is None:
            self._make_ready(entry)

    def shutdown(self) -> None:
        """Drops what waits and what is ready; what is handed out goes on. May be called again."""
        self._shut_down = True
        self._entries.clear()
        self._ready.clear()
        self._oldest.clear()
        self._waiting.clear()
        self._ready_count = 0
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        for getter in self._getters:
            if not getter.done():
                getter.set_result(None)

    # What can be seen -------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Keys that are due, those being worked on again included."""
        return sum(1 for entry in self._entries.values() if entry.ready_at is None)

    def depths(self) -> dict[int, int]:
        """The same by priority."""
        return Counter(entry.priority for entry in self._entries.values() if entry.ready_at is None)

    @property
    def waiting(self) -> int:
        """Keys that become due later."""
        return len(self._entries) - len(self)

    @property
    def working(self) -> dict[K, float]:
        """Keys handed out, each with the monotonic time since when. A copy."""
        return dict(self._working)

    def running_seconds(self) -> list[float]:
        """How long each handed-out key has been worked on."""
        now = self._clock.monotonic()
        return [now - started for started in self._working.values()]

    # How it works -----------------------------------------------------------------------------------------------------

    def _make_due(self, entry: _Entry[K]) -> None:
        entry.ready_at = None
        entry.added = self._clock.monotonic()
        self._metrics.adds.inc()
        if entry.key not in self._working:
            self._make_ready(entry)

    def _make_ready(self, entry: _Entry[K]) -> None:
        self._push_ready(entry)
        self._oldest.append(entry)
        self._ready_count += 1
        self._wake_one()

    def _push_ready(self, entry: _Entry[K]) -> None:
        self._orders += 1
        entry.order = self._orders
        heapq.heappush(self._ready, (-entry.priority, entry.order, entry))
        if len(self._ready) > 64 + 4 * len(self._entries):
            self._ready = [item for item in self._ready if not item[2].taken and item[1] == item[2].order]
            heapq.heapify(self._ready)

    def _push_waiting(self, entry: _Entry[K], ready_at: float) -> None:
        self._orders += 1
        entry.order = self._orders
        entry.ready_at = ready_at
        heapq.heappush(self._waiting, (ready_at, entry.order, entry))
        if len(self._waiting) > 64 + 4 * len(self._entries):
            self._waiting = [item for item in self._waiting if item[1] == item[2].order]
            heapq.heapify(self._waiting)
        if self._waiting[0][2] is entry:  # who waits for others needs no alarm of its own
            self._set_alarm()

    def _hand_out(self) -> K:
        self._handed_out += 1
        entry = self._take_oldest() if self._handed_out % FAIR_SHARE == 0 else self._take_first()
        entry.taken = True
        self._ready_count -= 1
        del self._entries[entry.key]
        now = self._clock.monotonic()
        self._working[entry.key] = now
        self._priorities[entry.key] = entry.priority
        self._metrics.queue_duration.observe(now - entry.added)
        return entry.key

    def _take_first(self) -> _Entry[K]:
        while True:
            _, order, entry = heapq.heappop(self._ready)
            if not entry.taken and entry.order == order:
                return entry

    def _take_oldest(self) -> _Entry[K]:
        """Drops the leftovers it meets: there are never more than ten for each entry that was there at once."""
        while True:
            entry = self._oldest.popleft()
            if not entry.taken:
                return entry

    def _promote(self) -> None:
        """Moves what has become due out of the waiting heap."""
        now = self._clock.monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            _, order, entry = heapq.heappop(self._waiting)
            if entry.order == order and entry.ready_at is not None:
                self._make_due(entry)

    def _set_alarm(self) -> None:
        """One timer for the earliest entry; leftovers at the top only cause an idle wake-up."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._waiting:
            delay = max(0.0, self._waiting[0][0] - self._clock.monotonic())
            self._alarm = asyncio.get_running_loop().call_later(delay, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._promote()
        self._set_alarm()

    async def _wait(self) -> None:
        getter = asyncio.get_running_loop().create_future()
        self._getters.append(getter)
        try:
            await getter
        except asyncio.CancelledError:
            if getter.done() and not getter.cancelled():
                self._wake_one()  # the wake-up was meant for somebody who still listens
            raise

    def _wake_one(self) -> None:
        while self._getters:
            getter = self._getters.popleft()
            if not getter.done():
                getter.set_result(None)
                return
