"""Who may use the page, and what each of them reads with: a seat. The gate of one user knows a token of its own."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from aiohttp import web

from trainop.ui.board import Board
from trainop.ui.source import JobId, Source

HOST = "127.0.0.1"
NAMES = frozenset({HOST, "localhost", "[::1]"})
"""That `Host` may have, with any port: one of another machine may be forwarded."""
VIEWERS = 64
"""Streams at once. Tabs that are not seen have none."""
STACKS_AT_ONCE = 1


class RefusedError(Exception):
    """A request is not answered. The text says what to do about it."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Seat:
    """What is read with one set of rights, and who looks at it."""

    def __init__(self, source: Source, board: Board) -> None:
        self.source, self.board = source, board
        self.bells: set[asyncio.Event] = set()
        """Those of its streams, one each."""
        self.stacks = asyncio.Semaphore(STACKS_AT_ONCE)
        self.ended = False
        """Whether its rights have ended, and its streams with them."""


class Gate(Protocol):
    """Admits requests."""

    public: frozenset[str]
    """Paths without data, which anybody may ask for."""
    choose: bool
    """Whether users choose a namespace."""

    def check(self, request: web.Request) -> None:
        """Raises `RefusedError` for requests that are not answered at all."""
        ...

    def seat(self, request: web.Request) -> AbstractAsyncContextManager[Seat]:
        """The seat of the sender while the request lasts. Raises `RefusedError`."""
        ...

    def check_room(self, seat: Seat, wanted: JobId | None) -> None:
        """Raises `RefusedError` if there is no room for one more stream, about a job or about none."""
        ...

    async def run(self) -> None:
        """Reads for those who have seats, until cancelled."""
        ...


class TokenGate:
    """One user on this machine, who has the token of the address.

    The token is in the fragment of the URL, which no browser sends; the page sends it as a bearer token, so that no
    other site can make a browser send it. `Host` must name this machine, so that no site can pass itself off as it.
    """

    public = frozenset({"/"})
    choose = False

    def __init__(self, source: Source) -> None:
        self.token = secrets.token_urlsafe(24)
        self.board = Board(source)
        self._seat = Seat(source, self.board)

    def check(self, request: web.Request) -> None:
        host = request.headers.get("Host", "")
        name = host[: host.rfind("]") + 1] if host.startswith("[") else host.partition(":")[0]
        if name.lower() not in NAMES:
            raise RefusedError(421, "this page is served to this machine only, as localhost or 127.0.0.1")

    @asynccontextmanager
    async def seat(self, request: web.Request) -> AsyncIterator[Seat]:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not secrets.compare_digest(given.encode("utf-8", "surrogateescape"), self.token.encode()):
            raise RefusedError(403, "the token is missing or wrong; use the address that trainop has printed")
        yield self._seat

    def check_room(self, seat: Seat, wanted: JobId | None) -> None:
        if len(seat.bells) >= VIEWERS:
            raise RefusedError(503, f"at most {VIEWERS} tabs are served at once")

    async def run(self) -> None:
        await self.board.run()
