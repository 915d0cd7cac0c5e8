"""Rules for every status write (job-engine §1.5 to §1.7, §2.10). Each function yields the violations.

The operator writes with the resourceVersion that it has read, so its status always refers to the stored spec.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from tests.simulation.oracle.children import is_in_place
from tests.simulation.oracle.history import Pod, Record
from tests.simulation.oracle.kinds import Job, Json
from tests.simulation.oracle.losses import BACKOFF, DEADLINE, DENIED, INFRA, too_early

REASONS = {
    ("Created", "True"): {"Created"},
    ("Running", "True"): {"Running"},
    ("Running", "False"): {"Running", "Suspended"},
    ("Restarting", "True"): {"Restarting"},
    ("Suspended", "True"): {"Suspended"},
    ("Suspended", "False"): {"Resumed"},
    ("Succeeded", "True"): {"Succeeded"},
    ("Failed", "True"): {"Failed", "FailedValidation"},
}
MESSAGES = {
    "Created": "{kind} {name} is created.",
    "Suspended": "{kind} {name} is suspended.",
    "Resumed": "{kind} {name} is resumed.",
}
"""By the end of the reason."""


def condition_faults(old: Job, new: Job) -> Iterator[str]:
    """Violations of the condition rules: mutual exclusion, order, reasons and messages."""
    types = [each["type"] for each in new.conditions]
    if len(set(types)) != len(types):
        yield f"conditions are not unique: {types}"
    true = {each["type"] for each in new.conditions if each["status"] == "True"}
    for pair in ({"Succeeded", "Failed"}, {"Running", "Suspended"}, {"Running", "Restarting"}):
        if pair <= true:
            yield f"{' and '.join(sorted(pair))} at the same time"
    if new.finished and true & {"Running", "Restarting"}:
        yield f"finished and {sorted(true)}"
    if new.conditions and new.conditions[0]["type"] != "Created" and "Created" in types:
        yield f"Created is not the first condition: {types}"
    for each in new.conditions:
        yield from _wording(new, each)
    yield from _order(old, new)


def _wording(job: Job, condition: Json) -> Iterator[str]:
    type_, reason = condition["type"], condition["reason"].removeprefix(job.kind_name)
    if reason not in REASONS.get((type_, condition["status"]), ()):
        yield f"{type_}={condition['status']} with reason {condition['reason']}"
    text = MESSAGES.get(reason)
    if text and condition["message"] != text.format(kind=job.kind_name, name=job.name):
        yield f"{type_}: {condition['message']!r}"


def _order(old: Job, new: Job) -> Iterator[str]:
    """What has changed stands last, but for Running, which an end turns to False where it stands, or after it has
    become True in the same pass; what has not changed keeps its place and its times."""
    before = {each["type"]: each for each in old.conditions}
    changed = [each["type"] for each in new.conditions if not _same(before.get(each["type"]), each)]
    if new.finished and "Running" in before:
        changed = [type_ for type_ in changed if type_ != "Running"]
    types = [each["type"] for each in new.conditions]
    if changed and types[-len(changed) :] != changed:
        yield f"{changed} changed and do not stand last: {types}"
    kept = [type_ for type_ in types if type_ not in changed and not (new.finished and type_ == "Running")]
    if kept != [type_ for type_ in before if type_ in kept]:
        yield f"conditions changed places: {list(before)} became {types}"
    for each in new.conditions:
        twin = before.get(each["type"])
        if twin and _same(twin, each) and twin != each:
            yield f"{each['type']} was written anew without a change"


def _same(old: Json | None, new: Json) -> bool:
    return old is not None and (old["status"], old["reason"]) == (new["status"], new["reason"])


def time_faults(record: Record, old: Job, new: Job, *, exact: bool, zero: datetime, gang: bool) -> Iterator[str]:
    """startTime is set when the job starts or is resumed, and only then; with `gang`, a gang scheduler, when its pods
    may be created, so that a resumed job has none until then (docs/gang.md). With `exact`, the operator's clocks are
    right: then it is not before the user's wish, given in seconds since `zero`."""
    before, after = old.status.get("startTime"), new.status.get("startTime")
    resumed = old.is_true("Suspended") and not new.is_true("Suspended")
    if (before == after and not resumed) or (after is None and resumed and gang):
        return
    if after is None:
        yield f"startTime {before} is gone"
    elif new.suspended:
        yield f"startTime became {after} while the job is suspended"
    elif before is not None and not resumed:
        yield f"startTime was {before} and is {after}, though the job was not resumed"
    elif exact and _seconds(after, zero) < int(record.resumed_at if resumed else record.born):
        yield f"startTime {after} is before the job was created or resumed"


def _seconds(text: str, zero: datetime) -> float:
    return (datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC) - zero).total_seconds()


def count_faults(new: Job) -> Iterator[str]:
    """replicaStatuses: never more pods than slots, and no zeros."""
    for role, counts in (new.status.get("replicaStatuses") or {}).items():
        numbers = [counts[name] for name in ("active", "succeeded", "failed") if name in counts]
        if any(number < 1 for number in numbers) or sum(numbers) > new.replicas(role):
            yield f"replicaStatuses of {role}: {counts}, with {new.replicas(role)} replicas"
    if new.is_true("Suspended") or new.is_true("Succeeded"):
        active = [role for role, counts in (new.status.get("replicaStatuses") or {}).items() if counts.get("active")]
        if active:
            yield f"replicaStatuses show active pods of {active}"


def suspension_faults(old: Job, new: Job) -> Iterator[str]:
    """Suspended says what the spec says, and turns Running to False."""
    if new.is_true("Suspended") and not old.is_true("Suspended"):
        if not new.suspended:
            yield "Suspended, which the spec does not ask for"
        running = new.find("Running")
        if old.is_true("Running") and (running is None or running["status"] != "False"):
            yield "Suspended, and Running is not set to False"
    if new.status.get("startTime") is None and new.is_true("Running"):
        yield "Running without startTime"


def end_faults(record: Record, old: Job, new: Job, window: float) -> Iterator[str]:
    """A job that has just finished has a reason that the specification knows. What is older than `window` seconds is
    known."""
    if "completionTime" not in new.status:
        yield "finished without completionTime"
    if new.is_true("Succeeded") and not has_succeeded(record):
        yield "Succeeded, and its replicas have not"
    if new.is_true("Failed"):
        if fault := too_early(record):
            yield fault
        if DENIED in new.message("Failed"):
            if _has_had_pods(record, old, window):
                yield f"has had pods, and failed when one was refused: {new.message('Failed')}"
        else:
            yield from _blame(record)


def has_succeeded(record: Record, pods: list[Pod] | None = None) -> bool:
    """The replicas that decide have all succeeded (frameworks-v1 §7.2), of those that are given or of all since the job
    was last resumed."""
    job, role = record.job, record.job.deciding
    if pods is None:
        pods = [pod for pod in record.pods.values() if pod.there or (pod.gone_at or 0.0) >= record.counted_from]
    done = [pod for pod in pods if pod.phase == "Succeeded" and is_in_place(job, pod.value)]
    done = [pod for pod in done if pod.ended_at is not None or not job.saves]
    if not role or not job.replicas(role):
        return False
    first_decides = job.kind_name == "TFJob" and role == "Worker" and job.spec.get("successPolicy") != "AllWorkers"
    if first_decides and any(pod.slot == ("worker", 0) and pod.exit_code(job.kind.container) == 0 for pod in done):
        return True
    return {pod.slot for pod in done} >= {(role.lower(), index) for index in range(job.replicas(role))}


def _has_had_pods(record: Record, old: Job, window: float) -> bool:
    """Whether the job has had pods, by its status or by its pods."""
    counts = (old.status.get("replicaStatuses") or {}).values()
    if old.find("Running") or old.find("Restarting") or any(each.keys() - {"selector"} for each in counts):
        return True
    known = (record.finished_at or 0.0) - window
    return any(pod.there and pod.born < known for pod in record.pods.values())


def _blame(record: Record) -> Iterator[str]:
    """The pods that the failure message names must have failed."""
    job, text = record.job, record.job.message("Failed")
    if text in {BACKOFF.format(job.name), INFRA.format(job.name)}:
        return
    if text == DEADLINE.format(job.name):
        if job.policy.get("activeDeadlineSeconds") is None:
            yield "failed at a deadline that it does not have"
        return
    if "failed validation" in text:
        if job.status.get("startTime"):
            yield f"had begun and failed: {text}"
        return
    failed = [pod for pod in record.pods.values() if _is_fatal(record, pod)]
    if not any(pod.slot and f"{job.role_of(pod.slot)}" in text for pod in failed):
        yield f"failed, and no pod did: {text}"


def _is_fatal(record: Record, pod: Pod) -> bool:
    """It ended in a way that its policy does not restart, or others took it and its policy is Never."""
    if not pod.slot:
        return False
    if pod.taken:
        return record.job.policy_of(pod.slot) == "Never"
    return pod.phase == "Failed" and pod.ended_at is not None and not pod.retryable(record.job)
