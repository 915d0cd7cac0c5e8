"""`trainop run` and `trainop check` as processes: what they read, and how they end."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from tests.patience import PATIENCE
from trainop.commands.check import check_command
from trainop.run.commands import run_command


def job(script: str = "echo $GREETING", **metadata: Any) -> dict[str, Any]:
    source = {"configMapKeyRef": {"name": "texts", "key": "greeting"}}
    container: Any = {"name": "pytorch", "image": "none", "command": ["sh", "-c", script]}
    container |= {"env": [{"name": "GREETING", "valueFrom": source}]}
    roles = {"Master": {"restartPolicy": "Never", "template": {"spec": {"containers": [container]}}}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": metadata,
        "spec": {"pytorchReplicaSpecs": roles},
    }


TEXTS = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "texts"}, "data": {"greeting": "good morning"}}


def trainop(*args: str | Path, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trainop", *map(str, args)]
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_run_reads_standard_input_with_several_documents():
    done = trainop("run", "--network=addresses", "-", given=yaml.safe_dump_all([TEXTS, job(name="first")]))
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^master-0 +good morning$", done.stdout, re.MULTILINE)


def test_run_reads_several_files_and_gives_jobs_their_names(tmp_path: Path):
    (tmp_path / "texts.yaml").write_text(yaml.safe_dump(TEXTS))
    (tmp_path / "jobs.yaml").write_text(yaml.safe_dump_all([job(generateName="try-"), job(generateName="try-")]))
    done = trainop("run", "--network=addresses", tmp_path / "texts.yaml", tmp_path / "jobs.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    ended = re.findall(r"^(try-[a-z0-9]{5}) +Succeeded", done.stdout, re.MULTILINE)
    assert len(set(ended)) == 2, done.stdout


def test_check_names_the_valid_jobs(tmp_path: Path):
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump_all([TEXTS, job(name="first")]))
    done = trainop("check", path, "-", given=yaml.safe_dump(job(generateName="try-")))
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    assert first == f"{path}:8: PyTorchJob first is valid"
    assert re.fullmatch(r"standard input:1: PyTorchJob try-[a-z0-9]{5} is valid", second)


@pytest.mark.parametrize("command", [("check", "-"), ("run", "-"), ("run", "--network=addresses", "-")])
def test_both_refuse_misspelt_fields_of_templates(command: tuple[str, ...]):
    wrong = job(name="first")
    wrong["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]["resource"] = {}
    text = yaml.safe_dump(wrong)
    done = trainop(*command, given=text)
    number, shown = next((n, each) for n, each in enumerate(text.splitlines(), 1) if "resource:" in each)
    line = f"{number}:{shown.index('resource') + 1}"
    at = "spec.pytorchReplicaSpecs.Master.template.spec.containers[0].resource"
    assert done.stderr == (f'standard input:{line}: error: {at}: unknown field, did you mean "resources"?\n')
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize("command", ["check", "run"])
def test_an_empty_standard_input_is_an_error(command: str):
    done = trainop(command, "-")
    assert done.returncode == 2
    assert done.stderr.startswith("standard input: empty; expected objects with apiVersion")


@pytest.mark.parametrize("command", [run_command, check_command], ids=str)
def test_ctrl_c_ends_the_wait_for_standard_input(command: click.Command, monkeypatch: pytest.MonkeyPatch):
    def interrupt() -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr("trainop.run.documents._read_standard_input", interrupt)
    assert CliRunner().invoke(command, ["-"]).exit_code == 130


def test_check_warns_at_the_command_and_the_job_stays_valid(tmp_path: Path):
    wrong = job(name="first")
    container = wrong["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]
    container["command"] = ["python", "absent.py", "torchrun"]
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(wrong))
    quiet, local = trainop("check", path), trainop("check", "--local", path)
    assert (quiet.returncode, quiet.stderr) == (0, "")
    assert local.returncode == 0
    assert re.search(r"^\S+job.yaml:\d+:\d+: warning: spec\S+command: absent.py does not exist in this", local.stderr)
    assert local.stdout == quiet.stdout
    container["command"] = ["torchrun", "--nnodes=3", "t.py"]
    path.write_text(yaml.safe_dump(wrong))
    assert "warning: spec.pytorchReplicaSpecs.Master.template" in trainop("check", path).stderr
