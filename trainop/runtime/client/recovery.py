"""Tracks whether the API server is reachable, so that back-offs end early after an outage.

`Sender` reports the outcome of every request; reflectors and controllers wait with `Recovery.sleep`.
"""

from __future__ import annotations

import asyncio

from trainop.runtime.clock import Clock


class Recovery:
    """Availability of the API server as seen by the requests of one client; initially assumed."""

    def __init__(self) -> None:
        self._available = asyncio.Event()
        self._available.set()

    @property
    def available(self) -> bool:
        """Whether the server answered the last request."""
        return self._available.is_set()

    def failed(self) -> None:
        """Records a connection failure, or an answer by a proxy in front of the server (502, 503, 504)."""
        self._available.clear()

    def succeeded(self) -> None:
        """Records an answer of the server, whatever its status; wakes all sleepers."""
        self._available.set()

    async def sleep(self, seconds: float, clock: Clock) -> bool:
        """Sleeps for `seconds`, or less if the server is or becomes available; true if it was less."""
        sleeping = asyncio.ensure_future(clock.sleep(seconds))
        recovering = asyncio.ensure_future(self._available.wait())
        try:
            await asyncio.wait((sleeping, recovering), return_when=asyncio.FIRST_COMPLETED)
            return not sleeping.done()
        finally:
            sleeping.cancel()
            recovering.cancel()
