"""An open watch, line by line, whatever way its bytes are cut."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from trainop.runtime.client.transport import Stream
from trainop.runtime.clock import Clock

MAX_LINE = 32 * 1024 * 1024
"""Bytes; twenty times the largest object that etcd takes."""


class OversizedLineError(Exception):
    """A line is longer than the limit."""


class LineSplitter:
    """Gives whole lines without their newline; what follows the last one waits for the next chunk."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._held = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes; raises `OversizedLineError`."""
        first, *lines = chunk.split(b"\n")
        if self._held + len(first) > self._limit or any(len(line) > self._limit for line in lines):
            raise OversizedLineError(f"a line is longer than {self._limit} bytes")
        self._parts.append(first)
        self._held += len(first)
        if not lines:
            return []
        whole = [b"".join(self._parts), *lines[:-1]]
        self._parts = [lines[-1]]
        self._held = len(lines[-1])
        return whole


class Connection:
    """An open watch, its lines, and what came of it so far."""

    def __init__(self, stream: Stream, version: str, patience: float, lifetime: float, clock: Clock) -> None:
        """`patience` and `lifetime` in seconds: how long it may be silent, and how long it may be read at all."""
        self.stream = stream
        self.version = version
        self.patience = patience
        self.lifetime = lifetime
        self._clock = clock
        self._opened = clock.monotonic()
        self.fruitful = False
        self._chunks: AsyncIterator[bytes] = stream.chunks()
        self._splitter = LineSplitter()
        self.lines: deque[bytes] = deque()

    @property
    def age(self) -> float:
        """Seconds since it was opened."""
        return self._clock.monotonic() - self._opened

    async def fill(self) -> bool:
        """Waits for lines; false at the end. Raises `TimeoutError` after `patience` seconds without one, which blank
        lines and parts of a line are not, and at the end of its lifetime."""
        left = self.lifetime - self.age
        if left <= 0:
            raise TimeoutError("the server does not come to an end")
        async with asyncio.timeout(min(self.patience, left)):
            while not self.lines:
                chunk = await anext(self._chunks, None)
                if chunk is None:
                    return False
                self.lines.extend(line for line in self._splitter.feed(chunk) if line.strip())
        return True

    async def close(self) -> None:
        generator_close = getattr(self._chunks, "aclose", None)
        if generator_close is not None:
            await generator_close()
        await self.stream.close()
