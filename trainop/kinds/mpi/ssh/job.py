"""An MPIJob with transport ssh, parsed: defaults applied and every rule of mpi-operator checked, in its order.

Rules and messages are those of mpi-operator `pkg/apis/kubeflow/validation/validation.go` and `v2beta1/default.go`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainop.engine.bad_nodes import Avoidance
from trainop.engine.fields import Fields, label_faults
from trainop.engine.gang import policy_class
from trainop.engine.parse import MULTIKUEUE
from trainop.engine.seen import Options
from trainop.kinds.mpi.hosts import (
    MPI_OPERATOR,
    REPLICA_SPECS,
    TRAINING_OPERATOR,
    WORKER,
    check_size,
    size_of_lines,
)
from trainop.kinds.mpi.ssh.annotations import Extras, read_extras
from trainop.kinds.mpi.ssh.replicas import Replicas, choose_one, read_roles
from trainop.runtime import Json, Metadata, Unstructured
from trainop.runtime.lowlevel import FieldError

MANAGERS = (MPI_OPERATOR, TRAINING_OPERATOR)
OPEN_MPI, INTEL, MPICH = "OpenMPI", "Intel", "MPICH"
AT_STARTUP, WHEN_READY = "AtStartup", "WaitForWorkersReady"
DEFAULT_KEY_FOLDER = "/root/.ssh"

_CLEAN_POD_POLICIES = ("All", "None", "Running")


@dataclass(frozen=True, slots=True)
class SshJob:
    """A parsed job. Invalid fields have their defaults."""

    metadata: Metadata
    launcher: Replicas
    worker: Replicas | None
    slots: int
    launcher_works: bool
    """`runLauncherAsWorker`: the launcher is a host, too."""
    key_folder: str
    creation: str
    implementation: str
    clean_pod_policy: str
    suspend: bool
    job_limits: Json
    """`ttlSecondsAfterFinished`, `activeDeadlineSeconds` and `backoffLimit` of the launcher's Job, as far as given."""
    priority_class: str
    """Of the scheduling policy."""
    extras: Extras
    avoidance: Avoidance | None = None
    """The nodes that the pods are kept away from; set by `survey`."""

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def workers(self) -> int:
        return self.worker.count if self.worker else 0

    @property
    def launcher_name(self) -> str:
        return f"{self.name}-launcher"


def parse_ssh(raw: Unstructured, options: Options) -> tuple[SshJob | None, tuple[FieldError, ...]]:
    """The job, None if its replicas are unreadable, and all errors in upstream's order. Never raises."""
    fields = Fields()
    if raw.fault is not None:
        fields.unreadable(*raw.fault)
        return None, fields.errors
    spec = fields.mapping("spec", raw.raw.get("spec"))
    given = spec.get(REPLICA_SPECS)
    specs = fields.mapping(f"spec.{REPLICA_SPECS}", given)
    _check_name(fields, raw.metadata.name, specs)
    launcher, worker = read_roles(fields, specs, missing=given is None)
    facts = _read_facts(fields, spec)
    extras = read_extras(fields, raw.metadata, worker)
    if launcher is None:
        return None, fields.errors
    job = SshJob(raw.metadata, launcher, worker, extras=extras, **facts)
    _check_hosts(fields, job, options)
    return job, fields.errors


def _read_facts(fields: Fields, spec: Json) -> dict[str, Any]:
    """The fields of the job that concern both roles, by name of the attribute, checked in upstream's order."""
    policy = fields.mapping("spec.runPolicy", spec.get("runPolicy"))
    slots = _read_slots(fields, spec)
    clean = choose_one(
        fields, "spec.runPolicy.cleanPodPolicy", policy.get("cleanPodPolicy"), _CLEAN_POD_POLICIES, "None"
    )
    limits = _read_limits(fields, policy)
    gang = fields.mapping("spec.runPolicy.schedulingPolicy", policy.get("schedulingPolicy"))
    fields.integer("spec.runPolicy.schedulingPolicy.minAvailable", gang.get("minAvailable"), minimum=1)
    if policy.get("managedBy"):
        choose_one(fields, "spec.runPolicy.managedBy", policy["managedBy"], (*MANAGERS, MULTIKUEUE), "")
    folder = _read_key_folder(fields, spec)
    implementations = (INTEL, MPICH, OPEN_MPI)
    implementation = choose_one(
        fields, "spec.mpiImplementation", spec.get("mpiImplementation"), implementations, OPEN_MPI
    )
    at = "spec.launcherCreationPolicy"
    creation = choose_one(fields, at, spec.get("launcherCreationPolicy"), (AT_STARTUP, WHEN_READY), AT_STARTUP)
    return {
        "slots": slots,
        "clean_pod_policy": clean,
        "job_limits": limits,
        "key_folder": folder,
        "implementation": implementation,
        "creation": creation,
        "priority_class": policy_class(spec),
        "suspend": fields.flag("spec.runPolicy.suspend", policy.get("suspend")),
        "launcher_works": fields.flag("spec.runLauncherAsWorker", spec.get("runLauncherAsWorker")),
    }


def _check_hosts(fields: Fields, job: SshJob, options: Options) -> None:
    host = f"{job.name}-worker-.{job.name}.{job.metadata.namespace}.svc.{options.mpi_cluster_domain}"
    lines = (f"{host} slots={job.slots}\n", f"echo {host}\n")
    check_size(fields, sum(size_of_lines(job.workers, len(line)) for line in lines), job.workers)


def _check_name(fields: Fields, name: str, specs: Json) -> None:
    """The name of the last worker is a host name, and that of the job a service's."""
    worker = specs.get(WORKER)
    count = worker.get("replicas") if isinstance(worker, dict) else None
    count = count if isinstance(count, int) and count > 0 else 1
    host = f"{name}-worker-{count - 1}"
    if wrong := label_faults(host):
        detail = f'will not able to create pod and service with invalid DNS label "{host}": {", ".join(wrong)}'
        fields.invalid("metadata.name", name, detail)


def _read_slots(fields: Fields, spec: Json) -> int:
    slots = fields.integer("spec.slotsPerWorker", spec.get("slotsPerWorker"), minimum=0)
    return 1 if slots is None else slots


def _read_limits(fields: Fields, policy: Json) -> Json:
    maxima = {"ttlSecondsAfterFinished": 2**31 - 1, "activeDeadlineSeconds": 2**63 - 1, "backoffLimit": 2**31 - 1}
    read = {
        name: fields.integer(f"spec.runPolicy.{name}", policy.get(name), minimum=0, maximum=maximum)
        for name, maximum in maxima.items()
    }
    return {name: value for name, value in read.items() if value is not None}


def _read_key_folder(fields: Fields, spec: Json) -> str:
    given = spec.get("sshAuthMountPath")
    folder = DEFAULT_KEY_FOLDER if given is None else fields.text("spec.sshAuthMountPath", given)
    if not folder:
        fields.required("spec.sshAuthMountPath", "must have a mount path for SSH credentials")
    return folder or DEFAULT_KEY_FOLDER
