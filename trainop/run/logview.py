"""Shows the log of one container, in blocks of whole lines.

A file or pipe receives every line, with backpressure. On a terminal the rate is limited: of output above the limit,
only the last lines are shown, with the number of skipped lines and the path of the complete log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

from trainop.run.screen import TAIL_LINES, Replica, Screen, shorten
from trainop.runtime import ApiError

_MAX_LINE = 64 * 1024
"""Bytes. A longer line is written to a file or pipe in pieces; on a terminal only its beginning is shown."""
_LAST_LINE = 512
"""Bytes of the last line that are shown in the table."""
_BURST, _PER_SECOND = 10_000, 1_000
"""Token bucket for terminals, in lines: burst, and refill per second. A hundred bytes count as one line."""
_QUIET_AFTER, _SUMMARY_INTERVAL = 0.5, 2.0
"""Seconds without new output, and during continuous output, after which skipped lines are summarized."""


class MonotonicClock(Protocol):
    """The part of `Clock` that `LogView` uses."""

    def monotonic(self) -> float: ...


class LogView:
    """Shows the log of one container of `replica`. `where` describes the place of the complete log."""

    def __init__(self, screen: Screen, replica: Replica, prefix: str, where: str, clock: MonotonicClock) -> None:
        self._screen = screen
        self._replica = replica
        self._prefix = prefix
        self._where = where
        self._clock = clock
        self._incomplete = bytearray()
        self._partial = False
        """Whether the last shown block ended within a line."""
        self._budget, self._filled = float(_BURST), clock.monotonic()
        self._skipped, self._since = 0, 0.0
        self.all_shown = True
        """Whether no lines were skipped."""
        self._last = b""

    async def run(self, chunks: AsyncIterator[bytes]) -> None:
        """Shows all chunks. Errors of the stream are raised after everything received has been shown."""
        try:
            await self._follow(chunks)
        except (ApiError, ConnectionError, TimeoutError):
            await self._finish()
            raise
        await self._finish()

    async def _follow(self, chunks: AsyncIterator[bytes]) -> None:
        while True:
            next_chunk = asyncio.ensure_future(anext(chunks, None))
            try:
                while not next_chunk.done():
                    await asyncio.wait({next_chunk}, timeout=_QUIET_AFTER if self._skipped else None)
                    if not next_chunk.done():
                        await self._show_skipped()
            finally:
                next_chunk.cancel()
            chunk = next_chunk.result()
            if chunk is None:
                return
            await self._show(*self._whole_lines(chunk))

    async def _finish(self) -> None:
        if self._incomplete:
            await self._show(bytes(self._incomplete) + b"\n", partial=False)
        await self._show_skipped()

    def _whole_lines(self, chunk: bytes) -> tuple[bytes, bool]:
        """The block that can be shown now, and whether it ends within a line."""
        end = chunk.rfind(b"\n") + 1
        self._replica.heard = self._clock.monotonic()
        self._note_last_line(chunk)
        if end:
            block, self._incomplete = bytes(self._incomplete) + chunk[:end], bytearray(chunk[end:])
        else:
            block = b""
            self._incomplete += chunk
        partial = len(self._incomplete) > _MAX_LINE
        if partial:
            block, self._incomplete = block + self._incomplete + b"\n", bytearray()
        return block, partial

    def _note_last_line(self, chunk: bytes) -> None:
        """Shows the end of the log in the table: a progress bar ends in carriage returns, long before its line ends."""
        end = (bytes(self._incomplete[-_LAST_LINE:]) + chunk[-_LAST_LINE:]).rstrip(b"\r\n")
        line = end[max(end.rfind(b"\r"), end.rfind(b"\n")) + 1 :]
        if line.strip():
            self._replica.last_line = line[-_LAST_LINE:].decode(errors="replace")

    async def _show(self, block: bytes, partial: bool) -> None:
        if not block:
            return
        complete = block.partition(b"\n")[2] if self._partial else block
        self._partial = partial
        self._update_tail(complete)
        if self._screen.terminal:
            block = complete
        if not block:
            return
        lines = block.count(b"\n")
        if not self._screen.terminal or self._within_rate(max(lines, len(block) // 100)):
            await self._show_skipped()
            await self._screen.log(self._replica, self._prefix, block)
            return
        if not self._skipped:
            self._since = self._clock.monotonic()
        self._skipped += lines
        if self._clock.monotonic() - self._since > _SUMMARY_INTERVAL:
            await self._show_skipped()

    def _update_tail(self, block: bytes) -> None:
        """Stores the last lines, for the summary of skipped lines and the report of a failure."""
        if not block:
            return
        fresh = _last(block)
        self._last = _last(self._last + fresh)
        lines = fresh.decode(errors="replace").removesuffix("\n").split("\n")
        self._replica.tail.extend(self._prefix + shorten(line) for line in lines)

    def _within_rate(self, lines: int) -> bool:
        now = self._clock.monotonic()
        self._budget = min(_BURST, self._budget + (now - self._filled) * _PER_SECOND)
        self._filled = now
        if lines > self._budget:
            return False
        self._budget -= lines
        return True

    async def _show_skipped(self) -> None:
        if not self._skipped:
            return
        left_out = max(0, self._skipped - self._last.count(b"\n"))
        self._skipped = 0
        if left_out:
            self.all_shown = False
            self._screen.note(f"{self._replica.name}: {left_out:,} lines skipped; the complete log is {self._where}")
        await self._screen.log(self._replica, self._prefix, self._last)


def _last(block: bytes) -> bytes:
    """The last lines of `block`, limited to TAIL_LINES lines and _MAX_LINE bytes."""
    return b"\n".join(block.removesuffix(b"\n").rsplit(b"\n", TAIL_LINES)[-TAIL_LINES:])[-_MAX_LINE:] + b"\n"
