"""MPIJob: Open MPI and MPICH in containers, over sshd and by kubectl exec."""

from __future__ import annotations

import json
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


def check_training(proof: Proof, job: str, library: str = r"Open MPI v\S+") -> None:
    log = proof.logs(launcher(proof))
    said = sorted(set(re.findall(rf"rank (\d) of 2 on (\S+), ({library})", log)))
    assert [(rank, host.split(".")[0]) for rank, host, _ in said] == [
        ("0", f"{job}-worker-0"),
        ("1", f"{job}-worker-1"),
    ], log
    proof.framework(said[0][2])
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


@pytest.mark.images("horovod")
def test_horovod(proof: Proof) -> None:
    """Horovod with PyTorch and Open MPI over ssh: gradients are averaged by its optimizer"""
    proof.apply("examples/mpi/horovod.yaml", image="horovod")
    proof.wait_for(f"{V2}/train-horovod", "Running")
    proof.wait_for(f"{V2}/train-horovod", "Succeeded")
    check_training(proof, "train-horovod", r"Horovod \S+, PyTorch \S+")


@pytest.mark.images("horovod")
def test_elastic_horovod(proof: Proof) -> None:
    """Elastic Horovod: training goes on with another worker and with fewer, found by discover_hosts.sh"""
    job = f"{V2}/horovod-elastic"
    proof.apply("examples/mpi/horovod-elastic.yaml", image="horovod", replace={"--steps=300": "--steps=1000000"})
    proof.wait_for(job, "Running")
    step = reach(proof, 2, after=0)
    version = proof.wait_for_log(launcher(proof), r"Horovod \S+, PyTorch \S+")
    proof.framework(f"{version[0]}, horovodrun")
    for workers in (3, 1):
        patch = json.dumps({"spec": {"mpiReplicaSpecs": {"Worker": {"replicas": workers}}}})
        proof.kubectl("patch", job, "--type=merge", f"--patch={patch}")
        step = reach(proof, workers, after=step)
        proof.expect(f"scaled to {workers} by kubectl patch", f"{workers} ranks go on at step {step}")
    proof.exec("horovod-elastic-worker-0", "touch", "/tmp/stop")
    proof.wait_for(job, "Succeeded")
    assert "done: weights" in proof.logs(launcher(proof))


def reach(proof: Proof, world: int, after: int) -> int:
    """Waits until so many ranks train after a step, and returns the step that they have reached."""

    def found() -> int:
        steps = re.findall(r"step +(\d+) loss \S+ with (\d+) ranks", proof.logs(launcher(proof)))
        return max((int(step) for step, ranks in steps if int(ranks) == world and int(step) > after), default=0)

    # the kubelet updates the launcher's list of hosts about once a minute
    return int(proof.wait_until(found, f"{world} ranks train after step {after}"))
