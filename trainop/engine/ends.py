"""How a pod ended, as a `Failure`: which of its containers failed, why, and when by the clock of the API server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from trainop.engine.pod_status import CLOCK_TOLERANCE, ContainerStatus, PodCondition, Terminated
from trainop.engine.root_cause import MAX_MESSAGE, MAX_NAME, PEER_CODES, Failure, log_lines, one_line
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
