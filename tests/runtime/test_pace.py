"""A body that is read at a pace: what arrives in between waits in the kernel, and comes as one piece."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from tests.patience import PATIENCE
from tests.runtime.test_http import serving, transport_of
from tests.runtime.virtual_time import virtual_time
from trainop.runtime.client import http
from trainop.runtime.client.transport import Request


@dataclass
class Pauses:
    """Holds the reader back between two reads."""

    begun: asyncio.Queue[float] = field(default_factory=asyncio.Queue)
    ends: asyncio.Queue[None] = field(default_factory=asyncio.Queue)

    async def wait(self, seconds: float) -> None:
        self.begun.put_nowait(seconds)
        await self.ends.get()


@dataclass
class Peer:
    """Sends what the test says; None ends the body, and `cut` the connection."""

    said: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)
    sent: asyncio.Queue[None] = field(default_factory=asyncio.Queue)
    request: web.BaseRequest | None = None

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.request = request
        response = web.StreamResponse()
        await response.prepare(request)
        while (piece := await self.said.get()) is not None:
            await response.write(piece)
            self.sent.put_nowait(None)
        return response

    async def say(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.said.put_nowait(piece)
            await self.sent.get()

    def cut(self) -> None:
        assert self.request is not None
        assert self.request.transport is not None
        self.request.transport.abort()


@contextlib.asynccontextmanager
async def read(peer: Peer, pace: float) -> AsyncIterator[AsyncIterator[bytes]]:
    async with asyncio.timeout(PATIENCE), serving(peer.answer) as server, transport_of(server) as transport:
        stream = await transport.open(Request("GET", "/log", pace=pace))
        try:
            yield stream.chunks()
        finally:
            await stream.close()
            peer.said.put_nowait(None)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Pauses:
    made = Pauses()
    monkeypatch.setattr(http, "wait_for_multiple", made.wait)
    return made


async def next_of(chunks: AsyncIterator[bytes]) -> bytes:
    return await anext(chunks)


async def pause(peer: Peer, chunks: AsyncIterator[bytes], pauses: Pauses) -> asyncio.Task[bytes]:
    """Reads one line; the reader of the next one pauses."""
    await peer.say(b"one\n")
    assert await anext(chunks) == b"one\n"
    following = asyncio.create_task(next_of(chunks))
    await pauses.begun.get()
    return following


async def test_what_arrives_during_a_pause_is_read_without_another(pauses: Pauses, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http, "LARGE_PIECE", 1)  # however the kernel cuts it
    peer, lines = Peer(), [b"%d\n" % number for number in range(500)]
    async with read(peer, pace=3600) as chunks:
        following = await pause(peer, chunks, pauses)
        await peer.say(*lines)
        assert not following.done()
        pauses.ends.put_nowait(None)
        found, pieces = await following, 1
        while len(found) < len(b"".join(lines)):
            found, pieces = found + await anext(chunks), pieces + 1
        assert found == b"".join(lines)
        assert pieces < 100
        assert pauses.begun.empty()


async def test_after_a_small_piece_there_is_a_pause_at_once(pauses: Pauses):
    peer = Peer()
    async with read(peer, pace=3600) as chunks:
        following = await pause(peer, chunks, pauses)
        for number in range(3):
            await peer.say(b"%d\n" % number)
            assert not following.done()
            pauses.ends.put_nowait(None)
            assert await following == b"%d\n" % number
            following = asyncio.create_task(next_of(chunks))
            await pauses.begun.get()
        pauses.ends.put_nowait(None)


async def test_there_is_a_pause_after_the_time_to_read(pauses: Pauses):
    peer = Peer()
    async with read(peer, pace=1e-9) as chunks:
        for number in range(3):
            following = asyncio.create_task(next_of(chunks))
            if number:
                await pauses.begun.get()
                pauses.ends.put_nowait(None)
            await peer.say(b"%d\n" % number)
            assert await following == b"%d\n" % number


async def test_the_end_of_the_body_is_seen_after_the_pause(pauses: Pauses):
    peer = Peer()
    async with read(peer, pace=0.5) as chunks:
        following = await pause(peer, chunks, pauses)
        await peer.say(b"last\n")
        peer.said.put_nowait(None)
        pauses.ends.put_nowait(None)
        assert await following == b"last\n"
        pauses.ends.put_nowait(None)
        with pytest.raises(StopAsyncIteration):
            await anext(chunks)


async def test_a_peer_that_is_lost_in_a_pause_is_an_error_afterwards(pauses: Pauses):
    peer = Peer()
    async with read(peer, pace=0.5) as chunks:
        following = await pause(peer, chunks, pauses)
        peer.cut()
        pauses.ends.put_nowait(None)
        with pytest.raises(ConnectionError, match="GET /log"):
            await following


@virtual_time
async def test_all_streams_are_read_at_the_same_moments():
    loop = asyncio.get_running_loop()
    times = []
    for late in (0.0, 0.3, 0.19, 1.0):
        await asyncio.sleep(late)
        await http.wait_for_multiple(0.25)
        times.append(loop.time())
    assert times == pytest.approx([0.25, 0.75, 1.0, 2.25])


async def test_a_body_without_a_pace_is_read_as_it_arrives(pauses: Pauses):
    peer = Peer()
    async with read(peer, pace=0.0) as chunks:
        for piece in (b"one\n", b"two\n"):
            await peer.say(piece)
            assert await anext(chunks) == piece
        assert pauses.begun.empty()
