"""Splits the log of a container, as the API server sends it with time stamps, into lines."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC
from typing import NamedTuple

from trainop.runtime.lowlevel import read_time

MAX_LINE = 64 * 1024
"""Bytes. A longer line is returned in pieces, so that one without an end does not fill the memory."""


class Line(NamedTuple):
    """One line, without its end. `time` sorts as text: RFC 3339 in UTC with nine digits of fraction."""

    time: str
    text: bytes


async def lines_of(chunks: AsyncIterator[bytes]) -> AsyncIterator[Line]:
    """Yields the lines in their order. A line, or a piece of one, without a time stamp has that of the line before."""
    time, rest = "", b""
    async for chunk in chunks:
        *complete, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_LINE:
            complete, rest = [*complete, rest], b""
        for raw in complete:
            time, text = _split(raw, time)
            yield Line(time, text)
    if rest:
        yield Line(*_split(rest, time))


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
