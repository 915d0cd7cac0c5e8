"""Logs of containers as files: collected in large pieces, without a look at the single line.

Two files per run of a container: `<pod>/<container>/<run>.log` holds the bytes that the container wrote, nothing else,
with lines of stdout and stderr kept apart; `<run>.times` says when they came, a `RECORD` for each piece that was added.
There is no limit to their size but that of the disk, of which a reserve is left to others.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from trainop.local import private
from trainop.runtime.clock import Clock

RECORD = struct.Struct("<QQ")
"""Offset in the log of the first byte that came then; microseconds since 1970."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CHUNK = 256 * 1024
_LONGEST_LINE = 16 * 1024
"""Of a line that does not end this much is held back, so that lines of stdout and stderr do not mix."""
_MOST_AT_CLOSE = 8 * 1024 * 1024
"""Read at most from a pipe that somebody goes on writing to."""
_CHECK_EVERY = 16 * 1024 * 1024
_LAST_WORDS = 4096
_GAP = b"[%d bytes of this log are missing: the disk was full]\n"
_RESERVE, _RESERVED_PART = 64 * 1024 * 1024, 20
"""Of the disk these bytes, or a twentieth if that is less, are left free for the store and for everybody else."""


@dataclass(slots=True)
class RunLog:
    """The log of one run. `changed` wakes those who follow; `complete` means that nothing will be added."""

    path: Path
    complete: bool = False
    _waiters: list[asyncio.Future[None]] = field(default_factory=list)

    @property
    def times(self) -> Path:
        return self.path.with_suffix(".times")

    def announce(self) -> None:
        """Something was added, or it was completed."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def changed(self) -> None:
        """Returns at the next announcement; at once if there will be none."""
        if not self.complete:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter


class LogCollector:
    """Reads what one run writes to stdout and stderr until all its processes have closed them.

    A container that writes faster than this reads waits in its own write(2). What the disk refuses is counted, and the
    log says so where it is missing; `on_loss` hears of the first time.
    """

    def __init__(self, log: RunLog, clock: Clock, on_loss: Callable[[str], None] = lambda why: None) -> None:
        self._log = log
        self._clock = clock
        self._on_loss = on_loss
        self._loop = asyncio.get_running_loop()
        self._partial: dict[int, bytes] = {}
        """By reading end, stdout first: what is held back of a line that has not ended."""
        self._size = self._lost = self._unchecked = 0
        self._last = b""
        """The end of what was lost."""
        self._files: list[int] = []
        self.done: asyncio.Future[None] = self._loop.create_future()
        private.make_folder(log.path.parent)
        try:
            for path in (log.path, log.times):
                self._files.append(private.open_file(path, os.O_WRONLY | os.O_TRUNC))
        except OSError:
            self._finish()
            raise

    def open(self) -> tuple[int, int]:
        """The ends for the container: stdout, stderr. The caller closes them once the container has them."""
        out = self._pipe()
        try:
            return out, self._pipe()
        except OSError:
            os.close(out)
            self.close()
            raise

    def close(self) -> bool:
        """Takes what is there and ends; True if somebody still holds an end, whose words are lost from now on."""
        for reader in list(self._partial):
            left = _MOST_AT_CLOSE
            while left > 0 and (taken := self._read(reader)):
                left -= taken
        held = bool(self._partial)
        for reader in list(self._partial):
            self._end(reader)
        if self._files:
            self._finish()
        return held

    def _pipe(self) -> int:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with suppress(OSError):  # the user has used up what the kernel grants: a smaller pipe does as well
                fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, _CHUNK)
        self._partial[reader] = b""
        self._loop.add_reader(reader, self._read_in_order, reader)
        return writer

    def _read_in_order(self, reader: int) -> None:
        """An error comes after what was printed before it, which is in the other pipe by now: one read takes all."""
        for earlier in list(self._partial):
            self._read(earlier)
            if earlier == reader:
                return

    def _read(self, reader: int) -> int:
        """How many bytes there were."""
        try:
            data = os.read(reader, _CHUNK)
        except BlockingIOError:
            return 0
        if not data:
            self._end(reader)
            return 0
        end = data.rfind(b"\n") + 1
        block, rest = (self._partial[reader] + data[:end], data[end:]) if end else (b"", self._partial[reader] + data)
        if len(rest) > _LONGEST_LINE:
            block, rest = block + rest, b""
        self._partial[reader] = rest
        self._add(block)
        return len(data)

    def _end(self, reader: int) -> None:
        self._loop.remove_reader(reader)
        os.close(reader)
        self._add(self._partial.pop(reader))
        if not self._partial:
            self._finish()

    def _finish(self) -> None:
        if self._lost:  # last words are worth a part of the reserve
            whole = self._last.partition(b"\n")[2] or self._last
            with suppress(OSError):
                self._write(_GAP % (self._lost - len(whole)) + whole)
        for fd in self._files:
            os.close(fd)
        self._files.clear()
        self._log.complete = True
        self._log.announce()
        if not self.done.done():
            self.done.set_result(None)

    def _add(self, block: bytes) -> None:
        if not block:
            return
        before = self._size
        gap = _GAP % self._lost if self._lost else b""
        try:
            self._check_room(len(block))
            self._write(gap + block)
        except OSError as error:  # the container shall not stand still for that
            if not self._lost:
                self._on_loss(f"{self._log.path}: {error.strerror or error}")
            self._lost += len(block) - max(0, self._size - before - len(gap))
            self._last = (self._last + block)[-_LAST_WORDS:]
        else:
            self._lost, self._last = 0, b""
        self._log.announce()

    def _write(self, data: bytes) -> None:
        log, times = self._files
        microseconds = (self._clock.now() - _EPOCH) // timedelta(microseconds=1)
        os.write(times, RECORD.pack(self._size, microseconds))
        view = memoryview(data)
        while view:
            written = os.write(log, view)
            self._size += written
            view = view[written:]

    def _check_room(self, coming: int) -> None:
        self._unchecked -= coming
        if self._unchecked > 0 and not self._lost:
            return
        disk = os.fstatvfs(self._files[0])
        whole, free = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
        reserve = min(_RESERVE, whole // _RESERVED_PART)
        if free < reserve * (2 if self._lost else 1) + coming:
            raise OSError("the disk is full but for a reserve")
        self._unchecked = min(_CHECK_EVERY, (free - reserve) // 2)
