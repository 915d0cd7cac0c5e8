"""The wish that something end: told once or more often, heard by all that wait."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class StopSignal:
    """`grace` in seconds is known once it `is_set`; a later, shorter grace replaces an earlier one."""

    def __init__(self) -> None:
        self.grace = 0.0
        self._event = asyncio.Event()

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self, grace: float) -> None:
        self.grace = min(grace, self.grace) if self.is_set else grace
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()

    async def pause(self, seconds: float) -> bool:
        """Waits so long, or until the signal comes; tells whether it has."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        return self.is_set
