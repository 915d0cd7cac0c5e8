"""The status of a TrainJob: conditions and counters as Kubeflow Trainer has them, read from the job that runs it
(trainer `pkg/controller/trainjob_controller.go`, `pkg/runtime/framework/plugins/jobset`)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from trainop.engine import status as job_status
from trainop.engine.fields import as_list, as_object
from trainop.engine.progress import TRAINER_STATUS
from trainop.kinds.trainjob.names import COMPLETE, FAILED, LAUNCHER, NODE, NOT_SUPPORTED, SUSPENDED
from trainop.runtime import Json
from trainop.runtime.lowlevel import cut, timestamp

SUSPENDED_TEXT, RESUMED_TEXT = "TrainJob is suspended", "TrainJob is resumed"
MAX_MESSAGE = 32 * 1024
"""Of a condition, as the API server has it."""


def is_true(conditions: Sequence[Json], type_: str) -> bool:
    return any(each.get("type") == type_ and each.get("status") == "True" for each in conditions)


def is_finished(status: object) -> bool:
    """Whether the job has ended. A refused one has not: it may still be corrected."""
    conditions = as_list(as_object(status).get("conditions"))
    refused = any(each.get("type") == FAILED and each.get("reason") == NOT_SUPPORTED for each in conditions)
    return is_true(conditions, COMPLETE) or (is_true(conditions, FAILED) and not refused)


def next_status(stored: object, child: Json | None, refusal: str, *, suspend: bool, now: datetime) -> Json:
    """The status that the TrainJob should have. `stored` is the one it has; `child` the job that runs it, None if there
    is none; `refusal` why there can be none, else empty. Without a suspension or an end there are no conditions: while
    there are any, the SDK does not ask the pods whether the job runs."""
    status = dict(as_object(stored))
    conditions = as_list(status.get("conditions"))
    if refusal:
        _set(conditions, FAILED, "True", (NOT_SUPPORTED, refusal), now)
    else:
        conditions = [each for each in conditions if each.get("reason") != NOT_SUPPORTED]
    if suspend:
        _set(conditions, SUSPENDED, "True", (SUSPENDED, SUSPENDED_TEXT), now)
    elif is_true(conditions, SUSPENDED):
        _set(conditions, SUSPENDED, "False", ("Resumed", RESUMED_TEXT), now)
    if child is not None:
        _end(conditions, child, now)
        status["jobsStatus"] = _jobs(child)
        if reported := as_object(child.get("status")).get(TRAINER_STATUS):
            status[TRAINER_STATUS] = reported
    if conditions or "conditions" in status:
        status["conditions"] = conditions
    return status


def _end(conditions: list[Json], child: Json, now: datetime) -> None:
    for each in as_list(as_object(child.get("status")).get("conditions")):
        if each.get("status") != "True":
            continue
        message = str(each.get("message") or "")
        if each.get("type") == job_status.SUCCEEDED:
            _set(conditions, COMPLETE, "True", ("AllJobsCompleted", message), now)
        elif each.get("type") == job_status.FAILED:
            _set(conditions, FAILED, "True", ("FailedJobs", message), now)


def _jobs(child: Json) -> list[Json]:
    """One entry for each of the runtime's jobs: node, and launcher before it."""
    status, spec = as_object(child.get("status")), as_object(child.get("spec"))
    conditions = as_list(status.get("conditions"))
    replicas = next((as_object(spec[name]) for name in spec if name.endswith("ReplicaSpecs")), {})
    counts = as_object(status.get("replicaStatuses"))
    steps = {"Launcher": LAUNCHER, "Worker": NODE}
    return [
        _counters(step, conditions, as_object(counts.get(role)), as_object(replicas[role]).get("replicas") or 1)
        for role, step in steps.items()
        if role in replicas
    ]


def _counters(step: str, conditions: Sequence[Json], counts: Json, wanted: int) -> Json:
    succeeded, failed = is_true(conditions, job_status.SUCCEEDED), is_true(conditions, job_status.FAILED)
    suspended = is_true(conditions, job_status.SUSPENDED)
    active = not (succeeded or failed or suspended)
    done = (counts.get("active") or 0) + (counts.get("succeeded") or 0)
    found = {"active": active, "failed": failed, "ready": active and done >= wanted}
    return {"name": step, **{name: int(value) for name, value in found.items()}} | {
        "succeeded": int(succeeded),
        "suspended": int(suspended),
    }


def _set(conditions: list[Json], type_: str, status: str, why: tuple[str, str], now: datetime) -> None:
    """Sets a condition in place, with reason and message; one that has them and the status stays as it is."""
    reason, message = why[0], cut(why[1], MAX_MESSAGE)
    old = next((each for each in conditions if each.get("type") == type_), None)
    new = {"type": type_, "status": status, "reason": reason, "message": message}
    if old is None:
        conditions.append({**new, "lastTransitionTime": timestamp(now)})
    elif any(old.get(name) != value for name, value in new.items()):
        since = old.get("lastTransitionTime") if old.get("status") == status else None
        conditions[conditions.index(old)] = {**new, "lastTransitionTime": since or timestamp(now)}
