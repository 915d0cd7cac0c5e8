"""Durations as kubectl prints them: `5m30s`, `3d4h` (apimachinery `pkg/util/duration/duration.go`)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from trainop.runtime.lowlevel import read_time

_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86400, 86400 * 365


def age(text: Any, now: datetime) -> str:
    """The time since the RFC 3339 timestamp `text`; `<unknown>` if missing, `<invalid>` if it cannot be parsed."""
    if text in {None, ""}:
        return "<unknown>"
    moment = read_time(text, strict=True)
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
"""Upper limit in seconds, unit and its suffix, second smaller unit (0 for none) and its suffix."""


def human_duration(seconds: float) -> str:
    """The duration with two or three significant figures (`HumanDuration` upstream); `<invalid>` if negative."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    whole = max(whole, 0)
    unit, name, part, part_name = next(row[1:] for row in _THRESHOLDS if whole < row[0])
    rest = whole % unit // part if part else 0
    return f"{whole // unit}{name}{rest}{part_name}" if rest else f"{whole // unit}{name}"
