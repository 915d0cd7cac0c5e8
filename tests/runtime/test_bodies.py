"""The bodies that a server receives are limited, each and all together, and slow ones do not keep others waiting."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from tests.runtime.test_server import serving
from trainop.runtime.serving.bodies import Bodies, BodyRefusedError
from trainop.runtime.serving.server import Address, HttpServer

MOST = 100_000


class Receiver:
    """A server that answers with the length of a body, once it may."""

    def __init__(self, within: float = 60.0) -> None:
        self.bodies = Bodies(MOST, memory=4 * MOST)
        self.go_on = asyncio.Event()
        self.go_on.set()
        application = web.Application()

        async def answer(request: web.Request) -> web.Response:
            try:
                async with self.bodies.receive(request, within) as body:
                    await self.go_on.wait()
                    return web.Response(text=str(len(body)))
            except BodyRefusedError as error:
                return web.Response(status=error.status, text=str(error))

        application.router.add_post("/", answer)
        self.server = HttpServer("bodies", Address("127.0.0.1", 0), application, connections=50)

    async def send(self, sent: int, length: int = MOST) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A request with so much of its body."""
        assert self.server.port
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % length + b"x" * sent)
        return reader, writer

    async def begin(self, sent: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """As `send`, once it has arrived and while it is held."""
        wanted = self.bodies._held + sent
        connection = await self.send(sent)
        while self.bodies._held < wanted:  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.01)
        return connection


async def answer_of(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length"))
    return head.split(b" ")[1] + b" " + await reader.readexactly(length)


async def test_bodies_that_arrive_slowly_make_room_for_others():
    receiver = Receiver()
    async with serving(receiver.server):
        slow = [await receiver.begin(MOST - 1) for _ in range(4)]
        for _ in range(20):
            reader, writer = await receiver.send(MOST)
            assert await answer_of(reader) == b"200 100000"
            writer.close()
        assert await slow[0][0].read() == b"", "the one that has been arriving longest is closed"
        slow[-1][1].write(b"x")
        assert await answer_of(slow[-1][0]) == b"200 100000", "and no more than are needed"
        for _, writer in slow:
            writer.close()
        while receiver.bodies._held:  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.01)
    assert not receiver.bodies._arriving


async def test_a_body_waits_for_those_that_are_in_use():
    receiver = Receiver()
    receiver.go_on.clear()
    async with serving(receiver.server):
        used = [await receiver.begin(MOST) for _ in range(4)]
        reader, writer = await receiver.send(50_000, 50_000)
        answer = asyncio.create_task(answer_of(reader))
        await asyncio.wait([answer], timeout=0.2)
        assert not answer.done()
        receiver.go_on.set()
        assert await answer == b"200 50000"
        for each, _ in used:
            assert await answer_of(each) == b"200 100000"
        for _, other in (*used, (reader, writer)):
            other.close()


@pytest.mark.parametrize(
    ("sent", "length", "within", "wanted"),
    [
        (0, MOST + 1, 60.0, b"413 the request body is longer than 100000 bytes"),
        (10, MOST, 0.2, b"408 the request body was not received in time"),
    ],
)
async def test_what_is_too_long_or_too_slow_is_refused(sent: int, length: int, within: float, wanted: bytes):
    receiver = Receiver(within)
    async with serving(receiver.server):
        reader, writer = await receiver.send(sent, length)
        assert await answer_of(reader) == wanted
        writer.close()


async def test_a_client_that_leaves_releases_its_body(caplog: pytest.LogCaptureFixture):
    receiver = Receiver()
    async with serving(receiver.server):
        _, writer = await receiver.begin(MOST - 1)
        writer.transport.abort()
        while receiver.bodies._held:  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.01)
    assert "Traceback" not in caplog.text
