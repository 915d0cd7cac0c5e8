"""The merged log of one job, for any number of viewers: blocks of lines, encoded once, in bounded memory.

Each line has a number, and a viewer is a position in them. One that is slower than the log finds that the oldest lines
are gone, is told how many, and goes on with the next: the log never waits for a viewer, nor keeps anything for it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from trainop.commands.loglines import Line
from trainop.commands.logsink import Source
from trainop.runtime.lowlevel import printable

MAX_BYTES = 32 * 1024 * 1024
"""Of encoded lines; the oldest blocks are removed."""
MAX_TEXT = 4_000
"""Characters of a line that the page gets; it says how many are left out."""
BLOCK_LINES, BLOCK_BYTES = 1_000, 256 * 1024
"""Of one block, at most; a line that is longer than the rest has one of its own."""
INTERVAL = 0.1
"""Seconds after which lines are passed on; those of one interval are sorted by time."""
SETTLE = 0.5
"""Seconds without a line after which the beginning, which arrives replica by replica, is sorted and passed on."""
SETTLE_AT_MOST = 4.0
MAX_PENDING = 16 * 1024 * 1024
"""Bytes of lines that wait to be sorted."""


class Block(NamedTuple):
    """Lines `first` to `end - 1`, as a server-sent event."""

    first: int
    end: int
    event: bytes


class Feed:
    """Takes lines as a `Sink`, and gives blocks. `notify` is called when there are new ones."""

    def __init__(self, notify: Callable[[], None], *, max_bytes: int = MAX_BYTES) -> None:
        self.identity = secrets.token_hex(4)
        """Of this numbering: another process, or a feed that was begun again, has another."""
        self._notify = notify
        self._max_bytes = max_bytes
        self._blocks: deque[Block] = deque()
        self._size = self._end = 0
        self._pending: list[tuple[str, str, str]] = []
        self._pending_bytes = 0
        self._last_time = ""
        self._notes: set[str] = set()

    # The sink ---------------------------------------------------------------------------------------------------------

    def begin(self, failed: str, labels: Sequence[str]) -> None:
        """The page learns the names from the job."""

    def lines(self, source: Source, lines: Sequence[Line]) -> None:
        label = source.label
        self._add([(time, label, _shown(text.decode(errors="replace"))) for time, text in lines])

    def rest(self, text: str) -> None:
        self._add([(self._last_time, "", _shown(text))])

    def note(self, text: str) -> None:
        """Once each, as what is in the way of a log is found again and again."""
        if text not in self._notes and len(self._notes) < 100:
            self._notes.add(text)
            self._add([(self._last_time, "", _shown(f"--- {text}"))])

    def _add(self, lines: list[tuple[str, str, str]]) -> None:
        self._pending += lines
        self._pending_bytes += sum(len(text) for _, _, text in lines) + 80 * len(lines)
        self._last_time = lines[-1][0]
        if self._pending_bytes > MAX_PENDING:
            self.flush()

    # Blocks -----------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Passes lines on until cancelled, and the rest then."""
        try:
            await self._settle()
            while True:
                self.flush()
                await asyncio.sleep(INTERVAL)
        finally:
            self.flush()

    async def _settle(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_AT_MOST):
                seen = -1
                while seen != len(self._pending) or not self._pending:
                    seen = len(self._pending)
                    await asyncio.sleep(SETTLE)

    def flush(self) -> None:
        """Sorts what is pending by time, and makes it available."""
        if not self._pending:
            return
        lines = sorted(self._pending, key=lambda each: each[0])  # stable: lines of one replica keep their order
        self._pending, self._pending_bytes = [], 0
        part: list[tuple[str, str, str]] = []
        size = 0
        for line in lines:
            part.append(line)
            size += len(line[2]) + 60
            if len(part) >= BLOCK_LINES or size > BLOCK_BYTES:
                self._append(part)
                part, size = [], 0
        if part:
            self._append(part)
        self._notify()

    def _append(self, lines: list[tuple[str, str, str]]) -> None:
        first, self._end = self._end, self._end + len(lines)
        data = msgspec.json.encode({"first": first, "lines": lines})
        event = b"id: %s-%d\nevent: log\ndata: %s\n\n" % (self.identity.encode(), self._end, data)
        self._blocks.append(Block(first, self._end, event))
        self._size += len(event)
        while self._size > self._max_bytes and len(self._blocks) > 1:
            self._size -= len(self._blocks.popleft().event)

    @property
    def end(self) -> int:
        """The number of the next line."""
        return self._end

    def position(self, last_event: str) -> int:
        """Where a viewer goes on that has had the event of this id; 0 for one of another numbering."""
        identity, _, number = last_event.rpartition("-")
        if identity != self.identity or not number.isdecimal() or len(number) > 15:
            return 0
        return min(int(number), self._end)

    def after(self, position: int) -> tuple[int, Block | None]:
        """How many lines are gone after the first `position`, and the next block; None if there is none yet."""
        if position >= self._end:
            return 0, None
        oldest = self._blocks[0]
        if position <= oldest.first:
            return oldest.first - position, oldest
        for block in reversed(self._blocks):  # a viewer that keeps up wants one of the last
            if block.first <= position:
                return 0, block
        raise AssertionError("the blocks have no gap")


def _shown(text: str) -> str:
    """What the page gets of a line. Of a progress bar that is the last state."""
    if not (text.isascii() and text.isprintable()):  # carriage returns are not
        text = printable(text.rpartition("\r")[2] if "\r" in text.rstrip("\r") else text).rstrip("\r")
    if len(text) > MAX_TEXT:
        text = f"{text[:MAX_TEXT]}... ({len(text) - MAX_TEXT:,} characters left out)"
    return text
