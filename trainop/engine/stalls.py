"""Stalls: a running job whose reports of progress stop says so, and restarts if it asks for that (`docs/survive.md`).

The condition `Stalled` is False from the first report of a run on, and only then silence counts: a job that does not
report never stalls. How long it has been silent is known to the leader alone, by its monotonic clock (`Silence`), so
that neither a restart of the operator nor a step of a clock is silence. All else is in the status.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

from trainop.engine.actions import Count, Event, Notice, Plan
from trainop.engine.extensions import ANNOTATION_PREFIX
from trainop.engine.pod_status import CLOCK_TOLERANCE
from trainop.engine.progress import PROGRESS, TRAINER_STATUS, ProgressEndpoint, is_asked
from trainop.engine.restart_history import RESTARTS
from trainop.engine.root_cause import MAX_MESSAGE, Failure, one_line
from trainop.engine.seen import Silence, Snapshot
from trainop.engine.spans import doubt_choice, doubt_span, format_span, read_span
from trainop.engine.status import RESTARTING, RUNNING, STALLED, SUSPENDED, Status
from trainop.runtime import Json, Unstructured
from trainop.runtime.lowlevel import EARLIEST, cut, read_time, timestamp

STALLED_AFTER = ANNOTATION_PREFIX + "stalled-after"
"""Annotation of a job, a duration: its reports may be missing for so long."""
ON_STALL = ANNOTATION_PREFIX + "on-stall"
"""Annotation of a job: `restart` restarts all its pods then."""
RESTART = "restart"
SHORTEST = 60.0
"""Seconds of the shortest `stalled-after`: clients report every 5 s, and a report is written up to 10 s later."""
FIRST_LOOK = 1.0
"""Seconds after which a job that has reported before it ran is examined."""

NO_PROGRESS, REPORTED = "NoProgress", "ProgressReported"
"""Reasons of the condition: True and False."""
IGNORED = "AnnotationIgnored"
"""The reason of the event about annotations that have no effect."""

Restart = Callable[[Snapshot, Failure], Plan | None]
"""Plans a restart of the whole job for a cause, or its end at a limit; None if it cannot be restarted as it is."""


@dataclass(frozen=True, slots=True)
class StallRule:
    """What the annotations of a job ask for."""

    after: float
    """Seconds."""
    restarts: bool = False


def read_stall_rule(annotations: Mapping[str, str]) -> StallRule | None:
    """None if the job is not watched."""
    after = read_span(annotations, STALLED_AFTER, SHORTEST) if STALLED_AFTER in annotations else None
    return None if after is None else StallRule(after, annotations.get(ON_STALL) == RESTART)


def awaits_report(job: Unstructured) -> bool:
    """Whether the next report changes what the status of a watched job says: it is the first, or ends a stall."""
    if STALLED_AFTER not in job.metadata.annotations:
        return False
    status = Status(job.raw.get("status"), EARLIEST)
    return status.is_true(RUNNING) and (status.find(STALLED) is None or status.is_true(STALLED))


def watch_for_stalls(seen: Snapshot, plan: Plan, restart: Restart | None) -> Plan:
    """The plan with the condition, with an event and a restart if the job stalls, and with a Warning about annotations
    without effect. `restart` is None for kinds whose jobs the operator does not restart."""
    annotations = seen.job.metadata.annotations
    status = Status(plan.status if plan.status is not None else seen.job.raw.get("status"), seen.now)
    if plan.waits is None:
        return plan  # a terminal condition and Suspended have removed the condition
    rule = read_stall_rule(annotations)
    plan = _doubt(seen, plan, restarts=restart is not None)
    if rule is None or _is_outdated(status):
        status.remove(STALLED)
    if rule is not None and seen.silence is not None and status.is_true(RUNNING):
        old = status.find(STALLED)
        if (old is None or status.is_true(STALLED)) and _has_reported(seen, seen.silence, old):
            status.set_first(STALLED, "False", REPORTED, "The job reports its progress")
        if (status.find(STALLED) or {}).get("status") == "False":
            if seen.silence.overdue:
                return _stall(seen, plan, status, rule, restart)
            plan = _look_in(plan, seen.silence.look_in)
    elif rule is not None and status.is_true(RUNNING) and isinstance(status.get(TRAINER_STATUS), dict):
        plan = _look_in(plan, FIRST_LOOK)  # it begins to run, and no event may follow: the report came before
    return replace(plan, status=status.changed() or plan.status)


def _doubt(seen: Snapshot, plan: Plan, *, restarts: bool) -> Plan:
    doubts = list(find_doubts(seen.job.metadata.annotations, seen.options.progress, restarts=restarts))
    if not doubts:
        return plan
    return replace(plan, notices=(*plan.notices, Notice("stalls", Event("Warning", IGNORED, "; ".join(doubts)))))


def find_doubts(annotations: Mapping[str, str], endpoint: ProgressEndpoint | None, *, restarts: bool) -> Iterator[str]:
    """Why the annotations have not the effect that the user expects. `endpoint` is where the operator takes reports."""
    if doubt := doubt_span(annotations, STALLED_AFTER, SHORTEST):
        yield doubt
    elif STALLED_AFTER in annotations and (endpoint is None or not is_asked(annotations, endpoint)):
        yield f"metadata.annotations[{STALLED_AFTER}] has no effect on a job that does not report: set {PROGRESS}=true"
    if doubt := doubt_choice(annotations, ON_STALL, (RESTART,), STALLED_AFTER):
        yield doubt
    elif ON_STALL in annotations and not restarts:
        yield f"metadata.annotations[{ON_STALL}] is ignored: the operator does not restart jobs of this kind"


def _is_outdated(status: Status) -> bool:
    """Whether the condition is about an earlier run. That a job has stalled stays until it runs again."""
    old, running = status.find(STALLED) or {}, status.find(RUNNING) or {}
    if not status.is_true(RUNNING):
        return not (old.get("status") == "True" and status.is_true(RESTARTING))
    since, began = read_time(old.get("lastTransitionTime")), read_time(running.get("lastTransitionTime"))
    if since is None or began is None:
        return False
    return began > since or (began == since and old.get("status") == "True")


def _has_reported(seen: Snapshot, silence: Silence, stalled: Json | None) -> bool:
    """Whether the run has reported, or since it has stalled. What is in the status of a job that was never restarted or
    suspended is of this run; else only what this process has seen."""
    if silence.reported is not None:
        since = read_time((stalled or {}).get("lastTransitionTime")) or EARLIEST
        if since > seen.now + CLOCK_TOLERANCE:  # another process has seen the stall, before the clock was set back
            return True
        return seen.now - timedelta(seconds=silence.reported) > since
    status = Status(seen.job.raw.get("status"), seen.now)
    is_first = status.find(SUSPENDED) is None and RESTARTS not in seen.job.metadata.annotations
    return stalled is None and is_first and isinstance(status.get(TRAINER_STATUS), dict)


def _look_in(plan: Plan, seconds: float) -> Plan:
    due = seconds if plan.requeue_after is None else min(plan.requeue_after, seconds)
    return replace(plan, requeue_after=due)


# A stall --------------------------------------------------------------------------------------------------------------


def _stall(seen: Snapshot, plan: Plan, status: Status, rule: StallRule, restart: Restart | None) -> Plan:
    told = _tell(seen, rule)
    made = None
    if rule.restarts and restart is not None:
        cause = Failure(reason=STALLED, message=one_line(told, MAX_MESSAGE), at=seen.wall or seen.now)
        made = restart(seen, cause)
    if made is not None:
        # if the status were lost, the deleted pods would not tell why they ended, and the silence would go on
        plan = replace(made, status_first=True, notices=(*plan.notices, *made.notices))
        status = Status(made.status or seen.job.raw.get("status"), seen.now)
    then = "all its pods are restarted" if made is not None else _advise(seen)
    text = f"{told}; {then}"
    if not status.finished:
        status.set_first(STALLED, "True", NO_PROGRESS, text)
    events = (Event("Warning", STALLED, text), Count("stalled"))
    return replace(plan, status=status.changed() or plan.status, transitions=(*events, *plan.transitions))


def _tell(seen: Snapshot, rule: StallRule) -> str:
    """Since when nobody has been heard, who was the last, and how far the job was."""
    silence = seen.silence or Silence(0.0)
    when = "at" if silence.reported is not None else "before"  # this process has begun to listen then
    at = f"{when} {timestamp(seen.now - timedelta(seconds=silence.seconds))}"
    who = f"pod {silence.pod}" if silence.pod else "the job"
    done = _describe_progress(Status(seen.job.raw.get("status"), seen.now).get(TRAINER_STATUS))
    return f"No report of progress for {format_span(rule.after)}: {who} was last heard {at}{done}"


def _describe_progress(reported: object) -> str:
    found = reported if isinstance(reported, dict) else {}
    percent, listed = found.get("progressPercentage"), found.get("metrics")
    metrics = {str(each.get("name")): each.get("value") for each in listed or () if isinstance(each, dict)}
    step, total = metrics.get("current_step"), metrics.get("total_steps")
    parts = [f"{percent} %"] if isinstance(percent, int) else []
    if isinstance(step, str):
        parts.append(f"step {cut(step, 32)}" + (f" of {cut(total, 32)}" if isinstance(total, str) else ""))
    return f", at {', '.join(parts)}" if parts else ""


def _advise(seen: Snapshot) -> str:
    name = seen.job.metadata.name
    return f"`trainop stacks {name}` shows where its replicas stand, and {ON_STALL}={RESTART} would restart them"
