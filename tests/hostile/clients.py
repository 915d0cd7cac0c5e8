"""Clients that hold what they can. Each is a context: within it, they do so, and at its end they have left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeAlias

from tests.hostile.programs import Server, untrusting
from tests.patience import PATIENCE

Hostile: TypeAlias = Callable[[Server, int, int], AbstractAsyncContextManager[None]]
"""Takes the server, its port, and how many connections to open."""
Behave: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

PAUSE = 0.1
"""Seconds between two bytes of a slow client."""
FLOODING = "127.0.0.66"
"""The address of clients that come again and again: the server tells them from others by it."""


async def connect(port: int, server: Server, *, tls: bool = True) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port, ssl=untrusting() if tls and server.tls else None)


@asynccontextmanager
async def crowd(server: Server, port: int, count: int, behave: Behave, *, tls: bool = True) -> AsyncIterator[None]:
    """So many connections. Each has been made, and has begun to behave, before the context is entered. The server may
    close any of them at any time."""
    begun = asyncio.Semaphore(0)

    async def one() -> None:
        writer = None
        try:
            reader, writer = await connect(port, server, tls=tls)
            begun_behaving = asyncio.ensure_future(behave(reader, writer))
            await asyncio.sleep(0)
            begun.release()
            await begun_behaving
        except (OSError, asyncio.IncompleteReadError):  # closed for another one
            begun.release()
        finally:
            if writer is not None:
                writer.transport.abort()

    tasks = []
    try:
        for start in range(0, count, 20):  # a crowd that arrives at once would be stopped by the backlog
            tasks += [asyncio.create_task(one()) for _ in range(min(20, count - start))]
            async with asyncio.timeout(PATIENCE):
                for _ in range(min(20, count - start)):
                    await begun.acquire()
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def steady(behave: Callable[[Server], Behave], *, tls: bool = True) -> Hostile:
    return lambda server, port, count: crowd(server, port, count, behave(server), tls=tls)


def slowly(first: Callable[[Server], bytes], then: bytes = b"x") -> Callable[[Server], Behave]:
    """Sends something at once, and then byte by byte."""

    def make(server: Server) -> Behave:
        async def behave(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(first(server))
            while True:
                await writer.drain()
                await asyncio.sleep(PAUSE)
                writer.write(then)

        return behave

    return make


def at_once(what: Callable[[Server], Sequence[bytes]], *, half: bool = False) -> Callable[[Server], Behave]:
    """Sends all of this as fast as it is taken, reads nothing, and stays. With `half`, says that nothing follows."""

    def make(server: Server) -> Behave:
        async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if not half:
                reader._transport.pause_reading()  # type: ignore[attr-defined]  # nothing public stops it
            for piece in what(server):
                writer.write(piece)
                await writer.drain()
            if half and writer.can_write_eof():
                writer.write_eof()
            await asyncio.Event().wait()

        return behave

    return make


def post(server: Server, length: int) -> bytes:
    authorization = f"POST {server.posts} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return authorization.encode() + b"Content-Length: %d\r\n\r\n" % length


def client_hello() -> bytes:
    """The first message of a TLS handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = untrusting().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        session.do_handshake()
    return bytes(outgoing.read())


HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
PIPELINED = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 400


@asynccontextmanager
async def flood(server: Server, port: int, count: int) -> AsyncIterator[None]:
    """Connects again and again, and leaves without a farewell. Connections in place all the time: `count`."""
    leave_at_once = struct.pack("ii", 1, 0)
    arrived = asyncio.Event()

    async def come_and_go() -> None:
        loop = asyncio.get_running_loop()
        held: list[socket.socket] = []
        try:
            while True:
                one = socket.socket()
                one.setblocking(False)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, leave_at_once)
                held.append(one)
                with contextlib.suppress(OSError):
                    one.bind((FLOODING, 0))
                    await loop.sock_connect(one, ("127.0.0.1", port))
                    await loop.sock_sendall(one, b"" if server.tls else post(server, 1000))
                if len(held) > count // 8:
                    held.pop(0).close()
                    arrived.set()
                await asyncio.sleep(0.001)
        finally:
            for each in held:
                each.close()

    tasks = [asyncio.create_task(come_and_go()) for _ in range(8)]
    try:
        async with asyncio.timeout(PATIENCE):
            await arrived.wait()
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


CLIENTS: dict[str, Hostile] = {
    "idle": steady(at_once(lambda _: ())),
    "handshake never begun": steady(at_once(lambda _: ()), tls=False),
    "handshake never finished": steady(slowly(lambda _: client_hello()[:60], b"\0"), tls=False),
    "TLS garbage": steady(at_once(lambda _: (b"\x16\x03\x01\x02\x00" + os.urandom(2_000),)), tls=False),
    "no TLS": steady(slowly(lambda server: server.request), tls=False),
    "slow head": steady(slowly(lambda _: HEAD)),
    "slow body": steady(slowly(lambda server: post(server, 100_000) + b"{")),
    "slow large body": steady(slowly(lambda server: post(server, 7_000_000) + b" " * 400_000, b" ")),
    "half-closed": steady(at_once(lambda server: (post(server, 100_000) + b"{",), half=True), tls=False),
    "huge body": steady(at_once(lambda server: (post(server, 2**31), *(b" " * 2**18 for _ in range(8))))),
    "huge header": steady(at_once(lambda _: (HEAD, *(b"y" * 30_000 + b"\r\nX-More: " for _ in range(60))))),
    "huge request line": steady(at_once(lambda _: (b"GET /", *(b"y" * 2**16 for _ in range(64))))),
    "pipelining": steady(at_once(lambda _: (PIPELINED,) * 20)),
    "flood": flood,
}
