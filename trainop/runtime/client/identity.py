"""Readiness check: the API server still accepts this process's credentials."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from trainop.runtime.client.client import Client
from trainop.runtime.client.transport import Request
from trainop.runtime.clock import Clock, SystemClock
from trainop.runtime.errors import ApiError, UnhealthyError

PROBE_INTERVAL = 5.0
"""Minimum seconds between two probes of the API server, because readiness endpoints can be called by anyone. Also the
timeout of a probe."""


class CredentialsCheck:
    """Fails while the server answers 401. During that time it probes the server itself, so that readiness recovers even
    if nothing else sends requests. A 403 (authenticated, not authorized) or an unreachable server does not fail it."""

    def __init__(self, client: Client, refused: Callable[[], bool], clock: Clock | None = None) -> None:
        """`refused` returns whether the last answer was a 401 (`HttpTransport.refused`). `client` must use the same
        transport, so that its probes update `refused`."""
        self._client = client
        self._refused = refused
        self._clock = clock or SystemClock()
        self._probed_at = float("-inf")

    async def check(self) -> None:
        """Raises `UnhealthyError` if the credentials are rejected."""
        if self._refused() and self._clock.monotonic() - self._probed_at >= PROBE_INTERVAL:
            self._probed_at = self._clock.monotonic()
            await self._probe()
        if self._refused():
            raise UnhealthyError("the API server refuses our credentials: 401 Unauthorized")

    async def _probe(self) -> None:
        try:
            async with asyncio.timeout(PROBE_INTERVAL):
                await self._client.request(Request("GET", "/version"), repeatable=False)
        except (ApiError, ConnectionError, TimeoutError):
            pass  # `refused` shows whether it was a 401
