"""The phases of a job, and when it passed from one to the next, as its status shows it.

They are named here once: `trainop describe` shows them, and the histogram `trainop_job_phase_seconds` counts them. A
job is in exactly one phase from its creation to its end, and may enter a phase again, by a restart or a suspension.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple

from trainop.engine.status import FAILED, RESTARTING, RUNNING, SUCCEEDED, SUSPENDED
from trainop.runtime import Json
from trainop.runtime.lowlevel import read_time


class Phase(enum.Enum):
    """In the order in which one status may show that a job entered them."""

    SUSPENDED = "suspended"
    """`suspend` is true: by its user, or by a queue such as Kueue."""
    PENDING = "pending"
    """It may run and has no startTime yet: it waits for the operator, its PodGroup, or a quota for pods."""
    STARTING = "starting"
    """From startTime on: pods are created and scheduled, images pulled, containers started."""
    RESTARTING = "restarting"
    """Failed replicas are replaced, until Running is true again: with their replacements, if another replica that
    decides runs."""
    RUNNING = "running"
    """The condition Running is true."""
    FINISHED = "finished"
    """It has succeeded or failed. Without duration."""


_ORDER = tuple(Phase)
_LATEST_FIRST = (
    Phase.FINISHED,
    Phase.SUSPENDED,
    Phase.RESTARTING,
    Phase.RUNNING,
    Phase.STARTING,
    Phase.PENDING,
)
"""Of the entries that one status shows, that into the first of these is the latest."""
_FIELDS = ("conditions", "startTime", "completionTime")
"""The fields of a status that show phases."""


class Mark(NamedTuple):
    """The entry of a job into a phase."""

    phase: Phase
    at: datetime


def read_marks(status: object, created: datetime | None) -> list[Mark]:
    """All entries into phases that a status shows, in their order. `created` is the creationTimestamp of the job. A
    time that cannot be read counts as absent, and so does what a later entry has removed from the status."""
    fields = status if isinstance(status, dict) else {}
    return sorted(_read_marks(fields, created), key=lambda mark: (mark.at, _ORDER.index(mark.phase)))


def _read_marks(status: Json, created: datetime | None) -> Iterator[Mark]:
    conditions = _by_type(status)
    if created is not None:
        yield Mark(Phase.PENDING, created)
    suspended, suspended_at = conditions.get(SUSPENDED, {}), _since(conditions.get(SUSPENDED))
    resumed_at = suspended_at if suspended.get("status") == "False" else None
    if suspended_at is not None:
        yield Mark(Phase.PENDING if resumed_at else Phase.SUSPENDED, suspended_at)
    started_at = read_time(status.get("startTime"))
    if started_at is not None and (resumed_at is None or started_at >= resumed_at):  # it may be that before a pause
        yield Mark(Phase.STARTING, started_at)
    if conditions.get(RESTARTING, {}).get("status") == "True" and (at := _since(conditions[RESTARTING])):
        yield Mark(Phase.RESTARTING, at)
    ended_at = _end(status, conditions)
    running = conditions.get(RUNNING, {})
    if (at := _since(running)) and (running.get("status") == "True" or _has_run(running, at, ended_at)):
        yield Mark(Phase.RUNNING, at)
    if ended_at is not None:
        yield Mark(Phase.FINISHED, ended_at)


def _has_run(running: Json, since: datetime, ended_at: datetime | None) -> bool:
    """Whether a condition Running that is False is that of a finished job, with the time at which it began to run. A
    job that ends without having run gets the time of its end, and a suspended one that of the suspension."""
    suspended = str(running.get("reason")).endswith(SUSPENDED)
    return ended_at is not None and since < ended_at and not suspended


def _end(status: Json, conditions: dict[str, Json]) -> datetime | None:
    for type_ in (SUCCEEDED, FAILED):
        if conditions.get(type_, {}).get("status") == "True":
            return read_time(status.get("completionTime")) or _since(conditions[type_])
    return None


def _find_current(marks: list[Mark]) -> Mark | None:
    """The entry into the phase in which the job is."""
    latest = {mark.phase: mark for mark in marks}
    return next((latest[phase] for phase in _LATEST_FIRST if phase in latest), None)


def ended_phases(before: object, after: object, created: datetime | None) -> list[tuple[Phase, float]]:
    """The phases that ended between two consecutive statuses of a job, each with its duration in seconds, not below 0:
    clocks may differ. Each pass through a phase is in exactly one such difference, as a status is written with the
    version of the one that it replaces."""
    old = before if isinstance(before, dict) else {}
    new = after if isinstance(after, dict) else {}
    if all(old.get(field) == new.get(field) for field in _FIELDS):
        return []
    known, shown = read_marks(old, created), read_marks(new, created)
    entered = [mark for mark in shown if mark not in known]
    entered.sort(key=lambda mark: _ORDER.index(mark.phase))
    current, latest = _find_current(known), _find_current(shown)
    if current is None or current.phase is Phase.FINISHED:
        return []
    if not entered and latest is not None and latest.phase is not current.phase and latest.at >= current.at:
        entered = [latest]  # within the second of an earlier entry into the same phase
    if not entered:
        return []
    if not old.get("conditions") and entered[0].phase is Phase.SUSPENDED:
        return []  # it was created suspended, and was never pending
    return [(one.phase, max(0.0, (other.at - one.at).total_seconds())) for one, other in pairwise([current, *entered])]


def _by_type(status: Json) -> dict[str, Json]:
    conditions = status.get("conditions")
    entries = conditions if isinstance(conditions, list) else ()
    return {str(each.get("type")): each for each in entries if isinstance(each, dict)}


def _since(condition: Json | None) -> datetime | None:
    return read_time((condition or {}).get("lastTransitionTime"))
