"""The limits of `spec.runPolicy`: how often to try, how long to run, how long to stay after the end."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from datetime import datetime

from trainop.engine.failures import Findings, NewRestarts
from trainop.engine.job import Job
from trainop.engine.parse import read_run_policy
from trainop.engine.restart_history import RestartHistory
from trainop.engine.slots import RoleSlots
from trainop.engine.status import FAILED, SUCCEEDED, SUSPENDED, Status
from trainop.runtime.clock import read_time
from trainop.runtime.objects.metadata import Unstructured


class Limit(enum.Enum):
    """A limit that ends a job; the value is stored in the restart history."""

    BACKOFF = "BackoffLimitExceeded"
    INFRA = "InfraRestartLimitExceeded"
    DEADLINE = "DeadlineExceeded"

    @property
    def message(self) -> str:
        """Of the condition Failed, to be filled with the job's name (training-operator `pkg/controller.v1/common`)."""
        return _MESSAGES[self]


_MESSAGES = {
    Limit.BACKOFF: "Job {} has failed because it has reached the specified backoff limit",
    Limit.INFRA: "Job {} has failed because it has reached the specified infra restart limit",
    Limit.DEADLINE: "Job {} has failed because it was active longer than specified deadline",
}


def exceeded(
    job: Job, all_slots: Iterable[RoleSlots], findings: Findings, history: RestartHistory, fresh: NewRestarts
) -> Limit | None:
    """The limit of restarts that the job has reached, including the restarts of this pass."""
    if _past_backoff(job, all_slots, findings, history, fresh.failures):
        return Limit.BACKOFF
    limit = job.extensions.infra_restart_limit
    if limit is not None and fresh.disruptions and history.disruptions + fresh.disruptions > limit:
        return Limit.INFRA
    return None


def _past_backoff(
    job: Job, all_slots: Iterable[RoleSlots], findings: Findings, history: RestartHistory, fresh: int
) -> bool:
    """Whether the user's code has failed more often than `backoffLimit` allows."""
    limit = job.run_policy.backoff_limit
    if limit is None:
        return False
    if fresh and history.failures + fresh > limit:
        return True
    if limit == 0 and findings.fatal_failures:
        return True
    in_place = _container_restarts(all_slots)
    return in_place > 0 and in_place >= limit


def _container_restarts(all_slots: Iterable[RoleSlots]) -> int:
    """Restarts by the kubelet, of containers in pods that are Running now (training-operator `PastBackoffLimit`)."""
    return sum(
        container.restart_count
        for slots in all_slots
        if slots.role.restart_policy != "Never"
        for pod in slots.pods.values()
        if pod.status.phase == "Running"
        for container in (*pod.status.init_container_statuses, *pod.status.container_statuses)
    )


def seconds_to_deadline(job: Job, status: Status, now: datetime) -> float | None:
    """Until activeDeadlineSeconds are over since the start; None without deadline or start."""
    deadline, start = job.run_policy.active_deadline, status.start_time
    if deadline is None or start is None:
        return None
    return deadline - (now - start).total_seconds()


def seconds_to_live(job: Job, status: Status, now: datetime) -> float | None:
    """Until ttlSecondsAfterFinished are over since the end of a finished job; None without a time to live.

    A status that lacks completionTime (written by others) is read from its conditions.
    """
    if job.run_policy.ttl is None:
        return None
    end = status.completion_time or _finished_at(status) or now
    return job.run_policy.ttl - (now - end).total_seconds()


def seconds_to_due(raw: Unstructured, now: datetime) -> float | None:
    """Until the next moment that the job itself sets: its deadline, or after its end its time to live. None without."""
    job = Job(raw.metadata, {}, run_policy=read_run_policy(raw))
    status = Status(raw.raw.get("status"), now)
    if job.run_policy.suspend:
        return None
    return seconds_to_live(job, status, now) if status.finished else seconds_to_deadline(job, status, now)


def is_under_way(raw: Unstructured, now: datetime) -> bool:
    """Whether time counts for the job: it has started, and is not suspended."""
    status = Status(raw.raw.get("status"), now)
    return status.start_time is not None and not status.is_true(SUSPENDED) and not read_run_policy(raw).suspend


def _finished_at(status: Status) -> datetime | None:
    condition = status.find(FAILED) if status.is_true(FAILED) else status.find(SUCCEEDED)
    return read_time((condition or {}).get("lastTransitionTime"))
