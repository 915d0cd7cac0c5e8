"""The duties of the operator for a job, derived from the specification and the stored objects alone.

A duty that remains when the cluster is at rest was forgotten. Without faults none may remain for longer than a few
seconds: a fact that is 5 s old counts as known, whatever the caches of the operator show.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from tests.simulation.oracle.children import is_selected, labels_of, name_of
from tests.simulation.oracle.history import Pod, Record
from tests.simulation.oracle.kinds import LABELS, Json
from tests.simulation.oracle.losses import BACKOFF, DEADLINE, INFRA, too_late
from tests.simulation.oracle.statuses import has_succeeded

KNOWN = 5.0
"""Seconds after which a fact counts as known."""

CREATION = "say that it is created"
CREATED_WITHIN = 2.0
"""Seconds after which a job must have its first status: the operator may wait for one second (docs/performance.md), and
requests and watches take their time."""

COUNTERS = {"Running": "active", "Succeeded": "succeeded", "Failed": "failed"}
"""Of replicaStatuses, by phase."""

LATEST_RETRY = 1000.0
"""Seconds after which a pod that was refused is tried again, at most a quarter of an hour (docs/validation.md)."""

LONGEST_WAIT = 300.0
"""Seconds between two restarts in a row (docs/decisions/0001-restarts-in-an-annotation.md)."""


class Duty(NamedTuple):
    what: str
    subject: str


class Others(NamedTuple):
    """Pods that do not belong to the job."""

    names: Collection[str] = ()
    """Of all of them: these names are taken."""
    orphans: Collection[str] = ()
    """Of those that the job may adopt."""


def duties_of(record: Record, others: Others) -> Iterator[Duty]:
    """The duties of the operator at this moment."""
    job = record.job
    if record.gone or job.terminating or job.foreign:
        return
    if not job.is_true("Created"):
        yield Duty(CREATION, job.name)
    if job.finished:
        yield from (Duty("clean up", pod.name) for pod in record.living() if not keeps(record, pod))
    elif job.suspended:
        if not job.is_true("Suspended"):
            yield Duty("suspend", job.name)
        yield from (Duty("take back", pod.name) for pod in record.living())
    elif job.is_true("Suspended"):
        if not record.there():
            yield Duty("resume", job.name)
    elif has_succeeded(record, record.living() if job.saves else record.there()):
        yield Duty("say that it has succeeded", job.name)
    elif text := too_late(record):
        yield Duty(f"fail, as it {text}", job.name)
    else:
        yield from _active(record, others)


def _active(record: Record, others: Others) -> Iterator[Duty]:
    """Duties of an active job: every slot has one pod that has not failed, and there are no other pods."""
    job, in_place = record.job, record.in_place()
    if record.refused and not record.pods:
        yield Duty("fail, as its pods are refused", job.name)
    for pod in record.living():
        if not is_selected(job, pod.value["metadata"].get("labels") or {}):
            yield Duty("release", pod.name)
        elif pod not in in_place and pod.slot:
            yield Duty("remove as too many", pod.name)
        elif pod in in_place and pod.phase == "Failed":
            yield Duty("restart, or fail because of", pod.name)
    if job.together and any(pod.announced for pod in in_place):
        yield from (Duty("end with the disrupted one", pod.name) for pod in in_place if pod.living)
    yield from (Duty("adopt", name) for name in others.orphans)
    yield from _missing(record, {*others.names, *(pod.name for pod in record.there())})
    if (job.status.get("replicaStatuses") or {}) != (wanted := tallies_of(record)):
        yield Duty(f"count {wanted}", job.name)
    living = {pod.slot: pod for pod in in_place if pod.living}
    first = [pod for slot, pod in living.items() if slot and job.role_of(slot) == job.deciding]
    runs = any(pod.phase == "Running" for pod in first)
    if runs and set(living) >= set(job.slots()) and not job.is_true("Running"):
        yield Duty("say that it runs", job.name)


def _missing(record: Record, names: Collection[str]) -> Iterator[Duty]:
    """Duties to create pods. Pods that restart together are due only once all of them have gone."""
    job = record.job
    going = {pod.slot[0] for pod in record.there() if not pod.living and pod.slot}
    for slot in job.slots():
        waits = going if job.scope == "job" or job.together else going & {slot[0]} if job.scope == "role" else ()
        if name_of(job, slot) not in names and not waits:
            yield Duty("make", name_of(job, slot))


def tallies_of(record: Record) -> dict[str, Json]:
    """replicaStatuses: the pods by phase, but for those that are being deleted and have not succeeded; Pending counts
    nowhere."""
    job = record.job
    tallies: dict[str, Json] = {role: {} for role in job.roles}
    for pod in record.in_place():
        counts_gone = pod.phase == "Succeeded" and not job.saves
        if pod.slot and (pod.living or counts_gone) and (name := COUNTERS.get(pod.phase)):
            counts = tallies[job.role_of(pod.slot)]
            counts[name] = counts.get(name, 0) + 1
    if job.kind.scale:
        for role, counts in tallies.items():
            labels = labels_of(job, (role.lower(), 0))
            del labels[LABELS + "replica-index"]
            counts["selector"] = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
    return tallies


def keeps(record: Record, pod: Pod) -> bool:
    """The clean-up of the finished job leaves the pod (job-engine §2.4, D8)."""
    policy = record.job.clean_pod_policy
    is_scaled_away = pod.slot is not None and not record.job.has(pod.slot)
    if is_scaled_away and pod.phase in {"Running", "Pending"}:
        return False
    if policy == "None" and not stopped_abruptly(record):
        return True
    return policy in {"None", "Running"} and pod.phase not in {"Running", "Pending"}


def stopped_abruptly(record: Record) -> bool:
    """It failed at a limit or was refused while pods may still have run, which go whatever the policy."""
    job = record.job
    return "failed validation" in job.message("Failed") or job.message("Failed") in {
        text.format(job.name) for text in (BACKOFF, INFRA, DEADLINE)
    }


def bound(record: Record, duty: Duty) -> float:
    """Maximum seconds until the duty is done. The pause grows with each consecutive restart."""
    if duty.what == "make" and duty.subject in record.refused:
        return LATEST_RETRY
    if duty.what == CREATION:
        return CREATED_WITHIN
    if duty.what not in {"make", "say that it runs"}:
        return KNOWN
    rounds = sum(pod.taken or pod.phase == "Failed" for pod in record.pods.values())
    return KNOWN + min(LONGEST_WAIT, 2.0**rounds)
