"""A job of three replicas on the embedded cluster that save on SIGTERM: one of them is evicted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import yaml

from tests.commands.conftest import Shell, python_job
from trainop.commands.connection import connect
from trainop.runtime import PODS
from trainop.runtime.lowlevel import Request

TRAINS = """
import os, pathlib, signal, sys, time
folder, rank = pathlib.Path(os.environ["FOLDER"]), os.environ["RANK"]
saved = folder / f"rank-{rank}"
step = int(saved.read_text()) if saved.exists() else 0
def save(signal_number, frame):
    time.sleep(1)  # longer than the grace period of the template
    saved.write_text(str(step))
    print(f"saved step {step}", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print(f"begins at step {step}", flush=True)
while not (folder / "enough").exists():
    step += 1
    time.sleep(0.05)
"""


def evict(shell: Shell, name: str) -> None:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "default"}}

    async def post() -> None:
        async with connect(shell.environment["KUBECONFIG"]) as connection:
            path = PODS.path("default", name, "eviction")
            await connection.client.request(Request("POST", path, body=msgspec.json.encode(body)))

    asyncio.run(post())


def test_all_replicas_save_and_training_continues(shell: Shell, tmp_path: Path):
    job = yaml.safe_load(python_job("saves", {"Master": (1, TRAINS), "Worker": (2, TRAINS)}, {"FOLDER": str(tmp_path)}))
    prefix = "trainop.kubeflow.org/"
    job["metadata"]["annotations"] = {f"{prefix}checkpoint-grace": "30s", f"{prefix}on-disruption": "checkpoint-all"}
    for role in job["spec"]["pytorchReplicaSpecs"].values():
        role["template"]["spec"]["terminationGracePeriodSeconds"] = 0
    shell.create(yaml.safe_dump(job))
    shell.wait_for("3 replicas", lambda: shell.run("logs", "saves").stdout.count("begins at step 0") == 3)
    evict(shell, "saves-worker-1")
    files = [tmp_path / f"rank-{rank}" for rank in range(3)]
    shell.wait_for("3 checkpoints", lambda: all(file.exists() and file.read_text() for file in files))
    steps = [int(file.read_text()) for file in files]
    assert min(steps) > 0
    begun = [f"begins at step {step}" for step in steps]
    shell.wait_for("3 new replicas", lambda: all(text in shell.run("logs", "saves").stdout for text in begun))
    (tmp_path / "enough").touch()
    shell.wait_state("saves", "Succeeded")
    why = shell.run("describe", "saves").stdout
    assert "evicted by another client" in why
