"""Whether the API server still accepts our credentials, for readiness."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from trainop.runtime.client.client import Client
from trainop.runtime.client.transport import Request
from trainop.runtime.clock import Clock, SystemClock
from trainop.runtime.errors import ApiError, UnhealthyError

ASK_EVERY = 5.0
"""Seconds between questions, however often the check is called: anybody may ask for our readiness."""


class CredentialsCheck:
    """Fails while the server answers with 401. Only then it asks by itself, so that readiness comes back also where
    nothing else is asked. Neither a 403 (the server knows us) nor a server that is away makes it fail."""

    def __init__(self, client: Client, refused: Callable[[], bool], clock: Clock | None = None) -> None:
        """`refused`: the last answer was a 401, such as `HttpTransport.refused`; `client` uses the same transport."""
        self._client = client
        self._refused = refused
        self._clock = clock or SystemClock()
        self._asked_at = float("-inf")

    async def check(self) -> None:
        """Raises `UnhealthyError`."""
        if self._refused() and self._clock.monotonic() - self._asked_at >= ASK_EVERY:
            self._asked_at = self._clock.monotonic()
            await self._ask()
        if self._refused():
            raise UnhealthyError("the API server refuses our credentials: 401 Unauthorized")

    async def _ask(self) -> None:
        try:
            async with asyncio.timeout(ASK_EVERY):
                await self._client.request(Request("GET", "/version"), repeatable=False)
        except (ApiError, ConnectionError, TimeoutError):
            pass  # `refused` says whether it was a 401
