"""From a TrainJob and its runtime to the job that runs it: a PyTorchJob or JAXJob, whose pods bear the labels by
which the SDK finds them (trainer `pkg/runtime/framework/plugins`)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from trainop.engine.extensions import TRAIN_NODE
from trainop.engine.fields import Fields, sentence
from trainop.kinds.mpi.transport import MPI_V2, SSH, TRANSPORT
from trainop.kinds.trainjob.names import NODE, SPEC_HASH, SUSPENDED_AS, TRAIN_JOBS
from trainop.kinds.trainjob.nodes import MAKERS
from trainop.kinds.trainjob.patches import apply_patches
from trainop.kinds.trainjob.runtime import Runtime, read_runtime
from trainop.kinds.trainjob.trainer import Trainer, read_trainer
from trainop.runtime import Json, Resource, Unstructured, owner_reference

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
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
    trainer = read_trainer(fields, fields.mapping("spec.trainer", spec.get("trainer")))
    _check_mpi(fields, runtime, trainer)
    if fields.errors:
        return Refusal(sentence(fields.errors, fields.more))
    child = MAKERS[runtime.source](job.metadata.name, runtime, trainer)
    if deadline is not None:
        child.spec["runPolicy"]["activeDeadlineSeconds"] = deadline
    own = {name: value for name, value in job.metadata.annotations.items() if name != LAST_APPLIED}
    return Child(
        child.resource,
        {**runtime.labels, **labels, **job.metadata.labels},
        {**runtime.annotations, **annotations, **own, **_marks(child.resource)},
        child.spec,
    )


def _marks(resource: Resource) -> Json:
    """The annotations that the operator adds."""
    return {TRAIN_NODE: NODE, **({TRANSPORT: SSH} if resource.kind == MPI_V2.kind else {})}


def _check_mpi(fields: Fields, runtime: Runtime, trainer: Trainer) -> None:
    """The values of the policy that the operator reads; those of another type are errors."""
    if runtime.source != "mpi":
        return
    at = "mlPolicy.mpi"
    if trainer.processes and not trainer.processes.isdigit():
        fields.invalid("spec.trainer.numProcPerNode", trainer.processes, "must be a number with mpi")
    fields.integer(f"{at}.numProcPerNode", runtime.policy.get("numProcPerNode"), minimum=1)
    fields.flag(f"{at}.runLauncherAsNode", runtime.policy.get("runLauncherAsNode"))
    fields.text(f"{at}.sshAuthMountPath", runtime.policy.get("sshAuthMountPath"))
    known = ("OpenMPI", "Intel", "MPICH")
    fields.choice(f"{at}.mpiImplementation", runtime.policy.get("mpiImplementation"), known, "OpenMPI")
