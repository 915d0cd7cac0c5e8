"""Time as an argument: the whole operator runs under real time or under a test's virtual time."""

from __future__ import annotations

import asyncio
import re
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Deadlines and delays use `monotonic` (seconds); `now` (aware, UTC) is only for timestamps in the API."""

    def monotonic(self) -> float: ...
    def now(self) -> datetime: ...
    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def now(self) -> datetime:
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def timestamp(at: datetime) -> str:
    """`metav1.Time`: RFC 3339 in UTC, whole seconds."""
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


def micro_timestamp(at: datetime) -> str:
    """`metav1.MicroTime`: RFC 3339 in UTC, always six fraction digits."""
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


EARLIEST = datetime.min.replace(tzinfo=UTC)
LATEST = datetime.max.replace(tzinfo=UTC)

_RFC_3339 = re.compile(r"(\d{4})(-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?)(Z|[+-]\d\d:\d\d)?", re.ASCII)


def read_time(text: object) -> datetime | None:
    """The instant that an RFC 3339 text names, aware and in UTC; None for whatever is no time. No zone means UTC.

    Go writes years that Python cannot hold: 0000, and 0001 or 9999 with an offset that leads out of them. They are read
    as the earliest and the latest time there is, so that what ended long ago has ended.
    """
    found = _RFC_3339.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    year, rest, zone = found.groups()
    try:
        # 2000 is a leap year as 0000 is, so the same days exist.
        at = datetime.fromisoformat(f"{'2000' if year == '0000' else year}{rest}{zone or 'Z'}")
        return EARLIEST if year == "0000" else at.astimezone(UTC)
    except OverflowError:
        return EARLIEST if year == "0001" else LATEST
    except ValueError:
        return None


def parse_timestamp(text: str) -> datetime:
    """As `read_time`; raises `ValueError` for what is no time or has no zone, as API servers refuse it."""
    at = read_time(text)
    if at is None or (not text.endswith("Z") and text[-6] not in "+-"):
        raise ValueError(f"{text!r} is not a time such as 2025-06-01T12:00:00Z")
    return at
