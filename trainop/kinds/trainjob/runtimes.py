"""The ClusterTrainingRuntimes that are shipped (trainer `manifests/base/runtimes`)."""

from __future__ import annotations

from typing import Any

from trainop.engine.framework import variable
from trainop.kinds.trainjob.names import ANCESTOR, CLUSTER_RUNTIMES, FRAMEWORK, LAUNCHER, NODE, TRAINER
from trainop.runtime import Json

TORCH_IMAGE = "pytorch/pytorch:2.7.1-cuda12.8-cudnn9-runtime"
JAX_IMAGE = "nvcr.io/nvidia/jax:25.10-py3"
MPI_IMAGES = {"deepspeed": "ghcr.io/kubeflow/trainer/deepspeed-runtime", "mlx": "ghcr.io/kubeflow/trainer/mlx-runtime"}
SCRATCH = "/tmp/trainop-node"  # noqa: S108  # a mount point in containers
MPI_HOME = "/home/mpiuser"
"""Where the images of MPI have their files, and the SDK writes the training function to."""

_LOCAL_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mca_base_env_list": "PATH",  # over ssh processes would have that of a login
}
_SSH_CLIENT = "ssh-client"
_SSH_CONFIG = "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n"
"""What images of MPI contain. An annotation of the pod has it, which a volume shows as a file."""
_TRAINS: Json = {"metadata": {"labels": {ANCESTOR: TRAINER}}}


def shipped_runtimes(*, scratch: bool = False) -> list[Json]:
    """The runtimes for torch, jax, deepspeed and mlx. With `scratch`, nodes work in an empty folder of their own: on a
    machine where images are not used, all would share one otherwise, and the SDK writes the training function to a file
    there. With MPI they then have the sshd of the machine."""
    found = [
        _runtime("torch", {"torch": {}}, [_job(NODE, {"image": TORCH_IMAGE}, scratch=scratch)]),
        _runtime("jax", {"jax": {}}, [_job(NODE, {"image": JAX_IMAGE}, scratch=scratch)]),
    ]
    return [*found, *(_mpi_runtime(name, image, scratch=scratch) for name, image in MPI_IMAGES.items())]


def _mpi_runtime(framework: str, image: str, *, scratch: bool) -> Json:
    policy: Json = {"numProcPerNode": 1, "mpiImplementation": "OpenMPI", "runLauncherAsNode": True}
    launcher: Json = {"image": image}
    node: Json = {"image": image}
    if scratch:
        launcher["env"] = [variable(name, value) for name, value in _LOCAL_MPI.items()]
    else:
        policy["sshAuthMountPath"] = f"{MPI_HOME}/.ssh"
        launcher["securityContext"] = {"runAsUser": 1000}
        node |= {
            "securityContext": {"runAsUser": 1000},
            "command": ["/usr/sbin/sshd"],
            "args": ["-De", "-f", f"{MPI_HOME}/.sshd_config"],
            "readinessProbe": {"tcpSocket": {"port": 2222}, "initialDelaySeconds": 5},
        }
    folders = (SCRATCH, MPI_HOME)
    first = _job(LAUNCHER, launcher, *folders, scratch=scratch)
    second = _job(NODE, node, *folders, scratch=scratch, trains=False)
    return _runtime(framework, {"mpi": policy}, [first, second])


def _job(name: str, fields: Json, *folders: str, scratch: bool, trains: bool = True) -> Json:
    container: dict[str, Any] = {"name": NODE, **fields}
    pod: dict[str, Any] = {"containers": [container]}
    if scratch:
        mounts = {f"scratch-{number}": path for number, path in enumerate(folders or (SCRATCH,))}
        container["workingDir"] = SCRATCH
        container["volumeMounts"] = [{"name": volume, "mountPath": path} for volume, path in mounts.items()]
        pod["volumes"] = [{"name": volume, "emptyDir": {}} for volume in mounts]
    pod_template: Json = {"spec": pod}
    if scratch and folders:
        pod_template["metadata"] = {"annotations": {_SSH_CLIENT: _SSH_CONFIG}}
        source = {"path": "pods.conf", "fieldRef": {"fieldPath": f"metadata.annotations['{_SSH_CLIENT}']"}}
        pod["volumes"].append({"name": _SSH_CLIENT, "downwardAPI": {"items": [source]}})
        container["volumeMounts"].append({"name": _SSH_CLIENT, "mountPath": "/etc/ssh/ssh_config.d"})
    template = {**(_TRAINS if trains else {}), "spec": {"template": pod_template}}
    return {"name": name, "template": template}


def _runtime(framework: str, policy: Json, jobs: list[Json]) -> Json:
    return {
        "apiVersion": CLUSTER_RUNTIMES.api_version,
        "kind": CLUSTER_RUNTIMES.kind,
        "metadata": {"name": f"{framework}-distributed", "labels": {FRAMEWORK: framework}},
        "spec": {"mlPolicy": {"numNodes": 1, **policy}, "template": {"spec": {"replicatedJobs": jobs}}},
    }
