"""A client that sends many requests at once and leaves costs nothing more."""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from pathlib import Path

import pytest
from aiohttp import web

from tests.patience import PATIENCE
from tests.runtime.test_listener import SERVER
from tests.runtime.test_server import make_certificate, serving
from trainop.runtime.serving.server import HttpServer

REQUESTS = 300


class Slow:
    """A handler whose first request waits until it may go on."""

    def __init__(self) -> None:
        self.handled = 0
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()
        self.connection: socket.socket | None = None
        """The first request's."""

    async def handle(self, request: web.Request) -> web.Response:
        self.handled += 1
        if not self.begun.is_set():
            assert request.transport is not None
            self.connection = request.transport.get_extra_info("socket")
            self.begun.set()
            await self.go_on.wait()
        return web.Response(text="done")


@pytest.fixture(params=["plain", "TLS"])
def tls(request: pytest.FixtureRequest, tmp_path: Path) -> ssl.SSLContext | None:
    return make_certificate(tmp_path) if request.param == "TLS" else None


def _client(tls: ssl.SSLContext | None) -> ssl.SSLContext | None:
    if tls is None:
        return None
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def _wait_until_left(connection: socket.socket) -> None:
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLRDHUP)
    async with asyncio.timeout(PATIENCE):
        while not poll.poll(0):  # noqa: ASYNC110  # of another end
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("leaves", [True, False])
async def test_the_other_requests_of_a_client_that_has_left_are_not_handled(tls: ssl.SSLContext | None, leaves: bool):
    slow = Slow()
    application = web.Application()
    application.router.add_get("/", slow.handle)
    server = HttpServer("slow", SERVER, application, tls)
    async with serving(server), asyncio.timeout(PATIENCE):
        assert server.port
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=_client(tls))
        last = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * (REQUESTS - 1) + last)
        await writer.drain()
        await slow.begun.wait()
        assert slow.connection is not None
        if leaves:
            writer.transport.abort()
            await _wait_until_left(slow.connection)
            slow.go_on.set()
            while slow.connection.fileno() >= 0:  # noqa: ASYNC110  # until the server has closed it
                await asyncio.sleep(0.01)
            assert slow.handled == 1
        else:
            slow.go_on.set()
            assert (await reader.read()).count(b"HTTP/1.1 200") == REQUESTS
            writer.close()
