"""Gang scheduling of an MPIJob with transport ssh (mpi-operator `pkg/controller/podgroup.go`).

The PodGroup is that of `trainop.engine.steps.gang`, which reads the job in the form that this module makes. In contrast
to training-operator, pods are created whatever the phase of the PodGroup, and another scheduler in a template is
overwritten.
"""

from __future__ import annotations

from trainop.engine.fields import Fields
from trainop.engine.gang_scheduler import GangScheduler
from trainop.engine.job import Job, Role
from trainop.kinds.mpi.hosts import LAUNCHER, WORKER
from trainop.kinds.mpi.ssh.job import WHEN_READY, SshJob
from trainop.kinds.mpi.ssh.replicas import Replicas
from trainop.runtime import Json

QUEUE = "scheduling.volcano.sh/queue-name"
"""Annotation of the job: the queue, if the scheduling policy has none."""


def gang_view(job: SshJob, spec: Json) -> Job:
    """The job as its PodGroup sees it. A launcher that waits for its workers is not part of the gang: its pod would be
    missing until the workers run, and they would wait for it."""
    given = {LAUNCHER: None if job.creation == WHEN_READY else job.launcher, WORKER: job.worker}
    roles = tuple(_role(type_, found) for type_, found in given.items() if found is not None)
    run_policy = Fields().mapping("", spec.get("runPolicy"))
    policy = run_policy.get("schedulingPolicy")
    completed = {**_defaults(job), **(policy if isinstance(policy, dict) else {})}
    if job.creation == WHEN_READY and completed.get("minAvailable") == job.workers + 1:  # all
        completed["minAvailable"] = job.workers
    return Job(job.metadata, {**spec, "runPolicy": {**run_policy, "schedulingPolicy": completed}}, roles)


def _role(type_: str, found: Replicas) -> Role:
    return Role(type_, found.count, found.restart_policy, found.template)


def _defaults(job: SshJob) -> Json:
    """The scheduling policy where the job has none: the queue of an annotation, the priority class of a template."""
    templates = [each.template["spec"] for each in (job.launcher, job.worker) if each is not None]
    classes = [name for each in templates if (name := each.get("priorityClassName"))]
    found = {"queue": job.metadata.annotations.get(QUEUE), "priorityClass": classes[0] if classes else None}
    return {"scheduleTimeoutSeconds": 0} | {name: value for name, value in found.items() if isinstance(value, str)}


def decorate(scheduler: GangScheduler | None, job: SshJob, metadata: Json, spec: Json) -> None:
    """Adds to a pod what its scheduler needs."""
    if scheduler is None:
        return
    spec |= scheduler.pod_fields(job.name, {"priorityClassName": spec.get("priorityClassName")}, job.priority_class)
    metadata["labels"] = {**metadata["labels"], **scheduler.pod_labels(job.name)}
    if added := scheduler.pod_annotations(job.name):
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **added}
