"""Rules for every status write of an MPIJob (mpi-v2beta1 §6.6 to §6.8, frameworks-v1 §10)."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.oracle.mpi import MpiJob, MpiRecord

TYPES = {"Created", "Running", "Restarting", "Suspended", "Succeeded", "Failed", "GangReady", "RightsGranted"}


def condition_faults(record: MpiRecord, old: MpiJob, new: MpiJob) -> Iterator[str]:
    """Mutual exclusion, order and texts."""
    types = [each["type"] for each in new.conditions]
    if len(set(types)) != len(types) or not set(types) <= TYPES:
        yield f"the conditions are {types}"
    taken = new.find("RightsGranted")
    if taken is not None and (types[0] != "RightsGranted" or taken["status"] != "False"):
        yield f"says {taken} in {types}"
    if taken is not None and (new.finished or record.transport == "ssh"):
        yield "waits for names, and has no use for them"
    true = {each["type"] for each in new.conditions if each["status"] == "True"}
    for pair in ({"Succeeded", "Failed"}, {"Running", "Suspended"}, {"Running", "Restarting"}):
        if pair <= true:
            yield f"{' and '.join(sorted(pair))} at the same time"
    if new.foreign:
        yield "it has got a status, and another controller manages it"
    if new.finished and true & {"Running", "Restarting"}:
        yield f"finished and {sorted(true)}"
    if new.finished and types[-1] not in {"Succeeded", "Failed"}:
        yield f"finished, and the last condition is {types[-1]}"
    if new.is_true("Suspended") and not old.is_true("Suspended") and not new.suspended:
        yield "Suspended, which the spec does not ask for"
    yield from _count_faults(record, new)


def _count_faults(record: MpiRecord, new: MpiJob) -> Iterator[str]:
    """Never more pods than there are slots, and no zeros. A launcher on a lost node counts by its phase, beside the one
    that replaces it (job-engine §1.2)."""
    launchers = sum(each.alive for each in record.of("launcher"))
    most = {"Launcher": max(1, launchers), "Worker": new.workers}
    for role, counts in (new.status.get("replicaStatuses") or {}).items():
        numbers = {name: counts[name] for name in ("active", "succeeded", "failed") if name in counts}
        if role == "Launcher" and record.transport == "ssh":
            numbers.pop("failed", None)  # of the Job, over all its pods
        if any(number < 1 for number in numbers.values()) or sum(numbers.values()) > most.get(role, 0):
            yield f"replicaStatuses of {role}: {counts}, with {most.get(role, 0)} replicas"


def end_faults(record: MpiRecord) -> Iterator[str]:
    """A job that has just finished has a reason."""
    job = record.job
    if "completionTime" not in job.status:
        yield "finished without completionTime"
    launchers = [each for each in record.members.values() if each.role == "launcher"]
    if record.transport == "ssh":
        if job.is_true("Succeeded") and "Complete" not in record.ended_as:
            yield "Succeeded, and its launcher has not"
        failed = "Failed" in record.ended_as or record.evicted or record.refused
    else:
        if job.is_true("Succeeded") and not any(each.phase == "Succeeded" for each in launchers):
            yield "Succeeded, and its launcher has not"
        taken = any(each.left for each in record.members.values())
        failed = taken or any(each.phase == "Failed" for each in record.members.values()) or record.refused
        failed = failed or "activeDeadlineSeconds" in job.policy
    if job.is_true("Failed") and not failed:
        yield f"Failed, and nothing has: {(job.find('Failed') or {}).get('message')}"
