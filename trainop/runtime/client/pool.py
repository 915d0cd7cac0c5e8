"""Connection pools to the API server: separate ones for requests, urgent requests and watches.

With separate pools, a lease renewal never waits for a free connection behind slow requests or long-lived watches.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from trainop.runtime.client.sockets import keepalive_socket
from trainop.runtime.clock import Clock

CONNECT_TIMEOUT = 10.0
KEEP_ALIVE = 90.0
"""Seconds after which an idle connection is closed."""

MAX_REQUESTS = 32
"""Maximum connections for requests. Each costs a handshake of about 2 ms, and eight almost saturate an API server."""

MAX_URGENT = 8
"""Maximum connections for lease renewals and credential probes, few of which run at the same time."""

CHUNK = 256 * 1024
"""Bytes of a response that aiohttp buffers before it pauses reading."""

MAX_HEADERS = 512
MAX_HEADER = 8190
"""Limits of the number of response headers, and of the bytes of each header and of the status line. Together they bound
the memory for the head of one response. API servers send each warning in a separate header; they have about 130
different warnings, and webhooks may add more."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Three sessions that share TLS material. Watches do not use up connections for requests. Urgent requests find a
    free connection even while all others hang, for example in a slow admission webhook."""

    requests: aiohttp.ClientSession
    urgent: aiohttp.ClientSession
    watches: aiohttp.ClientSession

    @classmethod
    def open(cls, resolver: Callable[[], AbstractResolver]) -> Pool:
        return cls(*(_session(limit, resolver()) for limit in (MAX_REQUESTS, MAX_URGENT, 0)))

    async def close(self) -> None:
        for session in (self.requests, self.urgent, self.watches):
            await session.close()


class MeasuredResolver(aiohttp.ThreadedResolver):
    """Reports the host and the seconds of each DNS lookup. aiohttp's tracing would add a cost to every request."""

    def __init__(self, clock: Clock, report: Callable[[str, float], None] | None) -> None:
        super().__init__()
        self._clock = clock
        self._report = report

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        began = self._clock.monotonic()
        try:
            return await super().resolve(host, port, family)
        finally:
            if self._report is not None:
                self._report(host, self._clock.monotonic() - began)


def _session(limit: int, resolver: AbstractResolver) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=limit, keepalive_timeout=KEEP_ALIVE, socket_factory=keepalive_socket, resolver=resolver
        ),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT),
        cookie_jar=aiohttp.DummyCookieJar(),
        # Within a cluster, compression costs more CPU than it saves network: client-go has DisableCompression for this.
        headers={"accept-encoding": "identity"},
        # A body that is compressed nevertheless could expand a thousandfold; without decompression it fails to decode.
        auto_decompress=False,
        read_bufsize=CHUNK,
        max_line_size=MAX_HEADER,
        max_field_size=MAX_HEADER,
        max_headers=MAX_HEADERS,
        trust_env=False,
    )
