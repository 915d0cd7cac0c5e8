"""What pods show that their job's owner should be told: exit codes, trouble, and refusal to go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice

from trainop.engine.actions import DeletePod, Event, Notice
from trainop.engine.framework import Framework
from trainop.engine.seen import ContainerStatus, Options, Pod
from trainop.runtime.clock import read_time

STUCK_AFTER = 300.0
"""Seconds beyond its grace period after which a terminating pod is called stuck."""
FORCE_AGAIN_AFTER = 60.0
MOST_NOTICES = 20
"""What twenty pods tell speaks for the rest of them: a job of a thousand pods is not a thousand events."""


def notice_symptoms(framework: Framework, pods: Iterable[Pod]) -> list[Notice]:
    """Events about pods (training-operator `pkg/controller.v1/common/{job,pod}.go`), in a plan's own form: a notice
    is reported once, not on every pass."""
    return list(islice(_symptoms(framework, pods), MOST_NOTICES))


def _symptoms(framework: Framework, pods: Iterable[Pod]) -> Iterator[Notice]:
    for pod in pods:
        containers = pod.status.container_statuses + pod.status.init_container_statuses
        for container in containers:
            state = container.state
            if state.terminated is not None and container.name == framework.container:
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
    if newest is not None and newest.status != "True":
        text = f"Error pod {pod.metadata.name} condition message: {newest.message}"
        yield _trouble(pod, "", newest.reason, text)


def _trouble(pod: Pod, container: str, reason: str, message: str) -> Notice:
    return Notice(f"trouble/{pod.metadata.uid}/{container}", Event("Warning", reason or "Error", message))


class Stuck:
    """Pods that should have gone: what to say of them, what to do, and when to look again (seconds)."""

    def __init__(self, now: datetime, options: Options) -> None:
        self._now = now
        self._force_after = options.force_delete_after
        self.notices: list[Notice] = []
        self.actions: list[DeletePod] = []
        self.requeue_after: float | None = None

    def look_at(self, pod: Pod, *, ours: bool) -> None:
        """`deletionTimestamp` is when the grace period is over. Only our own pods are ever removed by force."""
        due = read_time(pod.metadata.deletion_timestamp)
        if due is None:
            return
        late = (self._now - due).total_seconds()
        if late < STUCK_AFTER:
            self._requeue_after(STUCK_AFTER - late)
        else:
            text = f"Pod {pod.metadata.name} is still terminating long after its grace period: is its node gone?"
            self.notices.append(Notice(f"stuck/{pod.metadata.uid}", Event("Warning", "StuckTerminating", text)))
        if ours and self._force_after is not None:
            if late < self._force_after:
                self._requeue_after(self._force_after - late)
            else:
                self.actions.append(DeletePod(pod.metadata.name, pod.metadata.uid, force=True))
                self._requeue_after(FORCE_AGAIN_AFTER)

    def _requeue_after(self, seconds: float) -> None:
        self.requeue_after = seconds if self.requeue_after is None else min(self.requeue_after, seconds)
