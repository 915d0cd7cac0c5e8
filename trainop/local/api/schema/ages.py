"""Times as people read them: `5m30s`, `3d4h`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from trainop.runtime.clock import parse_timestamp

_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86400, 86400 * 365


def parse_time(text: Any) -> datetime | None:
    """The moment that an RFC 3339 text names; None for anything else."""
    if not isinstance(text, str):
        return None
    try:
        return parse_timestamp(text)
    except ValueError:
        return None


def age(text: Any, now: datetime) -> str:
    """The time since `text`, RFC 3339; `<unknown>` if there is none, `<invalid>` if it is no time."""
    if text in {None, ""}:
        return "<unknown>"
    moment = parse_time(text)
    return human_duration((now - moment).total_seconds()) if moment else "<invalid>"


_THRESHOLDS = (
    (2 * _MINUTE, 1, "s", 0, ""),
    (10 * _MINUTE, _MINUTE, "m", 1, "s"),
    (3 * _HOUR, _MINUTE, "m", 0, ""),
    (8 * _HOUR, _HOUR, "h", _MINUTE, "m"),
    (2 * _DAY, _HOUR, "h", 0, ""),
    (8 * _DAY, _DAY, "d", _HOUR, "h"),
    (2 * _YEAR, _DAY, "d", 0, ""),
    (8 * _YEAR, _YEAR, "y", _DAY, "d"),
    (float("inf"), _YEAR, "y", 0, ""),
)
"""Up to how many seconds a duration is told in which unit, and with which smaller one beside it."""


def human_duration(seconds: float) -> str:
    """Two or three significant figures of a duration, with the thresholds that kubectl uses."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    whole = max(whole, 0)
    unit, name, part, part_name = next(row[1:] for row in _THRESHOLDS if whole < row[0])
    rest = whole % unit // part if part else 0
    return f"{whole // unit}{name}{rest}{part_name}" if rest else f"{whole // unit}{name}"
