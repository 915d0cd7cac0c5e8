"""Accepts the connections of an HTTP server, with a limit on their number and a timeout for each phase.

aiohttp by itself accepts connections without limit. Here, when a server has reached its limit, a new connection closes
an idle one of the client that has most connections, the one that has been idle longest, and is refused if none is idle.
A connection is busy only from the end of a request's body to the end of its handler: until then it waits for its
client, who may be slow for ever. Timeouts: 10 s for the TLS handshake and again for the first request's head, 60 s for
a body and again for a response, 90 s idle.
"""

from __future__ import annotations

import asyncio
import errno
import select
import socket
import ssl
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import structlog
from aiohttp import StreamReader, web
from aiohttp.http import HttpProcessingError, RawRequestMessage
from aiohttp.typedefs import Handler

from trainop.runtime.process import descriptor_limit

HEADER_TIMEOUT = 10.0
"""Seconds for a TLS handshake, and then for the headers of the first request."""

RESPONSE_TIMEOUT = 60.0
"""Seconds from a request's head to the end of its body, and then to the end of the handler."""

IDLE_TIMEOUT = 90.0
"""Seconds from the end of a handler to the next request; sending the response is included."""

MAX_HEAD = 64 * 1024
"""Bytes of a request's head."""

MAX_HEADS = 16 * 1024 * 1024
"""Bytes of all heads of a server that are incomplete. Beyond that, the connection with the longest is closed."""

BACKLOG = 128
ACCEPT_RETRY = 1.0
"""Seconds before the next accept when no file descriptors are left."""

PLACE_RETRIES = (0.0, 0.0, 0.01, 0.02, 0.05, 0.1)
"""Seconds between two looks for a place while all connections are in use. Others wait meanwhile in the backlog of the
socket."""

LEFT = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR | select.POLLNVAL
"""Of a socket whose peer has closed it; half is enough, as asyncio closes such a connection."""

EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = structlog.get_logger(__name__)


class Limits(NamedTuple):
    """What the clients of one server may use, besides the number of connections."""

    share: int = 8
    """The server may use one of so many file descriptors of the process for connections."""
    head: int = MAX_HEAD
    """Bytes of a request's head."""
    response: float | None = RESPONSE_TIMEOUT
    """Seconds for which a handler may run; None for servers whose responses are streams without an end."""


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
    """Marks the connection of a request as busy while the handler runs and has the body, else as idle. Requests of a
    client that has left are not handled."""
    connection = request.protocol
    if not isinstance(connection, _Connection):
        return await handler(request)
    if connection.client_has_left():
        connection.abort()
        return web.Response()
    with connection.serving(request.content):
        return await handler(request)


class Listener:
    """Accepts connections for the aiohttp `server`; at most `connections` are open at a time."""

    def __init__(
        self,
        name: str,
        server: web.Server,
        sockets: list[socket.socket],
        tls: ssl.SSLContext | None,
        connections: int,
        *,
        limits: Limits = Limits(),  # noqa: B008  # immutable
        **options: Any,
    ) -> None:
        """`options` are those of aiohttp's `RequestHandler`."""
        self.name = name
        self._server = server
        self.sockets = sockets
        self._tls = tls
        self._limit = max(4, min(connections, descriptor_limit() // limits.share))
        self.limits = limits
        self._options = options
        self.open: dict[_Open, str] = {}
        """Each with the address of its client."""
        self.idle: dict[_Open, None] = {}
        """Connections that may be closed for a new one, longest idle first."""
        self.heads: dict[_Connection, int] = {}
        """Bytes received of heads that are incomplete."""

    async def run(self) -> None:
        """Accepts until cancelled. Requests in progress continue after that."""
        async with asyncio.TaskGroup() as tasks:
            for listener_socket in self.sockets:
                tasks.create_task(self._accept(listener_socket, tasks), name=f"accept {self.name}")

    def close(self) -> None:
        """Closes the listening sockets."""
        for listener_socket in self.sockets:
            listener_socket.close()

    async def _accept(self, listener_socket: socket.socket, tasks: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(listener_socket)
            except OSError as error:
                if error.errno in EXHAUSTED:  # without a pause, this loop would spin while a connection is pending
                    log.warning("out of file descriptors", server=self.name, error=error.strerror)
                    self._close_idle()
                    await asyncio.sleep(ACCEPT_RETRY)
                continue
            address = str(peer[0]) if peer else ""
            if await self._has_place(address):
                self._spawn_connection(accepted, address, tasks)
            else:
                accepted.close()
            await asyncio.sleep(0)  # a flood of connections must not starve other tasks

    async def _has_place(self, newcomer: str) -> bool:
        """Whether there is a place for a connection from this address. If all are in use, looks again for a moment: a
        client that sends many requests at once has each of its connections idle only between two of them."""
        for wait in (*PLACE_RETRIES, None):
            if len(self.open) < self._limit or self._close_idle(newcomer):
                return True
            if wait is not None:
                await asyncio.sleep(wait)
        return False

    def _close_idle(self, newcomer: str = "") -> bool:
        """Closes an idle connection in favour of one from the address `newcomer`; returns False if none is idle.

        It is one of the client with most connections, so that a client that floods the server closes its own, and the
        API server keeps those to the webhooks.
        """
        used = Counter((*self.open.values(), newcomer))
        chosen = max(self.idle, key=lambda each: used[self.open[each]], default=None)  # the longest idle of equals
        if chosen is None:
            return False
        self.discard(chosen)
        if isinstance(chosen, _Connection):
            chosen.abort()
        else:
            chosen.cancel()
        return True

    def _spawn_connection(self, accepted: socket.socket, address: str, tasks: asyncio.TaskGroup) -> None:
        task = tasks.create_task(self._connect(accepted), name=f"connect {self.name}")
        self.open[task] = address
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

    def replace(self, handshake: asyncio.Task[None], connection: _Connection) -> None:
        """The handshake is over, and the connection is open."""
        address = self.open.get(handshake, "")
        self.discard(handshake)
        self.open[connection] = address

    def count_head(self, connection: _Connection, size: int) -> None:
        """Closes the connection, or the one with the longest head, if the bytes of heads are too many."""
        self.heads[connection] = self.heads.get(connection, 0) + size
        if self.heads[connection] > self.limits.head:
            connection.abort()
        elif sum(self.heads.values()) > MAX_HEADS:
            max(self.heads, key=self.heads.__getitem__).abort()

    def discard(self, connection: _Open) -> None:
        self.open.pop(connection, None)
        self.idle.pop(connection, None)


class _Connection(web.RequestHandler):
    """aiohttp's connection, with a deadline for its current phase: head, body, response or idle."""

    __slots__ = ("_body", "_broken", "_deadline", "_handshake", "_listener")

    def __init__(self, listener: Listener, handshake: asyncio.Task[None], server: web.Server, **options: Any) -> None:
        super().__init__(server, **options)
        self._listener = listener
        self._handshake = handshake
        self._deadline: asyncio.TimerHandle | None = None
        self._body: StreamReader | None = None
        """That of the last request that has begun."""
        self._broken = False
        """What has arrived is no HTTP. It gets one answer: aiohttp makes one, and keeps the data, for each piece."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._listener.replace(self._handshake, self)
        self.mark_idle(HEADER_TIMEOUT)

    def data_received(self, data: bytes) -> None:
        if self._broken:
            return
        begun, in_head = self._request_count, self._body is None or self._body.is_eof()
        super().data_received(data)
        if self._request_count != begun and self._messages:
            self._listener.heads.pop(self, None)
            message, self._body = self._messages[-1]
            self._broken = not isinstance(message, RawRequestMessage)
        elif in_head and not self._upgraded:
            self._listener.count_head(self, len(data))  # the parser limits each header and their number, not the sum

    def connection_lost(self, exc: BaseException | None) -> None:
        self._listener.discard(self)
        self._listener.heads.pop(self, None)
        self._set_deadline(None)
        super().connection_lost(exc)

    def log_exception(self, *args: Any, **more: Any) -> None:
        """Anybody may send what is no HTTP: aiohttp would log a traceback and a part of it."""
        if isinstance(more.get("exc_info"), HttpProcessingError):
            log.debug("malformed request", server=self._listener.name, error=type(more["exc_info"]).__name__)
        else:
            super().log_exception(*args, **more)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """aiohttp would repeat a part of what is no HTTP, which may be a token, to whoever writes answers down."""
        malformed = isinstance(exc, HttpProcessingError)
        return super().handle_error(request, status, exc, "malformed request" if malformed else message)

    @contextmanager
    def serving(self, body: StreamReader) -> Iterator[None]:
        """The time in which a request is served."""
        served = False

        def mark_received() -> None:
            if not served:
                self._mark_busy()

        self.mark_idle(RESPONSE_TIMEOUT)
        body.on_eof(mark_received)
        try:
            yield
        finally:
            served = True
            self.mark_idle(IDLE_TIMEOUT)

    def client_has_left(self) -> bool:
        """asyncio reports this only when all that has arrived is handled, which may be thousands of requests: aiohttp
        stops to read while some wait."""
        found = self.transport and self.transport.get_extra_info("socket")
        if not found or found.fileno() < 0:
            return True
        poll = select.poll()
        poll.register(found.fileno(), LEFT)
        return bool(poll.poll(0))

    def _mark_busy(self) -> None:
        self._listener.idle.pop(self, None)
        self._set_deadline(self._listener.limits.response)

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


_Open: TypeAlias = _Connection | asyncio.Task[None]
"""A connection, or the task of its TLS handshake."""
