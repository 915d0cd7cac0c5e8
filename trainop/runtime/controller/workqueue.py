"""Priority queue of keys to reconcile: deduplicates keys, never hands out a key twice at a time, prevents starvation.

Semantics of controller-runtime's `priorityqueue`, on one event loop. There is one entry per key:

- adding a ready key keeps its place and raises its priority to the higher of the two;
- adding a delayed key makes it ready at once; of two delays, the shorter one applies;
- adding a key that is being processed makes it ready, once, when the processing is done.

One of every ten keys handed out is the one that has been ready longest, regardless of priority.
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
"""Priority of events without new information: initial lists and resyncs (controller-runtime `handler.LowPriority`)."""

FAIR_SHARE = 10
"""One in this many keys handed out is the one that has been ready longest."""


class QueueShutDownError(Exception):
    """The queue was shut down and returns no more keys."""


class _Entry(Generic[K]):
    __slots__ = ("added", "key", "order", "priority", "ready_at", "taken")

    def __init__(self, key: K, priority: int, added: float) -> None:
        self.key = key
        self.priority = priority
        self.added = added
        """Monotonic time at which the key became due, for the queue duration metric."""
        self.order = 0
        """Identifies the valid tuple of this entry in a heap; tuples with another order are stale."""
        self.ready_at: float | None = None
        """Monotonic time at which the key becomes due; None if it is due."""
        self.taken = False
        """The key was handed out; tuples that remain in a heap are stale."""


class WorkQueue(Generic[K]):
    """A work queue with priorities, delays and rate-limited retries. `name` labels the metrics. Not thread-safe."""

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
        """Priorities with which the keys being processed were handed out."""
        # `_ready` (by priority) and `_oldest` (by age) both hold every entry that is ready, and stale ones. Keys that
        # are being processed are in neither.
        self._ready: list[tuple[int, int, _Entry[K]]] = []
        self._oldest: deque[_Entry[K]] = deque()
        self._ready_count = 0
        self._waiting: list[tuple[float, int, _Entry[K]]] = []
        self._orders = 0
        self._handed_out = 0
        self._getters: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._shut_down = False

    # Adding keys ------------------------------------------------------------------------------------------------------

    def add(self, key: K, priority: int = 0) -> None:
        """Adds a key that is due now. Ignored after `shutdown`."""
        if self._shut_down:
            return
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(key, priority, self._clock.monotonic())
            self._mark_due(entry)
            return
        raised = priority > entry.priority
        if raised:
            entry.priority = priority
        if entry.ready_at is not None:
            self._mark_due(entry)
        elif raised and key not in self._working:
            self._push_ready(entry)

    def add_after(self, key: K, seconds: float, priority: int = 0) -> None:
        """Adds a key that is due in `seconds`, or earlier if another add asks for it; at once if `seconds` is not above
        0. Ignored after `shutdown`."""
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
            self.add(key, priority)  # already due; this may only raise the priority
            return
        entry.priority = max(entry.priority, priority)
        if now + seconds < entry.ready_at:
            self._push_waiting(entry, now + seconds)

    def add_again(self, key: K, seconds: float) -> None:
        """Adds a key that is being processed, due in `seconds` and with the priority with which it was handed out, but
        at least 0."""
        self.add_after(key, seconds, max(0, self._priorities.get(key, 0)))

    def add_rate_limited(self, key: K) -> float:
        """Adds a key after a failure, with the rate limiter's delay and priority 0; returns the delay in seconds."""
        delay = self._limiter.delay(key)
        self.add_after(key, delay)
        return delay

    def retries(self, key: K) -> int:
        """Number of rate-limited adds since the last `forget`."""
        return self._limiter.retries(key)

    def forget(self, key: K) -> None:
        """Resets the back-off of a key that succeeded or no longer exists."""
        self._limiter.forget(key)

    # Handing out keys -------------------------------------------------------------------------------------------------

    async def get(self) -> K:
        """Waits for the next key, which is not handed out again until `done`. Raises `QueueShutDownError` after
        `shutdown`."""
        while True:
            if self._shut_down:
                raise QueueShutDownError(self.name)
            self._promote()
            if self._ready_count:
                return self._hand_out()
            await self._wait()

    def done(self, key: K) -> None:
        """Marks the processing of a key as finished; if it was added meanwhile, it becomes ready again. Raises
        `KeyError` if the key is not being processed."""
        started = self._working.pop(key)
        del self._priorities[key]
        self._metrics.work_duration.observe(self._clock.monotonic() - started)
        entry = self._entries.get(key)
        if entry is not None and entry.ready_at is None:
            self._make_ready(entry)

    def shutdown(self) -> None:
        """Drops all ready and delayed keys and wakes all callers of `get`. Keys being processed are not affected.
        Idempotent."""
        self._shut_down = True
        self._entries.clear()
        self._ready.clear()
        self._oldest.clear()
        self._waiting.clear()
        self._ready_count = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for getter in self._getters:
            if not getter.done():
                getter.set_result(None)

    # Inspection -------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Number of due keys, including those that wait for their current processing to finish."""
        return sum(1 for entry in self._entries.values() if entry.ready_at is None)

    def depths(self) -> dict[int, int]:
        """Number of due keys by priority."""
        return Counter(entry.priority for entry in self._entries.values() if entry.ready_at is None)

    @property
    def waiting(self) -> int:
        """Number of delayed keys."""
        return len(self._entries) - len(self)

    @property
    def working(self) -> dict[K, float]:
        """Keys being processed, with the monotonic time at which each was handed out. A copy."""
        return dict(self._working)

    def running_seconds(self) -> list[float]:
        """Seconds for which each key has been processed so far."""
        now = self._clock.monotonic()
        return [now - started for started in self._working.values()]

    # Internals --------------------------------------------------------------------------------------------------------

    def _mark_due(self, entry: _Entry[K]) -> None:
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
        if self._waiting[0][2] is entry:  # the timer is only needed for the earliest entry
            self._set_timer()

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
        """Pops the entry that has been ready longest. Skips stale entries; there are at most ten for each entry of the
        largest number that was ready at once."""
        while True:
            entry = self._oldest.popleft()
            if not entry.taken:
                return entry

    def _promote(self) -> None:
        """Makes delayed keys ready whose time has come."""
        now = self._clock.monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            _, order, entry = heapq.heappop(self._waiting)
            if entry.order == order and entry.ready_at is not None:
                self._mark_due(entry)

    def _set_timer(self) -> None:
        """Sets the timer for the earliest delayed entry. A stale entry only causes one needless wake-up."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            delay = max(0.0, self._waiting[0][0] - self._clock.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._promote()
        self._set_timer()

    async def _wait(self) -> None:
        getter = asyncio.get_running_loop().create_future()
        self._getters.append(getter)
        try:
            await getter
        except asyncio.CancelledError:
            if getter.done() and not getter.cancelled():
                self._wake_one()  # pass the wake-up on to another waiting caller
            raise

    def _wake_one(self) -> None:
        while self._getters:
            getter = self._getters.popleft()
            if not getter.done():
                getter.set_result(None)
                return
