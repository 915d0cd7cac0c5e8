"""`diagnose`: asks all rules, and determines the state of the job."""

from __future__ import annotations

from trainop.explain.why import course, operator, pods, queue
from trainop.explain.why.cause import Cause, Diagnosis, State, Weight
from trainop.explain.why.evidence import Evidence
from trainop.explain.why.words import digest

RULES = (course.find, queue.find, operator.find, pods.find)

_HARMLESS = frozenset({"Account", "AvoidedNodes", "Running", "Deadline", "Restarted", "OldCrd", "Warning", "Succeeded"})


def diagnose(seen: Evidence) -> Diagnosis:
    """Explains the job. Pure, and never raises, whatever the job and its objects contain."""
    found = [cause for rule in RULES for cause in rule(seen)]
    found = [cause for cause in found if not _is_repeated(cause, found)]
    if all(cause.weight == Weight.HINT for cause in found):
        found.append(_unexplained(seen))
    found.sort(key=lambda cause: -cause.weight)
    return Diagnosis(_state(seen, found), tuple(found), seen.unread)


def _is_repeated(warning: Cause, found: list[Cause]) -> bool:
    """Whether the operator warns of what another cause explains."""
    others = (cause for cause in found if cause is not warning)
    said = (line.partition(" x ")[2] or line for cause in others for line in cause.evidence)
    return warning.code == "Warning" and any(line in text for text in warning.evidence for line in said)


def _state(seen: Evidence, causes: list[Cause]) -> State:
    if seen.finished:
        return State.SUCCEEDED if seen.finished == "Succeeded" else State.FAILED
    if any(each.phase == "Running" and not each.deadline for each in seen.pods):
        return State.RUNNING if all(each.code in _HARMLESS for each in causes) else State.TROUBLED
    return State.WAITING


def _unexplained(seen: Evidence) -> Cause:
    """Nothing is known to be wrong: the job has just begun, or the reason is not known here."""
    last = digest(f"{each.kind} {each.name}: {each.reason}: {each.message}" for each in seen.events[-3:])
    if seen.age < 60:
        return Cause(
            "Starting", "the job has just been created, and nothing is wrong with it so far", weight=Weight.COURSE
        )
    return Cause(
        "Unexplained",
        f"the job has {len(seen.pods)} pods and does not run; nothing that can be read says why",
        "look into the log of the operator",
        last,
        Weight.COURSE,
    )
