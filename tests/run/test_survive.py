"""The plain loop of examples/survive in `trainop run`: it is interrupted in all ways, and goes on where it was."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from e2e.survive.examples import loop
from e2e.survive.locally import STALL, running
from e2e.survive.story import Story
from tests.needs import KUBECTLS, need_program
from tests.patience import PATIENCE


def test_the_loop_survives_every_interruption(tmp_path: Path) -> None:
    with running(loop(backend="numpy"), tmp_path, "--network", "addresses") as stage:
        story = Story(stage)
        story.tell(STALL)
    assert [each.how for each in story.told] == ["reported", "preempted", "drained", "restarted", "stalled"]


@pytest.mark.parametrize("name", KUBECTLS)
def test_kubectl_shows_a_job_that_has_stalled_as_running(tmp_path: Path, name: str) -> None:
    program = need_program(name)
    with running(loop(backend="numpy"), tmp_path, "--network", "addresses") as stage:

        def kubectl(*arguments: str) -> str:
            command = [program, "--kubeconfig", str(stage.data / "kubeconfig"), *arguments]
            return subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE, check=True).stdout

        story = Story(stage)
        story.begin()
        kubectl("annotate", "pytorchjob/loop", f"trainop.kubeflow.org/stalled-after={STALL}")
        wait = ("wait", "pytorchjob/loop", f"--timeout={PATIENCE:.0f}s")
        kubectl(*wait, "--for=condition=Stalled=False")
        rank = stage.example.ranks()[1]
        os.kill(rank, signal.SIGSTOP)
        kubectl(*wait, "--for=condition=Stalled")
        header, row = kubectl("get", "pytorchjob", "loop").splitlines()
        assert dict(zip(header.split(), row.split(), strict=False))["STATE"] == "Running"
        assert "NoProgress" in kubectl("describe", "pytorchjob", "loop")
        kubectl(*wait, "--for=condition=Running")
        os.kill(rank, signal.SIGCONT)
        kubectl(*wait, "--for=condition=Stalled=False")
