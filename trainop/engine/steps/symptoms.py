"""Events of a job about the state of its pods: exit codes, failing containers, and pods that cannot start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from trainop.engine.actions import Event, Notice
from trainop.engine.framework import REPLICA_TYPE
from trainop.engine.job import Role
from trainop.engine.pod_status import ContainerStatus
from trainop.engine.seen import Pod

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
