"""Splits the log of a container, as the API server sends it with time stamps, into lines."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from datetime import UTC
from typing import NamedTuple

from trainop.runtime.lowlevel import read_time

MAX_LINE = 64 * 1024
"""Bytes. A longer line is returned in pieces, so that one without an end does not fill the memory."""


class Line(NamedTuple):
    """One line, without its end. `time` sorts as text: RFC 3339 in UTC with nine digits of fraction."""

    time: str
    text: bytes


class Position:
    """How far one log has been passed on, so that of a log that is read again only what is new comes."""

    def __init__(self) -> None:
        self._time, self._count = "", 0
        """Of the last line, and of how many lines it is: what was written at once has one time."""

    @property
    def since(self) -> str:
        """From when on it has to be read again, as RFC 3339; empty: from its beginning. A kubelet is given seconds."""
        return f"{self._time[:19]}Z" if self._time else ""

    async def unread(self, blocks: AsyncIterator[Sequence[Line]]) -> AsyncIterator[Sequence[Line]]:
        """The lines after this position, to which it then moves."""
        until, known = self._time, self._count
        async for lines in blocks:
            fresh, known = _after(lines, until, known) if known else (lines, 0)
            if fresh:
                self._move(fresh)
                yield fresh

    def _move(self, lines: Sequence[Line]) -> None:
        last, count = lines[-1].time, 0
        for line in reversed(lines):
            if line.time != last:
                break
            count += 1
        self._count = count + (self._count if count == len(lines) and last == self._time else 0)
        self._time = last


def _after(lines: Sequence[Line], until: str, known: int) -> tuple[Sequence[Line], int]:
    """The lines after the first `known` ones of the time `until`, and how many of these are still to come."""
    for number, (time, _) in enumerate(lines):
        if not known or time > until:
            return lines[number:], 0
        known -= time == until
    return (), known


_STAMPED = re.compile(rb"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z) (.*)$", re.MULTILINE)
"""A line as a kubelet whose clock is in UTC writes it: nearly all are like this, and are found together."""


async def blocks_of(chunks: AsyncIterator[bytes]) -> AsyncIterator[list[Line]]:
    """Yields the lines in their order, those that a chunk completes together. A line, or a piece of one, without a time
    stamp has that of the line before."""
    time, rest = "", b""
    async for chunk in chunks:
        data = rest + chunk
        end = data.rfind(b"\n") + 1
        block, rest = data[:end], data[end:]
        lines = _read_block(block, time)
        if len(rest) > MAX_LINE:
            lines.append(Line(*_split(rest, lines[-1].time if lines else time)))
            rest = b""
        if lines:
            time = lines[-1].time
            yield lines
    if rest:
        yield [Line(*_split(rest, time))]


def _read_block(block: bytes, time: str) -> list[Line]:
    """The lines of a block that ends with an end of a line, or is empty. `time`: that of the line before."""
    found = _STAMPED.findall(block)
    if len(found) == block.count(b"\n"):
        return [Line(stamp.decode(), text) for stamp, text in found]
    lines = []
    for raw in block.split(b"\n")[:-1]:
        time, text = _split(raw, time)
        lines.append(Line(time, text))
    return lines


def _split(raw: bytes, before: str) -> tuple[str, bytes]:
    stamp, found, text = raw.partition(b" ")
    time = _normalize(stamp) if found or stamp else ""
    return (time, text) if time else (before, raw)


def _normalize(stamp: bytes) -> str:
    """The time in UTC with nine digits of fraction; empty if it is none."""
    if not 20 <= len(stamp) <= 35 or stamp[10:11] != b"T":
        return ""
    text = stamp.decode("ascii", "replace")
    if not text.endswith("Z"):
        moment = read_time(text)
        if moment is None:
            return ""
        text = moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
    seconds, _, fraction = text[:-1].partition(".")
    return f"{seconds}.{fraction:0<9}Z" if (fraction or "0").isdecimal() else ""
