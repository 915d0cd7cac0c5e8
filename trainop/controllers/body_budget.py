"""How many bytes of requests there are at a time: pods may be made from templates of more than a megabyte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

LARGE = 64 * 1024
"""Bytes from which on a body needs room; others are sent as they come."""

ROOM = 4 * 1024 * 1024
"""Bytes of large bodies at a time, of all jobs together. Three of the largest templates that etcd holds keep an API
server busy, and each body is copied some five times on its way."""


class BodyBudget:
    """Of all controllers of a process. Whoever has waited longest for room is the next to have it."""

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._free = room
        self._turn = asyncio.Lock()
        self._returned = asyncio.Event()

    @asynccontextmanager
    async def made(self, encode: Callable[[], bytes]) -> AsyncIterator[msgspec.Raw]:
        """What `encode` makes. A large body is made anew once there is room, so that none waits in memory; one that is
        larger than all the room is alone."""
        body = encode()
        if len(body) < LARGE:
            yield msgspec.Raw(body)
            return
        size = min(len(body), self._room)
        del body
        async with self._turn:
            while self._free < size:
                self._returned.clear()
                await self._returned.wait()
            self._free -= size
        try:
            yield msgspec.Raw(encode())
        finally:
            self._free += size
            self._returned.set()
