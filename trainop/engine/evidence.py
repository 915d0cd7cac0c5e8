"""How pods ended: which containers failed, why, and when by the clock of the API server. And the root cause of what an
assessment found: the failures of replicas that are down now, those from which the kubelet has restarted a container in
place, and the last failure that the status remembers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from heapq import nsmallest

from trainop.engine.addresses import child_name
from trainop.engine.assess import Assessment
from trainop.engine.children import read_place
from trainop.engine.failures import Limit
from trainop.engine.framework import Framework
from trainop.engine.in_place import Burst
from trainop.engine.job import Job, Role
from trainop.engine.pod_status import CLOCK_TOLERANCE, ContainerStatus, PodCondition, Terminated
from trainop.engine.root_cause import (
    MAX_MESSAGE,
    MAX_NAME,
    PEER_CODES,
    UNKNOWN_ENDS,
    Failure,
    count_running,
    find_cause,
    log_lines,
    one_line,
)
from trainop.engine.seen import Pod
from trainop.runtime.lowlevel import LATEST, read_time

DELETED = "Deleted"
"""The reason of a replica whose pod another client has deleted."""

_UNKNOWN_END = "ContainerStatusUnknown"
"""The reason that the kubelet gives the container of a pod whose end it has not seen; the exit code is made up."""

RESET = "RestartingAllContainers"
"""The reason that the kubelet gives containers that it removes in order to restart the pod in place, also to the one
that has failed; the exit code is made up (kubernetes `pkg/kubelet/kubelet_pods.go`)."""


@dataclass(frozen=True, slots=True)
class Place:
    """The replica that a pod is."""

    role: str
    index: int | None = None
    rank: int | None = None
    main: str = ""
    """The name of the container that runs the framework. If several containers failed, it is the one that counts."""
    restarts: int = 0
    """Restarts of the job before this pod."""


def failure_of(pod: Pod, place: Place, now: datetime) -> Failure:
    """How a pod failed that has failed, or that another client deletes. `now` is the wall clock."""
    found, disruption = _failed_container(pod, place.main, now), _disruption(pod)
    reason, message = _reason(pod, found[1] if found else None, disruption)
    failure = replace(_blank(pod, place, reason), message=one_line(message, MAX_MESSAGE))
    failure = replace(failure, at=_time_of(pod, disruption, now))
    return failure if found is None else _with_container(failure, pod, *found, now)


def order_of(pod: Pod, main: str, now: datetime) -> tuple[datetime, bool, str]:
    """Orders failed pods like their failures, but without reading logs."""
    found = _failed_container(pod, main, now)
    at = _by_server(pod, found[1].finished_at, now) if found is not None else None
    code = _exit_code(found[1]) if found is not None else None
    return at or _time_of(pod, _disruption(pod), now) or LATEST, code in PEER_CODES, pod.metadata.name


def past_failure_of(pod: Pod, place: Place, now: datetime) -> Failure | None:
    """The latest failure in a pod from which the kubelet has restarted the container, or is about to; None if there is
    none."""
    found = _failed_container(pod, place.main, now)
    return None if found is None else _with_container(_blank(pod, place, found[1].reason), pod, *found, now)


def _blank(pod: Pod, place: Place, reason: str) -> Failure:
    """What is known of a failure without the container."""
    return Failure(
        role=place.role,
        index=place.index,
        rank=place.rank,
        pod=one_line(pod.metadata.name, MAX_NAME),
        node=one_line(pod.spec.node_name, MAX_NAME),
        reason=one_line(reason, MAX_NAME),
        attempt=place.restarts + 1,
    )


def _with_container(failure: Failure, pod: Pod, status: ContainerStatus, end: Terminated, now: datetime) -> Failure:
    is_past = status.state.terminated is not end
    known = end.reason != _UNKNOWN_END
    return replace(
        failure,
        container=one_line(status.name, MAX_NAME),
        exit_code=_exit_code(end) if known else None,
        attempt=failure.attempt + max(0, status.restart_count - is_past),
        at=_by_server(pod, end.finished_at, now) or failure.at,
        began=_by_server(pod, end.started_at, now),
        log=log_lines(end.message),
    )


def _exit_code(end: Terminated) -> int:
    """A container runtime may report the signal instead of 128 and its number."""
    return end.exit_code or 128 + end.signal


def _failed_container(pod: Pod, main: str, now: datetime) -> tuple[ContainerStatus, Terminated] | None:
    """The main container if it has failed, else the container that failed first. The end of a container that the
    deletion of its pod has stopped is no failure."""
    failed = [(each, end) for each in _containers(pod) if (end := _own_end(pod, each, now)) is not None]
    for each in failed:
        if each[0].name == main:
            return each
    return min(failed, key=lambda each: each[1].finished_at or "~", default=None)


def _own_end(pod: Pod, status: ContainerStatus, now: datetime) -> Terminated | None:
    """How the latest run of the container failed that failed by itself. Within the second of the deletion, the deletion
    is taken to be the reason: many programs end at once on SIGTERM."""
    end, before = status.state.terminated, status.last_state.terminated
    if end is not None and end.failed and end.reason != RESET and not _is_stopped(pod, end, now):
        return end
    return before if before is not None and before.failed and before.reason != RESET else None


def _is_stopped(pod: Pod, end: Terminated, now: datetime) -> bool:
    asked = deletion_time(pod)
    at = _by_server(pod, end.finished_at, now) if asked is not None else None
    return asked is not None and (at is None or at >= asked)


def was_stopped(pod: Pod, now: datetime) -> bool:
    """Whether the pod is being deleted and had not failed before."""
    return pod.metadata.terminating and _failed_container(pod, "", now) is None


def deletion_time(pod: Pod) -> datetime | None:
    """When the deletion of the pod was requested; None if it is not being deleted."""
    deadline = read_time(pod.metadata.deletion_timestamp)
    if deadline is None:
        return None
    return deadline - timedelta(seconds=pod.metadata.deletion_grace_period_seconds or 0)


def _containers(pod: Pod) -> Iterator[ContainerStatus]:
    yield from pod.status.container_statuses
    yield from pod.status.init_container_statuses


def _disruption(pod: Pod) -> PodCondition | None:
    for condition in pod.status.conditions:
        if condition.type == "DisruptionTarget" and condition.status == "True":
            return condition
    return None


def _reason(pod: Pod, end: Terminated | None, disruption: PodCondition | None) -> tuple[str, str]:
    """The reason and a message: of the pod if its node or a controller ended it, else of its container."""
    status = pod.status
    if status.reason:
        return status.reason, status.message
    if disruption is not None:
        return disruption.reason or "DisruptionTarget", disruption.message
    if end is not None and end.reason != _UNKNOWN_END:
        return end.reason, ""
    if pod.metadata.terminating:
        return DELETED, ""
    return "", status.message


# Times ----------------------------------------------------------------------------------------------------------------


def _time_of(pod: Pod, disruption: PodCondition | None, now: datetime) -> datetime | None:
    """When a pod without a failed container failed."""
    if disruption is not None and (at := read_time(disruption.last_transition_time)):
        return at
    if (asked := deletion_time(pod)) is not None:
        return asked
    times = (read_time(condition.last_transition_time) for condition in pod.status.conditions)
    return min(max((time for time in times if time is not None), default=now), now)


def _by_server(pod: Pod, text: str | None, now: datetime) -> datetime | None:
    """A time by the clock of the node, corrected if that clock is shown to be wrong: a kubelet cannot have seen a pod
    before it was bound, and nothing ends in the future. A late start alone shows nothing, and neither does `now`, as
    the operator's own clock may be wrong."""
    at = read_time(text)
    if at is None:
        return None
    bound = read_time(pod.status.scheduled_at) or read_time(pod.metadata.creation_timestamp)
    seen = read_time(pod.status.start_time)
    ahead = seen - bound if seen is not None and bound is not None else timedelta()
    if ahead < -CLOCK_TOLERANCE or (ahead > CLOCK_TOLERANCE and at > now + CLOCK_TOLERANCE):
        at -= ahead
    return at if bound is None else max(at, bound)


MAX_EXAMINED = 64
"""Pods that failed first of which everything is read; of the others only the time. A job may have thousands."""


def find_root_cause(
    framework: Framework, job: Job, found: Assessment, remembered: Failure | None, now: datetime
) -> Failure | None:
    """The root cause of the restarts and failures of this reconcile, and of restarts in place; None if nothing has
    failed. `remembered` is the stored `lastFailure`, `now` the wall clock."""
    history = found.history
    pods = [(each.role, each.pod) for each in found.findings.restarts if not history.is_counted(each.pod.metadata.uid)]
    pods += [(fatal.role, pod) for fatal in found.findings.fatal_failures for pod in fatal.pods]
    restarts = history.failures + history.disruptions

    def place_of(role: Role, index: int | None) -> Place:
        rank = None if index is None else framework.rank(job, role, index)
        return Place(role.type, index if role.indexed else None, rank, role.container, restarts)

    def place_of_pod(role: Role, pod: Pod) -> Place:
        return place_of(role, read_place(pod.metadata.labels)[1])

    if found.burst is not None:
        return _find_cause_of_burst(found.burst, place_of_pod, remembered, now)
    first = nsmallest(MAX_EXAMINED, pods, key=lambda each: order_of(each[1], each[0].container, now))
    standing = [failure_of(pod, place_of_pod(role, pod), now) for role, pod in first]
    standing += [
        _lost(job, fatal.role, place_of(fatal.role, index))
        for fatal in found.findings.fatal_failures
        for index in fatal.lost[:MAX_EXAMINED]
    ]
    if job.extensions.in_place:  # restarts of containers are those of the job
        standing = [replace(each, attempt=restarts + 1) for each in standing]
    in_place = [
        failure
        for role, pod in _restarted_in_place(found)
        if (failure := past_failure_of(pod, place_of_pod(role, pod), now)) is not None
    ]
    if not standing and (job.extensions.in_place or not in_place):
        return None
    # A disruption follows from nothing, and the last burst of restarts in place is over.
    past = [] if found.findings.together or job.extensions.in_place else _join(in_place, remembered)
    cause = find_cause(standing, past)
    unread = len(pods) + sum(len(fatal.lost) for fatal in found.findings.fatal_failures) - len(standing)
    return cause and replace(cause, others=cause.others + unread)


def _find_cause_of_burst(
    burst: Burst, place_of: Callable[[Role, Pod], Place], remembered: Failure | None, now: datetime
) -> Failure | None:
    """The first failure of a burst, as far as the kubelets have shown it: they soon replace the exit codes.
    `remembered` belongs to the burst if it is of the same attempt."""
    first = nsmallest(MAX_EXAMINED, burst.restarted, key=lambda each: order_of(each[1], each[0].container, now))
    known: list[Failure] = []
    attempt = 1
    for role, pod in first:
        place = place_of(role, pod)
        attempt = place.restarts + burst.begins
        if (failure := past_failure_of(pod, place, now)) is not None:
            known.append(replace(failure, attempt=attempt))
    is_stored = remembered is not None and not burst.begins and remembered.attempt == attempt
    if not known and not is_stored:
        ends = [failure_of(pod, place_of(role, pod), now) for role, pod in first]
        known = [replace(each, attempt=attempt, reason=each.reason or RESET) for each in ends]
    if not known:
        return None
    if remembered is None or not is_stored:
        return find_cause(known)
    cause = find_cause(known, [replace(remembered, others=0)])
    return cause and replace(cause, others=max(cause.others, remembered.others))


def _lost(job: Job, role: Role, place: Place) -> Failure:
    """A pod that another client has deleted and that is gone."""
    name = child_name(job.name, role, place.index or 0)
    return Failure(place.role, place.index, place.rank, name, reason=DELETED, attempt=place.restarts + 1)


def _restarted_in_place(found: Assessment) -> Iterator[tuple[Role, Pod]]:
    for slots in found.role_slots:
        if slots.role.restart_policy == "Never":
            continue
        for pod in slots.pods.values():
            if pod.status.phase == "Running" and any(each.restart_count for each in pod.status.container_statuses):
                yield slots.role, pod


def _join(in_place: Sequence[Failure], remembered: Failure | None) -> list[Failure]:
    """The past failures, of which the remembered one may be one."""
    if remembered is None:
        return list(in_place)
    same = [each for each in in_place if (each.pod, each.at) == (remembered.pod, remembered.at)]
    rest = [each for each in in_place if each not in same]
    return [*rest, replace(same[0], others=remembered.others) if same else remembered]


def explain_end(
    job: Job, found: Assessment, cause: Failure | None, remembered: Failure | None, now: datetime
) -> Failure | None:
    """The cause of what the plan does: at a limit there always is one. At a deadline, a job whose replicas all run has
    not failed because of a restart in the past, `cause` or `remembered`."""
    limit = found.limit
    if limit is None:
        return cause
    if limit is not Limit.DEADLINE:
        return cause or remembered or Failure(reason=limit.value, message=UNKNOWN_ENDS, at=now)
    is_down = found.findings.found or found.burst or any(_is_down(pod) for _, pod in _restarted_in_place(found))
    if cause is not None and is_down:
        return cause
    if remembered is not None and not found.progress.running:
        return remembered
    active = sum(tally.active for tally in found.tallies.values())
    return Failure(reason=limit.value, message=count_running(active, job.replicas), at=now)


def _is_down(pod: Pod) -> bool:
    """Whether a container of the pod waits for its restart."""
    for each in pod.status.container_statuses:
        end = each.state.terminated
        if each.state.waiting is not None or (end is not None and end.failed):
            return True
    return False
