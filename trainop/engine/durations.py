"""Durations as Go writes them, such as `1m30s`: the values of flags and annotations."""

from __future__ import annotations

import re

MAX_LENGTH = 64
"""Characters of a text that is read at all."""

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)


def parse_duration(text: str) -> float:
    """Parses a Go duration such as `1m30s` or `500ms` to seconds. A plain number means seconds. Raises `ValueError`."""
    if len(text) > MAX_LENGTH:
        raise ValueError("parse error")
    sign, digits = (-1.0, text[1:]) if text.startswith("-") else (1.0, text.removeprefix("+"))
    if re.fullmatch(r"\d+\.?\d*", digits, re.ASCII):
        return sign * float(digits)
    parts = list(_DURATION.finditer(digits))
    if not parts or "".join(part.group() for part in parts) != digits:
        raise ValueError("parse error")
    return sign * sum(float(part[1]) * _UNITS[part[2]] for part in parts)
