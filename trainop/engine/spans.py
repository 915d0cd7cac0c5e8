"""Spans of time in annotations of jobs, such as `30m`: read within limits, and written in messages."""

from __future__ import annotations

from collections.abc import Mapping

from trainop.engine.durations import parse_duration
from trainop.runtime.lowlevel import cut

LONGEST = 30 * 86400.0
"""Seconds of the longest span that an annotation may have."""


def read_span(annotations: Mapping[str, str], name: str, shortest: float) -> float | None:
    """The seconds of an annotation; None if there is none, or if it is no duration from `shortest` to `LONGEST`."""
    try:
        seconds = parse_duration(annotations.get(name, "").strip())
    except ValueError:
        return None
    return seconds if shortest <= seconds <= LONGEST else None


def doubt_span(annotations: Mapping[str, str], name: str, shortest: float) -> str:
    """Why an annotation is ignored; empty if it is not, or if there is none."""
    given = annotations.get(name)
    if given is None or read_span(annotations, name, shortest) is not None:
        return ""
    limits = f"from {format_span(shortest)} to {format_span(LONGEST)}"
    return f'metadata.annotations[{name}]: "{cut(given, 64)}" is ignored: it must be a duration {limits}, such as 30m'


def doubt_choice(annotations: Mapping[str, str], name: str, supported: tuple[str, ...], needs: str) -> str:
    """Why an annotation with a word is ignored; empty if it is not, or if there is none. It means something only
    beside the annotation `needs`."""
    given = annotations.get(name)
    if given is None:
        return ""
    ignored = f'metadata.annotations[{name}]: "{cut(given, 64)}" is ignored'
    if given not in supported:
        return f"{ignored}: it must be {' or '.join(supported)}"
    return "" if needs in annotations else f"{ignored} without {needs}"


def format_span(seconds: float) -> str:
    """As Go writes it, in whole seconds: `1h30m`, `45s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "m"), (rest, "s"))
    return "".join(f"{number}{unit}" for number, unit in parts if number) or "0s"
