"""Runs the tour of the README with the commands from the README itself."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.needs import KUBECTLS, need_program
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]


def tour() -> list[list[str]]:
    """The commands of each block of the tour, without their comments."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.split("## A tour in 60 seconds\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return [[line.split("  #")[0].strip() for line in block.splitlines()] for block in blocks]


@pytest.fixture(params=KUBECTLS)
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """The environment of a shell with the project's virtual environment active and one version of `kubectl`."""
    program = need_program(request.param)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "kubectl").symlink_to(program)
    path = os.pathsep.join((str(tmp_path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]))
    return {**os.environ, "PATH": path, "HOME": str(tmp_path)}


@pytest.fixture
def cluster(environment: dict[str, str], tmp_path: Path) -> Iterator[dict[str, str]]:
    """Run `trainop cluster` of the first block; yields the environment with the KUBECONFIG that it printed."""
    command = next(line for line in tour()[0] if line.startswith("trainop cluster"))
    out = tmp_path / "out"
    with out.open("w") as file:
        process = subprocess.Popen(command.split(), cwd=ROOT, env=environment, stdout=file, stderr=file)
    try:
        end = time.monotonic() + PATIENCE
        while (found := re.search(r"^export KUBECONFIG=(.+)\n", out.read_text(), re.MULTILINE)) is None:
            assert process.poll() is None, out.read_text()
            assert time.monotonic() < end, out.read_text()
            time.sleep(0.05)
        yield {**environment, "KUBECONFIG": found[1]}
        assert process.poll() is None, out.read_text()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)


def read_until(process: subprocess.Popen[str], pattern: str) -> None:
    """Read the output of a running command up to a line that matches the pattern."""
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if re.search(pattern, line):
            return
    raise AssertionError(f"it ended without {pattern}: {seen}")


ENDS = [
    (r"apply -f examples/pytorch/train.yaml", r"^pytorchjob.kubeflow.org/train created$"),
    (r"get pytorchjobs,pods", r"^pytorchjob.kubeflow.org/train +"),
    (r"logs -f train-master-0", r"^done: weights \w+$"),
    (r"trainop why train", r"^PyTorchJob train in namespace default: Succeeded"),
    (r"describe pytorchjob train", r"PyTorchJobSucceeded"),
]
GOES_ON = (r"get pytorchjobs -w", r"train +Succeeded")


def test_every_command_beside_the_cluster_works(cluster: dict[str, str]):
    wanted = dict([*ENDS, GOES_ON])
    lines = tour()[1]
    assert {line.removeprefix("kubectl ") for line in lines} == set(wanted)
    for line in lines:
        pattern = wanted[line.removeprefix("kubectl ")]
        command = ["timeout", "120", "bash", "-c", f"exec {line}"]
        with subprocess.Popen(
            command, cwd=ROOT, env=cluster, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            if line.endswith("-w"):
                read_until(process, pattern)
                process.terminate()
            else:
                said, _ = process.communicate()
                assert process.returncode == 0, (line, said)
                assert re.search(pattern, said, re.MULTILINE), (line, said)


def test_the_commands_without_kubectl_are_there_and_a_module_trains():
    lines = [line.partition(" && ")[0] for line in tour()[0]]
    assert lines[0] == "make demo"  # tests/test_examples.py runs the same
    assert re.search(r"^demo:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    made = "trainop run -m examples.pytorch.train --nproc 4"
    assert lines[1:] == ["trainop run examples/pytorch/train.yaml", made, "trainop ps", "trainop cluster"]
    command = [sys.executable, "-m", *made.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "worker-2" in done.stdout


def test_the_namespace_of_training_operator_is_there(cluster: dict[str, str]):
    command = "kubectl apply -n kubeflow -f examples/pytorch/train.yaml"
    done = subprocess.run(command.split(), cwd=ROOT, env=cluster, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "pytorchjob.kubeflow.org/train created\n"), done.stderr


def test_the_manifests_are_applied_as_the_tour_says(cluster: dict[str, str]):
    first, second = tour()[2]
    assert first == "kubectl apply --server-side -k manifests/crds"
    assert second == "kubectl apply --server-side -k manifests/overlays/standalone"
    for command, said in (
        (first, "customresourcedefinition.apiextensions.k8s.io/pytorchjobs.kubeflow.org serverside-applied"),
        (second, "deployment.apps/training-operator serverside-applied"),
    ):
        done = subprocess.run(
            command.split(), cwd=ROOT, env=cluster, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        assert said in done.stdout
