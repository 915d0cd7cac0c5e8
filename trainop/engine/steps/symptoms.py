"""Events of a job about the state of its pods: exit codes, failing containers, pods that cannot start, and pods stuck
terminating, usually because their node is gone, which are deleted by force if that is enabled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from trainop.engine.actions import Event, Notice, Remove
from trainop.engine.framework import REPLICA_TYPE
from trainop.engine.job import Role
from trainop.engine.pod_status import ContainerStatus
from trainop.engine.seen import Pod
from trainop.engine.steps.builder import PlanBuilder
from trainop.runtime import PODS
from trainop.runtime.lowlevel import read_time

MAX_NOTICES = 20
"""Notices of one plan. Pods of one job usually have the same problem, so that more events add no information."""

SCHEDULING_GATED = "SchedulingGated"
"""The reason of a pod that waits for the gates of its template to go, which is no trouble."""


def notice_symptoms(pods: Iterable[Pod], roles: Iterable[Role] = ()) -> list[Notice]:
    """Notices about pods (training-operator `pkg/controller.v1/common/{job,pod}.go`). Unlike upstream's events, each is
    emitted once, not on every reconcile. `roles`: those whose container of the framework is reported when it ends."""
    return list(islice(_symptoms(pods, roles), MAX_NOTICES))


def _symptoms(pods: Iterable[Pod], roles: Iterable[Role]) -> Iterator[Notice]:
    mains = {role.label: role.container for role in roles}
    for pod in pods:
        main = mains.get(pod.metadata.labels.get(REPLICA_TYPE, ""))
        containers = pod.status.container_statuses + pod.status.init_container_statuses
        for container in containers:
            state = container.state
            if state.terminated is not None and container.name == main and not pod.never_ran:
                yield _exited(pod, state.terminated.exit_code)
            if (state.terminated is not None or state.waiting is not None) and _is_active(pod):
                yield from _container_trouble(pod, container)
        if not containers and _is_active(pod):
            yield from _condition_trouble(pod)


def _is_active(pod: Pod) -> bool:
    return pod.status.phase not in {"Succeeded", "Failed"} and not pod.metadata.terminating


def _exited(pod: Pod, code: int) -> Notice:
    metadata = pod.metadata
    text = f"Pod: {metadata.namespace}.{metadata.name} exited with code {code}"
    return Notice(f"exit/{metadata.uid}", Event("Normal", "ExitedWithCode", text), routine=code == 0)


def _container_trouble(pod: Pod, container: ContainerStatus) -> Iterator[Notice]:
    terminated, waiting = container.state.terminated, container.state.waiting
    about = f"Error pod {pod.metadata.name} container {container.name}"
    if terminated is not None and terminated.exit_code != 0:
        text = f"{about} exitCode: {terminated.exit_code} terminated message: {terminated.message}"
        yield _trouble(pod, container.name, terminated.reason, text)
    elif waiting is not None and waiting.message:
        yield _trouble(pod, container.name, waiting.reason, f"{about} waiting message: {waiting.message}")


def _condition_trouble(pod: Pod) -> Iterator[Notice]:
    newest = max(pod.status.conditions, key=lambda condition: condition.last_transition_time or "", default=None)
    if newest is not None and newest.status != "True" and newest.reason != SCHEDULING_GATED:
        text = f"Error pod {pod.metadata.name} condition message: {newest.message}"
        yield _trouble(pod, "", newest.reason, text)


def _trouble(pod: Pod, container: str, reason: str, message: str) -> Notice:
    return Notice(f"trouble/{pod.metadata.uid}/{container}", Event("Warning", reason or "Error", message))


STUCK_AFTER = 300.0
"""Seconds after the end of its grace period from which a terminating pod counts as stuck."""
FORCE_DELETE_REQUEUE_DELAY = 60.0
"""Seconds until a forced deletion is checked and repeated."""


def check_stuck(builder: PlanBuilder, owned: Iterable[Pod], others: Iterable[Pod] = ()) -> None:
    """Reports pods of the job that are stuck terminating, and `others` that hold it up, such as those of a predecessor.
    Only pods of the job are force-deleted. For `plan`, and for kinds with a plan of their own."""
    for pod in owned:
        _check_stuck(builder, pod, builder.seen.options.force_delete_after)
    for pod in others:
        _check_stuck(builder, pod, None)


def _check_stuck(builder: PlanBuilder, pod: Pod, force_after: float | None) -> None:
    """Checks one pod. Its `deletionTimestamp` is the end of the grace period."""
    due = read_time(pod.metadata.deletion_timestamp)
    if due is None:
        return
    late = ((builder.seen.wall or builder.seen.now) - due).total_seconds()
    if late < STUCK_AFTER:
        builder.requeue_after(STUCK_AFTER - late)
    else:
        text = f"Pod {pod.metadata.name} is still terminating long after its grace period: is its node gone?"
        builder.warn(f"stuck/{pod.metadata.uid}", "StuckTerminating", text)
    if force_after is not None:
        if late < force_after:
            builder.requeue_after(force_after - late)
        else:
            builder.actions.append(Remove(PODS, pod.metadata.name, pod.metadata.uid, force=True))
            builder.requeue_after(FORCE_DELETE_REQUEUE_DELAY)
