"""Keeps a log short when a server repeats the same fault."""

from __future__ import annotations

from trainop.runtime.clock import Clock


class Seldom:
    """Allows a line of each kind once per interval and counts those in between."""

    def __init__(self, clock: Clock, interval: float) -> None:
        """`interval` in seconds."""
        self._clock = clock
        self._interval = interval
        self._last: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def count(self, kind: str) -> int | None:
        """None while a line of this kind must not be logged; otherwise the number left out since the last one. Kinds
        must be few and must not come from the server: each is remembered."""
        now = self._clock.monotonic()
        last = self._last.get(kind)
        if last is not None and now - last < self._interval:
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return None
        self._last[kind] = now
        return self._left_out.pop(kind, 0)
