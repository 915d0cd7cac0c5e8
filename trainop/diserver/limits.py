"""A limit on the requests of each caller."""

from __future__ import annotations

from collections import OrderedDict

from trainop.runtime import Clock

MAX_CALLERS = 4096
"""Callers that are remembered; of more, those that were silent longest start anew."""


class CallerLimiter:
    """A token bucket for each caller: `rate` requests per second, and `burst` at a time. A rate of 0 allows all."""

    def __init__(self, clock: Clock, rate: float, burst: int) -> None:
        self._clock = clock
        self._rate = rate
        self._burst = float(max(burst, 1))
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, caller: str) -> bool:
        """Whether the caller may send this request, which then counts."""
        if self._rate <= 0:
            return True
        now = self._clock.monotonic()
        tokens, since = self._buckets.pop(caller, (self._burst, now))
        tokens = min(self._burst, tokens + (now - since) * self._rate)
        allowed = tokens >= 1
        self._buckets[caller] = (tokens - 1 if allowed else tokens, now)
        if len(self._buckets) > MAX_CALLERS:
            self._buckets.popitem(last=False)
        return allowed
