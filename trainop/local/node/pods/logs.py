"""Collects container output into log files, in large chunks and without parsing single lines.

Each run of a container has two files. `<pod>/<container>/<run>.log` contains exactly the bytes that the container
wrote; lines of stdout and stderr are not mixed. `<run>.times` has one `RECORD` with the time of each appended chunk.
Log size is limited only by disk space, of which a reserve is kept free. `logreader` serves these files.
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
from typing import Protocol

from trainop.local import private_files
from trainop.runtime import Clock

RECORD = struct.Struct("<QQ")
"""Log offset of the first byte of a chunk, and its arrival time in microseconds since 1970."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CHUNK = 256 * 1024
_MAX_PARTIAL_LINE = 16 * 1024
"""Bytes of an incomplete line that are held back, so that lines of stdout and stderr are not mixed."""
_MAX_READ_AT_CLOSE = 8 * 1024 * 1024
"""Maximum bytes read at close from a pipe that another process keeps writing to."""
_FREE_SPACE_CHECK_INTERVAL = 16 * 1024 * 1024
_LOST_TAIL_SIZE = 4096
_GAP_MARKER = b"[%d bytes of this log are missing: the disk was full]\n"
_RESERVE, _RESERVED_FRACTION = 64 * 1024 * 1024, 20
"""Disk space that logs leave free for the object store and other users: 64 MiB or 1/20 of the disk if that is less."""


class LogCopy(Protocol):
    """Gets all output of one run, too, for a copy that outlives the pod. Must not block."""

    def append(self, data: bytes, microseconds: int) -> None:
        """Whole lines, or a part of a very long one; `microseconds` since 1970."""

    def end(self) -> None:
        """Nothing follows."""


@dataclass(slots=True)
class RunLog:
    """The log of one run; `complete` means that nothing will be appended. Followers wait for `changed`."""

    path: Path
    complete: bool = False
    copy: LogCopy | None = None
    _waiters: list[asyncio.Future[None]] = field(default_factory=list)
    _completed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def times(self) -> Path:
        return self.path.with_suffix(".times")

    def notify(self) -> None:
        """Wakes followers after data was appended or the log was completed."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        if self.complete:
            self._completed.set()

    async def changed(self) -> None:
        """Waits for the next `notify`; returns at once if the log is complete."""
        if not self.complete:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    async def completed(self, seconds: float) -> None:
        """Waits until the log is complete, at most `seconds`. What is appended meanwhile wakes nobody."""
        if not self.complete:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._completed.wait()


class LogCollector:
    """Reads stdout and stderr of one run until all its processes have closed them.

    Back-pressure: a container that writes faster than the collector reads blocks in write(2). Data that cannot be
    written to the disk is dropped and replaced by a marker line with the number of missing bytes; `on_loss` is called
    with the error when a loss begins.
    """

    def __init__(self, log: RunLog, clock: Clock, on_loss: Callable[[str], None] = lambda why: None) -> None:
        self._log = log
        self._clock = clock
        self._on_loss = on_loss
        self._loop = asyncio.get_running_loop()
        self._partial: dict[int, bytes] = {}
        """Incomplete last line by read end of the pipe, stdout first."""
        self._size = self._lost_bytes = self._unchecked = 0
        self._lost_tail = b""
        """The last bytes of the lost data."""
        self._files: list[int] = []
        self.done: asyncio.Future[None] = self._loop.create_future()
        private_files.ensure_directory(log.path.parent)
        try:
            for path in (log.path, log.times):
                self._files.append(private_files.open_file(path, os.O_WRONLY | os.O_TRUNC))
        except OSError:
            self._finish()
            raise

    def open(self) -> tuple[int, int]:
        """The write ends for the container's stdout and stderr; the caller closes them after starting the container."""
        out = self._pipe()
        try:
            return out, self._pipe()
        except OSError:
            os.close(out)
            self.close()
            raise

    def close(self) -> bool:
        """Reads buffered output and finishes the log.

        Returns True if a process still has a write end open; its later output is lost.
        """
        for reader in list(self._partial):
            left = _MAX_READ_AT_CLOSE
            while left > 0 and (taken := self._read(reader)):
                left -= taken
        still_open = bool(self._partial)
        for reader in list(self._partial):
            self._end(reader)
        if self._files:
            self._finish()
        return still_open

    def _pipe(self) -> int:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with suppress(OSError):  # the user's pipe buffer quota is used up: a smaller pipe works as well
                fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, _CHUNK)
        self._partial[reader] = b""
        self._loop.add_reader(reader, self._read_in_order, reader)
        return writer

    def _read_in_order(self, reader: int) -> None:
        """Reads stdout before stderr, so that an error message follows the output that was printed before it."""
        for earlier in list(self._partial):
            self._read(earlier)
            if earlier == reader:
                return

    def _read(self, reader: int) -> int:
        """Reads once from a pipe and appends complete lines to the log; returns the number of bytes read."""
        try:
            data = os.read(reader, _CHUNK)
        except BlockingIOError:
            return 0
        if not data:
            self._end(reader)
            return 0
        end = data.rfind(b"\n") + 1
        block, rest = (self._partial[reader] + data[:end], data[end:]) if end else (b"", self._partial[reader] + data)
        if len(rest) > _MAX_PARTIAL_LINE:
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
        if self._lost_bytes:  # the last lines may use part of the reserve
            tail = self._lost_tail.partition(b"\n")[2] or self._lost_tail
            with suppress(OSError):
                self._write(_GAP_MARKER % (self._lost_bytes - len(tail)) + tail)
        for fd in self._files:
            os.close(fd)
        self._files.clear()
        self._log.complete = True
        if self._log.copy is not None:
            self._log.copy.end()
        self._log.notify()
        if not self.done.done():
            self.done.set_result(None)

    def _add(self, block: bytes) -> None:
        if not block:
            return
        before = self._size
        gap = _GAP_MARKER % self._lost_bytes if self._lost_bytes else b""
        try:
            self._check_free_space(len(block))
            self._write(gap + block)
        except OSError as error:  # a full disk must not block the container
            if not self._lost_bytes:
                self._on_loss(f"{self._log.path}: {error.strerror or error}")
            self._lost_bytes += len(block) - max(0, self._size - before - len(gap))
            self._lost_tail = (self._lost_tail + block)[-_LOST_TAIL_SIZE:]
        else:
            self._lost_bytes, self._lost_tail = 0, b""
        self._log.notify()

    def _write(self, data: bytes) -> None:
        log, times = self._files
        microseconds = (self._clock.now() - _EPOCH) // timedelta(microseconds=1)
        if self._log.copy is not None:
            self._log.copy.append(data, microseconds)
        os.write(times, RECORD.pack(self._size, microseconds))
        view = memoryview(data)
        while view:
            written = os.write(log, view)
            self._size += written
            view = view[written:]

    def _check_free_space(self, size: int) -> None:
        self._unchecked -= size
        if self._unchecked > 0 and not self._lost_bytes:
            return
        disk = os.fstatvfs(self._files[0])
        total, free = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
        reserve = min(_RESERVE, total // _RESERVED_FRACTION)
        if free < reserve * (2 if self._lost_bytes else 1) + size:
            raise OSError("no disk space left besides the reserve")
        self._unchecked = min(_FREE_SPACE_CHECK_INTERVAL, (free - reserve) // 2)
