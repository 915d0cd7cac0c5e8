"""Two kinds that are no `Framework`: each has a custom plan, built from parts of the engine."""

from __future__ import annotations

from functools import partial

import msgspec

from tests.engine.builders import apply
from trainop.engine.actions import Ensure, Need, Plan
from trainop.engine.framework import CompanionKind, selector
from trainop.engine.kind import Kind
from trainop.engine.seen import Snapshot
from trainop.engine.status import FAILED, RUNNING, SUCCEEDED, Status
from trainop.runtime.objects.metadata import PODS, Json, Resource, Unstructured, owner_reference

# Two pods with names of their own --------------------------------------------------------------------------------


def plan_pair(seen: Snapshot) -> Plan:
    """Succeeded when both pods have succeeded."""
    job, status = seen.job, Status(seen.job.raw.get("status"), seen.now)
    if status.finished or job.metadata.terminating:
        return Plan()
    owned = [pod for pod in seen.pods if pod.metadata.controller and pod.metadata.controller.uid == job.metadata.uid]
    phases = {pod.metadata.name: pod.status.phase for pod in owned}
    names = [f"{job.metadata.name}-{side}" for side in ("left", "right")]
    if all(phases.get(name) == "Succeeded" for name in names):
        status.set(SUCCEEDED, "PairSucceeded", "both pods succeeded")
        status.complete()
    missing = tuple(Ensure(PODS, name, partial(encode_pod, job, name)) for name in names if name not in phases)
    return Plan(actions=missing, status=status.changed())


def encode_pod(job: Unstructured, name: str) -> bytes:
    spec = {"containers": [{"name": "main", "image": job.raw["spec"]["image"]}], "restartPolicy": "Never"}
    return msgspec.json.encode(
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata_of(PAIR, job, name), "spec": spec}
    )


def reject(seen: Snapshot, message: str) -> Plan:
    status = Status(seen.job.raw.get("status"), seen.now)
    status.set(FAILED, "Refused", message)
    return Plan(status=status.changed(), status_first=True)


def metadata_of(kind: Kind, job: Unstructured, name: str) -> Json:
    owner = owner_reference(kind.resource.api_version, kind.resource.kind, job.metadata.name, job.metadata.uid)
    labels = selector(kind, job.metadata.name)
    return {"name": name, "namespace": job.metadata.namespace, "labels": labels, "ownerReferences": [owner]}


PAIR = Kind(
    resource=Resource("example.com", "v1", "pairs", "Pair"),
    name="pair",
    controller="pair-controller",
    plan=plan_pair,
    reject=reject,
)

# A batch Job, which owns the pods --------------------------------------------------------------------------------

BATCH_JOBS = CompanionKind(Resource("batch", "v1", "jobs", "Job"), Need.JOB)


def plan_batch(seen: Snapshot) -> Plan:
    """The job has the state of the batch Job and its pods."""
    job, status = seen.job, Status(seen.job.raw.get("status"), seen.now)
    if status.finished or job.metadata.terminating:
        return Plan()
    found = seen.companions[BATCH_JOBS.resource]
    if not found:
        template = {"metadata": {"labels": selector(BATCH, job.metadata.name)}, "spec": job.raw["spec"]["template"]}
        kind = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata_of(BATCH, job, job.metadata.name)}
        return Plan(actions=(apply(BATCH_JOBS.resource, {**kind, "spec": {"template": template}}),))
    if (found[0].raw.get("status") or {}).get("succeeded"):
        status.set(SUCCEEDED, "BatchSucceeded", "the batch Job succeeded")
        status.complete()
    elif any(pod.status.phase == "Running" for pod in seen.pods):
        status.set(RUNNING, "BatchRunning", "a pod of the batch Job is running")
    return Plan(status=status.changed())


BATCH = Kind(
    resource=Resource("example.com", "v1", "batches", "Batch"),
    name="batch",
    controller="batch-controller",
    companion_kinds=(BATCH_JOBS,),
    plan=plan_batch,
    reject=reject,
)
