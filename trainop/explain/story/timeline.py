"""`Story` and its parts: the values that describe the course of a job."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from trainop.explain.why.words import span
from trainop.runtime import Json
from trainop.runtime.lowlevel import timestamp

OUTLIER_FACTOR, OUTLIER_SECONDS = 2.0, 5.0
"""The slowest replica is an outlier if it took that many times the median, and that many seconds more."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How long the replicas took for one step, in seconds, where that is known of several."""

    count: int
    first: float
    median: float
    last: float
    slowest: str
    """The replica that took longest."""

    @property
    def outlier(self) -> str:
        """The slowest replica if it is far behind; else empty."""
        is_far = self.last > OUTLIER_FACTOR * self.median and self.last > self.median + OUTLIER_SECONDS
        return self.slowest if is_far else ""

    def as_json(self) -> Json:
        return {
            "count": self.count,
            "first": self.first,
            "median": self.median,
            "last": self.last,
            "outlier": self.outlier or None,
        }


@dataclass(frozen=True, slots=True)
class Step:
    """Something that happened to a job. As in `Cause`, texts of the cluster are not cleaned of control characters."""

    at: datetime | None
    """By the clock of the API server, as far as it is known; None: unknown."""
    name: str
    """A constant word for programs: `created`, a phase, or a step of the replicas such as `scheduled`."""
    text: str
    seconds: float | None = None
    """How long the phase lasted, or the step took the slowest replica; None: unknown, or it takes no time."""
    open: bool = False
    """It lasts still: `seconds` is the time until now."""
    of_replicas: bool = False
    """A step of the replicas, within the phase above it."""
    spread: Spread | None = None
    until: datetime | None = None
    """When the last replica did this, if not all did at the same time."""
    evidence: tuple[str, ...] = ()

    def as_json(self) -> Json:
        """Fields without a value are left out."""
        fields: Json = {
            "time": timestamp(self.at) if self.at else None,
            "until": timestamp(self.until) if self.until else None,
            "step": self.name,
            "text": self.text,
            "seconds": self.seconds,
            "open": self.open or None,
            "replicas": self.spread.as_json() if self.spread else None,
            "evidence": list(self.evidence) or None,
        }
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Story:
    """The course of a job."""

    state: str
    """Succeeded, Failed, Deleted, or the phase in which it is."""
    seconds: float
    """From the creation to the end, or until now."""
    steps: tuple[Step, ...]
    """In the order in which they happened."""
    notes: tuple[str, ...] = ()
    """What is missing, and which times were corrected."""
    account: Json | None = None
    """`status.account`: what its time was spent on."""
    unread: tuple[str, ...] = ()
    """What the user may not read, or what could not be read."""

    def as_json(self) -> Json:
        """For `-o json`."""
        return {
            "state": self.state,
            "seconds": self.seconds,
            "account": self.account,
            "steps": [each.as_json() for each in self.steps],
            "notes": list(self.notes),
            "unread": list(self.unread),
        }


def lasted(seconds: float) -> str:
    """`45 s`, `12 min 5 s`, `3 h 5 min`, `2 d`."""
    whole = max(0, round(seconds))
    if 120 <= whole < 7200 and whole % 60:
        return f"{whole // 60} min {whole % 60} s"
    return span(whole)
