"""The limits of `spec.runPolicy`: back-off limit, active deadline, and time to live after the end."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from datetime import datetime

from trainop.engine.children import RoleSlots
from trainop.engine.failures import Findings, NewRestarts
from trainop.engine.job import Job
from trainop.engine.parse import read_run_policy
from trainop.engine.restart_history import RestartHistory
from trainop.engine.status import FAILED, SUCCEEDED, SUSPENDED, Status
from trainop.runtime import Unstructured
from trainop.runtime.lowlevel import read_time


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
