"""What failed pods mean for the job: which are restarted, and which end it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from trainop.engine.framework import Framework
from trainop.engine.job import Job, Role
from trainop.engine.restart_history import RestartHistory
from trainop.engine.seen import Pod
from trainop.engine.slots import RoleSlots

WHOLE_JOB = "*"
"""The restart group of all roles together."""

RETRYABLE_EXIT_CODE = 128
"""Policy ExitCode restarts from here on: killed by a signal, or by choice of the program (`pkg/util/train`)."""

_USER_REASONS = frozenset({"", "DeadlineExceeded"})
"""Pod status reasons that are the user's own doing; any other is the kubelet's or a controller's: Evicted, NodeLost,
Preempting, Terminated, OutOfcpu, NodeAffinity, UnexpectedAdmissionError ..."""


class Restart(NamedTuple):
    """A pod that gives way to a new one of the same name."""

    role: Role
    pod: Pod
    disrupted: bool
    """Through no fault of the user's code."""


@dataclass(frozen=True, slots=True)
class FatalFailure:
    """Pods of a role that end the job."""

    role: Role
    count: int
    exit_code: bool
    """By an exit code that policy ExitCode does not retry."""


@dataclass(slots=True)
class Findings:
    restarts: list[Restart] = field(default_factory=list)
    fatal_failures: list[FatalFailure] = field(default_factory=list)


def examine(
    framework: Framework, job: Job, all_slots: Iterable[RoleSlots], pods: Sequence[Pod], history: RestartHistory
) -> Findings:
    """Look at the failed and the vanishing pods of all roles, in their order; `pods` are all that the job has.
    Losses are noted in the history."""
    all_slots = list(all_slots)
    history.clear_lost_beyond({slots.role.type: slots.role.replicas for slots in all_slots})
    findings = Findings()
    wide = job.extensions.restart_scope != "pod"
    for slots in all_slots:
        role = slots.role
        final = 0
        for pod in slots.pods.values():
            uid = pod.metadata.uid
            if pod.status.phase != "Failed" and not (wide and history.is_counted(uid)):
                continue
            if history.is_counted(uid) or may_restart(framework, role, pod):
                findings.restarts.append(Restart(role, pod, disrupted(pod)))
            else:
                final += 1
        for index, pod in slots.terminating.items():
            if not history.is_counted(pod.metadata.uid):
                final += _examine_terminating(findings, role, index, pod, history)
        if role.restart_policy == "Never":
            final += history.lost(role.type, (pod.metadata.uid for pod in pods))
        by_code = role.restart_policy == "ExitCode"
        if final and (by_code or not framework.tolerates(job, role)):
            findings.fatal_failures.append(FatalFailure(role, final, by_code))
    return findings


def _examine_terminating(findings: Findings, role: Role, index: int, pod: Pod, history: RestartHistory) -> int:
    """A pod that somebody else is deleting; answers 1 if that ends the job now. Never begun, it is just replaced."""
    match pod.status.phase:
        case "Pending":
            return 0
        case "Succeeded":
            history.clear_lost(role.type, index)
            return 0
    if role.restart_policy != "Never":
        findings.restarts.append(Restart(role, pod, disrupted=True))
        return 0
    if pod.status.phase == "Failed":
        return 1
    history.record_lost(role.type, index, pod.metadata.uid)
    return 0


def may_restart(framework: Framework, role: Role, pod: Pod) -> bool:
    """Whether the role's policy restarts this failed pod. Policy ExitCode restarts it also if it was disrupted or if
    its exit code is lost: a program that handles SIGTERM ends with any code when its node shuts down, also with 0.

    A container that had completed with 0 before the disruption runs again nevertheless: in phase Failed the pod as a
    whole has not succeeded, and the alternative is a job that fails because of its node."""
    if role.restart_policy != "ExitCode":
        return role.restart_policy != "Never"
    if disrupted(pod):
        return True
    code = pod.exit_code(framework.container)
    return code is None or code >= RETRYABLE_EXIT_CODE


def disrupted(pod: Pod) -> bool:
    """Whether the pod failed through no fault of the user's code."""
    if pod.status.reason not in _USER_REASONS:
        return True
    conditions = pod.status.conditions
    return any(condition.type == "DisruptionTarget" and condition.status == "True" for condition in conditions)


def restartable(job: Job, restarts: Sequence[Restart]) -> list[Restart]:
    """Those that can be followed by new pods: a failed pod stays as long as its successor cannot be made."""
    held = {restart_group(job, role.type) for role in job.roles if not (role.has_valid_template and job.readable)}
    return [restart for restart in restarts if restart_group(job, restart.role.type) not in held]


class NewRestarts(NamedTuple):
    """Restarts that this pass has found and no earlier one has counted, by the budget that they fall under."""

    failures: int
    disruptions: int


def restart_group(job: Job, role: str) -> str:
    """Names what restarts together: a role, or all of the job."""
    return WHOLE_JOB if job.extensions.restart_scope == "job" else role


def count_new_restarts(job: Job, findings: Findings, history: RestartHistory) -> NewRestarts:
    """Each pod is a restart, or each circle of pods, which is a disruption if any pod of it was disrupted: its peers
    fail because of that one."""
    fresh = [restart for restart in findings.restarts if not history.is_counted(restart.pod.metadata.uid)]
    if job.extensions.restart_scope == "pod":
        disruptions = sum(restart.disrupted for restart in fresh)
        return NewRestarts(len(fresh) - disruptions, disruptions)
    groups = {restart_group(job, restart.role.type) for restart in fresh}
    disrupted = {restart_group(job, restart.role.type) for restart in fresh if restart.disrupted}
    return NewRestarts(len(groups - disrupted), len(disrupted))
