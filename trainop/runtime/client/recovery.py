"""Ends a back-off early once the API server is known to be back."""

from __future__ import annotations

import asyncio

from trainop.runtime.clock import Clock


class Recovery:
    """Whether the API server answers, as far as the requests of one client tell."""

    def __init__(self) -> None:
        self._well = asyncio.Event()
        self._well.set()

    @property
    def well(self) -> bool:
        """The last request that tells was answered."""
        return self._well.is_set()

    def failed(self) -> None:
        """Nothing answered, or only something in front of the server."""
        self._well.clear()

    def succeeded(self) -> None:
        self._well.set()

    async def sleep(self, seconds: float, clock: Clock) -> bool:
        """Sleeps so long, or until the server answers somebody: then true."""
        sleeping = asyncio.ensure_future(clock.sleep(seconds))
        hearing = asyncio.ensure_future(self._well.wait())
        try:
            await asyncio.wait((sleeping, hearing), return_when=asyncio.FIRST_COMPLETED)
            return not sleeping.done()
        finally:
            sleeping.cancel()
            hearing.cancel()
