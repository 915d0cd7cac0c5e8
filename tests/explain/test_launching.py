"""Launch commands: what the documentation of each launcher says it does in the pods of each kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainop.explain.launching import find_contradictions, find_missing_here
from trainop.programs.schemes import FRAMEWORKS
from trainop.run.documents import read

EXAMPLES = Path(__file__).parents[2] / "examples"
Json = dict[str, Any]


def job(kind: str, command: list[str] | str, *, workers: int = 3, role: str = "", **spec: Any) -> Json:
    words = command.split() if isinstance(command, str) else command
    names = {"PyTorchJob": ("pytorchReplicaSpecs", "Master"), "MPIJob": ("mpiReplicaSpecs", "Launcher")}
    roles, leader = names.get(kind, (f"{kind.removesuffix('Job').lower()}ReplicaSpecs", "Chief"))
    entry = {"replicas": 1, "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}
    specs = {leader: entry, "Worker": {**entry, "replicas": workers}} if workers else {leader: entry}
    chosen = role or leader
    started = {"name": "c", "image": "i", "command": words}
    specs[chosen] = {**specs[chosen], "template": {"spec": {"containers": [started]}}}
    return {"kind": kind, "metadata": {"name": "j"}, "spec": {roles: specs, **spec}}


TORCH, MPI = "PyTorchJob", "MPIJob"
WRONG = [
    (job(TORCH, "torchrun --nnodes=2 train.py"), "--nnodes=2 contradicts the 4 pods of the job; leave it out"),
    (job(TORCH, "torchrun --nnodes 2 train.py"), "--nnodes=2 contradicts"),
    (job(TORCH, "python -m torch.distributed.run --nnodes=2 t.py"), "--nnodes=2 contradicts"),
    (job(TORCH, "python3.11 -m torch.distributed.launch --nnodes 1 t.py"), "--nnodes=1 contradicts"),
    (job(TORCH, "/opt/bin/torchrun --nnodes=8 t.py"), "--nnodes=8 contradicts"),
    (job(TORCH, ["sh", "-c", "set -e\nexec torchrun --nnodes=2 t.py"]), "--nnodes=2 contradicts"),
    (job(TORCH, ["bash", "-lc", "cd /x && A=b torchrun \\\n  --nnodes=2 t.py"]), "--nnodes=2 contradicts"),
    (job(TORCH, "torchrun --nproc-per-node=4 t.py"), "set spec.nprocPerNode: 4"),
    (job(TORCH, "torchrun --nproc_per_node 4 t.py", nprocPerNode="2"), "contradicts spec.nprocPerNode"),
    (job(TORCH, "torchrun --standalone t.py"), "--standalone starts a group of its own in each of the 4 pods"),
    (job(TORCH, "torchrun --node-rank=0 t.py"), "--node-rank is the same in each pod"),
    (job(TORCH, "torchrun --node_rank 1 t.py", role="Worker"), "--node-rank is the same in each pod"),
    (job(TORCH, "torchrun --master-addr=localhost t.py"), "the rendezvous is at localhost"),
    (job(TORCH, "torchrun --rdzv-endpoint 127.0.0.1:29500 t.py"), "the rendezvous is at localhost"),
    *((job(kind, "torchrun t.py"), f"torchrun gets no rendezvous in a {kind}") for kind in ("TFJob", "JAXJob")),
    *((job(kind, "mpirun -np 4 x"), f"mpirun has no hosts in a {kind}") for kind in (TORCH, "XGBoostJob")),
    (job(TORCH, "horovodrun -np 4 python t.py"), "horovodrun has no hosts in a PyTorchJob"),
    (job(MPI, "mpirun -H localhost:3 x"), "mpirun runs on localhost only, not on the 3 workers"),
    (job(MPI, "mpirun --host localhost x"), "mpirun runs on localhost only"),
    (job(MPI, "mpirun x", role="Worker"), "mpirun in the workers starts a group in each; start it in the Launcher"),
    (job(MPI, "mpirun.mpich -n 3 x"), "MPICH's mpirun.mpich has no hosts"),
    (job(MPI, "mpiexec.hydra x", mpiImplementation="OpenMPI"), "MPICH's mpiexec.hydra has no hosts"),
    (job(MPI, "horovodrun -np 3 python t.py"), "horovodrun has no hosts, and runs in the launcher only"),
    (job(MPI, "mpirun -np 4 x"), "-np 4 is more than the 3 workers have slots"),
    (job(MPI, "mpirun.openmpi -n 7 x", slotsPerWorker=2), "-np 7 is more than the 3 workers have slots"),
    (job(TORCH, "accelerate launch t.py"), "accelerate launch takes each of the 4 pods for the only machine"),
    (job("JAXJob", "python -m accelerate.commands.launch t.py"), "accelerate launch takes each"),
    (job(TORCH, "deepspeed t.py"), "deepspeed without a hostfile uses this pod only"),
    (job(MPI, "deepspeed t.py"), "give --hostfile=/etc/mpi/hostfile in an MPIJob"),
]
RIGHT = [
    job(TORCH, "torchrun t.py"),
    job(TORCH, "torchrun --nnodes=4 t.py"),
    job(TORCH, "torchrun --nnodes=$PET_NNODES t.py"),
    job(TORCH, "torchrun --nnodes=1:4 t.py", elasticPolicy={}),
    job(TORCH, "torchrun --nproc-per-node=4 t.py", nprocPerNode="4"),
    job(TORCH, "torchrun --nproc-per-node=gpu t.py", nprocPerNode="gpu"),
    job(TORCH, "torchrun --nproc-per-node=4 t.py", nprocPerNode="gpu"),
    job(TORCH, "torchrun --master-addr=$MASTER_ADDR t.py"),
    job(TORCH, "torchrun --standalone t.py", workers=0),
    job(TORCH, "torchrun t.py --nnodes=9 --standalone"),
    job(TORCH, "python train.py --nnodes=9"),
    job(TORCH, ["sh", "-c", "# torchrun --nnodes=9\necho 'torchrun --nnodes=9'"]),
    job(TORCH, ["sh", "-c", "torchrun 'unbalanced --nnodes=9"]),
    job("TFJob", "torchrun --rdzv-endpoint=j-chief-0:1 t.py"),
    job("TFJob", "torchrun t.py", workers=0),
    job(TORCH, "mpirun -H a,b x"),
    job(MPI, "mpirun -np 3 x"),
    job(MPI, "mpirun -np 9 --oversubscribe x"),
    job(MPI, "mpirun -np 6 x", slotsPerWorker=2),
    job(MPI, "mpirun.mpich -n 3 x", mpiImplementation="MPICH"),
    job(MPI, "mpirun.mpich -f /etc/mpi/hostfile x"),
    job(MPI, "horovodrun -np 2 --host-discovery-script /etc/mpi/discover_hosts.sh python t.py"),
    job(TORCH, "accelerate launch --num_machines=4 --machine_rank=$RANK t.py"),
    job(TORCH, "accelerate config"),
    job(MPI, "deepspeed --hostfile=/etc/mpi/hostfile t.py"),
    job(TORCH, []),
]


@pytest.mark.parametrize(("wrong", "said"), WRONG, ids=range(len(WRONG)))
def test_a_contradiction_is_one_line_at_the_command(wrong: Json, said: str):
    (line,) = find_contradictions(wrong)
    assert said in line
    assert ".template.spec.containers[0].command: " in line


@pytest.mark.parametrize("right", RIGHT, ids=range(len(RIGHT)))
def test_what_works_is_no_contradiction(right: Json):
    assert list(find_contradictions(right)) == []


@pytest.mark.parametrize(
    "path", sorted(EXAMPLES.rglob("*.yaml")), ids=lambda path: path.relative_to(EXAMPLES).as_posix()
)
def test_no_example_is_warned_about(path: Path):
    for document in read([path]):
        assert list(find_contradictions(document.raw)) == []


@pytest.mark.parametrize(
    "spec", [None, [], 7, {"a": {"template": {"spec": {"containers": [7, {"command": 7}]}}}}], ids=str
)
def test_what_is_no_spec_has_no_contradictions(spec: Any):
    assert list(find_contradictions({"kind": "PyTorchJob", "spec": spec})) == []


@pytest.mark.parametrize("kind", FRAMEWORKS)
def test_every_kind_is_looked_into(kind: str):
    """accelerate is wrong in several pods of every kind."""
    assert len(list(find_contradictions(job(kind, "accelerate launch t.py")))) == 1


@pytest.mark.parametrize(
    ("container", "said"),
    [
        ({"command": ["python", "train.py"]}, "train.py does not exist in this folder"),
        ({"command": ["python", "-u", "there.py"]}, ""),
        ({"command": ["python", "-m", "train"]}, ""),
        ({"command": ["python", "$(SCRIPT)"]}, ""),
        ({"command": ["python", "/code/x.py"], "volumeMounts": [{"mountPath": "/code"}]}, ""),
        ({"command": ["python", "x.py"], "workingDir": "/w"}, "x.py does not exist in /w"),
        ({"command": ["pyhton", "there.py"]}, "pyhton is not found on this machine"),
        ({"command": ["$(PYTHON)", "there.py"]}, ""),
        ({"args": ["--x"]}, "does not use the image i, and its command is unknown"),
        ({}, "does not use the image i"),
    ],
    ids=range(10),
)
def test_what_this_machine_lacks(container: Json, said: str):
    made = {"name": "c", "image": "i", **container}
    raw = {"spec": {"xReplicaSpecs": {"Worker": {"template": {"spec": {"containers": [made]}}}}}}
    lines = list(find_missing_here(raw, lambda name, _: name == "python", lambda name, _: name == "there.py"))
    assert [said in line for line in lines] == [True] * bool(said), lines
