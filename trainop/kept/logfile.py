"""The log of one attempt of a container: each line with its time, readable without a program.

    2026-11-26T18:40:00.123456Z F epoch 1
    2026-11-26T18:40:07.500000Z P a part of a line that
    2026-11-26T18:40:07.600000Z F  was longer than the collector holds

`F` ends a line, and after `P` it goes on. The bytes are those of the container. Of a log that becomes longer than its
limit the beginning and the end are kept, and a line between them says how much is missing.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from trainop.local import private_files

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STAMP = len("2026-11-26T18:40:00.123456Z")
_BLOCK = 256 * 1024
_CUT = "[%d bytes of this log are not kept: it was longer than %d KiB]\n"


def encode(data: bytes, microseconds: int) -> bytes:
    """Output of a container as it stands in the file; `microseconds` since 1970."""
    stamp = _stamp(microseconds)
    whole, ends, part = data.rpartition(b"\n")
    text = stamp + b" F " + whole.replace(b"\n", b"\n" + stamp + b" F ") + b"\n" if ends else b""
    return text + stamp + b" P " + part + b"\n" if part else text


def _stamp(microseconds: int) -> bytes:
    moment = _EPOCH + timedelta(microseconds=microseconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ").encode()


class LogFile:
    """Appends to one file. Not for several threads. All methods raise `OSError`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.ended = False
        self._missing = self._head = self._said = 0
        for folder in reversed(path.parents[:3]):  # of all logs, of the namespace, of the pod
            private_files.ensure_directory(folder)
        self._file = private_files.open_file(path, os.O_WRONLY | os.O_APPEND | os.O_TRUNC)

    def append(self, data: bytes, microseconds: int, limit: int) -> None:
        """Adds output, and cuts the file if it is then longer than `limit` bytes."""
        text = memoryview(encode(data, microseconds))
        while text:
            written = os.write(self._file, text)
            self.size += written
            text = text[written:]
        if self.size > limit:
            self.cut(limit)

    def cut(self, limit: int) -> None:
        """Keeps a quarter of `limit` from the beginning and one from the end, so that it is rarely done again."""
        content = self.path.read_bytes()
        if not self._missing or self._head > limit // 4:
            self._head = content.rfind(b"\n", 0, limit // 4) + 1
        tail = content[content.find(b"\n", len(content) - limit // 4) + 1 :]
        self._missing += len(content) - self._head - len(tail) - self._said  # what was said before stood in between
        said = encode((_CUT % (self._missing, limit >> 10)).encode(), self._time_of(content[: self._head], tail))
        self._said = len(said)
        fresh = self.path.with_name(f".{self.path.name}.new")
        fresh.unlink(missing_ok=True)
        file = private_files.open_file(fresh, os.O_WRONLY | os.O_APPEND)
        with os.fdopen(os.dup(file), "wb") as out:
            self.size = out.write(content[: self._head] + said + tail)
        fresh.replace(self.path)
        self._close()
        self._file = file

    def _time_of(self, *texts: bytes) -> int:
        for text in texts:
            for line in _lines_of(text.splitlines(keepends=True)[-1:]):
                return (datetime.fromisoformat(line.time) - _EPOCH) // timedelta(microseconds=1)
        return 0

    def end(self) -> None:
        """Closes the file; nothing is appended any more."""
        if not self.ended:
            self.ended = True
            self._close()

    def remove(self) -> None:
        self.end()
        self.path.unlink(missing_ok=True)
        self.size = 0

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Piece(NamedTuple):
    """A line, or a part of one unless it is `whole`."""

    time: str
    text: bytes
    whole: bool


def read_pieces(path: Path) -> Iterator[Piece]:
    """The content of a file. What was damaged at its end, when the machine stopped, is passed on as it is."""
    with path.open("rb") as file:
        yield from _lines_of(file)


def _lines_of(lines: object) -> Iterator[Piece]:
    time = "1970-01-01T00:00:00.000000Z"
    for line in lines:  # type: ignore[attr-defined]  # of bytes
        found = line.removesuffix(b"\n")
        if found[_STAMP - 1 : _STAMP + 1] == b"Z " and found[_STAMP + 2 : _STAMP + 3] == b" ":
            time = found[:_STAMP].decode("ascii", "replace")
            yield Piece(time, found[_STAMP + 3 :], found[_STAMP + 1 : _STAMP + 2] != b"P")
        else:
            yield Piece(time, found, whole=True)


async def read_text(
    path: Path, *, tail: int | None = None, since: datetime | None = None, timestamps: bool = False
) -> AsyncIterator[bytes]:
    """What `kubectl logs` would show of the file, in chunks; `tail` in lines."""
    lines = _text_lines(path, since, timestamps=timestamps)
    chosen = lines if tail is None else iter(deque(lines, tail))
    block = bytearray()
    for line in chosen:
        block += line
        if len(block) > _BLOCK:
            yield bytes(block)
            block.clear()
            await asyncio.sleep(0)  # a server reads files beside its other work
    yield bytes(block)


def _text_lines(path: Path, since: datetime | None, *, timestamps: bool) -> Iterator[bytes]:
    """Whole lines; one that has no end in pieces of bounded size."""
    earliest = since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ") if since else ""
    begun, shown, text = False, True, bytearray()
    for piece in read_pieces(path):
        shown = shown if begun else piece.time >= earliest  # a line has the time of its beginning
        starts, begun = not begun, not piece.whole
        if not shown:
            continue
        if timestamps and starts:
            text += f"{piece.time[:-1]}000Z ".encode()
        text += piece.text
        if piece.whole:
            text += b"\n"
        if piece.whole or len(text) > _BLOCK:
            yield bytes(text)
            text.clear()
    if text:
        yield bytes(text)
