"""Receives the bodies of requests, each limited in length and time, and all of one server together in memory.

A client that sends slowly costs neither a place (see `listener.py`) nor memory that others need: bodies that arrive
have a common budget. When it is used up, the connection whose body has been arriving longest is closed; an honest body
arrives within milliseconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

MEMORY = 32 * 1024 * 1024
"""Default bytes of all bodies of a server that are arriving or in use."""


class BodyRefusedError(Exception):
    """The body cannot be used. `status` is 413 (too long), 408 (too slow), 429 (no memory) or 400 (broken)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Bodies:
    """The bodies of one server's requests, each of at most `most` bytes after decompression."""

    def __init__(self, most: int, *, memory: int = MEMORY) -> None:
        self._most = most
        self._memory = max(memory, 2 * most)
        self._held = 0
        """Bytes of all bodies that are arriving or in use."""
        self._arriving: dict[web.RequestHandler, int] = {}
        """The connection of each -> the bytes so far, longest first."""
        self._released = asyncio.Event()

    @asynccontextmanager
    async def receive(self, request: web.Request, within: float) -> AsyncIterator[bytes]:
        """The body, which counts as used until the end of the context. `within` are the seconds in which it must
        arrive. Raises `BodyRefusedError`."""
        connection, size = request.protocol, 0
        self._arriving[connection] = 0
        try:
            body = await self._read(request, within)
            size = self._arriving.pop(connection, 0)  # in use from now on
            yield body
        finally:
            self._release(size + self._arriving.pop(connection, 0))

    async def _read(self, request: web.Request, within: float) -> bytes:
        body = bytearray()
        if (request.content_length or 0) > self._most:
            raise self._too_long()
        try:
            async with asyncio.timeout(within):
                async for piece in request.content.iter_any():
                    if len(body) + len(piece) > self._most:
                        raise self._too_long()
                    await self._make_room(request.protocol, len(piece))
                    body += piece
        except TimeoutError:
            raise BodyRefusedError(408, "the request body was not received in time") from None
        except web.RequestPayloadError:
            raise BodyRefusedError(400, "broken transfer or content encoding") from None
        except ConnectionError:
            raise BodyRefusedError(400, "the connection was closed") from None
        return bytes(body)

    def _too_long(self) -> BodyRefusedError:
        return BodyRefusedError(413, f"the request body is longer than {self._most} bytes")

    async def _make_room(self, connection: web.RequestHandler, size: int) -> None:
        """Adds `size` bytes to a body. Until there is memory for them, waits for bodies that are in use, or if it is
        those that arrive which take it, closes the connection of the one that has been arriving longest."""
        while connection in self._arriving and self._held + size > self._memory:
            if self._held - sum(self._arriving.values()) > self._memory // 2:
                self._released.clear()
                await self._released.wait()
            else:
                oldest = next(iter(self._arriving))
                self._release(self._arriving.pop(oldest))
                if oldest is not connection and oldest.transport is not None:
                    oldest.transport.abort()
        if connection not in self._arriving:
            raise BodyRefusedError(429, "too many large requests are being served")
        self._arriving[connection] += size
        self._held += size

    def _release(self, size: int) -> None:
        self._held -= size
        self._released.set()
