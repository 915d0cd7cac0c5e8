"""Puts the story together: the phases of the job, the steps of its replicas within them, and why it was restarted."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise

from trainop.engine.fields import as_object
from trainop.engine.phases import Phase, read_marks
from trainop.engine.restart_history import RestartHistory
from trainop.engine.root_cause import LAST_FAILURE, Failure, describe_cause, read_failure
from trainop.explain.story.queues import waits_of
from trainop.explain.story.replicas import Clocks, Life, find_clocks, read_lives, restarted_in_place, steps_of
from trainop.explain.story.timeline import Step, Story, lasted
from trainop.explain.why.account import describe_account, find_account
from trainop.explain.why.evidence import Evidence, as_text
from trainop.explain.why.reported import describe_reported, read_reported
from trainop.runtime.lowlevel import EARLIEST, LATEST, read_time

SAME = timedelta(seconds=2)
"""An event and a condition about the same transition differ by at most that."""
RECENT = timedelta(minutes=2)
"""A failure that long before a restart is its cause."""

_BEGINNINGS = frozenset({Phase.RESTARTING, Phase.PENDING})
"""Phases from which on new pods are created."""

_ORDER = [
    "created",
    "queued",
    "suspended",
    "pending",
    "gang",
    "quotareserved",
    "admitted",
    "gang_scheduled",
    "starting",
    "restarting",
    "scheduled",
    "pulled",
    "initialized",
    "started",
    "restarted_in_place",
    "running",
    "ended",
    "succeeded",
    "failed",
    "deleting",
    "deleted",
]
"""The order of steps in the same second."""

_EVENTS = {
    "Suspended": Phase.SUSPENDED,
    "Resumed": Phase.PENDING,
    "Running": Phase.RUNNING,
    "Restarting": Phase.RESTARTING,
}
"""Suffix of an event's reason -> the phase that the job entered."""

_CAUSE, _OUTPUT = "First failure: ", " Last output: "
"""What the words for a root cause and for its log begin with (`trainop.engine.root_cause`)."""

_TEXTS = {
    Phase.PENDING: "pending: it may run, and has no pods yet",
    Phase.SUSPENDED: "suspended",
    Phase.STARTING: "starting: its pods are created",
    Phase.RUNNING: "running",
}
_INFERRED = {
    Phase.RUNNING: ", since its containers were started",
    Phase.SUSPENDED: " for at least a part of this time: its event is gone",
}
"""What is added if neither the status nor an event has the time of the entry."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """The entry of the job into a phase."""

    phase: Phase
    at: datetime
    message: str = ""
    inferred: bool = False


def tell(seen: Evidence) -> Story:
    """The story of a job. Never raises, whatever the objects contain."""
    clocks = find_clocks(seen)
    lives = sorted(read_lives(seen, clocks), key=lambda life: life.born or EARLIEST)
    entries = _infer_runs(_entries(seen), lives)
    created = read_time(seen.metadata.get("creationTimestamp"))
    ended = next((each.at for each in entries if each.phase is Phase.FINISHED), None)
    steps = [
        *_phases(seen, entries, created, ended or seen.now),
        *_replica_steps(entries, lives),
        *waits_of(seen),
        *restarted_in_place(seen, clocks),
    ]
    until, account = ended or seen.now, find_account(seen)
    return Story(
        state=_state(seen, entries),
        seconds=max(0.0, (until - created).total_seconds()) if created else 0.0,
        steps=tuple(sorted(steps, key=_order)),
        notes=tuple(_notes(seen, entries, lives, clocks)),
        account=account.as_json() if account else None,
        unread=seen.unread,
    )


def _order(step: Step) -> tuple[datetime, int]:
    return step.at or LATEST, _ORDER.index(step.name) if step.name in _ORDER else 0


def _state(seen: Evidence, entries: Sequence[_Entry]) -> str:
    if seen.vanished:
        return "Deleted"
    return seen.finished or (entries[-1].phase.value.capitalize() if entries else "Unknown")


# Phases ---------------------------------------------------------------------------------------------------------------


def _entries(seen: Evidence) -> list[_Entry]:
    """The phases that the job entered, by its status and by events. The status has only the latest entry into each."""
    created = read_time(seen.metadata.get("creationTimestamp"))
    stored = [_Entry(mark.phase, mark.at) for mark in read_marks(seen.status, created)]
    told = dict.fromkeys(_told(seen))
    for index, entry in enumerate(stored):
        if same := [each for each in told if each.phase is entry.phase and abs(each.at - entry.at) <= SAME]:
            stored[index] = replace(entry, message=same[-1].message)
            del told[same[-1]]
            if entry.phase is not Phase.RESTARTING:
                told = {each: None for each in told if each not in same}
    born = (Phase.PENDING, created)
    found = sorted(
        [*stored, *told],
        key=lambda each: (each.at, (each.phase, each.at) != born, tuple(Phase).index(each.phase)),
    )
    end = next((each.at for each in stored if each.phase is Phase.FINISHED), LATEST)
    return _without_repetitions([each for each in found if each.at <= end])


def _told(seen: Evidence) -> Iterator[_Entry]:
    """The entries that events show. Of more than two equal ones only the times of the first and last are known."""
    for event in seen.events:
        phase = _EVENTS.get(event.reason.removeprefix(seen.kind))
        if phase is not None and event.kind == seen.kind and event.reason.startswith(seen.kind):
            for at in {event.first, event.at} - {None}:
                yield _Entry(phase, at or EARLIEST, event.message)


def _without_repetitions(entries: Sequence[_Entry]) -> list[_Entry]:
    """A phase goes on if it is entered again; each restart is shown. A job that is resumed was suspended before."""
    kept: list[_Entry] = []
    for each in entries:
        if not kept or kept[-1].phase is not each.phase or each.phase is Phase.RESTARTING:
            kept.append(each)
        elif each.phase is Phase.PENDING and each.at > kept[-1].at:
            kept[-1:] = [replace(kept[-1], phase=Phase.SUSPENDED, inferred=True), each]
    if len(kept) > 1 and (kept[0].phase, kept[1].phase) == (Phase.PENDING, Phase.SUSPENDED):
        del kept[: kept[1].at - kept[0].at <= SAME]  # it was created suspended
    return kept


def _infer_runs(entries: Sequence[_Entry], lives: Sequence[Life]) -> list[_Entry]:
    """Adds when the job ran before it was restarted or suspended, which no status says: when all of its pods that are
    known from then had started."""
    found: list[_Entry] = []
    births = [life.born or EARLIEST for life in lives]
    for each, following in pairwise([*entries, _Entry(Phase.FINISHED, LATEST)]):
        found.append(each)
        if each.phase in {Phase.STARTING, Phase.RESTARTING} and following.phase in {Phase.RESTARTING, Phase.SUSPENDED}:
            begun = [life.started for life in lives[bisect_left(births, each.at) : bisect_left(births, following.at)]]
            started = [at for at in begun if at is not None]
            if started and len(started) == len(begun) and each.at <= (at := max(started)) <= following.at:
                found.append(_Entry(Phase.RUNNING, at, inferred=True))
    return found


def _phases(seen: Evidence, entries: Sequence[_Entry], created: datetime | None, until: datetime) -> Iterator[Step]:
    if created is not None:
        yield Step(created, "created", f"created{_wanted(seen)}")
    failure = read_failure(seen.status.get(LAST_FAILURE))
    starts = [each for each in entries if each.phase is not Phase.FINISHED]
    ends = [*(each.at for each in entries[1:]), until]
    for each, end in zip(entries, ends, strict=False):
        if each.phase is Phase.FINISHED:
            yield _end(seen, each.at, failure)
            continue
        seconds = max(0.0, (end - each.at).total_seconds())
        if each.phase is Phase.PENDING and not seconds and each.at == created and len(starts) > 1:
            continue  # nothing kept it
        is_open = each is entries[-1] and not seen.vanished
        text = _restart(each, failure) if each.phase is Phase.RESTARTING else _TEXTS[each.phase]
        text = "resumed; " + text if each.phase is Phase.PENDING and each.at != created else text
        text += _INFERRED.get(each.phase, "") if each.inferred else ""
        evidence = _output(each, failure) if each.phase is Phase.RESTARTING else ()
        yield Step(each.at, each.phase.value, text, seconds, open=is_open, evidence=evidence)
    yield from _deletion(seen)


def _wanted(seen: Evidence) -> str:
    """How many replicas the spec asks for."""
    parts = []
    for name, specs in seen.spec.items():
        if name.endswith("ReplicaSpecs"):
            for role, spec in as_object(specs).items():
                count = as_object(spec).get("replicas", 1)
                parts.append(f"{count if isinstance(count, int) else '?'} {as_text(role, 64)}")
    return f" with {', '.join(parts[:8])}" if parts else ""


def _is_of(failure: Failure, entry: _Entry) -> bool:
    """Whether the restart was because of the failure."""
    return failure.at is not None and -SAME <= entry.at - failure.at <= RECENT


def _restart(entry: _Entry, failure: Failure | None) -> str:
    """Why it was restarted: by its event, or by the last failure."""
    text = entry.message
    if not text and failure is not None and _is_of(failure, entry):
        text = describe_cause(failure)
    _, head, cause = text.partition(_CAUSE)
    said = ((head and cause) or text).partition(_OUTPUT)[0].rstrip(".")
    return f"restarting: {said}" if said else "restarting; its event, which names the cause, is gone"


def _output(entry: _Entry, failure: Failure | None) -> tuple[str, ...]:
    """The last lines of the replica whose failure made the job restart."""
    if failure is not None and _is_of(failure, entry):
        return failure.log[-5:]
    _, _, lines = entry.message.partition(_OUTPUT)
    return tuple(lines.split(" | "))[-5:] if lines else ()


def _end(seen: Evidence, at: datetime, failure: Failure | None) -> Step:
    state = seen.finished or "Failed"
    message = as_text(as_object(seen.condition(state)).get("message"), 1024)
    evidence = failure.log[-10:] if failure and state == "Failed" else ()
    return Step(at, state.lower(), f"{state.lower()}: {message}".rstrip(".: "), evidence=evidence)


def _deletion(seen: Evidence) -> Iterator[Step]:
    asked = read_time(seen.metadata.get("deletionTimestamp"))
    if asked is not None:
        yield Step(asked, "deleting", "its deletion was asked for")
    if seen.vanished:
        yield Step(seen.now, "deleted", "deleted while this was read, or not long before")


# Replicas -------------------------------------------------------------------------------------------------------------


def _replica_steps(entries: Sequence[_Entry], lives: Sequence[Life]) -> Iterator[Step]:
    """The steps of the pods of each start: those created from then on, before the next one."""
    starts = [each.at for each in entries if each.phase in _BEGINNINGS]
    groups: dict[int, list[Life]] = {}
    index = 0
    for life in lives:  # in the order of their birth
        born = life.born or EARLIEST
        while index < len(starts) and starts[index] <= born:
            index += 1
        groups.setdefault(index, []).append(life)
    for group in groups.values():
        yield from steps_of(group)


# Notes ----------------------------------------------------------------------------------------------------------------


def _notes(seen: Evidence, entries: Sequence[_Entry], lives: Sequence[Life], clocks: Clocks) -> Iterator[str]:
    for node, ahead in sorted(clocks.items())[:5]:
        way = "ahead of" if ahead > timedelta() else "behind"
        apart = lasted(abs(ahead.total_seconds()))
        yield f"the clock of node {node} is {apart} {way} the API server's: its times are corrected"
    if len(clocks) > 5:
        yield f"{len(clocks) - 5:,} more nodes have wrong clocks"
    if (reported := read_reported(seen.status)) and (said := describe_reported(reported)):
        yield f"the last report of progress: {said}" + (f" (at {as_text(reported.at, 32)})" if reported.at else "")
    if account := find_account(seen):
        until = "" if seen.finished else f", until {account.until:%Y-%m-%d %H:%M:%S}"
        yield f"its time{until}: {describe_account(account)}"
    annotations = {
        name: text for name, text in as_object(seen.metadata.get("annotations")).items() if isinstance(text, str)
    }
    history = RestartHistory(str(seen.metadata.get("uid")), annotations)
    counted, shown = history.failures + history.disruptions, sum(each.phase is Phase.RESTARTING for each in entries)
    if counted:
        disrupted = f", of which {history.disruptions:,} after disruptions" if history.disruptions else ""
        missing = "" if shown else "; their events are gone"
        yield f"restarts since the job was created or resumed: {counted:,}{disrupted}{missing}"
    gone = sum(life.gone for life in lives)
    if gone:
        yield f"{'1 pod is' if gone == 1 else f'{gone:,} pods are'} gone, and known by events only"
    elif not lives and any(each.phase is Phase.STARTING for each in entries):
        yield "its pods are gone, and so are their events, which Kubernetes keeps for an hour by default"
