"""Logs of containers: collected line by line with their times, kept on disk as kubelet keeps them, served.

A file per run of a container, `<pod>/<container>/<run>.log`, in the format of the container runtime interface:
`2026-01-02T03:04:05.000000006Z stdout F the line`, with P instead of F for a part that the next line continues.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import structlog

from trainop.runtime.clock import Clock

log = structlog.get_logger(__name__)

_CHUNK = 65536
_LONGEST_LINE = 16384


@dataclass(slots=True)
class RunLog:
    """The log of one run. `changed` wakes those who follow; `complete` means that nothing will be added."""

    path: Path
    complete: bool = False
    _waiters: list[asyncio.Future[None]] = field(default_factory=list)

    def tell(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def changed(self) -> None:
        """Returns when something was added, or when it was completed."""
        if not self.complete:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter


class LogCollector:
    """Reads what one run writes to stdout and stderr until all its processes have closed them."""

    def __init__(self, log: RunLog, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        log.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(log.path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._partial: dict[int, bytes] = {}
        self._names: dict[int, str] = {}
        self.done: asyncio.Future[None] = self._loop.create_future()

    def open(self) -> tuple[int, int]:
        """The ends for the container: stdout, stderr. The caller closes them once the container has them."""
        return self._pipe("stdout"), self._pipe("stderr")

    def close(self) -> None:
        """Takes what is there and ends, even if somebody still holds an end."""
        for reader in list(self._names):
            self._read(reader)
        for reader in list(self._names):
            self._end(reader)

    def _pipe(self, name: str) -> int:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        self._names[reader] = name
        self._partial[reader] = b""
        self._loop.add_reader(reader, self._read, reader)
        return writer

    def _read(self, reader: int) -> None:
        try:
            data = os.read(reader, _CHUNK)
        except BlockingIOError:
            return
        if not data:
            self._end(reader)
            return
        *lines, rest = (self._partial[reader] + data).split(b"\n")
        parts = [(line, b"F") for line in lines]
        while len(rest) >= _LONGEST_LINE:
            parts.append((rest[:_LONGEST_LINE], b"P"))
            rest = rest[_LONGEST_LINE:]
        self._partial[reader] = rest
        self._write(self._names[reader], parts)

    def _end(self, reader: int) -> None:
        self._loop.remove_reader(reader)
        os.close(reader)
        name, rest = self._names.pop(reader), self._partial.pop(reader)
        if rest:
            self._write(name, [(rest, b"P")])
        if not self._names:
            os.close(self._file)
            self._log.complete = True
            self._log.tell()
            self.done.set_result(None)

    def _write(self, name: str, parts: list[tuple[bytes, bytes]]) -> None:
        if not parts:
            return
        at = self._clock.now().strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
        start = f"{at} {name} ".encode()
        try:
            os.write(self._file, b"".join(b"%s%s %s\n" % (start, tag, text) for text, tag in parts))
        except OSError as error:  # the disk is full: the container shall not stand still for that
            log.warning("log lines lost", path=str(self._log.path), error=str(error))
        self._log.tell()


@dataclass(frozen=True, slots=True)
class LogOptions:
    """As of `kubectl logs`; `tail` counts lines from the end, `limit` bytes of the answer."""

    follow: bool = False
    tail: int | None = None
    since: datetime | None = None
    timestamps: bool = False
    limit: int | None = None


async def read_log(log: RunLog, options: LogOptions) -> AsyncIterator[bytes]:
    """The log in chunks, without what the options leave out."""
    left = options.limit
    with log.path.open("rb") as file:
        if options.tail is not None:
            file.seek(_start_of_tail(log.path, options.tail))
        rest = b""
        while True:
            complete = log.complete  # asked before the last look, so that nothing is missed after it
            data = file.read(_CHUNK)
            if not data:
                if complete or not options.follow:
                    return
                await log.changed()
                continue
            *lines, rest = (rest + data).split(b"\n")
            chunk = b"".join(_render(lines, options))
            if left is not None:
                chunk, left = chunk[:left], left - len(chunk[:left])
            if chunk:
                yield chunk
            if left == 0:
                return
            await asyncio.sleep(0)  # others get their turn between the chunks of a long log


def _render(lines: list[bytes], options: LogOptions) -> Iterator[bytes]:
    since = options.since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f").encode() if options.since else b""
    for line in lines:
        at, _, tag, text = line.split(b" ", 3)
        if at < since:  # fixed width, so that the order of the text is the order in time
            continue
        yield (at + b" " if options.timestamps else b"") + text + (b"\n" if tag == b"F" else b"")


def _start_of_tail(path: Path, lines: int) -> int:
    """The offset of the last `lines` lines, found from the end."""
    end = path.stat().st_size
    wanted = lines + 1  # the file ends with a line feed that begins no line
    with path.open("rb") as file:
        while end > 0:
            start = max(0, end - _CHUNK)
            file.seek(start)
            block = file.read(end - start)
            if (there := block.count(b"\n")) >= wanted:
                at = len(block)
                for _ in range(wanted):
                    at = block.rindex(b"\n", 0, at)
                return start + at + 1
            wanted -= there
            end = start
    return 0


def last_lines(log: RunLog, lines: int, size: int) -> str:
    """The end of a log, as a termination message: at most so many lines and bytes."""
    if not log.path.exists():
        return ""
    with log.path.open("rb") as file:
        file.seek(_start_of_tail(log.path, lines))
        text = b"".join(_render(file.read().split(b"\n")[:-1], LogOptions()))
    return text[-size:].decode(errors="replace")
