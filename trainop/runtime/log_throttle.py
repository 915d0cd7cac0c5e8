"""Rate-limits log entries, so that a server that repeats a fault does not flood the log."""

from __future__ import annotations

from trainop.runtime.clock import Clock


class LogThrottle:
    """Allows one log entry per kind and `interval` seconds, and counts the suppressed ones."""

    def __init__(self, clock: Clock, interval: float) -> None:
        self._clock = clock
        self._interval = interval
        self._last: dict[str, float] = {}
        self._suppressed: dict[str, int] = {}

    def count(self, kind: str) -> int | None:
        """None if an entry of this kind must be suppressed; otherwise the number suppressed since the last one.

        Each kind uses memory permanently: there must be few, and they must not be taken from server responses.
        """
        now = self._clock.monotonic()
        last = self._last.get(kind)
        if last is not None and now - last < self._interval:
            self._suppressed[kind] = self._suppressed.get(kind, 0) + 1
            return None
        self._last[kind] = now
        return self._suppressed.pop(kind, 0)
