"""How commands run: what serves for long gets the event loop of a server."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest
import uvloop

from tests.patience import PATIENCE
from trainop.cli import LAZY, cli
from trainop.commands.options import run_command

JOB = """apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: train}
spec:
  pytorchReplicaSpecs:
    Worker: {replicas: 1, template: {spec: {containers: [{name: pytorch, image: x}]}}}
"""
ARGUMENTS = {
    "check": ["job.yaml"],
    "describe": ["pytorchjob/train"],
    "logs": ["pytorchjob/train"],
    "plan": ["job.yaml", "--diff=cluster"],
    "ps": [],
    "stacks": ["pytorchjob/train"],
    "submit": ["job.yaml"],
    "top": [],
    "ui": [],
    "why": ["pytorchjob/train"],
}
"""Of every command that speaks with a cluster; some ask it only if told to."""


@pytest.mark.parametrize("serves", [False, True])
def test_what_serves_for_long_has_a_fast_loop_and_short_pauses(serves: bool, request: pytest.FixtureRequest):
    threshold = gc.get_threshold()
    request.addfinalizer(gc.unfreeze)
    request.addfinalizer(lambda: gc.set_threshold(*threshold))
    loops: list[bool] = []

    async def work() -> int:
        loops.append(isinstance(asyncio.get_running_loop(), uvloop.Loop))
        return 3

    with pytest.raises(SystemExit) as ended:
        run_command(work(), serves=serves)
    assert (ended.value.code, loops, gc.get_threshold() != threshold) == (3, [serves], serves)


def test_all_commands_that_speak_with_a_cluster_are_known():
    context = click.Context(cli)
    known = {name: cli.get_command(context, name) for name in LAZY}
    takes = {name for name, found in known.items() if found and "kubeconfig" in {each.name for each in found.params}}
    assert takes == ARGUMENTS.keys()


@pytest.mark.parametrize("command", sorted(ARGUMENTS.keys() - {"ui"}))  # which serves a page that says it
def test_an_api_server_that_is_away_is_one_line_on_stderr(command: str, tmp_path: Path):
    """Its requests are repeated, which is nobody's business: the output may be for a program."""
    (tmp_path / "job.yaml").write_text(JOB)
    with socket.socket() as bound:  # and does not listen
        bound.bind(("127.0.0.1", 0))
        (tmp_path / "config").write_text(
            '{"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],'
            f'"clusters": [{{"name": "c", "cluster": {{"server": "http://127.0.0.1:{bound.getsockname()[1]}"}}}}],'
            '"users": [{"name": "u", "user": {}}]}'
        )
        done = subprocess.run(
            [sys.executable, "-m", "trainop", command, *ARGUMENTS[command], "--context=c"],
            cwd=tmp_path,
            env={**os.environ, "KUBECONFIG": str(tmp_path / "config"), "XDG_STATE_HOME": str(tmp_path)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    said = done.stderr.strip().splitlines()
    assert done.returncode
    assert "retrying" not in done.stdout
    assert said[-1].count("Connection refused") == 1, done
    assert len(said) == 1, done
