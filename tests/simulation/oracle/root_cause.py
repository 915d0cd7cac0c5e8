"""Rules for `status.lastFailure` (docs/root-cause.md): it names a replica that failed of its own accord, the first."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from tests.simulation.oracle.children import is_in_place
from tests.simulation.oracle.history import Pod, Record
from tests.simulation.oracle.kinds import Job

SEEN_WITHIN = 60.0
"""Seconds within which the operator sees the end of a pod, whatever goes wrong."""


def cause_faults(record: Record, old: Job, new: Job, zero: datetime) -> Iterator[str]:
    """One watch shows all pods in the order of their changes: who knows of a failure knows of all earlier ones."""
    named = new.status.get("lastFailure")
    if new.is_true("Failed") and not isinstance(named, dict):
        yield "failed without a lastFailure"
    if not isinstance(named, dict) or named == old.status.get("lastFailure") or "pod" not in named:
        return
    pods = [pod for pod in record.pods.values() if pod.name == named["pod"]]
    code = named.get("exitCode")
    if not any(pod.ended_at is not None or pod.taken or pod.disrupted for pod in pods):
        yield f"{named['pod']} is blamed, which has not failed"
    elif code is not None and all(_code(new, pod) != code for pod in pods if pod.ended_at is not None):
        yield f"{named['pod']} is blamed for exit code {code}, which the operator or others caused"
    of_disruption = new.together and any(pod.disrupted or pod.taken for pod in pods)
    if "time" in named and _is_steady(record) and not of_disruption:
        at = (datetime.strptime(named["time"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC) - zero).total_seconds()
        for pod in _standing(record, new):
            if pod.ended_at is not None and int(pod.ended_at + _unknown(new, pod)) < at:
                yield f"{named['pod']} is blamed at {at:.0f} s, and {pod.name} failed at {pod.ended_at:.3f} s"


def _standing(record: Record, job: Job) -> Iterator[Pod]:
    """The pods that failed with an exit code, and for which nothing has been done yet."""
    for pod in record.living():
        if pod.phase == "Failed" and is_in_place(job, pod.value) and _code(job, pod) is not None:
            yield pod


def _code(job: Job, pod: Pod) -> int | None:
    return pod.exit_code(job.kind.container)


def _unknown(job: Job, pod: Pod) -> float:
    """Seconds by which the end of a pod may seem later than it was: the operator uses its own time if the status has
    none."""
    for each in pod.value["status"].get("containerStatuses") or ():
        if each["name"] == job.kind.container and "finishedAt" in each["state"].get("terminated", {}):
            return 0.0
    return SEEN_WITHIN


def _is_steady(record: Record) -> bool:
    """No user has edited the spec, and every failure counts (TFJob enableDynamicWorker tolerates some)."""
    generations = {job.value["metadata"].get("generation") for _, job in record.versions}
    return len(generations) == 1 and not record.job.spec.get("enableDynamicWorker")
