"""What `trainop run` says about jobs for which this machine has too little, and which GPUs replicas see."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.patience import PATIENCE
from tests.run.test_run import job
from tests.run.test_starting import waiting, watch
from trainop.local.cluster import ClusterOptions
from trainop.local.scheduler.filters import Leniency
from trainop.run.check import find_jobs
from trainop.run.documents import BadInputError, from_objects
from trainop.run.room import check_room

SEEN = "echo =$CUDA_VISIBLE_DEVICES="


def asking(workers: int = 0, script: str = SEEN, /, **limits: Any) -> dict[str, Any]:
    found = job("gpu", script, workers=workers)
    for role in found["spec"]["pytorchReplicaSpecs"].values():
        role["template"]["spec"]["containers"][0]["resources"] = {"limits": limits}
    return found


def judge(manifest: dict[str, Any], gpus: int = 0, **leniency: bool) -> list[str]:
    """What is said; raises `BadInputError`."""
    said: list[str] = []
    options = ClusterOptions(gpus=[f"gpu-{n}" for n in range(gpus)], leniency=Leniency(**leniency))
    check_room(find_jobs(from_objects([manifest], "job.yaml")), options, said.append)
    return said


def refusal(manifest: dict[str, Any], gpus: int = 0, **leniency: bool) -> str:
    with pytest.raises(BadInputError) as error:
        judge(manifest, gpus, **leniency)
    return str(error.value)


GPU, AMD = "nvidia.com/gpu", "amd.com/gpu"
FIELD = "error: spec.pytorchReplicaSpecs.Master.template.spec.containers: a pod asks for "


@pytest.mark.parametrize(
    ("limits", "gpus", "text"),
    [
        ({GPU: 1}, 0, "1 nvidia.com/gpu; this machine has none. --allow-cpu runs it without"),
        ({GPU: 3}, 2, "3 nvidia.com/gpu; this machine has 2. --allow-cpu runs it without"),
        ({AMD: 1}, 2, "1 amd.com/gpu; this machine has none. --allow-cpu runs it without"),
        ({"cpu": "9k"}, 0, f"9k cpu; this machine has {os.cpu_count()}. --overcommit runs it all the same"),
    ],
)
def test_what_can_never_run_is_refused_with_its_field(limits: dict[str, Any], gpus: int, text: str):
    assert refusal(asking(**limits), gpus).endswith(FIELD + text)
    assert refusal(asking(**limits), gpus).startswith("job.yaml:")


def test_every_role_is_named():
    assert [
        line.partition(".template")[0].rpartition(".")[2] for line in refusal(asking(2, **{GPU: 1})).split("\n")
    ] == [
        "Master",
        "Worker",
    ]


def test_allow_cpu():
    assert judge(asking(3, **{GPU: 8, AMD: 1}), 2, allow_cpu=True) == []


def test_pods_that_wait_for_each_other():
    assert judge(asking(2, **{GPU: 1}), 3) == []
    assert judge(asking(2, **{GPU: 1}), 2) == [
        "the pods ask for 3 nvidia.com/gpu; this machine has 2: some wait until others have ended"
    ]
    assert judge(asking(2, **{GPU: 1}), 2, allow_cpu=True) == judge(asking(2, **{GPU: 1}), 2)


def test_pods_that_share_processors():
    processors = os.cpu_count() or 1
    greedy = asking(1, cpu=processors)
    ask = f"the pods ask for {2 * processors} cpu; this machine has {processors}"
    assert judge(greedy, overcommit=True) == [
        f"{ask}: they share it, and --no-overcommit lets them wait as in a cluster"
    ]
    assert judge(greedy) == [f"{ask}: some wait until others have ended"]
    assert judge(asking(cpu=1), overcommit=True) == []


async def test_a_job_in_the_queue_is_not_given_up():
    """Only one whose request can never be met counts as failed after the time limit."""
    preemption = "preemption: 0/1 nodes are available: 1"
    reason = f"FailedScheduling: 0/1 nodes are available: 1 Insufficient {GPU}. {preemption}"
    queued, hopeless = waiting("a"), waiting("b")
    queued.replicas["worker-0"].warning = f"{reason} No preemption victims found for incoming pod."
    hopeless.replicas["worker-0"].warning = f"{reason} Preemption is not helpful for scheduling."
    said, ended = await watch([queued, hopeless], limit=25, end=40)
    assert [line.partition(" has")[0] for line in ended] == ["25: PyTorchJob b"]
    assert any(line.startswith("25: worker-0 waits: FailedScheduling") for line in said)


def command(tmp_path: Path, *arguments: str | Path, gpus: str = "") -> subprocess.CompletedProcess[str]:
    inventory = tmp_path / "gpus.txt"
    inventory.write_text(gpus)
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    return subprocess.run(
        [sys.executable, "-m", "trainop", "run", "--network=addresses", *arguments],
        env={**environment, "TRAINOP_GPU_INVENTORY": str(inventory), "XDG_STATE_HOME": str(tmp_path / "state")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_replicas_wait_for_gpus_and_get_one_each(tmp_path: Path):
    manifest = tmp_path / "job.yaml"
    manifest.write_text(yaml.safe_dump(asking(2, f"{SEEN}; sleep 1", **{GPU: 1})))
    refused = command(tmp_path, manifest)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "this machine has none" in refused.stderr
    done = command(tmp_path, manifest, gpus="gpu-a\ngpu-b\n")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FailedScheduling: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu." in done.stdout
    seen = sorted(line.split()[-1] for line in done.stdout.splitlines() if "=gpu-" in line)
    assert len(seen) >= 1
    assert set(seen) <= {"=gpu-a=", "=gpu-b="}
    assert "the pods ask for 3 nvidia.com/gpu; this machine has 2" in done.stderr
    without = command(tmp_path, "--allow-cpu", manifest)
    assert (without.returncode, "==" in without.stdout) == (0, True)


@pytest.mark.parametrize(
    ("options", "gpus", "seen"),
    [
        ((), "a\nb\n", ["=a,b="]),
        (("--nproc=2",), "a\nb\nc\nd\n", ["=a,b=", "=c,d="]),
        (("--nproc=2", "--gpus=1"), "a\nb\nc\nd\n", ["=a=", "=b="]),
        (("--nproc=2",), "a\n", ["==", "=="]),
        (("--gpus=0",), "a\n", ["=="]),
    ],
)
def test_the_replicas_of_a_script_share_the_gpus(tmp_path: Path, options: tuple[str, ...], gpus: str, seen: list[str]):
    (tmp_path / "train.py").write_text("import os\nprint(f\"={os.environ['CUDA_VISIBLE_DEVICES']}=\")\n")
    done = command(tmp_path, "train.py", *options, gpus=gpus)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(line.split()[-1] for line in done.stdout.splitlines() if line.endswith("=")) == seen
    assert ("1 GPU for 2 replicas: they run without" in done.stderr) is (options == ("--nproc=2",) and gpus == "a\n")


def test_an_invalid_inventory_is_one_line(tmp_path: Path):
    (tmp_path / "train.py").write_text("")
    done = command(tmp_path, "train.py", gpus="a\na\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"TRAINOP_GPU_INVENTORY: {tmp_path}/gpus.txt:2: 'a': is there twice\n"
