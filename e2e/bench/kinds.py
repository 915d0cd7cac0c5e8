"""The job kinds of the benchmark: resource, manifest, and which pods' success completes a job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from e2e.bench.node import SimulatedPod
from trainop.kinds.mpi.transport import MPI_V1, MPI_V2
from trainop.runtime.objects.metadata import Json, Resource


@dataclass(frozen=True, slots=True)
class JobKind:
    resource: Resource
    container: str
    """Name of the container in every pod."""
    make: Callable[[str, int, str], Json]
    """Returns the manifest for a name, a number of workers, and their restart policy."""
    ends: Callable[[SimulatedPod], bool]
    """Whether the success of this pod is needed for the job to succeed."""
    controllers: tuple[str, ...] = ()
    """The controllers of kube-controller-manager that it needs."""


def container(name: str) -> Json:
    return {
        "name": name,
        "image": "busybox:1.36",
        "command": ["sh", "-c", "sleep 1d"],
        "env": [{"name": "EPOCHS", "value": "10"}, {"name": "DATA", "value": "/data"}],
        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
    }


def _replicas(count: int, name: str, policy: str) -> Json:
    return {"replicas": count, "restartPolicy": policy, "template": {"spec": {"containers": [container(name)]}}}


def _pytorch(name: str, workers: int, policy: str) -> Json:
    policy = policy or "OnFailure"
    specs = {"Master": _replicas(1, "pytorch", policy), "Worker": _replicas(workers, "pytorch", policy)}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {"pytorchReplicaSpecs": specs},
    }


def _mpi(version: str) -> Callable[[str, int, str], Json]:
    def make(name: str, workers: int, policy: str) -> Json:
        policy = policy or "Never"
        specs = {"Launcher": _replicas(1, "mpi", policy), "Worker": _replicas(workers, "mpi", policy)}
        return {
            "apiVersion": version,
            "kind": "MPIJob",
            "metadata": {"name": name},
            "spec": {"slotsPerWorker": 1, "mpiReplicaSpecs": specs},
        }

    return make


def _is_launcher(pod: SimulatedPod) -> bool:
    """The launcher of transport exec is the master of its job."""
    return pod.role in {"launcher", "master"}


PYTORCH = JobKind(Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob"), "pytorch", _pytorch, lambda _: True)
MPI_SSH = JobKind(MPI_V2, "mpi", _mpi(MPI_V2.api_version), _is_launcher, controllers=("job-controller",))
MPI_EXEC = JobKind(MPI_V1, "mpi", _mpi(MPI_V1.api_version), _is_launcher)
