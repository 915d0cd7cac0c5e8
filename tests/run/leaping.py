"""A clock for watches that sleep: time passes at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime


class Leaping:
    """A clock whose sleeps return at once, and which cancels the task that would sleep past `end`. At given times,
    something happens."""

    def __init__(self, end: float, events: Mapping[float, Callable[[], None]] | None = None) -> None:
        self.at = 0.0
        self._end = end
        self._events = dict(sorted((events or {}).items()))

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.at, UTC)

    def monotonic(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.at += seconds
        for when in [each for each in self._events if each <= self.at]:
            self._events.pop(when)()
        await asyncio.sleep(0)
        if self.at > self._end:
            raise asyncio.CancelledError
