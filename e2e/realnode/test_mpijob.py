"""MPIJob: Open MPI and MPICH in containers, over sshd and by kubectl exec."""

from __future__ import annotations

import re

import pytest

from e2e.realnode.derived import delivery
from e2e.realnode.proof import Proof
from e2e.realnode.training import check_loss

V1, V2 = "mpijobs.v1.kubeflow.org", "mpijobs.v2beta1.kubeflow.org"
PI = r"pi is 3\.14159265"


def launcher(proof: Proof) -> str:
    (name,) = [pod["metadata"]["name"] for pod in proof.pods() if "-launcher" in pod["metadata"]["name"]]
    return str(name)


def check_training(proof: Proof, job: str) -> None:
    log = proof.logs(launcher(proof))
    said = sorted(set(re.findall(r"rank (\d) of 2 on (\S+), (Open MPI v\S+)", log)))
    assert [(rank, host.split(".")[0]) for rank, host, _ in said] == [
        ("0", f"{job}-worker-0"),
        ("1", f"{job}-worker-1"),
    ], log
    proof.framework(f"{said[0][2]}, mpi4py")
    check_loss(proof, log)
    assert "done: weights" in log
    proof.expect(
        "one rank on each worker, equal weights", ", ".join(f"rank {rank} on {host}" for rank, host, _ in said)
    )


@pytest.mark.images("openmpi")
def test_training_over_ssh(proof: Proof) -> None:
    """mpi4py with Open MPI over ssh: gradients are averaged by Allreduce"""
    proof.apply("examples/mpi/train.yaml", image="openmpi")
    proof.wait_for(f"{V2}/train-mpi", "Running")
    proof.wait_for(f"{V2}/train-mpi", "Succeeded")
    check_training(proof, "train-mpi")


@pytest.mark.images("openmpi")
def test_training_by_exec(proof: Proof) -> None:
    """mpi4py with Open MPI, started by kubectl exec with the rights of the launcher's service account"""
    proof.cluster.import_image(delivery())
    program = {"examples/mpi/pi.py, openmpi": "examples/mpi/train.py", "cleanPodPolicy: All": "cleanPodPolicy: Running"}
    proof.apply("examples/mpi/exec.yaml", image="openmpi", replace=program)
    proof.wait_for(f"{V1}/pi-exec", "Running")
    proof.wait_for(f"{V1}/pi-exec", "Succeeded")
    check_training(proof, "pi-exec")


@pytest.mark.images("mpich")
def test_mpich_over_ssh(proof: Proof) -> None:
    """MPICH over ssh computes pi on two workers"""
    proof.apply("examples/mpi/mpich.yaml", image="mpich")
    proof.wait_for(f"{V2}/pi-mpich", "Running")
    version = re.search(r"Version:\s+(\S+)", proof.exec("pi-mpich-worker-0", "mpirun.mpich", "--version"))
    assert version
    proof.framework(f"MPICH {version[1]}")
    proof.wait_for(f"{V2}/pi-mpich", "Succeeded")
    log = proof.logs(launcher(proof))
    assert re.search(PI, log), log
    hosts = sorted(re.findall(r"rank (\d) of 2 on (\S+)", log))
    assert [host for _, host in hosts] == ["pi-mpich-worker-0", "pi-mpich-worker-1"], log
    proof.expect("pi, one rank on each worker", ", ".join(f"rank {rank} on {host}" for rank, host in hosts))
