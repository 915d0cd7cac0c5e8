"""The ClusterTrainingRuntimes that are shipped (trainer `manifests/base/runtimes`)."""

from __future__ import annotations

from typing import Any

from trainop.kinds.trainjob.names import ANCESTOR, CLUSTER_RUNTIMES, FRAMEWORK, NODE, TRAINER
from trainop.runtime import Json

TORCH_IMAGE = "pytorch/pytorch:2.7.1-cuda12.8-cudnn9-runtime"
JAX_IMAGE = "nvcr.io/nvidia/jax:25.10-py3"
SCRATCH = "/tmp/trainop-node"  # noqa: S108  # a mount point in containers


def shipped_runtimes(*, scratch: bool = False) -> list[Json]:
    """torch-distributed and jax-distributed. With `scratch`, nodes work in an empty folder of their own: on a machine
    where images are not used, all would share one otherwise, and the SDK writes the training function to a file there.
    """
    return [
        _runtime("torch", {"torch": {}}, TORCH_IMAGE, scratch=scratch),
        _runtime("jax", {"jax": {}}, JAX_IMAGE, scratch=scratch),
    ]


def _runtime(framework: str, policy: Json, image: str, *, scratch: bool) -> Json:
    container: dict[str, Any] = {"name": NODE, "image": image}
    pod: dict[str, Any] = {"containers": [container]}
    if scratch:
        container |= {"workingDir": SCRATCH, "volumeMounts": [{"name": "scratch", "mountPath": SCRATCH}]}
        pod["volumes"] = [{"name": "scratch", "emptyDir": {}}]
    template = {"metadata": {"labels": {ANCESTOR: TRAINER}}, "spec": {"template": {"spec": pod}}}
    return {
        "apiVersion": CLUSTER_RUNTIMES.api_version,
        "kind": CLUSTER_RUNTIMES.kind,
        "metadata": {"name": f"{framework}-distributed", "labels": {FRAMEWORK: framework}},
        "spec": {
            "mlPolicy": {"numNodes": 1, **policy},
            "template": {"spec": {"replicatedJobs": [{"name": NODE, "template": template}]}},
        },
    }
