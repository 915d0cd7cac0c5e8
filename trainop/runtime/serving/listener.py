"""The connections of one of our own HTTP servers: few at a time, none for ever.

aiohttp takes all connections that come and lets them wait. Here each server has a cap; at the cap the connection that
has been idle longest makes room, and if all are in use the new one is refused. A request has to be there within 10 s,
an answer has to be on its way within 60 s, and a connection may be idle for 90 s.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from typing import Any

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from trainop.runtime.process import descriptor_limit

HEAD_WITHIN = 10.0
"""Seconds from the connection to the end of the first request's headers, and for a TLS handshake before that."""

ANSWER_WITHIN = 60.0
IDLE_AT_MOST = 90.0
SHARE = 8
"""Each server has at most an eighth of the process' descriptors."""

BACKLOG = 128
PAUSE = 1.0
"""Seconds without accepting when there are no descriptors."""

EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = structlog.get_logger(__name__)


def listen(host: str | None, port: int) -> list[socket.socket]:
    """Sockets that listen on all addresses of `host`, or of the machine; raises `OSError`."""
    if host is None:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        return [_ready(socket.create_server(("", port), family=family, backlog=BACKLOG, dualstack_ipv6=both))]
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
            sockets.append(_ready(socket.create_server((str(address[0]), port), family=family, backlog=BACKLOG)))
            port = port or sockets[0].getsockname()[1]
    except OSError:
        for opened in sockets:
            opened.close()
        raise
    return sockets


def _ready(listening: socket.socket) -> socket.socket:
    listening.setblocking(False)
    return listening


@web.middleware
async def note_use(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Keeps the connection of a request that is being answered from counting as idle."""
    connection = request.protocol
    if not isinstance(connection, _Connection):
        return await handler(request)
    connection.use()
    try:
        return await handler(request)
    finally:
        connection.rest(IDLE_AT_MOST)


class Listener:
    """Accepts connections for `server` while `run` runs, at most `connections` at a time."""

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
        self._cap = max(4, min(connections, descriptor_limit() // SHARE))
        self._options = options
        self.open: set[_Connection | asyncio.Task[None]] = set()
        self.idle: dict[_Connection | asyncio.Task[None], None] = {}
        """Those that could make room, the one that has been idle longest first; tasks are TLS handshakes."""

    async def run(self) -> None:
        """Until cancelled; then open requests go on."""
        async with asyncio.TaskGroup() as tasks:
            for listening in self.sockets:
                tasks.create_task(self._accept(listening, tasks), name=f"accept {self._name}")

    def close(self) -> None:
        """Stops listening."""
        for listening in self.sockets:
            listening.close()

    async def _accept(self, listening: socket.socket, tasks: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listening)
            except OSError as error:
                if error.errno in EXHAUSTED:  # it would be told at once, again and again, that a connection waits
                    log.warning("no descriptor for a connection", server=self._name, error=error.strerror)
                    self._make_room()
                    await asyncio.sleep(PAUSE)
                continue
            if len(self.open) < self._cap or self._make_room():
                self._begin(accepted, tasks)
            else:
                accepted.close()
            await asyncio.sleep(0)  # whoever connects without end does not keep others from their turn

    def _make_room(self) -> bool:
        """Whether a connection was idle, which is closed now."""
        oldest = next(iter(self.idle), None)
        if oldest is None:
            return False
        self.forget(oldest)
        if isinstance(oldest, _Connection):
            oldest.abort()
        else:
            oldest.cancel()
        return True

    def _begin(self, accepted: socket.socket, tasks: asyncio.TaskGroup) -> None:
        task = tasks.create_task(self._connect(accepted), name=f"connect {self._name}")
        self.open.add(task)
        self.idle[task] = None
        task.add_done_callback(self.forget)
        task.add_done_callback(lambda ended: accepted.close() if ended.cancelled() else None)

    async def _connect(self, accepted: socket.socket) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None  # noqa: S101  # a coroutine runs in one
        try:
            await loop.connect_accepted_socket(
                lambda: _Connection(self, task, self._server, loop=loop, **self._options),
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=HEAD_WITHIN if self._tls else None,
            )
        except (OSError, TimeoutError):
            accepted.close()  # a handshake that failed, or was given up by the other side

    def forget(self, which: _Connection | asyncio.Task[None]) -> None:
        self.open.discard(which)
        self.idle.pop(which, None)


class _Connection(web.RequestHandler):
    """aiohttp's, with a deadline for what it does at the moment."""

    __slots__ = ("_accepting", "_deadline", "_listener")

    def __init__(self, listener: Listener, accepting: asyncio.Task[None], server: web.Server, **options: Any) -> None:
        super().__init__(server, **options)
        self._listener = listener
        self._accepting = accepting
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._listener.forget(self._accepting)
        self._listener.open.add(self)
        self.rest(HEAD_WITHIN)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._listener.forget(self)
        self._expire_in(None)
        super().connection_lost(exc)

    def use(self) -> None:
        self._listener.idle.pop(self, None)
        self._expire_in(ANSWER_WITHIN)

    def rest(self, seconds: float) -> None:
        """What has been answered is perhaps still on its way; who does not read it is as idle as who asks nothing."""
        if self in self._listener.open:
            self._listener.idle.pop(self, None)
            self._listener.idle[self] = None
            self._expire_in(seconds)

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def _expire_in(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None
        if seconds is not None:
            self._deadline = asyncio.get_running_loop().call_later(seconds, self.abort)
