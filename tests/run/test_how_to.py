"""The manifests and commands of docs/how-to.md; what needs more than this machine is checked, planned and applied."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.run.test_tour import cluster, environment  # fixtures

__all__ = ["cluster", "environment"]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
MANIFESTS = {text.splitlines()[0].removeprefix("# "): text for kind, text in BLOCK.findall(PAGE) if kind == "yaml"}
"""File name -> text."""
SCRIPTS = [text.splitlines() for kind, text in BLOCK.findall(PAGE) if kind == "sh"]
HERE = [line for lines in SCRIPTS if lines[0] != "# on a cluster" for line in lines]
ON_A_CLUSTER = [line for lines in SCRIPTS if lines[0] == "# on a cluster" for line in lines[1:]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in MANIFESTS.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def trainop(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "trainop", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout


def test_every_manifest_has_a_name_and_each_is_accepted(folder: Path):
    assert len(MANIFESTS) == PAGE.count("```yaml")
    assert all(re.fullmatch(r"[a-z]+\.yaml", name) for name in MANIFESTS)
    for name in MANIFESTS:
        assert " is valid" in trainop(folder, "check", name)
        assert " Pods" in trainop(folder, "plan", name)


def test_the_commands_for_this_machine_work(folder: Path):
    said = {line: trainop(folder, *line.split()[1:]) for line in HERE}
    run = said["trainop run checkpoints.yaml"]
    assert len(re.findall(r"^worker-. +begins$", run, re.MULTILINE)) == 2
    assert len(re.findall(r"^worker-. +continues from step 4$", run, re.MULTILINE)) == 2
    assert len(re.findall(r"^worker-. +sum 31$", run, re.MULTILINE)) == 2
    assert "ended by SIGKILL (exit code 137)" in run


def test_the_commands_for_a_cluster_work_on_one(cluster: dict[str, str], folder: Path):  # the fixture
    def kubectl(command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", command], cwd=folder, env=cluster, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    for name in MANIFESTS:
        assert "created (server dry run)" in kubectl(f"kubectl apply --dry-run=server -f {name}")
    kubectl("kubectl apply -f checkpoints.yaml")
    for line in ON_A_CLUSTER:
        assert line.startswith("kubectl ")
        assert re.search(r"^(jaxjob|secret)\S+ (patched|created)", kubectl(line)), line
    kubectl("kubectl wait jaxjob checkpoints --for=condition=Succeeded --timeout=100s")
    assert "sum 31" in kubectl("kubectl logs checkpoints-worker-0")
