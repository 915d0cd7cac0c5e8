"""The phases of a job, when it passed from one to the next, as its status shows it, and the account of its time.

They are named here once: `trainop describe` shows them, and the histogram `trainop_job_phase_seconds` counts them. A
job is in exactly one phase from its creation to its end, and may enter a phase again, by a restart or a suspension.

A status has only the latest entry into each phase. So the account of a job that is restarted or suspended is kept in
its status, `status.account`, and goes on from there; that of any other is computed when it ends.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple

from trainop.engine.progress import TRAINER_STATUS, read_checkpoint_time
from trainop.engine.restart_history import RESTARTS
from trainop.engine.status import FAILED, RESTARTING, RUNNING, SUCCEEDED, SUSPENDED
from trainop.runtime import Json
from trainop.runtime.lowlevel import read_time, timestamp


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
    return sorted(_read_marks(fields, created), key=_order)


def _order(mark: Mark) -> tuple[bool, datetime, int]:
    """A finished job enters no other phase, also if its end is learned so late that it had been suspended since."""
    return mark.phase is Phase.FINISHED, mark.at, _ORDER.index(mark.phase)


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
    way = _find_way(_fields(before), _fields(after), created)
    return [(one.phase, max(0.0, (other.at - one.at).total_seconds())) for one, other in pairwise(way)]


def _find_way(old: Json, new: Json, created: datetime | None) -> list[Mark]:
    """The phase in which the job was, and those that it entered since; empty if it entered none."""
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
    if not old.get("conditions") and entered and entered[0].phase is Phase.SUSPENDED:
        return []  # it was created suspended, and was never pending
    return [current, *entered] if entered else []


def _fields(status: object) -> Json:
    return status if isinstance(status, dict) else {}


def _by_type(status: Json) -> dict[str, Json]:
    conditions = status.get("conditions")
    entries = conditions if isinstance(conditions, list) else ()
    return {str(each.get("type")): each for each in entries if isinstance(each, dict)}


def _since(condition: Json | None) -> datetime | None:
    return read_time((condition or {}).get("lastTransitionTime"))


# The account ----------------------------------------------------------------------------------------------------------

ACCOUNT = "account"
"""The field of the status."""
CHECKPOINT, ATTEMPT = "Checkpoint", "Attempt"
"""Since when training was lost: since the last checkpoint that was reported, or, of a job that reports none, since it
last began to run."""
_MAX_SECONDS = 2**40

_PARTS = {
    Phase.PENDING: "queued",
    Phase.SUSPENDED: "queued",
    Phase.STARTING: "starting",
    Phase.RUNNING: "training",
    Phase.RESTARTING: "restarting",
}
PARTS = ("queued", "starting", "training", "lost", "restarting")
_KEPT = frozenset({Phase.SUSPENDED, Phase.RESTARTING, Phase.FINISHED})
"""A status that shows the entry into one of these has an account: it may forget the phases before."""


@dataclass(frozen=True, slots=True)
class Account:
    """What the time of a job was spent on, in whole seconds. The first four add up to the time from its creation until
    `until`."""

    until: datetime
    """When it entered the phase in which it is, or ended."""
    queued: int = 0
    """It was suspended, or had no startTime."""
    starting: int = 0
    training: int = 0
    restarting: int = 0
    lost: int = 0
    """Of `training`: what has to be trained again."""
    last_lost: int = 0
    """Of `lost`: by the latest interruption."""
    lost_since: str = ""
    """`CHECKPOINT`, `ATTEMPT`, or empty if nothing is lost. `ATTEMPT` if that is true of any interruption: what the job
    saved without a report is not known, and it has lost that much at most."""

    @property
    def total(self) -> int:
        return self.queued + self.starting + self.training + self.restarting

    @property
    def goodput(self) -> float | None:
        """The part of the time that was spent on training that was not lost, from 0 to 1; None of a job that ended in
        the second of its creation."""
        return (self.training - self.lost) / self.total if self.total else None

    @property
    def parts(self) -> dict[str, int]:
        """The seconds by the name of the part."""
        return {name: getattr(self, name) for name in PARTS}

    def as_json(self) -> Json:
        """The value of `status.account`."""
        found: Json = {f"{name}Seconds": seconds for name, seconds in self.parts.items()}
        if self.lost_since:
            found |= {"lastLostSeconds": self.last_lost, "lostSince": self.lost_since}
        if self.goodput is not None:
            found["goodputPercent"] = int(100 * self.goodput)
        return found | {"until": timestamp(self.until)}


def read_account(raw: object) -> Account | None:
    """The value of `status.account`; None if there is none that can be read. Invalid numbers count as 0."""
    fields = _fields(raw)
    until, since = read_time(fields.get("until")), fields.get("lostSince")
    if until is None:
        return None
    training, lost = _seconds(fields, "trainingSeconds"), _seconds(fields, "lostSeconds")
    return Account(
        until,
        queued=_seconds(fields, "queuedSeconds"),
        starting=_seconds(fields, "startingSeconds"),
        training=training,
        restarting=_seconds(fields, "restartingSeconds"),
        lost=min(training, lost),
        last_lost=min(training, lost, _seconds(fields, "lastLostSeconds")),
        lost_since=since if isinstance(since, str) and since in {CHECKPOINT, ATTEMPT} else "",
    )


def _seconds(fields: Json, name: str) -> int:
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_SECONDS else 0


def add_account(before: object, after: Json, created: datetime | None) -> Json:
    """The status `after`, which replaces `before`, with the account of the job if it has ended, or has passed through
    phases that it does not show any more."""
    old = _fields(before)
    stored = read_account(old.get(ACCOUNT))
    way = _find_way(old, after, created)
    entered = way[1:] or [mark for mark in read_marks(after, created) if created and not old.get("conditions")]
    if created is None or not entered or not (stored or any(mark.phase in _KEPT for mark in entered)):
        return after
    saved = read_checkpoint_time(after) if TRAINER_STATUS in after else None
    began = stored or _pass_all(Account(created), read_marks(old, created), None)
    account = _pass_all(began, _cut(way or entered), saved, end=_has_succeeded(after))
    return {**after, ACCOUNT: account.as_json()}


def read_final_account(before: object, after: Json, annotations: Mapping[str, str]) -> Account | None:
    """The account of a job that has ended with the status `after`. None if it has not, or if the account may lack
    phases: that of a job that was restarted or suspended goes on from the stored one, which upstream's CRDs drop."""
    old, shown = _fields(before), _by_type(_fields(before))
    if _end(after, _by_type(after)) is None or _end(old, shown) is not None:
        return None
    is_sure = read_account(old.get(ACCOUNT)) or not (RESTARTS in annotations or {RESTARTING, SUSPENDED} & shown.keys())
    return read_account(after.get(ACCOUNT)) if is_sure else None


def _cut(way: Sequence[Mark]) -> list[Mark]:
    """The phase in which the job was, and those that it entered until its end."""
    end = way[-1].at if way[-1].phase is Phase.FINISHED else None
    return [way[0], *(mark for mark in way[1:] if end is None or mark.at <= end)]


def _has_succeeded(status: Json) -> bool:
    return _by_type(status).get(SUCCEEDED, {}).get("status") == "True"


def _pass_all(account: Account, way: Sequence[Mark], saved: datetime | None, *, end: bool = False) -> Account:
    """The account after the job has passed through all of these phases. `saved`: when it has reported its last
    checkpoint. `end`: it has succeeded, so that nothing of its last run is lost."""
    for one, other in pairwise(way):
        account = _pass(account, one.phase, other, saved, end=end and other.phase is Phase.FINISHED)
    return account


def _pass(account: Account, phase: Phase, following: Mark, saved: datetime | None, *, end: bool) -> Account:
    """The account after a pass through a phase, until the job entered the following one. A time before `until` counts
    as `until`, so that all parts together are the time that has passed, whatever clocks do."""
    spent = max(0, int((following.at - account.until).total_seconds()))
    part = _PARTS[phase]
    changes: dict[str, Any] = {part: getattr(account, part) + spent}
    if phase is Phase.RUNNING and not end:
        lost = spent if saved is None else min(spent, _since_then(saved, following.at))
        since = ATTEMPT if saved is None else CHECKPOINT
        changes |= {"lost": account.lost + lost, "last_lost": lost}
        if lost and account.lost_since != ATTEMPT:
            changes["lost_since"] = since
    elif phase in {Phase.SUSPENDED, Phase.RESTARTING} and account.last_lost and saved is not None:
        lost = min(account.last_lost, _since_then(saved, account.until))  # saved after SIGTERM, or reported late
        changes |= {"lost": account.lost - account.last_lost + lost, "last_lost": lost}
    return replace(account, until=max(account.until, following.at), **changes)


def _since_then(saved: datetime, until: datetime) -> int:
    return max(0, int((until - saved).total_seconds()))
