"""`docs/quickstart.md` as far as it goes without PyTorch; `make frameworks` runs all its commands, word for word."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from e2e.frameworks.quickstart import PAGE, ROOT, commands

TEXT = PAGE.read_text(encoding="utf-8")


def trainop(line: str, folder: Path = ROOT) -> str:
    """The output of a command of the page, which succeeds."""
    program, *arguments = line.split()
    assert program == "trainop"
    command = [sys.executable, "-m", program, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_are_five_commands_from_pip_to_a_page_and_each_is_explained():
    lines = commands()
    assert len(lines) == 5
    assert "five commands" in TEXT.lower()
    assert lines[0].startswith("pip install ")
    assert {"--nproc 4", "--ui"} <= set(re.findall(r"--nproc \d+|--ui", lines[1]))
    assert re.findall(r"^(\d)\. ", TEXT, re.MULTILINE) == list("12345")


def test_what_is_installed_is_what_the_commands_need():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    installed = commands()[0].split()[2:]
    assert installed[0] == "'.[local]'"
    assert "local" in extras
    script = commands()[1].split()[2]
    text = (ROOT / script).read_text(encoding="utf-8")
    imported = set(re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE)) - set(sys.stdlib_module_names)
    assert imported | {"numpy"} == set(installed[1:]), "the script calls Tensor.numpy()"


def test_the_training_has_four_ranks_and_the_arguments_of_the_page():
    (job,) = yaml.safe_load_all(trainop(commands()[1].replace(" -- ", " --yaml -- ")))
    specs = job["spec"]["pytorchReplicaSpecs"]
    assert sum(spec["replicas"] for spec in specs.values()) == 4
    (container,) = specs["Master"]["template"]["spec"]["containers"]
    assert container["command"] == ["python", "examples/pytorch/ddp.py", "--steps", "3000"]
    assert job["metadata"]["name"] == "ddp"
    for line in commands()[2:4]:
        assert line.split()[2] == "ddp-1", "the name of the first run"


def test_the_last_command_writes_a_job_that_a_cluster_takes(tmp_path: Path):
    line, file = commands()[-1].split(" > ")
    (tmp_path / file).write_text(trainop(line))
    script, job = yaml.safe_load_all((tmp_path / file).read_text())
    assert script["data"] == {"ddp.py": (ROOT / "examples/pytorch/ddp.py").read_text(encoding="utf-8")}
    assert job["kind"] == "PyTorchJob"
    trainop(f"trainop check {tmp_path / file}")


@pytest.mark.parametrize("command", ["logs", "ui"])
def test_the_options_of_the_page_exist(command: str):
    (line,) = (each for each in commands() if each.startswith(f"trainop {command} "))
    options = {word for word in line.split() if word.startswith("--")}
    assert {option for option in options if option not in trainop(f"trainop {command} --help")} == set()
