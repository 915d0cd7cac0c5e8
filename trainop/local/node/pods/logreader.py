"""Reads container logs with the options of `kubectl logs`.

Data is copied in chunks of the file; it is split into lines only for `timestamps`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO

from trainop.local import private_files
from trainop.local.node.pods.logs import RECORD, RunLog
from trainop.runtime import Json

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CHUNK = 256 * 1024
TOGETHER = 0.05
"""Seconds after a chunk in which a follower gets nothing: what is written meanwhile is the next chunk. Each one costs
its reader a TLS record, so that lines one by one would cost several times as much."""
_PIECES = 1000
"""Of different times within a chunk; each costs two reads of the index, and others wait meanwhile."""
_MESSAGE_SIZE = 4096
_FALLBACK_LINES, _FALLBACK_SIZE = 80, 2048


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The options of `kubectl logs`: `tail` in lines from the end, `limit` in bytes of output."""

    follow: bool = False
    tail: int | None = None
    since: datetime | None = None
    timestamps: bool = False
    limit: int | None = None


class _TimeIndex:
    """The `.times` file of a log. Searched on disk, because it may have one record per line."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0) if path.exists() else None
        self._expected = 0
        """The number of the record that begins after the next offset, if the log is read on from where it was."""

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def start(self, since: datetime) -> int:
        """The offset of the first chunk that arrived at `since` or later; 2**63 if there is none."""
        microseconds = (since - _EPOCH) // timedelta(microseconds=1)
        first = self._bisect(lambda offset, at: at >= microseconds)
        found = self._record(first)
        return found[0] if found else 2**63

    def at_offset(self, offset: int) -> tuple[str, int]:
        """The arrival time (RFC 3339) of the byte at `offset`, and the offset at which the next chunk begins."""
        following = self._expected
        found, after = self._record(following - 1), self._record(following)
        if found is None or found[0] > offset or (after is not None and after[0] <= offset):
            following = self._bisect(lambda start, at: start > offset)
            found, after = self._record(following - 1), self._record(following)
        self._expected = following + 1
        moment = _EPOCH + timedelta(microseconds=found[1] if found else 0)
        return moment.strftime("%Y-%m-%dT%H:%M:%S.%f000Z"), after[0] if after else 2**63

    def _record(self, number: int) -> tuple[int, int] | None:
        if self._file is None or number < 0:
            return None
        data = os.pread(self._file.fileno(), RECORD.size, number * RECORD.size)
        return RECORD.unpack(data) if len(data) == RECORD.size else None

    def _bisect(self, predicate: Callable[[int, int], bool]) -> int:
        """Binary search: the number of the first record that satisfies the monotonic `predicate`."""
        low, high = 0, os.fstat(self._file.fileno()).st_size // RECORD.size if self._file else 0
        while low < high:
            middle = (low + high) // 2
            found = self._record(middle)
            if found is None or predicate(*found):
                high = middle
            else:
                low = middle + 1
        return low


async def read_log(log: RunLog, options: LogOptions) -> AsyncIterator[bytes]:
    """Yields the part of the log that `options` select, in chunks; with `follow`, until the log is complete: a line
    after a silence at once, and then what was written within `TOGETHER` seconds as one chunk."""
    remaining = options.limit
    with log.path.open("rb", buffering=0) as file:
        times = _TimeIndex(log.times)
        try:
            await _seek(file, times, options)
            while remaining != 0:
                complete = log.complete  # checked before the read, so that no data is missed
                begin = file.tell()
                chunk = _read_with_times(file, times) if options.timestamps else file.read(_CHUNK)
                if chunk:
                    chunk = chunk[:remaining]
                    remaining = None if remaining is None else remaining - len(chunk)
                    yield chunk
                    has_more = complete or remaining == 0 or file.tell() - begin >= _CHUNK
                    await (log.completed(TOGETHER) if options.follow and not has_more else asyncio.sleep(0))
                elif complete or not options.follow:
                    return
                else:
                    await log.changed()
        finally:
            times.close()


async def _seek(file: BinaryIO, times: _TimeIndex, options: LogOptions) -> None:
    start = 0 if options.tail is None else await _start_of_tail(file, options.tail)
    if options.since is not None:
        start = max(start, min(times.start(options.since), os.fstat(file.fileno()).st_size))
    file.seek(start)


def _read_with_times(file: BinaryIO, times: _TimeIndex) -> bytes:
    """Reads up to `_CHUNK` bytes, of up to `_PIECES` times, and prefixes their lines with the arrival time.

    The continuation of a line that began in an earlier chunk gets no prefix.
    """
    offset, size = file.tell(), os.fstat(file.fileno()).st_size
    begun = offset > 0 and os.pread(file.fileno(), 1, offset - 1) != b"\n"
    left = min(_CHUNK, size - offset)
    parts: list[bytes] = []
    while left > 0 and len(parts) < _PIECES:
        at, end = times.at_offset(offset)
        data = file.read(min(left, end - offset))
        if not data:
            break
        offset, left = offset + len(data), left - len(data)
        parts.append(_stamp(data, at.encode() + b" ", begun))
        begun = not data.endswith(b"\n")
    return b"".join(parts)


def _stamp(data: bytes, prefix: bytes, begun: bool) -> bytes:
    last = len(data) - 1
    stamped = data[:last].replace(b"\n", b"\n" + prefix) + data[last:]
    return stamped if begun else prefix + stamped


async def _start_of_tail(file: BinaryIO, lines: int) -> int:
    """The offset of the last `lines` lines, searched backwards; the last line may lack its newline."""
    end = size = os.fstat(file.fileno()).st_size
    newlines_wanted = lines
    if size and os.pread(file.fileno(), 1, size - 1) == b"\n":
        newlines_wanted += 1
    if not lines:
        return size
    while end > 0:
        start = max(0, end - _CHUNK)
        block = os.pread(file.fileno(), end - start, start)
        if (newlines := block.count(b"\n")) >= newlines_wanted:
            at = len(block)
            for _ in range(newlines_wanted):
                at = block.rindex(b"\n", 0, at)
            return start + at + 1
        newlines_wanted -= newlines
        end = start
        await asyncio.sleep(0)
    return 0


def last_lines(log: RunLog, lines: int, size: int) -> str:
    """The end of a log, at most `lines` lines and `size` bytes (for `FallbackToLogsOnError`)."""
    if not log.path.exists():
        return ""
    with log.path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - size))
        found = file.read(size).splitlines(keepends=True)
    return b"".join(found[-lines:]).decode(errors="replace")


def termination_message(path: Path, fallback: RunLog | None) -> str:
    """The beginning of what a container wrote to its `terminationMessagePath`, or else the end of its log."""
    message = ""
    with suppress(OSError):  # the container may have deleted or replaced the file
        message = private_files.read_start(path, _MESSAGE_SIZE).decode(errors="replace")
    return message if message or fallback is None else last_lines(fallback, _FALLBACK_LINES, _FALLBACK_SIZE)


def explain_missing_log(pod: Json, container: str, *, previous: bool) -> str:
    """Why a container has no log, in kubelet's words."""
    name, spec = pod["metadata"]["name"], pod["spec"]
    names = [one["name"] for one in [*(spec.get("initContainers") or ()), *spec["containers"]]]
    if container not in names:
        return f"container {container} is not valid for pod {name}"
    if previous:
        return f'previous terminated container "{container}" in pod "{name}" not found'
    status = pod.get("status") or {}
    known = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    state: Json = next((one["state"] for one in known if one["name"] == container), {})
    reason = (state.get("waiting") or {}).get("reason") or "ContainerCreating"
    return f'container "{container}" in pod "{name}" is waiting to start: {reason}'
