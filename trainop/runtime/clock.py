"""Clocks and API timestamps.

Components receive a `Clock`, so that tests can run the whole operator in virtual time.
"""

from __future__ import annotations

import asyncio
import re
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Source of time. `monotonic` (seconds) is for deadlines and delays, `now` (aware, UTC) for API timestamps."""

    def monotonic(self) -> float: ...
    def now(self) -> datetime: ...
    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The clocks of the system and the event loop."""

    def monotonic(self) -> float:
        return time.monotonic()

    def now(self) -> datetime:
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def timestamp(at: datetime) -> str:
    """Formats a `metav1.Time`: RFC 3339 in UTC with whole seconds."""
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


def micro_timestamp(at: datetime) -> str:
    """Formats a `metav1.MicroTime`: RFC 3339 in UTC with exactly six fractional digits."""
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


EARLIEST = datetime.min.replace(tzinfo=UTC)
LATEST = datetime.max.replace(tzinfo=UTC)

_RFC_3339 = re.compile(r"(\d{4})(-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?)(Z|[+-]\d\d:\d\d)?", re.ASCII)


def read_time(text: object, *, strict: bool = False) -> datetime | None:
    """Parses an RFC 3339 text to an aware time in UTC; None if it is invalid. A missing time zone means UTC; with
    `strict`, as in the API server, it makes the text invalid.

    Go can write times outside the range of `datetime`: year 0000, and years 0001 or 9999 with an offset that exceeds
    the range. These are clamped to EARLIEST and LATEST.
    """
    found = _RFC_3339.fullmatch(text) if isinstance(text, str) else None
    if found is None or (strict and not found[3]):
        return None
    year, rest, zone = found.groups()
    try:
        # Year 2000 stands in for 0000: both are leap years, so the same dates are valid.
        at = datetime.fromisoformat(f"{'2000' if year == '0000' else year}{rest}{zone or 'Z'}")
        return EARLIEST if year == "0000" else at.astimezone(UTC)
    except OverflowError:
        return EARLIEST if year == "0001" else LATEST
    except ValueError:
        return None


def parse_timestamp(text: str) -> datetime:
    """Like `read_time`, but strict as the API server: raises `ValueError` if it is invalid or has no time zone."""
    at = read_time(text, strict=True)
    if at is None:
        raise ValueError(f"{text!r} is not a time such as 2025-06-01T12:00:00Z")
    return at
