"""The startup deadline: a job of which not all replicas start in time is suspended, or fails (`docs/survive.md`).

The condition `Started` is False from the moment at which the pods of a run are wanted, until all replicas have started
once. Its transition time is the one from which the deadline counts, so that an operator that is restarted neither
prolongs nor shortens it. A job that waits in a queue, suspended, has no such condition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from trainop.engine.actions import Action, Event, Notice, Plan, Remove, Unstarted
from trainop.engine.addresses import child_namer
from trainop.engine.children import RoleSlots
from trainop.engine.extensions import ANNOTATION_PREFIX
from trainop.engine.job import Job
from trainop.engine.kueue import QUEUE
from trainop.engine.pod_status import CLOCK_TOLERANCE
from trainop.engine.root_cause import MAX_MESSAGE, Failure, one_line
from trainop.engine.seen import Pod, Snapshot
from trainop.engine.spans import doubt_choice, doubt_span, format_span, read_span
from trainop.engine.stalls import IGNORED
from trainop.engine.status import RESTARTING, STARTED, SUSPENDED, Status
from trainop.engine.waiting import find_reason
from trainop.runtime import PODS, Json, Unstructured
from trainop.runtime.lowlevel import EARLIEST, cut, read_time

STARTUP_DEADLINE = ANNOTATION_PREFIX + "startup-deadline"
"""Annotation of a job, a duration: all its replicas have to start within it."""
ON_STARTUP_DEADLINE = ANNOTATION_PREFIX + "on-startup-deadline"
"""Annotation of a job: what happens otherwise, `suspend` (default) or `fail`."""
SUSPEND, FAIL = "suspend", "fail"
SHORTEST = 10.0
"""Seconds of the shortest deadline."""


STARTING, ALL_STARTED, EXCEEDED = "Starting", "AllReplicasStarted", "StartupDeadlineExceeded"
"""Reasons of the condition: False, True, and False after the deadline."""

MAX_CAUSES = 4
MAX_CAUSE = 200
"""Causes in a message, and bytes of one."""

GiveUp = Callable[[Snapshot, Failure], Plan]
"""Plans the failure of a job for a cause."""


@dataclass(frozen=True, slots=True)
class StartupRule:
    """What the annotations of a job ask for."""

    deadline: float
    """Seconds."""
    fails: bool = False


def read_startup_rule(annotations: Mapping[str, str], *, suspends: bool = True) -> StartupRule | None:
    """None if the job has no startup deadline. `suspends`: jobs of the kind can be suspended."""
    if STARTUP_DEADLINE not in annotations:
        return None
    deadline = read_span(annotations, STARTUP_DEADLINE, SHORTEST)
    fails = annotations.get(ON_STARTUP_DEADLINE) == FAIL
    return None if deadline is None or not (fails or suspends) else StartupRule(deadline, fails)


def seconds_to_startup(job: Unstructured, now: datetime) -> float | None:
    """Seconds until the startup deadline; None if the job has none, or has started or missed it."""
    rule = read_startup_rule(job.metadata.annotations)
    condition = Status(job.raw.get("status"), now).find(STARTED) or {}
    since = read_time(condition.get("lastTransitionTime"))
    if rule is None or since is None or condition.get("reason") != STARTING:
        return None
    return rule.deadline - (now - since).total_seconds()


def find_unstarted(job: Job, all_slots: Iterable[RoleSlots], actions: Iterable[Action]) -> Unstarted | None:
    """The replicas that have not started, with those that the plan deletes in order to restart them; None if the roles
    of the job are unreadable."""
    if not job.readable:
        return None
    leaving = {action.uid for action in actions if isinstance(action, Remove) and action.resource == PODS}
    return Unstarted(tuple(_unstarted(job, all_slots, leaving)), job.replicas)


def _unstarted(job: Job, all_slots: Iterable[RoleSlots], leaving: Collection[str]) -> Iterator[str]:
    for slots in all_slots:
        name_of = child_namer(job.name, slots.role)
        ended = {index for index, pod in slots.terminating.items() if pod.status.phase == "Succeeded"}
        for index in range(slots.role.replicas):
            pod = slots.pods.get(index)
            stays = pod is not None and pod.metadata.uid not in leaving
            if not (stays and has_started(pod)) and index not in ended:
                yield name_of(index)


def has_started(pod: Pod | None) -> bool:
    return pod is not None and pod.status.phase in {"Running", "Succeeded", "Failed"}


def watch_startup(seen: Snapshot, plan: Plan, give_up: GiveUp, *, suspends: bool) -> Plan:
    """The plan with the condition, and with the suspension or the failure of a job that has not started in time."""
    annotations = seen.job.metadata.annotations
    status = Status(plan.status if plan.status is not None else seen.job.raw.get("status"), seen.now)
    if plan.waits is None and plan.status is None:
        return plan
    rule = read_startup_rule(annotations, suspends=suspends)
    if rule is None or (status.is_true(SUSPENDED) and not _is_exceeded(status)):
        status.remove(STARTED)
    elif plan.waits is not None and plan.unstarted is not None:
        return _doubt(seen, _watch(seen, plan, rule, status, give_up), suspends=suspends)
    return _doubt(seen, replace(plan, status=status.changed() or plan.status), suspends=suspends)


def _doubt(seen: Snapshot, plan: Plan, *, suspends: bool) -> Plan:
    doubts = [] if plan.waits is None else list(find_doubts(seen.job.metadata.annotations, suspends=suspends))
    if not doubts:
        return plan
    return replace(plan, notices=(*plan.notices, Notice("startup", Event("Warning", IGNORED, "; ".join(doubts)))))


def find_doubts(annotations: Mapping[str, str], *, suspends: bool) -> Iterator[str]:
    """Why the annotations have not the effect that the user expects."""
    if doubt := doubt_span(annotations, STARTUP_DEADLINE, SHORTEST):
        yield doubt
    elif STARTUP_DEADLINE in annotations and not suspends and annotations.get(ON_STARTUP_DEADLINE) != FAIL:
        how = f"jobs of this kind cannot be suspended: set {ON_STARTUP_DEADLINE}={FAIL}"
        yield f"metadata.annotations[{STARTUP_DEADLINE}] is ignored: {how}"
    if doubt := doubt_choice(annotations, ON_STARTUP_DEADLINE, (SUSPEND, FAIL), STARTUP_DEADLINE):
        yield doubt


def _watch(seen: Snapshot, plan: Plan, rule: StartupRule, status: Status, give_up: GiveUp) -> Plan:
    missing = plan.unstarted or Unstarted((), 0)
    old = status.find(STARTED)
    if old is None or _is_outdated(old, status, seen.now):
        status.remove(STARTED)
        text = f"All {missing.total:,} replicas have to start within {format_span(rule.deadline)}"
        status.set_first(STARTED, "False", STARTING, text)
    if not missing.pods:
        status.set_first(STARTED, "True", ALL_STARTED, f"All {missing.total:,} replicas have started")
    elif not status.is_true(STARTED):
        since = read_time((status.find(STARTED) or {}).get("lastTransitionTime")) or seen.now
        left = rule.deadline - (seen.now - since).total_seconds()
        if left <= 0:
            return _miss(seen, plan, rule, status, give_up)
        due = left if plan.requeue_after is None else min(plan.requeue_after, left)
        plan = replace(plan, requeue_after=due)
    return replace(plan, status=status.changed() or plan.status)


def _is_outdated(started: Json, status: Status, now: datetime) -> bool:
    """Whether the condition is about an earlier run, or its deadline counts from a time of a clock that was set back:
    then it counts from now."""
    since = read_time(started.get("lastTransitionTime")) or EARLIEST
    latest = now + CLOCK_TOLERANCE
    return since < _wanted_at(status) <= latest or (since > latest and started.get("reason") == STARTING)


def _wanted_at(status: Status) -> datetime:
    """When the pods of the present run were first wanted: at the start or the resumption of the job, or at a restart
    after all had started."""
    suspended, restarting = status.find(SUSPENDED) or {}, status.find(RESTARTING) or {}
    times = [status.start_time]
    if suspended.get("status") == "False":
        times.append(read_time(suspended.get("lastTransitionTime")))
    if restarting.get("status") == "True" and status.is_true(STARTED):
        times.append(read_time(restarting.get("lastTransitionTime")))
    return max((moment for moment in times if moment is not None), default=EARLIEST)


def _is_exceeded(status: Status) -> bool:
    return (status.find(STARTED) or {}).get("reason") == EXCEEDED


# The deadline ---------------------------------------------------------------------------------------------------------


def _miss(seen: Snapshot, plan: Plan, rule: StartupRule, status: Status, give_up: GiveUp) -> Plan:
    told = _tell(seen, plan, rule)
    if rule.fails:
        ended = give_up(seen, Failure(reason=EXCEEDED, message=one_line(told, MAX_MESSAGE), at=seen.wall or seen.now))
        status = Status(ended.status or seen.job.raw.get("status"), seen.now)
        status.set_first(STARTED, "False", EXCEEDED, told)
        return replace(ended, status=status.changed())
    queue = seen.job.metadata.labels.get(QUEUE)  # an admitted job that others suspend would be resumed
    text = f"{told}; {_describe_suspension(queue)}"
    if not _is_exceeded(status):  # a message that is known stays: the rest of it may change all the time
        status.set_first(STARTED, "False", EXCEEDED, text)
        plan = replace(plan, transitions=(*plan.transitions, Event("Warning", EXCEEDED, text)))
    plan = replace(plan, status=status.changed() or plan.status)
    return plan if queue else replace(plan, status_first=True, actions=(), suspend=True)


def _describe_suspension(queue: str | None) -> str:
    if queue:
        return (
            f"the job is not suspended, because Kueue would resume it (queue {cut(queue, 64)}): use waitForPodsReady of"
            f" Kueue, or {ON_STARTUP_DEADLINE}={FAIL}"
        )
    return "the job is suspended: set spec.runPolicy.suspend to false to start it again"


def _tell(seen: Snapshot, plan: Plan, rule: StartupRule) -> str:
    missing = plan.unstarted or Unstarted((), 0)
    how_many = f"{len(missing.pods):,} of {missing.total:,} replicas have not started"
    return f"{how_many} within {format_span(rule.deadline)}: {describe_causes(seen, missing.pods)}"


def describe_causes(seen: Snapshot, names: Iterable[str]) -> str:
    """Why these pods have not started, most frequent causes first: `3: ErrImagePull: ...; 1: Unschedulable: ...`."""
    pods = {pod.metadata.name: pod for pod in seen.pods}
    refused = f": {seen.obstacle.what}: {seen.obstacle.why}" if seen.obstacle is not None else ""
    counts = Counter(_cause_of(pods.get(name), refused) for name in names)
    common = counts.most_common(MAX_CAUSES)
    texts = [f"{count:,}: {cut(cause, MAX_CAUSE)}" for cause, count in common]
    rest = counts.total() - sum(count for _, count in common)
    return "; ".join([*texts, *([f"{rest:,}: other causes"] if rest else [])])


def _cause_of(pod: Pod | None, refused: str) -> str:
    if pod is None:
        return f"has no pod{refused}"
    if pod.metadata.terminating:
        return "the former pod still terminates"
    return find_reason(pod)[1] or f"its pod is {pod.status.phase.lower() or 'pending'}"
