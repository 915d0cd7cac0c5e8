"""The controller of `batch/v1` Jobs on a local cluster: launchers of MPIJobs over ssh are Jobs.

Jobs with completion mode Indexed, pod failure policies and success policies are not supported. Source: kubernetes
`pkg/controller/job/job_controller.go`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from trainop.runtime import (
    PODS,
    ConflictError,
    Context,
    Json,
    NotFoundError,
    Operator,
    Resource,
    Result,
    Unstructured,
    set_controller,
)
from trainop.runtime.lowlevel import parse_timestamp, timestamp

JOBS = Resource("batch", "v1", "jobs", "Job")
LIMIT_REACHED = ("BackoffLimitExceeded", "Job has reached the specified backoff limit")
DEADLINE = ("DeadlineExceeded", "Job was active longer than specified deadline")
COMPLETED = ("CompletionsReached", "Reached expected number of succeeded pods")

_FIRST_BACKOFF, _LAST_BACKOFF = 10.0, 600.0


@dataclass(frozen=True, slots=True)
class Step:
    """What is to be done about a Job now. The status is written first, except that pods are created before it."""

    status: Json
    create: int = 0
    delete: tuple[Json, ...] = ()
    """Pods that still run."""
    expired: bool = False
    """Whether the time to live after the end is over."""
    again_in: float | None = None


@dataclass(frozen=True, slots=True)
class _Pods:
    """The pods of a Job, by what they count for."""

    active: tuple[Json, ...]
    terminating: tuple[Json, ...]
    succeeded: int
    failures: tuple[datetime, ...]

    @classmethod
    def sort(cls, pods: Iterable[Json]) -> _Pods:
        found: dict[str, list[Json]] = {"Succeeded": [], "Failed": [], "active": [], "terminating": []}
        for pod in pods:
            phase = (pod.get("status") or {}).get("phase")
            running = "terminating" if pod["metadata"].get("deletionTimestamp") else "active"
            found[phase if phase in found else running].append(pod)
        failures = tuple(sorted(_ended(pod) for pod in found["Failed"]))
        return cls(tuple(found["active"]), tuple(found["terminating"]), len(found["Succeeded"]), failures)

    @property
    def restarts(self) -> int:
        """Restarts of containers in pods that still run, which count as failures with `restartPolicy: OnFailure`."""
        kinds = ("initContainerStatuses", "containerStatuses")
        statuses = [one for pod in self.active for kind in kinds for one in (pod.get("status") or {}).get(kind) or ()]
        return sum(one.get("restartCount") or 0 for one in statuses)

    @property
    def ready(self) -> int:
        conditions = [(pod.get("status") or {}).get("conditions") or () for pod in self.active]
        return sum(any(one["type"] == "Ready" and one["status"] == "True" for one in each) for each in conditions)


def next_step(job: Json, pods: Iterable[Json], now: datetime) -> Step:
    """Compares a Job with its pods. Pods that were deleted after their end stay counted only by the status."""
    spec, status = job["spec"], dict(job.get("status") or {})
    conditions = [dict(one) for one in status.get("conditions") or ()]
    if (end := _finished(conditions)) is not None:
        return _after_end(spec, status, parse_timestamp(end["lastTransitionTime"]), now)
    found = _Pods.sort(pods)
    failed = max(len(found.failures), status.get("failed") or 0)
    succeeded = max(found.succeeded, status.get("succeeded") or 0)
    counts: Json = {"active": len(found.active), "ready": found.ready, "terminating": len(found.terminating)}
    status |= {**counts, "failed": failed, "succeeded": succeeded}
    if _suspend(spec, status, conditions, now):
        return Step(_with(status, conditions), delete=found.active)
    left = _seconds_to_deadline(spec, status, now)
    verdict = _verdict(spec, found, succeeded, failed, left)
    if verdict is None and (target := _find(conditions, "FailureTarget")) is not None:
        verdict = ("FailureTarget", (target["reason"], target["message"]))
    if verdict is not None:
        return _end(status, conditions, found, verdict, now)
    wanted, wait = _missing(spec, found, succeeded, now)
    delays = [seconds for seconds in (wait, left) if seconds]
    return Step(_with(status, conditions), create=wanted, again_in=min(delays, default=None))


def _verdict(
    spec: Json, found: _Pods, succeeded: int, failed: int, left: float | None
) -> tuple[str, tuple[str, str]] | None:
    """The condition that ends the Job, with its reason and message; None while it goes on."""
    limit = spec.get("backoffLimit", 6)
    restarts = found.restarts if spec["template"]["spec"].get("restartPolicy") == "OnFailure" else 0
    completions = spec.get("completions")
    if failed > limit or (restarts and restarts >= limit):
        return "FailureTarget", LIMIT_REACHED
    if left is not None and left <= 0:
        return "FailureTarget", DEADLINE
    if succeeded >= completions if completions is not None else (succeeded and not found.active):
        return "SuccessCriteriaMet", COMPLETED
    return None


def _end(
    status: Json, conditions: list[Json], found: _Pods, verdict: tuple[str, tuple[str, str]], now: datetime
) -> Step:
    """Ends the Job once its pods have: the outcome is announced first, and final when none runs any more."""
    target, why = verdict
    _set(conditions, target, "True", why, now)
    if not found.active and not found.terminating:
        _set(conditions, "Failed" if target == "FailureTarget" else "Complete", "True", why, now)
        if target != "FailureTarget":
            status["completionTime"] = timestamp(now)
    return Step(_with(status, conditions), delete=found.active)


def _suspend(spec: Json, status: Json, conditions: list[Json], now: datetime) -> bool:
    """Whether the Job is suspended; also records the transition, and the start of a Job that is not."""
    before = _find(conditions, "Suspended")
    if spec.get("suspend"):
        _set(conditions, "Suspended", "True", ("JobSuspended", "Job suspended"), now)
        if status.get("startTime"):
            status["startTime"] = None
        return True
    if before is not None and before["status"] == "True":
        _set(conditions, "Suspended", "False", ("JobResumed", "Job resumed"), now)
    status["startTime"] = status.get("startTime") or timestamp(now)
    return False


def _after_end(spec: Json, status: Json, end: datetime, now: datetime) -> Step:
    ttl = spec.get("ttlSecondsAfterFinished")
    if ttl is None:
        return Step(status)
    left = (end + timedelta(seconds=ttl) - now).total_seconds()
    return Step(status, expired=left <= 0, again_in=max(left, 0) or None)


def _seconds_to_deadline(spec: Json, status: Json, now: datetime) -> float | None:
    seconds = spec.get("activeDeadlineSeconds")
    if seconds is None:
        return None
    return float((parse_timestamp(status["startTime"]) + timedelta(seconds=seconds) - now).total_seconds())


def _missing(spec: Json, found: _Pods, succeeded: int, now: datetime) -> tuple[int, float]:
    """How many pods to create now, else the seconds to wait after the latest failure."""
    parallelism, completions = spec.get("parallelism", 1), spec.get("completions")
    wanted = parallelism if completions is None else min(parallelism, completions - succeeded)
    if completions is None and succeeded:
        wanted = 0
    replaced_late = spec.get("podReplacementPolicy") == "Failed"
    missing = wanted - len(found.active) - (len(found.terminating) if replaced_late else 0)
    if missing <= 0 or not found.failures:
        return max(missing, 0), 0.0
    delay = min(_FIRST_BACKOFF * 2 ** (len(found.failures) - 1), _LAST_BACKOFF)
    wait = (found.failures[-1] + timedelta(seconds=delay) - now).total_seconds()
    return (missing, 0.0) if wait <= 0 else (0, wait)


def _ended(pod: Json) -> datetime:
    """When the last container of a pod has ended; else when the pod was created."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    ends = [((one.get("state") or {}).get("terminated") or {}).get("finishedAt") for one in statuses]
    return parse_timestamp(max((end for end in ends if end), default=pod["metadata"]["creationTimestamp"]))


def _find(conditions: Sequence[Json], kind: str) -> Json | None:
    return next((one for one in conditions if one["type"] == kind), None)


def _finished(conditions: Sequence[Json]) -> Json | None:
    return next((one for one in conditions if one["type"] in {"Complete", "Failed"} and one["status"] == "True"), None)


def _set(conditions: list[Json], kind: str, status: str, why: tuple[str, str], now: datetime) -> None:
    found = _find(conditions, kind)
    if found is not None and found["status"] == status:
        return
    if found is not None:
        conditions.remove(found)
    at = timestamp(now)
    times = {"lastProbeTime": at, "lastTransitionTime": at}
    conditions.append({"type": kind, "status": status, **times, "reason": why[0], "message": why[1]})


def _with(status: Json, conditions: list[Json]) -> Json:
    return {**status, "conditions": conditions}


async def reconcile(ctx: Context, job: Unstructured) -> Result | None:
    """Carries out the next step of one Job. Reads from the API server, whose answers are never outdated."""
    if job.metadata.terminating or job.raw["spec"].get("completionMode") == "Indexed":
        return None
    name, namespace = job.metadata.name, job.metadata.namespace
    try:
        fresh = await ctx.client.get(JOBS, name, namespace)
    except NotFoundError:
        return None
    labels = fresh["spec"]["selector"]["matchLabels"]
    selector = ",".join(f"{key}={value}" for key, value in labels.items())
    pods = (await ctx.client.list(PODS, namespace, label_selector=selector)).items
    step = next_step(fresh, [pod for pod in pods if _is_owned(pod, job.metadata.uid)], ctx.clock.now())
    if step.expired:
        await ctx.client.delete(JOBS, name, namespace, uid=job.metadata.uid, propagation="Background")
        return None
    for _ in range(step.create):
        created = await ctx.client.create(PODS, _pod(job, fresh["spec"]["template"]))
        ctx.event(job, "Normal", "SuccessfulCreate", f"Created pod: {created['metadata']['name']}")
    if step.status != (fresh.get("status") or {}):
        patch = {"metadata": {"resourceVersion": fresh["metadata"]["resourceVersion"]}, "status": step.status}
        try:
            await ctx.client.patch(JOBS, name, namespace, patch, subresource="status")
        except (ConflictError, NotFoundError):
            return Result(requeue_after=0.01)
    await _delete(ctx, job, step.delete)
    return Result(requeue_after=step.again_in) if step.again_in else None


async def _delete(ctx: Context, job: Unstructured, pods: Iterable[Json]) -> None:
    for pod in pods:
        meta = pod["metadata"]
        try:
            await ctx.client.delete(PODS, meta["name"], meta["namespace"], uid=meta["uid"])
        except (ConflictError, NotFoundError):
            continue
        ctx.event(job, "Normal", "SuccessfulDelete", f"Deleted pod: {meta['name']}")


def _is_owned(pod: Json, uid: str) -> bool:
    return any(one["uid"] == uid and one.get("controller") for one in pod["metadata"].get("ownerReferences") or ())


def _pod(job: Unstructured, template: Mapping[str, Any]) -> Json:
    given = template.get("metadata") or {}
    kept = {key: given[key] for key in ("labels", "annotations") if given.get(key)}
    metadata = {**kept, "generateName": f"{job.metadata.name}-", "namespace": job.metadata.namespace}
    return set_controller(job, JOBS, {"metadata": metadata, "spec": template["spec"]})


def job_controller() -> Operator:
    """The controller as an operator, to be built on the transport of a cluster."""
    operator = Operator("job-controller", metrics="0", health="0", leader_election=False)
    operator.for_(JOBS).owns(PODS).reconcile(reconcile)
    return operator
