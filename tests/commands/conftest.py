"""Runs the commands as a user does: as processes, beside a `trainop cluster` of the test."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.patience import PATIENCE
from trainop.commands.connection import connect
from trainop.commands.target import job_types

Done = subprocess.CompletedProcess[str]


class Shell:
    """Runs `trainop` and applies objects in one cluster."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        self._folder = folder
        self.environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}

    def run(self, *args: str, stdin: str | None = None) -> Done:
        command = [sys.executable, "-m", "trainop", *args]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=PATIENCE, input=stdin, check=False
        )

    def create(self, text: str) -> None:
        """Creates the job of a manifest."""
        job = yaml.safe_load(text)
        types = {each.resource.kind: each.resource for each in job_types()}
        group, _, version = job["apiVersion"].rpartition("/")
        resource = replace(types[job["kind"]], group=group, version=version)

        async def post() -> None:
            async with connect(self.environment["KUBECONFIG"]) as connection:
                await connection.client.create(resource, job, namespace="default")

        asyncio.run(post())

    def wait_for(self, what: str, condition: Callable[[], Any]) -> Any:
        end = time.monotonic() + PATIENCE
        while not (found := condition()):
            assert time.monotonic() < end, f"{what} did not come: {self.run('ps', '-A').stdout}"
            time.sleep(0.1)
        return found

    def wait_state(self, name: str, state: str) -> None:
        self.wait_for(f"{name} {state}", lambda: re.search(rf"{name} +{state}\b", self.run("ps").stdout))


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A cluster for the tests of one file."""
    folder = tmp_path_factory.mktemp("cluster")
    out = folder / "out"
    command = [sys.executable, "-m", "trainop", "cluster", "--data", str(folder / "data")]
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))  # py-spy is beside the interpreter
    with out.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, "PATH": path})
    try:
        end = time.monotonic() + PATIENCE
        while (found := re.search(r"^export KUBECONFIG=(.+)\n", out.read_text(), re.MULTILINE)) is None:
            assert process.poll() is None, out.read_text()
            assert time.monotonic() < end, out.read_text()
            time.sleep(0.05)
        yield Shell(Path(found[1]), folder)
        assert process.poll() is None, out.read_text()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)


def python_job(
    name: str, programs: dict[str, tuple[int, str]], env: dict[str, str] | None = None, **policy: Any
) -> str:
    """A PyTorchJob as YAML: role -> number of replicas and the Python program that they run, with variables."""
    roles = {}
    variables = [{"name": key, "value": value} for key, value in (env or {}).items()]
    for role, (count, text) in programs.items():
        command = [sys.executable, "-c", text]
        container = {"name": "pytorch", "image": "python:3", "command": command, "env": variables}
        template = {"spec": {"containers": [container]}}
        roles[role] = {"replicas": count, "restartPolicy": "Never", "template": template}
    spec = {"pytorchReplicaSpecs": roles, "runPolicy": policy}
    return yaml.safe_dump(
        {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name}, "spec": spec}
    )
