"""Texts and fields of upstream, to which the operator adds what names the root cause of a failure."""

from __future__ import annotations

KEEPS_LOG: dict[str, str] = {"terminationMessagePolicy": "FallbackToLogsOnError"}
"""What containers get whose template does not say it."""


class Upstream(str):
    """Upstream's text of a condition or event: equal to itself, and to itself with the words for a root cause behind
    it."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str):
            return NotImplemented
        text = str(self)
        join = " " if text.endswith(".") else ". "
        starts = ("First failure: ", "No replica had failed: ", "It is not known how ")
        return str.__eq__(self, other) or other.startswith(tuple(f"{text}{join}{each}" for each in starts))

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__
