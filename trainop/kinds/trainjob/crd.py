"""The CRDs of Kubeflow Trainer's kinds (trainer `pkg/apis/trainer/v1alpha1`), as far as its SDK and users write them.

They accept the objects of every release from 2.0; what the operator does not carry out is refused by `translate`, with
a reason. Discovery shows their category, by which the operator knows them from those of Kubeflow Trainer.
"""

from __future__ import annotations

from typing import Any

from trainop.engine.progress import TRAINER_STATUS
from trainop.engine.schema.crd import AGE, definition
from trainop.engine.schema.openapi import (
    anything,
    fields,
    flag,
    int32,
    int64,
    items,
    moment,
    open_fields,
    quantities,
    text,
    texts,
    words,
)
from trainop.engine.schema.progress import PROGRESS_COLUMNS, trainer_status
from trainop.kinds.trainjob.names import CLUSTER_RUNTIMES, GROUP, MARK, RUNTIMES, THIS_CONTROLLER, TRAIN_JOBS
from trainop.runtime import Json, Resource

_NAMES = {"categories": [MARK]}
_STATE: Json = {"name": "State", "type": "string", "jsonPath": ".status.conditions[-1:].type"}
_MULTIKUEUE = "kueue.x-k8s.io/multikueue"


def train_job_crds() -> list[Json]:
    """The CRDs of TrainJob, TrainingRuntime and ClusterTrainingRuntime."""
    what = "TrainJob is a training that a runtime describes."
    schema = {"spec": _spec(), "status": _status()}
    job = definition(TRAIN_JOBS, what, schema, [_STATE, AGE, *PROGRESS_COLUMNS], names=_NAMES)
    return [job, _runtime_crd(RUNTIMES, "its namespace"), _runtime_crd(CLUSTER_RUNTIMES, "the cluster")]


def _runtime_crd(resource: Resource, place: str) -> Json:
    what = f"{resource.kind} is a template of the TrainJobs of {place} that refer to it."
    return definition(resource, what, {"spec": _runtime_spec()}, [AGE], names=_NAMES)


def _rules(*rules: tuple[str, str]) -> Json:
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in rules]}


def _spec() -> Json:
    reference = {
        "name": text("Its name.", minLength=1),
        "apiGroup": text("Its API group.", default=GROUP),
        "kind": text(
            "ClusterTrainingRuntime, or TrainingRuntime of the same namespace.", default=CLUSTER_RUNTIMES.kind
        ),
    }
    immutable = ("self == oldSelf", "runtimeRef is immutable")
    known = f"['{THIS_CONTROLLER}', '{_MULTIKUEUE}']"
    managers = (f"self in {known}", f"managedBy must be {THIS_CONTROLLER} or {_MULTIKUEUE}")
    refused = "Not supported; the operator refuses the job."
    return fields(
        "The desired state of the job.",
        {
            "runtimeRef": fields("The runtime. Immutable.", reference, required=["name"], **_rules(immutable)),
            "trainer": _trainer(),
            "suspend": flag("While true, the job has no pods.", default=False),
            "activeDeadlineSeconds": int64("The job fails when it has been active for this long.", minimum=1),
            "managedBy": text(
                "The controller of the job. Immutable.",
                default=THIS_CONTROLLER,
                **_rules(managers, ("self == oldSelf", "managedBy is immutable")),
            ),
            "runtimePatches": items(
                "Changes of the runtime, by who makes them.",
                open_fields("The changes of one.", {"manager": text("Who makes them.")}, required=["manager"]),
                keys=["manager"],
            ),
            "labels": texts("Labels of the job that runs the TrainJob."),
            "annotations": texts("Annotations of the job that runs the TrainJob."),
            "initializer": anything(refused),
            "podTemplateOverrides": items(refused, anything("One override.")),
            "podSpecOverrides": items(refused, anything("One override.")),
        },
        required=["runtimeRef"],
    )


def _trainer() -> Json:
    processes: dict[str, Any] = {
        "description": "Processes per node: auto, cpu, gpu or a number.",
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "x-kubernetes-int-or-string": True,
    }
    variable = open_fields("One variable.", {"name": text("Its name."), "value": text("Its value.")}, required=["name"])
    resources = {"limits": quantities("Maximum amounts."), "requests": quantities("Amounts reserved by the scheduler.")}
    return fields(
        "What replaces parts of the runtime in the container that trains.",
        {
            "image": text("The image."),
            "command": words("The entry point."),
            "args": words("Arguments of the entry point."),
            "env": items("Variables in addition to those of the runtime.", variable, keys=["name"]),
            "numNodes": int32("The number of nodes, which are pods.", minimum=1),
            "numProcPerNode": processes,
            "resourcesPerNode": open_fields("CPU, memory and devices of each node.", resources),
        },
    )


def _status() -> Json:
    condition = {
        "type": text("Suspended, Complete or Failed."),
        "status": text("True, False or Unknown."),
        "reason": text("The reason of the last transition, in CamelCase."),
        "message": text("The reason as a sentence."),
        "lastTransitionTime": moment("When the status last changed."),
        "observedGeneration": int64("The generation that it was set for."),
    }
    counters = {name: int32(f"1 if it is {name}.") for name in ("active", "failed", "ready", "succeeded", "suspended")}
    counted = fields("One of them.", {"name": text("Its name."), **counters}, required=["name", *counters])
    required = ["type", "status", "reason", "message", "lastTransitionTime"]
    return fields(
        "The observed state of the job.",
        {
            "conditions": items("Conditions.", fields("One.", condition, required=required), keys=["type"]),
            "jobsStatus": items("The parts of the job, as the runtime names them.", counted, keys=["name"]),
            TRAINER_STATUS: trainer_status(),
        },
    )


def _runtime_spec() -> Json:
    number = {"numNodes": int32("The number of nodes, if the TrainJob does not say; 1 if not given.", minimum=1)}
    metadata = fields("Of the job.", {"labels": texts("Its labels."), "annotations": texts("Its annotations.")})
    job = open_fields("One group of pods.", {"name": text("Its name.")}, required=["name"])
    jobs = {"replicatedJobs": items("The groups of pods: node, and launcher of mpi.", job, keys=["name"])}
    return fields(
        "What TrainJobs are made of.",
        {
            "mlPolicy": open_fields("The framework.", number),
            "podGroupPolicy": anything("Not supported; the operator refuses TrainJobs of such a runtime."),
            "template": fields("The job.", {"metadata": metadata, "spec": open_fields("Its pods.", jobs)}),
        },
        required=["template"],
    )
