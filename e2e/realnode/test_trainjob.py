"""TrainJobs: the table of `make test-trainer`, beside kubelet, containerd and PyTorch's own torchrun."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.realnode.cluster import NAMESPACE, OPERATOR, PATIENCE, RealCluster
from e2e.realnode.images import ROOT
from e2e.realnode.proof import Proof, replace_images
from e2e.trainer import VERSION, command, environment
from trainop.kinds.trainjob.runtimes import JAX_IMAGE, TORCH_IMAGE, shipped_runtimes

SECONDS = 900.0
PLURALS = ("trainjobs", "trainingruntimes", "clustertrainingruntimes")
MPI_RUNTIME = "openmpi"
"""A TrainingRuntime for an image whose sshd is root's; those in `manifests/runtimes` name images with a user for it."""


def openmpi(image: str) -> dict[str, Any]:
    """The TrainingRuntime that `trainop cluster` has for images of any user, with this image."""
    name = "deepspeed-distributed"
    (found,) = (each for each in shipped_runtimes(scratch=True) if each["metadata"]["name"] == name)
    replace_images(found, image)
    return {**found, "kind": "TrainingRuntime", "metadata": {**found["metadata"], "name": MPI_RUNTIME}}


@contextlib.contextmanager
def train_jobs(cluster: RealCluster) -> Iterator[None]:
    """CRDs, runtimes with images of this node, rights and scheme, as docs/kinds/trainjob.md says."""
    images = {TORCH_IMAGE: cluster.load("torch"), JAX_IMAGE: cluster.load("base")}
    crds = str(ROOT / "manifests" / "crds-trainjob")
    cluster.kubectl("apply", "--server-side", "-k", crds)
    names = [f"crd/{plural}.trainer.kubeflow.org" for plural in PLURALS]
    cluster.kubectl("wait", "--for=condition=Established", f"--timeout={PATIENCE:.0f}s", *names)
    with tempfile.TemporaryDirectory(prefix="trainop-e2e-") as folder:
        named = [
            {"name": old.rpartition(":")[0], "newName": new.rpartition(":")[0], "newTag": new.rpartition(":")[2]}
            for old, new in images.items()
        ]
        runtimes = os.path.relpath(ROOT / "manifests" / "runtimes", Path(folder).resolve())
        own = {"kind": "Kustomization", "resources": [runtimes], "images": named}
        Path(folder, "kustomization.yaml").write_text(yaml.safe_dump(own))
        cluster.kubectl("apply", "--server-side", "-k", folder)
    cluster.install("train-jobs")
    patch = [{"op": "add", "path": "/spec/template/spec/containers/0/command/-", "value": "--enable-scheme=TrainJob"}]
    try:
        cluster.kubectl(f"--namespace={NAMESPACE}", "patch", OPERATOR, "--type=json", f"--patch={json.dumps(patch)}")
        cluster.kubectl(f"--namespace={NAMESPACE}", "rollout", "status", OPERATOR, f"--timeout={PATIENCE:.0f}s")
        yield
    finally:
        cluster.install()
        cluster.kubectl("delete", "-k", crds)


@pytest.mark.images("torch", "openmpi")
def test_every_call(proof: Proof) -> None:
    """Every call of TrainerClient does what its documentation promises: torch, jax and mpi, on several nodes"""
    cluster = proof.cluster
    with train_jobs(cluster):
        proof.kubectl("apply", "--filename=-", stdin=yaml.safe_dump(openmpi(cluster.load("openmpi"))))
        arguments = (f"--namespace={proof.namespace}", f"--image={cluster.load('base')}", "--cpu=100m")
        program = command(environment(), cluster.node.kubeconfig, *arguments, f"--mpi={MPI_RUNTIME}")
        done = subprocess.run(
            [*cluster.node.inside(), *program], capture_output=True, text=True, timeout=SECONDS, check=False
        )
    proof.framework(f"kubeflow {VERSION}")
    for line in done.stdout.splitlines():
        proof.expect("a part of the table", line)
    assert done.returncode == 0, done.stdout + done.stderr + proof.describe()
