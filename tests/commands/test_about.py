"""`trainop version` and `trainop completion`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import trainop
from tests.patience import PATIENCE
from trainop.kept.folder import create_run


def run(*args: str, **variables: str) -> str:
    command = [sys.executable, "-m", "trainop", *args]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, check=True, env={**os.environ, **variables}
    )
    return done.stdout


def test_the_version_is_one_line():
    assert run("version").startswith(f"trainop {trainop.__version__} (Python 3.")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_valid(shell: str, tmp_path: Path):
    text = run("completion", shell)
    assert "_TRAINOP_COMPLETE" in text
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed, which would check its script")
    script = tmp_path / "script"
    script.write_text(text)
    subprocess.run([program, "-n", str(script)], check=True, timeout=PATIENCE)


def test_commands_and_names_of_runs_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    create_run("train", [], [])
    asked = {"_TRAINOP_COMPLETE": "bash_complete"}
    assert "plain,rerun" in run(**asked, COMP_WORDS="trainop re", COMP_CWORD="1")
    for command in ("logs", "why", "describe", "stacks", "attach", "stop", "rerun", "clean"):
        assert "plain,train-1" in run(**asked, COMP_WORDS=f"trainop {command} tr", COMP_CWORD="2")
