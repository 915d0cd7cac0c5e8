"""Waiting: an unfinished job that does not move says in a condition, and in one event, what it waits for.

A plan of such a job lists what it waits for (`Wait`); the pods in the snapshot add those that are pending or
terminating, and the controllers what they could not create. As soon as one of them has lasted for `--waiting-after`,
the condition Waiting names it, for every kind of job in the same way. All times are those of objects and of the status,
so that a restart of the operator resets nothing; only the age of a failed creation is known to the process alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property

from trainop.engine.actions import Event, Plan, Wait, is_creation
from trainop.engine.children import join_names
from trainop.engine.fields import as_list, as_object
from trainop.engine.seen import Pod, Snapshot
from trainop.engine.status import RUNNING, WAITING, Status, format_time
from trainop.runtime import Json
from trainop.runtime.lowlevel import read_time

INVALID_SPEC = "InvalidSpec"
NAME_TAKEN = "NameTaken"
UNREADABLE = "Unreadable"
INVALID_LABELS = "InvalidLabels"
CREATION_FAILED = "CreationFailed"
GANG_NOT_READY = "GangNotReady"
PODS_UNKNOWN = "PodsUnknown"
PODS_TERMINATING = "PodsTerminating"
PODS_PENDING = "PodsPending"
BACK_OFF = "BackOff"
WORKERS_NOT_READY = "WorkersNotReady"
LAUNCHER_PENDING = "LauncherPending"
NO_LEADER = "NoLeader"
NO_PROGRESS = "NoProgress"

REASONS = (
    INVALID_SPEC,
    NAME_TAKEN,
    UNREADABLE,
    INVALID_LABELS,
    CREATION_FAILED,
    GANG_NOT_READY,
    PODS_UNKNOWN,
    PODS_TERMINATING,
    PODS_PENDING,
    BACK_OFF,
    WORKERS_NOT_READY,
    LAUNCHER_PENDING,
    NO_LEADER,
    NO_PROGRESS,
)
"""All reasons of the condition. The first that applies is the one that is named: a later one is often its effect."""


def say_waiting(seen: Snapshot, plan: Plan) -> Plan:
    """The plan with the condition Waiting in its status, with an event if that says something new, and with a requeue
    for the moment when there may be something to say. Plans of jobs that are finished, suspended, or another
    controller's have no `waits` and are returned as they are."""
    patience = seen.options.waiting_after
    if plan.waits is None or patience <= 0:
        return plan
    status = Status(plan.status if plan.status is not None else seen.job.raw.get("status"), seen.now)
    ages = list(_ages(seen, plan, status))
    overdue = [wait for wait, age in ages if age >= patience]
    events: tuple[Event, ...] = ()
    if overdue:
        events = _name(status, min(overdue, key=lambda wait: REASONS.index(wait.reason)))
    elif not _keeps(status, plan):
        status.remove(WAITING)
    due_in = [min(patience - age, patience) for _, age in ages if age < patience]
    requeue = plan.requeue_after
    return replace(
        plan,
        status=status.changed() or plan.status,
        transitions=(*plan.transitions, *events),
        requeue_after=min(due_in if requeue is None else [*due_in, requeue], default=None),
    )


def _ages(seen: Snapshot, plan: Plan, status: Status) -> Iterator[tuple[Wait, float]]:
    """Everything that the job waits for, and for how many seconds it has."""
    pods = _Pods(seen)
    waits = [*(plan.waits or ()), *_of_notices(plan), *_of_pods(seen, pods)]
    if seen.obstacle is not None:
        waits.append(seen.obstacle)
    if not waits and not plan.actions and not (status.is_true(RUNNING) and pods.any_runs):
        waits = [Wait(NO_PROGRESS, "No pod of the job runs, is pending or is missing", _count(status))]
    still = not plan.actions and any(wait.since is None for wait in waits)
    moved = _moved_at(seen, status, pods) if still else seen.now
    for wait in waits:
        yield wait, (seen.now - (wait.since or moved)).total_seconds()


def reason_of(status: object) -> str:
    """The reason for which a job waits, by its status; empty if it does not."""
    for condition in as_list(as_object(status).get("conditions")):
        if (condition.get("type"), condition.get("status")) == (WAITING, "True"):
            reason = condition.get("reason")
            return reason if reason in REASONS else NO_PROGRESS
    return ""


def _name(status: Status, wait: Wait) -> tuple[Event, ...]:
    """Sets the condition. A message that names the same objects stays, since the rest may change all the time, as that
    of a scheduler does."""
    old = status.find(WAITING) or {}
    known = old.get("status") == "True" and old.get("reason") == wait.reason
    if known and str(old.get("message")).startswith(wait.what):
        return ()
    message = f"{wait.what}: {wait.why}" if wait.why else wait.what
    status.set_first(WAITING, "True", wait.reason, message)
    return () if known else (Event("Warning", wait.reason, message),)


def _keeps(status: Status, plan: Plan) -> bool:
    """Whether the condition stays, because the creation that has failed is only now tried again."""
    waiting = status.find(WAITING) or {}
    return waiting.get("reason") == CREATION_FAILED and any(map(is_creation, plan.actions))


# What there is to wait for --------------------------------------------------------------------------------------------


def _of_notices(plan: Plan) -> Iterator[Wait]:
    """The obstacles of which the plan warns."""
    for notice in plan.notices:
        if notice.holds_up:
            yield Wait(notice.holds_up, notice.event.message)


class _Pods:
    """The pods that the job controls, also by a child: the batch Job of a launcher, an aggregator."""

    def __init__(self, seen: Snapshot) -> None:
        self._all = seen.pods
        uid = seen.job.metadata.uid
        children = (each.metadata for found in seen.companions.values() for each in found)
        self._owners = {uid, *(child.uid for child in children if child.controller and child.controller.uid == uid)}

    def __iter__(self) -> Iterator[Pod]:
        return filter(self._is_ours, self._all)

    @property
    def any_runs(self) -> bool:
        return any(pod.status.phase == "Running" and not pod.metadata.terminating for pod in self)

    def unsettled(self) -> list[Pod]:
        """Those that neither run nor have ended, or that are being deleted. The owner is read last, since usually all
        of thousands of pods run."""
        settled = {"Running", "Succeeded", "Failed"}
        return [
            pod
            for pod in self._all
            if (pod.metadata.terminating or pod.status.phase not in settled) and self._is_ours(pod)
        ]

    def _is_ours(self, pod: Pod) -> bool:
        owner = pod.metadata.controller
        return owner is not None and (owner.uid in self._owners or (owner.kind == "Pod" and owner.uid in self._uids))

    @cached_property
    def _uids(self) -> set[str]:
        controllers = ((pod.metadata.uid, pod.metadata.controller) for pod in self._all)
        return {uid for uid, owner in controllers if owner is not None and owner.uid in self._owners}


def _of_pods(seen: Snapshot, pods: _Pods) -> Iterator[Wait]:
    """The pods that are not as they should be."""
    unsettled = pods.unsettled()
    leaving = [(pod.metadata.deletion_timestamp or "", pod) for pod in unsettled if pod.metadata.terminating]
    yield from _by_age(seen, Wait(PODS_TERMINATING, "still terminating", "is the node gone?"), leaving)
    staying = [(pod.metadata.creation_timestamp or "", pod) for pod in unsettled if not pod.metadata.terminating]
    pending = [(time, pod) for time, pod in staying if pod.status.phase == "Pending"]
    yield from _by_age(seen, Wait(PODS_PENDING, "pending"), pending)
    unknown = [(time, pod) for time, pod in staying if pod.status.phase != "Pending"]
    yield from _by_age(seen, Wait(PODS_UNKNOWN, "in an unknown phase"), unknown)


def _by_age(seen: Snapshot, wait: Wait, found: list[tuple[str, Pod]]) -> Iterator[Wait]:
    """One Wait for the pods whose time is long past, and one for the first of the others. Times are compared as text,
    since a job may have tens of thousands of pending pods. They are those of the API server's clock: of the two clocks
    here, the slower one counts, because either may have been set."""
    clock = min(seen.now, seen.wall or seen.now)
    ahead, border = seen.now - clock, format_time(clock - timedelta(seconds=seen.options.waiting_after))
    late = [(time, pod) for time, pod in found if time <= border]
    if late and (since := read_time(min(time for time, _ in late))) is not None:
        pods = sorted((pod for _, pod in late), key=lambda pod: pod.metadata.name)
        what = f"{join_names(pod.metadata for pod in pods)} {'are' if len(pods) > 1 else 'is'} {wait.what}"
        yield Wait(wait.reason, what, wait.why or _explain(pods[0]), since + ahead)
    next_ = min((time for time, _ in found if time > border), default=None)
    if (since := read_time(next_)) is not None:
        yield wait._replace(since=since + ahead)


def _explain(pod: Pod) -> str:
    """Why a pod has not started, as far as its status says so."""
    container, said = find_reason(pod)
    if container:
        return f"container {container} of {pod.metadata.name}: {said}"
    return said or f"see `kubectl describe pod {pod.metadata.name}`"


def find_reason(pod: Pod) -> tuple[str, str]:
    """Why a pod has not started: the container that says so, if one does, and its reason and message. Both empty if
    nothing is known."""
    for container in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        waiting = container.state.waiting
        if waiting is not None and waiting.message:
            return container.name, f"{waiting.reason}: {waiting.message}"
    for condition in pod.status.conditions:
        if condition.status != "True" and condition.message:
            return "", f"{condition.reason or condition.type}: {condition.message}"
    return "", ""


# Since when -----------------------------------------------------------------------------------------------------------


def _moved_at(seen: Snapshot, status: Status, pods: _Pods) -> datetime:
    """The last time at which something happened to the job, as far as the objects know; now if they know of none."""
    times = [seen.job.metadata.creation_timestamp, status.get("startTime")]
    for condition in status.conditions:
        if condition.get("type") != WAITING:
            times += [condition.get("lastTransitionTime"), condition.get("lastUpdateTime")]
    times.append(max((pod.metadata.creation_timestamp or "" for pod in pods), default=None))
    times.append(max((pod.metadata.deletion_timestamp or "" for pod in seen.pods), default=None))
    return max((moment for moment in map(read_time, times) if moment is not None), default=seen.now)


def _count(status: Status) -> str:
    """The counters of the status as text, such as `Worker 1 failed, 2 succeeded`."""
    stored = status.get("replicaStatuses") or status.get("replicaStatus")
    entries: Json = stored if isinstance(stored, dict) else {}
    texts = []
    for role, counters in entries.items():
        counts = counters.items() if isinstance(counters, dict) else ()
        found = ", ".join(f"{count} {name}" for name, count in counts if isinstance(count, int))
        texts.append(f"{role} {found or 'none'}")
    return "; ".join(texts)
