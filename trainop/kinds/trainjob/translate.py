"""From a TrainJob and its runtime to the job that runs it: a PyTorchJob or JAXJob, whose pods bear the labels by
which the SDK finds them (trainer `pkg/runtime/framework/plugins`)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from trainop.engine.extensions import TRAIN_NODE
from trainop.engine.fields import Fields, sentence
from trainop.engine.framework import COMPLETION_INDEX, variable
from trainop.kinds.jax import JAX
from trainop.kinds.pytorch import PYTORCH
from trainop.kinds.trainjob.names import (
    ANCESTOR,
    JOBSET_NAME,
    NODE,
    REPLICATED_JOB,
    SPEC_HASH,
    SUSPENDED_AS,
    TRAIN_JOBS,
    TRAINER,
)
from trainop.kinds.trainjob.patches import apply_patches, merge_by_name
from trainop.kinds.trainjob.runtime import NodeJob, Runtime, read_runtime
from trainop.runtime import Json, Resource, Unstructured, owner_reference
from trainop.runtime.lowlevel import exact_amount

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
MASTER_PORT = 29500
"""Where torchrun of node 0 listens, as with Kubeflow Trainer."""

_RESERVED = ("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT")
_OVERRIDES = "spec.runtimePatches changes the pod templates"
_ELSEWHERE = {
    "initializer": "read data and model in the training function, or mount a volume in the runtime",
    "podTemplateOverrides": _OVERRIDES,
    "podSpecOverrides": _OVERRIDES,
}
"""Fields of a TrainJob that the operator does not carry out, with what to do instead."""


class Refusal(NamedTuple):
    """Why a TrainJob cannot be run."""

    message: str


@dataclass(frozen=True, slots=True)
class Child:
    """The job that runs a TrainJob."""

    resource: Resource
    labels: Json
    annotations: Json
    spec: Json
    """Without `runPolicy.suspend`."""

    @property
    def fingerprint(self) -> str:
        """A hash of everything that it was made of."""
        content = msgspec.json.encode([self.labels, self.annotations, self.spec], order="deterministic")
        return hashlib.blake2s(content, digest_size=16).hexdigest()

    def manifest(self, job: Unstructured, *, suspend: bool) -> Json:
        """The object, owned by the TrainJob."""
        owner = owner_reference(TRAIN_JOBS.api_version, TRAIN_JOBS.kind, job.metadata.name, job.metadata.uid)
        own = {SPEC_HASH: self.fingerprint, SUSPENDED_AS: "true" if suspend else "false"}
        return {
            "apiVersion": self.resource.api_version,
            "kind": self.resource.kind,
            "metadata": {
                "name": job.metadata.name,
                "namespace": job.metadata.namespace,
                "labels": self.labels,
                "annotations": {**self.annotations, **own},
                "ownerReferences": [owner],
            },
            # Without `true` the field is left to Kueue.
            "spec": {**self.spec, "runPolicy": {**self.spec["runPolicy"], **({"suspend": True} if suspend else {})}},
        }


class _Trainer(NamedTuple):
    """What is read of `spec.trainer`."""

    nodes: int | None
    processes: str
    resources: Json
    container: Json
    """Fields that replace those of the container."""
    env: list[Json]


def translate(job: Unstructured, raw_runtime: Json) -> Child | Refusal:
    """The job to make of a TrainJob and its runtime, whatever they contain."""
    fields = Fields()
    if job.fault is not None:
        fields.unreadable(*job.fault)
    spec = fields.mapping("spec", job.raw.get("spec"))
    for name, instead in _ELSEWHERE.items():
        if spec.get(name) not in (None, [], {}):
            fields.forbidden(f"spec.{name}", f"not supported: {instead}")
    deadline = fields.integer(
        "spec.activeDeadlineSeconds", spec.get("activeDeadlineSeconds"), minimum=1, maximum=2**63 - 1
    )
    labels, annotations = (fields.mapping(f"spec.{name}", spec.get(name)) for name in ("labels", "annotations"))
    runtime = read_runtime(fields, raw_runtime)
    if not fields.errors:
        runtime = apply_patches(fields, runtime, spec.get("runtimePatches"))
    trainer = _read_trainer(fields, fields.mapping("spec.trainer", spec.get("trainer")))
    if fields.errors:
        return Refusal(sentence(fields.errors, fields.more))
    child = _MAKERS[runtime.source](job.metadata.name, runtime, trainer)
    if deadline is not None:
        child.spec["runPolicy"]["activeDeadlineSeconds"] = deadline
    own = {name: value for name, value in job.metadata.annotations.items() if name != LAST_APPLIED}
    return Child(
        child.resource,
        {**runtime.labels, **labels, **job.metadata.labels},
        {**runtime.annotations, **annotations, **own, TRAIN_NODE: NODE},
        child.spec,
    )


def _read_trainer(fields: Fields, raw: Json) -> _Trainer:
    at = "spec.trainer"
    env = [
        fields.mapping(f"{at}.env[{i}]", each) for i, each in enumerate(fields.sequence(f"{at}.env", raw.get("env")))
    ]
    for place, each in enumerate(env):
        if each.get("name") in _RESERVED:
            fields.forbidden(f"{at}.env[{place}].name", f"the operator sets {each['name']}")
    resources = fields.mapping(f"{at}.resourcesPerNode", raw.get("resourcesPerNode"))
    for name in ("limits", "requests"):
        fields.mapping(f"{at}.resourcesPerNode.{name}", resources.get(name))
    words = {name: fields.sequence(f"{at}.{name}", raw.get(name)) for name in ("command", "args")}
    image = fields.text(f"{at}.image", raw.get("image"))
    return _Trainer(
        nodes=fields.integer(f"{at}.numNodes", raw.get("numNodes"), minimum=1, maximum=100_000),
        processes=_read_processes(fields, f"{at}.numProcPerNode", raw.get("numProcPerNode")),
        resources=resources,
        container={name: value for name, value in {"image": image, **words}.items() if value},
        env=env,
    )


def _read_processes(fields: Fields, at: str, value: object) -> str:
    """A number, or a word of torchrun; empty if not given."""
    if value is None:
        return ""
    if value in ("auto", "cpu", "gpu") or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return str(value)
    fields.invalid(at, value, "must be auto, cpu, gpu or a number from 1")
    return ""


# The kinds of jobs ----------------------------------------------------------------------------------------------------


class _Made(NamedTuple):
    resource: Resource
    spec: Json


def _torch(name: str, runtime: Runtime, trainer: _Trainer) -> _Made:
    """Workers only, so that the job ends when all nodes have, and torchrun's own variables."""
    rank = {"fieldRef": {"fieldPath": f"metadata.labels['{COMPLETION_INDEX}']"}}
    variables = [
        variable("PET_MASTER_ADDR", f"{name}-worker-0"),
        variable("PET_MASTER_PORT", MASTER_PORT),
        {"name": "PET_NODE_RANK", "valueFrom": rank},
    ]
    given = trainer.processes or str(runtime.policy.get("numProcPerNode") or "auto")
    processes = count_processes(given, trainer.resources)
    made = _workers(PYTORCH.replica_specs, name, runtime, trainer, variables)
    return _Made(PYTORCH.resource, {**made, "nprocPerNode": processes})


def _jax(name: str, runtime: Runtime, trainer: _Trainer) -> _Made:
    return _Made(JAX.resource, _workers(JAX.replica_specs, name, runtime, trainer, []))


_MAKERS: dict[str, Callable[[str, Runtime, _Trainer], _Made]] = {"torch": _torch, "jax": _jax}


def _workers(replica_specs: str, name: str, runtime: Runtime, trainer: _Trainer, variables: list[Json]) -> Json:
    node = runtime.jobs[NODE]
    template = pod_template(name, NODE, node, trainer, variables)
    policy = restart_policy(node)
    workers = {"replicas": trainer.nodes or runtime.nodes, "restartPolicy": policy, "template": template}
    run_policy = {"cleanPodPolicy": "Running", "backoffLimit": node.backoff_limit}
    return {replica_specs: {"Worker": workers}, "runPolicy": run_policy}


def restart_policy(job: NodeJob) -> str:
    """A batch Job restarts what fails up to its limit, with the policy `Never` too."""
    given = (job.template.get("spec") or {}).get("restartPolicy")
    return "Never" if given == "Never" and not job.backoff_limit else "OnFailure"


def pod_template(name: str, step: str, job: NodeJob, trainer: _Trainer, variables: list[Json]) -> Json:
    """The pods of one of `replicatedJobs`, with the labels of the SDK and, if it trains, what the TrainJob says."""
    metadata, spec = job.template.get("metadata") or {}, dict(job.template["spec"])
    labels = {**(metadata.get("labels") or {}), JOBSET_NAME: name, REPLICATED_JOB: step}
    if job.trains:
        labels[ANCESTOR] = TRAINER
    spec.pop("restartPolicy", None)
    spec["containers"] = [
        _container(each, job, trainer, variables) if each.get("name") == NODE else each for each in spec["containers"]
    ]
    return {"metadata": {**metadata, "labels": labels}, "spec": spec}


def _container(container: Json, job: NodeJob, trainer: _Trainer, variables: list[Json]) -> Json:
    changed = dict(container)
    if job.trains:
        changed |= trainer.container
        if trainer.resources:
            changed["resources"] = trainer.resources
        changed["env"] = merge_by_name(container.get("env"), trainer.env)
    return {**changed, "env": merge_by_name(changed.get("env"), variables)}


def count_processes(given: str, resources: Json) -> str:
    """torchrun's processes per node (trainer `pkg/runtime/framework/plugins/torch`): if the node's resources are
    stated, `cpu`, and `auto` without any GPU, are its number of CPUs."""
    amounts = resources.get("limits") or resources.get("requests") or {}
    has_gpu = any("gpu" in each.lower() for each in amounts)
    if "cpu" not in amounts or not (given == "cpu" or (given == "auto" and not has_gpu)):
        return given
    try:
        return str(max(1, math.ceil(exact_amount(amounts["cpu"]))))
    except ValueError:
        return given  # the API server refuses the pod, and says why
