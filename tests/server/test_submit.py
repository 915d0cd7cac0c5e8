"""`trainop submit` on a real API server: what it creates, and what the server says of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from e2e.cluster.controlplane import ControlPlane
from tests.patience import PATIENCE
from tests.server.world import World

Done = subprocess.CompletedProcess[str]


@pytest.fixture
def command(control_plane: ControlPlane, tmp_path: Path) -> list[str]:
    (tmp_path / "train.py").write_text("print('größe')\n", encoding="utf-8")
    options = [str(tmp_path / "train.py"), "--image=none", "--nproc=2", f"--kubeconfig={control_plane.kubeconfig}"]
    return [sys.executable, "-m", "trainop", "submit", *options]


def run(command: list[str], *options: str) -> Done:
    return subprocess.run([*command, *options], capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_the_script_belongs_to_its_job(world: World, command: list[str]):
    done = run(command, "-n", world.namespace, "--detach")
    assert (done.returncode, done.stderr) == (0, "")
    world.wait_pods("train-master-0", "train-worker-0")
    (config,) = (
        each
        for each in world.ask("GET", "/api/v1/namespaces/{namespace}/configmaps")["items"]
        if each["metadata"]["name"].startswith("train-script-")
    )
    (owner,) = config["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("PyTorchJob", world.job("train")["metadata"]["uid"])
    assert config["data"] == {"train.py": "print('größe')\n"}
    (volume,) = (each for each in world.pods()["train-worker-0"]["spec"]["volumes"] if each["name"] == "script")
    assert volume["configMap"]["name"] == config["metadata"]["name"]
    again = run(command, "-n", world.namespace)
    assert (again.returncode, again.stdout) == (2, "")
    assert f"PyTorchJob train exists already in namespace {world.namespace}" in again.stderr


def test_the_end_of_the_job_is_the_end_of_the_command(world: World, command: list[str]):
    with subprocess.Popen([*command, "-n", world.namespace], stderr=subprocess.PIPE, text=True) as process:
        world.wait_pods("train-master-0", "train-worker-0")
        world.run_pod("train-master-0", "train-worker-0")
        world.wait_condition("Running", "train")
        world.end_pod("train-worker-0")
        world.end_pod("train-master-0")
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    assert "--- PyTorchJob train Succeeded: " in said


def test_a_namespace_that_is_not_there_is_named(world: World, command: list[str]):
    done = run(command, "-n", f"{world.namespace}-absent")
    assert (done.returncode, done.stdout) == (2, "")
    assert f'namespaces "{world.namespace}-absent" not found' in done.stderr
