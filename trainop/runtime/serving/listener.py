"""Accepts the connections of an HTTP server, with a limit on their number and a timeout for each phase.

aiohttp by itself accepts connections without limit. Here, when a server has reached its limit, a new connection closes
the one that has been idle longest, and is refused if none is idle. Timeouts: 10 s for the TLS handshake and again for
the first request's headers, 60 s for a response, 90 s idle.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from trainop.runtime.process import descriptor_limit

HEADER_TIMEOUT = 10.0
"""Seconds for a TLS handshake, and then for the headers of the first request."""

RESPONSE_TIMEOUT = 60.0
"""Seconds from a request's headers to the end of the handler."""

IDLE_TIMEOUT = 90.0
"""Seconds from the end of a handler to the next request; sending the response is included."""

DESCRIPTOR_SHARE = 8
"""A server may use one eighth of the process's file descriptors."""

BACKLOG = 128
ACCEPT_RETRY = 1.0
"""Seconds before the next accept when no file descriptors are left."""

EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = structlog.get_logger(__name__)


def listen(host: str | None, port: int) -> list[socket.socket]:
    """Listening sockets for all addresses of `host`, or for all interfaces if that is None. Raises `OSError`.

    If `port` is 0, the system chooses one port, the same for all addresses.
    """
    if host is None:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        return [_nonblocking(socket.create_server(("", port), family=family, backlog=BACKLOG, dualstack_ipv6=both))]
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
            sockets.append(_nonblocking(socket.create_server((str(address[0]), port), family=family, backlog=BACKLOG)))
            port = port or sockets[0].getsockname()[1]
    except OSError:
        for opened in sockets:
            opened.close()
        raise
    return sockets


def _nonblocking(listener_socket: socket.socket) -> socket.socket:
    listener_socket.setblocking(False)
    return listener_socket


@web.middleware
async def track_use(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Marks the connection of a request as busy while the handler runs, and as idle afterwards."""
    connection = request.protocol
    if not isinstance(connection, _Connection):
        return await handler(request)
    connection.mark_busy()
    try:
        return await handler(request)
    finally:
        connection.mark_idle(IDLE_TIMEOUT)


@contextmanager
def awaiting_client(request: web.Request) -> Iterator[None]:
    """Marks the connection of a request as idle within the context: while its body arrives, it may be closed for a new
    connection. Else clients that send slowly would keep all others out."""
    connection = request.protocol
    if not isinstance(connection, _Connection):
        yield
        return
    connection.mark_idle(RESPONSE_TIMEOUT)
    try:
        yield
    finally:
        connection.mark_busy()


class Listener:
    """Accepts connections for the aiohttp `server`; at most `connections` are open at a time."""

    def __init__(
        self,
        name: str,
        server: web.Server,
        sockets: list[socket.socket],
        tls: ssl.SSLContext | None,
        connections: int,
        **options: Any,
    ) -> None:
        """`options` are those of aiohttp's `RequestHandler`."""
        self._name = name
        self._server = server
        self.sockets = sockets
        self._tls = tls
        self._limit = max(4, min(connections, descriptor_limit() // DESCRIPTOR_SHARE))
        self._options = options
        self.open: set[_Connection | asyncio.Task[None]] = set()
        self.idle: dict[_Connection | asyncio.Task[None], None] = {}
        """Connections that may be closed for a new one, longest idle first. Tasks are TLS handshakes in progress."""

    async def run(self) -> None:
        """Accepts until cancelled. Requests in progress continue after that."""
        async with asyncio.TaskGroup() as tasks:
            for listener_socket in self.sockets:
                tasks.create_task(self._accept(listener_socket, tasks), name=f"accept {self._name}")

    def close(self) -> None:
        """Closes the listening sockets."""
        for listener_socket in self.sockets:
            listener_socket.close()

    async def _accept(self, listener_socket: socket.socket, tasks: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listener_socket)
            except OSError as error:
                if error.errno in EXHAUSTED:  # without a pause, this loop would spin while a connection is pending
                    log.warning("out of file descriptors", server=self._name, error=error.strerror)
                    self._close_idle()
                    await asyncio.sleep(ACCEPT_RETRY)
                continue
            if len(self.open) < self._limit or self._close_idle():
                self._spawn_connection(accepted, tasks)
            else:
                accepted.close()
            await asyncio.sleep(0)  # a flood of connections must not starve other tasks

    def _close_idle(self) -> bool:
        """Closes the connection that has been idle longest; returns False if none is idle."""
        oldest = next(iter(self.idle), None)
        if oldest is None:
            return False
        self.discard(oldest)
        if isinstance(oldest, _Connection):
            oldest.abort()
        else:
            oldest.cancel()
        return True

    def _spawn_connection(self, accepted: socket.socket, tasks: asyncio.TaskGroup) -> None:
        task = tasks.create_task(self._connect(accepted), name=f"connect {self._name}")
        self.open.add(task)
        self.idle[task] = None
        task.add_done_callback(self.discard)
        task.add_done_callback(lambda ended: accepted.close() if ended.cancelled() else None)

    async def _connect(self, accepted: socket.socket) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None  # noqa: S101  # a coroutine runs in one
        try:
            await loop.connect_accepted_socket(
                lambda: _Connection(self, task, self._server, loop=loop, **self._options),
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=HEADER_TIMEOUT if self._tls else None,
            )
        except (OSError, TimeoutError):
            accepted.close()  # the handshake failed or the peer closed the connection

    def discard(self, connection: _Connection | asyncio.Task[None]) -> None:
        self.open.discard(connection)
        self.idle.pop(connection, None)


class _Connection(web.RequestHandler):
    """aiohttp's connection, with a deadline for its current phase: headers, response or idle."""

    __slots__ = ("_deadline", "_handshake", "_listener")

    def __init__(self, listener: Listener, handshake: asyncio.Task[None], server: web.Server, **options: Any) -> None:
        super().__init__(server, **options)
        self._listener = listener
        self._handshake = handshake
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._listener.discard(self._handshake)
        self._listener.open.add(self)
        self.mark_idle(HEADER_TIMEOUT)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._listener.discard(self)
        self._set_deadline(None)
        super().connection_lost(exc)

    def mark_busy(self) -> None:
        self._listener.idle.pop(self, None)
        self._set_deadline(RESPONSE_TIMEOUT)

    def mark_idle(self, seconds: float) -> None:
        """Allows the listener to close this connection, and closes it after `seconds`.

        The response may still be in transit. A peer that does not read it counts as idle, too.
        """
        if self in self._listener.open:
            self._listener.idle.pop(self, None)
            self._listener.idle[self] = None
            self._set_deadline(seconds)

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def _set_deadline(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None
        if seconds is not None:
            self._deadline = asyncio.get_running_loop().call_later(seconds, self.abort)
