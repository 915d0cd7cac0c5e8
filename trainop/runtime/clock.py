"""Time as an argument: the whole operator runs under real time or under a test's virtual time."""

from __future__ import annotations

import asyncio
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


def parse_timestamp(text: str) -> datetime:
    """The instant of a Kubernetes timestamp, aware, in UTC; raises `ValueError` on anything else."""
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return at.astimezone(UTC)
