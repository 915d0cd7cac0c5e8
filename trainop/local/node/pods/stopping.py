"""A termination request with a grace period that several tasks can wait for."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class StopSignal:
    """Can be set several times; `grace` is the shortest grace period in seconds and valid once `is_set`."""

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

    async def wait_for(self, seconds: float) -> bool:
        """Waits until the signal is set, at most `seconds`; returns whether it is set."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        return self.is_set
