"""Connections to the API server in three lanes, so that no kind of request waits for another kind."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from trainop.runtime.clock import Clock

CONNECT_TIMEOUT = 10.0
KEEP_ALIVE = 90.0
MAX_REQUESTS = 32
"""Connections for requests: each costs a handshake of some 2 ms, and eight keep an API server almost busy."""

MAX_URGENT = 8
"""Connections for renewals of leases and questions whether the server knows us; there are few of both at a time."""

CHUNK = 256 * 1024

MAX_HEADERS = 512
MAX_HEADER = 8190
"""Headers of an answer, and bytes of each and of the status line: together they bound the memory of one answer. API
servers send each warning in a header of its own, of all kinds some 130, and more where webhooks warn."""

SOCKET_OPTIONS = tuple(
    (socket.IPPROTO_TCP, getattr(socket, name), value)
    for name, value in (
        ("TCP_KEEPIDLE", 15),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 30_000),
    )
    if hasattr(socket, name)  # not every system has all of them
)
"""A peer that vanished without a word is noticed within 30 s (`TCP_USER_TIMEOUT` in milliseconds)."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Connections that share credentials. Watches take no place of a request. Urgent requests take none either and find
    a free place even while every other request hangs, such as in an admission webhook."""

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
    """Tells how long the look-up of a name takes; with aiohttp's own tracing every request would pay for it."""

    def __init__(self, clock: Clock, tell: Callable[[str, float], None] | None) -> None:
        super().__init__()
        self._clock = clock
        self._tell = tell

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        began = self._clock.monotonic()
        try:
            return await super().resolve(host, port, family)
        finally:
            if self._tell is not None:
                self._tell(host, self._clock.monotonic() - began)


def _session(limit: int, resolver: AbstractResolver) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=limit, keepalive_timeout=KEEP_ALIVE, socket_factory=_socket, resolver=resolver
        ),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT),
        cookie_jar=aiohttp.DummyCookieJar(),
        # Unpacking costs both sides more than a cluster's network: client-go programs set DisableCompression for it.
        headers={"accept-encoding": "identity"},
        # A body that is compressed all the same could grow a thousandfold; it is not unpacked, hence not readable.
        auto_decompress=False,
        read_bufsize=CHUNK,
        max_line_size=MAX_HEADER,
        max_field_size=MAX_HEADER,
        max_headers=MAX_HEADERS,
        trust_env=False,
    )


def _socket(address: tuple[int, int, int, str, tuple[object, ...]]) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for level, option, value in SOCKET_OPTIONS:
        made.setsockopt(level, option, value)
    return made
