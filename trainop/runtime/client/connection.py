"""An open watch connection: splits the byte stream into lines and enforces timeouts.

The API server sends one JSON event per line; chunks of the stream may end anywhere within a line. The reflector reads
the lines.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from trainop.runtime.client.transport import Stream
from trainop.runtime.clock import Clock

MAX_LINE = 32 * 1024 * 1024
"""Maximum bytes of a line: twenty times the largest object that etcd accepts."""


class OversizedLineError(Exception):
    """A line exceeds `MAX_LINE`."""


class LineSplitter:
    """Splits chunks of bytes into complete lines, and buffers an incomplete last line until the next chunk."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._held = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes, without their newlines. Raises `OversizedLineError`."""
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
    """An open watch with its unread lines. `version` is the last resourceVersion seen; `made_progress` is set once an
    event or bookmark has arrived; `events` is the number of events."""

    def __init__(self, stream: Stream, version: str, idle_timeout: float, max_age: float, clock: Clock) -> None:
        """`idle_timeout` limits the seconds between two lines, `max_age` the seconds since the watch was opened."""
        self.stream = stream
        self.version = version
        self.idle_timeout = idle_timeout
        self.max_age = max_age
        self._clock = clock
        self._opened = clock.monotonic()
        self.made_progress = False
        self.events = 0
        self._chunks: AsyncIterator[bytes] = stream.chunks()
        self._splitter = LineSplitter()
        self.lines: deque[bytes] = deque()

    @property
    def age(self) -> float:
        """Seconds since the watch was opened."""
        return self._clock.monotonic() - self._opened

    async def wait_for_lines(self) -> bool:
        """Waits until `lines` is not empty; false if the stream has ended. Raises `TimeoutError` after `idle_timeout`
        seconds without a complete, non-blank line, or once the watch is older than `max_age`."""
        left = self.max_age - self.age
        if left <= 0:
            raise TimeoutError("the watch exceeded its maximum age")
        async with asyncio.timeout(min(self.idle_timeout, left)):
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
