"""The log of one container on its way to the screen, in blocks of whole lines.

A file or pipe gets every line, however long that takes its reader. A terminal gets what a person could read, and of a
flood its last lines, with the number of those that were left out and the file that holds them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

from trainop.run.screen import KEPT_LINES, Replica, Screen, shorten
from trainop.runtime.errors import ApiError

_LONGEST = 64 * 1024
"""A longer line reaches a file or pipe in pieces; a terminal sees how it begins."""
_BURST, _PER_SECOND = 10_000, 1_000
"""Lines that a terminal gets at once, and each second beyond those; a hundred bytes count as a line."""
_QUIET, _NEWS = 0.5, 2.0
"""Seconds after which a flood counts as over, and after which its state is shown while it lasts."""


class Stopwatch(Protocol):
    """The part of a clock that is needed here."""

    def monotonic(self) -> float: ...


class LogView:
    """Shows what `run` is given; `where` names the file that keeps all of it."""

    def __init__(self, screen: Screen, replica: Replica, prefix: str, where: str, clock: Stopwatch) -> None:
        self._screen = screen
        self._replica = replica
        self._prefix = prefix
        self._where = where
        self._clock = clock
        self._rest = bytearray()
        self._torn = False
        """What was shown last is a piece of a line that goes on."""
        self._allowance, self._filled = float(_BURST), clock.monotonic()
        self._skipped, self._since = 0, 0.0
        self.complete = True
        """All lines were shown."""
        self._last = b""

    async def run(self, chunks: AsyncIterator[bytes]) -> None:
        """Until the log ends; raises what reading it raises, once all that was read is shown."""
        try:
            await self._follow(chunks)
        except (ApiError, ConnectionError, TimeoutError):
            await self._finish()
            raise
        await self._finish()

    async def _follow(self, chunks: AsyncIterator[bytes]) -> None:
        while True:
            coming = asyncio.ensure_future(anext(chunks, None))
            try:
                while not coming.done():
                    await asyncio.wait({coming}, timeout=_QUIET if self._skipped else None)
                    if not coming.done():
                        await self._catch_up()
            finally:
                coming.cancel()
            chunk = coming.result()
            if chunk is None:
                return
            await self._show(*self._whole_lines(chunk))

    async def _finish(self) -> None:
        if self._rest:
            await self._show(bytes(self._rest) + b"\n", torn=False)
        await self._catch_up()

    def _whole_lines(self, chunk: bytes) -> tuple[bytes, bool]:
        """What can be shown now, and whether its last line is a piece of one."""
        end = chunk.rfind(b"\n") + 1
        if end:
            block, self._rest = bytes(self._rest) + chunk[:end], bytearray(chunk[end:])
        else:
            block = b""
            self._rest += chunk
        torn = len(self._rest) > _LONGEST
        if torn:
            block, self._rest = block + self._rest + b"\n", bytearray()
        return block, torn

    async def _show(self, block: bytes, torn: bool) -> None:
        if not block:
            return
        begun = block.partition(b"\n")[2] if self._torn else block
        self._torn = torn
        self._remember(begun)
        if self._screen.terminal:
            block = begun
        if not block:
            return
        lines = block.count(b"\n")
        if not self._screen.terminal or self._affords(max(lines, len(block) // 100)):
            await self._catch_up()
            await self._screen.log(self._replica, self._prefix, block)
            return
        if not self._skipped:
            self._since = self._clock.monotonic()
        self._skipped += lines
        if self._clock.monotonic() - self._since > _NEWS:
            await self._catch_up()

    def _remember(self, block: bytes) -> None:
        """The last lines, for the end of a flood and for the report of a failure."""
        if not block:
            return
        fresh = _last(block)
        self._last = _last(self._last + fresh)
        lines = fresh.decode(errors="replace").removesuffix("\n").split("\n")
        self._replica.tail.extend(self._prefix + shorten(line) for line in lines)

    def _affords(self, lines: int) -> bool:
        now = self._clock.monotonic()
        self._allowance = min(_BURST, self._allowance + (now - self._filled) * _PER_SECOND)
        self._filled = now
        if lines > self._allowance:
            return False
        self._allowance -= lines
        return True

    async def _catch_up(self) -> None:
        if not self._skipped:
            return
        left_out = max(0, self._skipped - self._last.count(b"\n"))
        self._skipped = 0
        if left_out:
            self.complete = False
            self._screen.note(f"{self._replica.name}: {left_out:,} lines are not shown here; all are in {self._where}")
        await self._screen.log(self._replica, self._prefix, self._last)


def _last(block: bytes) -> bytes:
    """At most so many lines, of at most so many bytes, as are shown when a replica fails."""
    return b"\n".join(block.removesuffix(b"\n").rsplit(b"\n", KEPT_LINES)[-KEPT_LINES:])[-_LONGEST:] + b"\n"
