"""Failed pods and limits: which pods are restarted, and what ends the job.

Restart policies, exit codes and disruptions are evaluated here, and the limits of `spec.runPolicy`: back-off limit,
active deadline, and time to live after the end. `restarts` deletes the pods.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from trainop.engine.children import RoleSlots
from trainop.engine.framework import Framework
from trainop.engine.job import Job, Role
from trainop.engine.parse import read_run_policy
from trainop.engine.restart_history import RestartHistory
from trainop.engine.seen import Pod
from trainop.engine.status import FAILED, SUCCEEDED, SUSPENDED, Status
from trainop.runtime import Unstructured
from trainop.runtime.lowlevel import read_time

WHOLE_JOB = "*"
"""Restart group of scope `job`: all roles together."""

RETRYABLE_EXIT_CODE = 128
"""Lowest exit code that policy ExitCode restarts: 128 + signal number, or chosen by the program (training-operator
`pkg/util/train`)."""

_USER_REASONS = frozenset({"", "DeadlineExceeded"})
"""Pod status reasons of failures of the user's code. All others are disruptions, set by the kubelet or a controller:
Evicted, NodeLost, Preempting, Terminated, OutOfcpu, NodeAffinity, UnexpectedAdmissionError ..."""


EVICTED = "Evicted"
"""Status reason of a pod that the kubelet has evicted from its node."""


class Restart(NamedTuple):
    """A pod to be deleted and replaced by a new one of the same name."""

    role: Role
    pod: Pod
    disrupted: bool
    """Not a failure of the user's code (see `disrupted`)."""


@dataclass(frozen=True, slots=True)
class FatalFailure:
    """Failed pods of one role that fail the job."""

    role: Role
    pods: tuple[Pod, ...]
    exit_code: bool
    """The role has policy ExitCode, and the exit code is permanent."""
    lost: tuple[int, ...] = ()
    """The indices of further pods, which another client has deleted and which are gone."""

    @property
    def count(self) -> int:
        return len(self.pods) + len(self.lost)

    @property
    def evicted(self) -> int:
        """How many of them were evicted from their nodes."""
        return sum(pod.status.reason == EVICTED for pod in self.pods if not pod.metadata.terminating)

    @property
    def disruptions(self) -> int:
        """How many of them did not fail because of the user's code (see `disrupted`)."""
        return sum(disrupted(pod) for pod in self.pods if not pod.metadata.terminating)


@dataclass(slots=True)
class Findings:
    """The failed pods of all roles, by consequence."""

    restarts: list[Restart] = field(default_factory=list)
    fatal_failures: list[FatalFailure] = field(default_factory=list)
    together: bool = False
    """`restarts` are disruptions that restart the whole job (on-disruption `checkpoint-all`)."""

    @property
    def found(self) -> bool:
        """Whether any replica is down."""
        return bool(self.restarts or self.fatal_failures)


def examine(
    framework: Framework, job: Job, all_slots: Iterable[RoleSlots], pods: Sequence[Pod], history: RestartHistory
) -> Findings:
    """Classifies the failed and the externally deleted pods of all roles, in the order of roles. `pods` are all pods of
    the job. Losses are recorded in the history."""
    all_slots = list(all_slots)
    history.clear_lost_beyond({slots.role.type: slots.role.replicas for slots in all_slots})
    findings = Findings()
    in_groups = job.extensions.restart_scope != "pod" or job.extensions.checkpoint.together
    for slots in all_slots:
        role = slots.role
        final: list[Pod] = []
        for pod in slots.pods.values():
            uid = pod.metadata.uid
            if pod.status.phase != "Failed" and not (in_groups and history.is_counted(uid)):
                continue
            if history.is_counted(uid) or may_restart(role, pod):
                findings.restarts.append(Restart(role, pod, disrupted(pod)))
            else:
                final.append(pod)
        for index, pod in slots.terminating.items():
            if history.is_counted(pod.metadata.uid):
                continue
            if _fails_job(findings, role, index, pod, history, saves=job.extensions.checkpoint.asked):
                final.append(pod)
        lost: tuple[int, ...] = ()
        if role.restart_policy == "Never":
            lost = history.lost(role.type, (pod.metadata.uid for pod in pods))
        by_code = role.restart_policy == "ExitCode"
        if (final or lost) and (by_code or not framework.tolerates(job, role, slots.tally())):
            findings.fatal_failures.append(FatalFailure(role, tuple(final), by_code, lost))
    return findings


def _fails_job(findings: Findings, role: Role, index: int, pod: Pod, history: RestartHistory, *, saves: bool) -> bool:
    """Classifies a pod that another client is deleting; returns whether this fails the job. A pod of which nothing has
    run is simply replaced. One that succeeds has done its work, unless the program `saves` when it is asked to end."""
    match pod.status.phase:
        case "Pending":
            return False
        case "Failed" if pod.never_ran:
            return False
        case "Succeeded" if not saves or had_succeeded(pod):
            history.clear_lost(role.type, index)
            return False
    if role.restart_policy != "Never":
        findings.restarts.append(Restart(role, pod, disrupted=True))
        return False
    if pod.status.phase == "Failed":
        return True
    history.record_lost(role.type, index, pod.metadata.uid)
    return False


def had_succeeded(pod: Pod) -> bool:
    """Whether a terminating pod had succeeded before its deletion: the API server gives such a pod no grace period
    (kubernetes `pkg/registry/core/pod/strategy.go`, `CheckGracefulDelete`)."""
    return pod.status.phase == "Succeeded" and pod.metadata.deletion_grace_period_seconds == 0


def may_restart(role: Role, pod: Pod) -> bool:
    """Whether the role's policy restarts this failed pod. Policy ExitCode also restarts disrupted pods and pods without
    an exit code, because a program that handles SIGTERM may exit with any code when its node shuts down.

    A container that had exited with 0 before the disruption runs again: the pod is in phase Failed, and otherwise the
    job would fail because of its node."""
    if role.restart_policy != "ExitCode":
        return role.restart_policy != "Never"
    if disrupted(pod):
        return True
    code = pod.exit_code(role.container)
    return code is None or code >= RETRYABLE_EXIT_CODE


def disrupted(pod: Pod) -> bool:
    """Whether the pod failed because of its node or a controller, such as by eviction, preemption or node loss."""
    return pod.status.reason not in _USER_REASONS or is_disruption_target(pod)


def is_disruption_target(pod: Pod) -> bool:
    """Whether a controller or the kubelet has announced that it ends the pod."""
    conditions = pod.status.conditions
    return any(condition.type == "DisruptionTarget" and condition.status == "True" for condition in conditions)


def restartable(job: Job, restarts: Sequence[Restart]) -> list[Restart]:
    """The restarts whose replacement can be created. A failed pod is kept while the template of its restart group is
    invalid."""
    held = {restart_group(job, role.type) for role in job.roles if not (role.has_valid_template and job.readable)}
    return [restart for restart in restarts if restart_group(job, restart.role.type) not in held]


class NewRestarts(NamedTuple):
    """Number of restarts that are not yet in the restart history, by budget."""

    failures: int
    disruptions: int


def restart_group(job: Job, role: str) -> str:
    """The name of the group that restarts together: the role, or `WHOLE_JOB`."""
    return WHOLE_JOB if job.extensions.restart_scope == "job" else role


def count_new_restarts(job: Job, findings: Findings, history: RestartHistory) -> NewRestarts:
    """Counts new restarts: one per pod with scope `pod`, else one per restart group. A group restart is a disruption if
    any of its pods was disrupted, because the others may have failed as a consequence."""
    if findings.together:
        return NewRestarts(0, 1)
    new = [restart for restart in findings.restarts if not history.is_counted(restart.pod.metadata.uid)]
    if job.extensions.restart_scope == "pod":
        disruptions = sum(restart.disrupted for restart in new)
        return NewRestarts(len(new) - disruptions, disruptions)
    groups = {restart_group(job, restart.role.type) for restart in new}
    disrupted = {restart_group(job, restart.role.type) for restart in new if restart.disrupted}
    return NewRestarts(len(groups - disrupted), len(disrupted))


class Limit(enum.Enum):
    """A limit that ends a job; the value is stored in the restart history."""

    BACKOFF = "BackoffLimitExceeded"
    INFRA = "InfraRestartLimitExceeded"
    DEADLINE = "DeadlineExceeded"
    STARTUP = "StartupDeadlineExceeded"

    @property
    def message(self) -> str:
        """Format string of the condition Failed, with the job's name (training-operator `pkg/controller.v1/common`)."""
        return _MESSAGES[self]


_MESSAGES = {
    Limit.BACKOFF: "Job {} has failed because it has reached the specified backoff limit",
    Limit.INFRA: "Job {} has failed because it has reached the specified infra restart limit",
    Limit.DEADLINE: "Job {} has failed because it was active longer than specified deadline",
    Limit.STARTUP: "Job {} has failed because not all of its replicas started before its startup deadline",
}


def exceeded(
    job: Job, all_slots: Iterable[RoleSlots], findings: Findings, history: RestartHistory, new: NewRestarts
) -> Limit | None:
    """The restart limit that the job has exceeded, counting the `new` restarts of this reconcile; None if none."""
    if _past_backoff(job, all_slots, findings, history, new.failures):
        return Limit.BACKOFF
    limit = job.extensions.infra_restart_limit
    if limit is not None and new.disruptions and history.disruptions + new.disruptions > limit:
        return Limit.INFRA
    return None


def _past_backoff(
    job: Job, all_slots: Iterable[RoleSlots], findings: Findings, history: RestartHistory, new_failures: int
) -> bool:
    """Whether failures of the user's code exceed `backoffLimit`."""
    limit = job.run_policy.backoff_limit
    if limit is None:
        return False
    if new_failures and history.failures + new_failures > limit:
        return True
    if limit == 0 and findings.fatal_failures:
        return True
    if job.extensions.in_place:
        return False  # the history has them
    in_place = _container_restarts(all_slots)
    return in_place > 0 and in_place >= limit


def _container_restarts(all_slots: Iterable[RoleSlots]) -> int:
    """Container restarts by the kubelet in pods that are Running (training-operator `PastBackoffLimit`)."""
    return sum(
        container.restart_count
        for slots in all_slots
        if slots.role.restart_policy != "Never"
        for pod in slots.pods.values()
        if pod.status.phase == "Running"
        for container in (*pod.status.init_container_statuses, *pod.status.container_statuses)
    )


def seconds_to_deadline(job: Job, status: Status, now: datetime) -> float | None:
    """Seconds until activeDeadlineSeconds have passed since startTime; None without deadline or startTime."""
    deadline, start = job.run_policy.active_deadline, status.start_time
    if deadline is None or start is None:
        return None
    return deadline - (now - start).total_seconds()


def seconds_to_live(job: Job, status: Status, now: datetime) -> float | None:
    """Seconds until ttlSecondsAfterFinished have passed since the end of a finished job; None without a time to live.

    If the status has no completionTime, the transition time of the terminal condition is used.
    """
    if job.run_policy.ttl is None:
        return None
    end = status.completion_time or _finished_at(status) or now
    return job.run_policy.ttl - (now - end).total_seconds()


def seconds_to_due(raw: Unstructured, now: datetime) -> float | None:
    """Seconds until the active deadline or, for a finished job, the end of its time to live; None if neither is set."""
    job = Job(raw.metadata, {}, run_policy=read_run_policy(raw))
    status = Status(raw.raw.get("status"), now)
    if job.run_policy.suspend:
        return None
    return seconds_to_live(job, status, now) if status.finished else seconds_to_deadline(job, status, now)


def is_under_way(raw: Unstructured, now: datetime) -> bool:
    """Whether the job has started and is not suspended, so that its deadline is running."""
    status = Status(raw.raw.get("status"), now)
    return status.start_time is not None and not status.is_true(SUSPENDED) and not read_run_policy(raw).suspend


def _finished_at(status: Status) -> datetime | None:
    condition = status.find(FAILED) if status.is_true(FAILED) else status.find(SUCCEEDED)
    return read_time((condition or {}).get("lastTransitionTime"))
