"""What is to be done for a job, by the specification and by nothing but what is stored.

A duty that is still there when the cluster is at rest was forgotten. While nothing goes wrong none may be there for
longer than a few seconds: a fact that is 5 s old counts as known, whatever the caches of the operator show.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from tests.simulation.oracle.children import labels_of, name_of
from tests.simulation.oracle.history import Pod, Record
from tests.simulation.oracle.kinds import LABELS, Json
from tests.simulation.oracle.losses import BACKOFF, DEADLINE, INFRA, too_late
from tests.simulation.oracle.statuses import has_succeeded

KNOWN = 5.0
"""Seconds after which a fact counts as known."""

COUNTERS = {"Running": "active", "Succeeded": "succeeded", "Failed": "failed"}
"""Of replicaStatuses, by phase."""

LONGEST_WAIT = 300.0
"""Seconds between two restarts in a row (docs/decisions/0001-restarts-in-an-annotation.md)."""


class Duty(NamedTuple):
    what: str
    subject: str


def duties_of(record: Record, taken: Collection[str] = ()) -> Iterator[Duty]:
    """What the operator has to do now; `taken` are names of pods that are not the job's."""
    job = record.job
    if record.gone or job.terminating or job.foreign:
        return
    if not job.is_true("Created"):
        yield Duty("say that it is created", job.name)
    if job.finished:
        yield from (Duty("clean up", pod.name) for pod in record.living() if not keeps(record, pod))
    elif job.suspended:
        if not job.is_true("Suspended"):
            yield Duty("suspend", job.name)
        yield from (Duty("take back", pod.name) for pod in record.living())
    elif job.is_true("Suspended"):
        if not record.there():
            yield Duty("resume", job.name)
    elif has_succeeded(record, record.there()):
        yield Duty("say that it has succeeded", job.name)
    elif text := too_late(record):
        yield Duty(f"fail, as it {text}", job.name)
    else:
        yield from _active(record, taken)


def _active(record: Record, taken: Collection[str]) -> Iterator[Duty]:
    """Every slot has its pod, which has not failed; there is no other. Of pods that restart together none is due before
    all have gone."""
    job, living = record.job, record.living()
    held = {pod.slot for pod in record.there()}
    for pod in living:
        if record.surplus(pod):
            yield Duty("remove as too many", pod.name)
        elif pod.phase == "Failed":
            yield Duty("restart, or fail because of", pod.name)
    going = [pod.slot for pod in record.there() if not pod.living and pod.slot]
    for slot in job.slots():
        waits = (job.scope == "job" and going) or (job.scope == "role" and slot[0] in {role for role, _ in going})
        if slot not in held and name_of(job, slot) not in taken and not waits:
            yield Duty("make", name_of(job, slot))
    if (job.status.get("replicaStatuses") or {}) != (wanted := tallies_of(record)):
        yield Duty(f"count {wanted}", job.name)
    first = [pod for pod in living if pod.slot and pod.phase == "Running" and job.role_of(pod.slot) == job.deciding]
    full = {pod.slot for pod in living} >= set(job.slots())
    if first and full and not job.is_true("Running"):
        yield Duty("say that it runs", job.name)


def tallies_of(record: Record) -> dict[str, Json]:
    """replicaStatuses: the pods by phase, but for those that are being deleted and have not succeeded; Pending counts
    nowhere."""
    job = record.job
    tallies: dict[str, Json] = {role: {} for role in job.roles}
    held = {pod.slot for pod in record.living()}
    for pod in record.there():
        counts_on = pod.living or (pod.phase == "Succeeded" and pod.slot not in held)
        if counts_on and pod.slot and job.has(pod.slot) and (name := COUNTERS.get(pod.phase)):
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
    policy = record.job.policy.get("cleanPodPolicy", "None")
    if policy == "None" and not stopped_by_limit(record):
        return True
    return policy in {"None", "Running"} and pod.phase not in {"Running", "Pending"}


def stopped_by_limit(record: Record) -> bool:
    """It failed at a limit while pods may still have run, which go whatever the policy."""
    job = record.job
    return job.message("Failed") in {text.format(job.name) for text in (BACKOFF, INFRA, DEADLINE)}


def bound(record: Record, duty: Duty) -> float:
    """Seconds within which it has to be done. What restarts again and again waits longer each time."""
    if duty.what not in {"make", "say that it runs"}:
        return KNOWN
    rounds = sum(pod.taken or pod.phase == "Failed" for pod in record.pods.values())
    return KNOWN + min(LONGEST_WAIT, 2.0**rounds)
