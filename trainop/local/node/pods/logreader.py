"""Serves logs as `kubectl logs` asks for them: whole pieces of the file, lines only where times are asked for."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO

from trainop.local.node.pods.logs import RECORD, RunLog

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CHUNK = 256 * 1024


@dataclass(frozen=True, slots=True)
class LogOptions:
    """As of `kubectl logs`; `tail` counts lines from the end, `limit` bytes of the answer."""

    follow: bool = False
    tail: int | None = None
    since: datetime | None = None
    timestamps: bool = False
    limit: int | None = None


class _Times:
    """When which part of a log came; looked up on disk, as there may be a record for each line."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0) if path.exists() else None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def start(self, since: datetime) -> int:
        """The offset of what came at `since` or later; beyond every offset if nothing did."""
        wanted = (since - _EPOCH) // timedelta(microseconds=1)
        first = self._first(lambda offset, at: at >= wanted)
        found = self._record(first)
        return found[0] if found else 2**63

    def around(self, offset: int) -> tuple[str, int]:
        """When the byte at `offset` came, in the form of RFC 3339, and up to which offset that holds."""
        following = self._first(lambda start, at: start > offset)
        found, after = self._record(following - 1), self._record(following)
        moment = _EPOCH + timedelta(microseconds=found[1] if found else 0)
        return moment.strftime("%Y-%m-%dT%H:%M:%S.%f000Z"), after[0] if after else 2**63

    def _record(self, number: int) -> tuple[int, int] | None:
        if self._file is None or number < 0:
            return None
        data = os.pread(self._file.fileno(), RECORD.size, number * RECORD.size)
        return RECORD.unpack(data) if len(data) == RECORD.size else None

    def _first(self, holds: Callable[[int, int], bool]) -> int:
        """The number of the first record for which `holds` is true; it is true for all that follow."""
        low, high = 0, os.fstat(self._file.fileno()).st_size // RECORD.size if self._file else 0
        while low < high:
            middle = (low + high) // 2
            found = self._record(middle)
            if found is None or holds(*found):
                high = middle
            else:
                low = middle + 1
        return low


async def read_log(log: RunLog, options: LogOptions) -> AsyncIterator[bytes]:
    """The log in chunks, without what the options leave out."""
    left = options.limit
    with log.path.open("rb", buffering=0) as file:
        times = _Times(log.times)
        try:
            await _seek(file, times, options)
            while left != 0:
                complete = log.complete  # asked before the last look, so that nothing is missed after it
                chunk = _read_with_times(file, times) if options.timestamps else file.read(_CHUNK)
                if chunk:
                    chunk = chunk[:left]
                    left = None if left is None else left - len(chunk)
                    yield chunk
                    await asyncio.sleep(0)  # others get their turn between the chunks of a long log
                elif complete or not options.follow:
                    return
                else:
                    await log.changed()
        finally:
            times.close()


async def _seek(file: BinaryIO, times: _Times, options: LogOptions) -> None:
    start = 0 if options.tail is None else await _start_of_tail(file, options.tail)
    if options.since is not None:
        start = max(start, min(times.start(options.since), os.fstat(file.fileno()).st_size))
    file.seek(start)


def _read_with_times(file: BinaryIO, times: _Times) -> bytes:
    """What came at one time, each line with that time; the rest of a line that began before has none."""
    offset = file.tell()
    begun = offset > 0 and os.pread(file.fileno(), 1, offset - 1) != b"\n"
    at, end = times.around(offset)
    data = file.read(min(_CHUNK, end - offset))
    if not data:
        return b""
    prefix = at.encode() + b" "
    last = len(data) - 1
    stamped = data[:last].replace(b"\n", b"\n" + prefix) + data[last:]
    return stamped if begun else prefix + stamped


async def _start_of_tail(file: BinaryIO, lines: int) -> int:
    """The offset of the last `lines` lines, found from the end; a last line need not have an end."""
    end = size = os.fstat(file.fileno()).st_size
    wanted = lines
    if size and os.pread(file.fileno(), 1, size - 1) == b"\n":
        wanted += 1
    if not lines:
        return size
    while end > 0:
        start = max(0, end - _CHUNK)
        block = os.pread(file.fileno(), end - start, start)
        if (there := block.count(b"\n")) >= wanted:
            at = len(block)
            for _ in range(wanted):
                at = block.rindex(b"\n", 0, at)
            return start + at + 1
        wanted -= there
        end = start
        await asyncio.sleep(0)
    return 0


def last_lines(log: RunLog, lines: int, size: int) -> str:
    """The end of a log, as a termination message: at most so many lines and bytes."""
    if not log.path.exists():
        return ""
    with log.path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - size))
        found = file.read(size).splitlines(keepends=True)
    return b"".join(found[-lines:]).decode(errors="replace")
