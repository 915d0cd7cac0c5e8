"""TFJob trains with TensorFlow, whose replicas find each other by `TF_CONFIG`
(training-operator `pkg/controller.v1/tensorflow`)."""

from __future__ import annotations

from collections.abc import Mapping

from trainop.engine.fields import Fields, find_word
from trainop.engine.framework import GROUP, QUALIFIED_TEXTS, Framework, Progress, Replicas, Tally
from trainop.engine.job import Job, Role
from trainop.engine.leaders import MASTER, WORKER, follow, leader
from trainop.engine.schema.openapi import flag, text
from trainop.kinds.tf_config import CLUSTER_CONFIG_MAP, PORT, PORT_NAME, PS, additions, companions
from trainop.runtime import Resource

CHIEF = "Chief"
EVALUATOR = "Evaluator"
ALL_WORKERS = "AllWorkers"


def check(job: Job, fields: Fields) -> None:
    """Validates the fields that only a TFJob has."""
    fields.choice("spec.successPolicy", job.spec.get("successPolicy"), (ALL_WORKERS,), "")
    fields.flag("spec.enableDynamicWorker", job.spec.get("enableDynamicWorker"))
    if job.role(CHIEF) and job.role(MASTER):
        fields.forbidden(f"spec.{TENSORFLOW.replica_specs}", "must not have more than 1 Chief or Master role")


def is_master(job: Job, role: Role, index: int) -> bool:
    """The master is the Chief or Master or, without one, worker 0."""
    chief = leader(job, CHIEF, MASTER)
    return role.type == chief.type if chief else role.type == WORKER and index == 0


def progress(job: Job, tallies: Mapping[str, Tally]) -> Progress:
    """Follows the chief or, without one, the workers: by default worker 0 must succeed, with AllWorkers all of them."""
    chief = leader(job, CHIEF, MASTER, WORKER)
    found = follow(chief, tallies)
    if chief is None or chief.type != WORKER or find_word(job.spec.get("successPolicy"), (ALL_WORKERS,)):
        return found
    succeeded = found.succeeded or tallies[WORKER].first_completed
    return Progress(running=found.running and not succeeded, succeeded=succeeded)


def tolerates(job: Job, role: Role, tally: Tally) -> bool:
    """Whether the role is Worker and the job has dynamic workers, which may fail as long as there is somebody to go on:
    a chief, or another worker. Upstream waits for ever once all workers have ended without a success of the job."""
    if role.type != WORKER or job.spec.get("enableDynamicWorker") is not True:
        return False
    return leader(job, CHIEF, MASTER) is not None or tally.failed + tally.succeeded < role.replicas


def outlives(job: Job) -> str:
    """Workers that train with one another fail together; those that are served, evaluated or dynamic do not."""
    others = [type_ for type_ in (PS, EVALUATOR) if (role := job.role(type_)) is not None and role.replicas]
    if others:
        return f"replicas of {' and '.join(others)} run on when a worker fails"
    return "dynamic workers run on when another one fails" if job.spec.get("enableDynamicWorker") is True else ""


TENSORFLOW = Framework(
    resource=Resource(GROUP, "v1", "tfjobs", "TFJob"),
    name="tensorflow",
    controller="tfjob-controller",
    replica_specs="tfReplicaSpecs",
    roles={type_: Replicas() for type_ in (CHIEF, MASTER, EVALUATOR, PS, WORKER)},
    container="tensorflow",
    port_name=PORT_NAME,
    port=PORT,
    is_master=is_master,
    additions=additions,
    companion_kinds=(CLUSTER_CONFIG_MAP,),
    companions=companions,
    progress=progress,
    tolerates=tolerates,
    outlives=outlives,
    rules=check,
    texts=lambda _job: QUALIFIED_TEXTS._replace(
        failed="{kind} {namespace}/{name} has failed because {count} {role} replica(s) failed."
    ),
    spec_fields={
        "successPolicy": text(
            "Success condition of a job without a chief. AllWorkers: all workers succeed. Default: worker 0 succeeds."
        ),
        "enableDynamicWorker": flag(
            "Whether workers may be added, removed and fail while the job runs. TF_CONFIG of a worker then contains "
            "only itself and the parameter servers. A job without a chief fails when all its workers have ended and "
            "it has not succeeded."
        ),
    },
    deleted_as="Job",
)
