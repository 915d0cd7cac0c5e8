"""A job that restarts in place in `trainop run`: its pods keep their volumes, which new pods would not."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.patience import PATIENCE

BEGINS = "is restarting in place because"
PROGRAM = """
import os, socket, sys, time
rank, marker = int(os.environ["PROCESS_ID"]), "/scratch/has-been-here"
host, port = os.environ["COORDINATOR_ADDRESS"], int(os.environ["COORDINATOR_PORT"])
if rank == 0:
    server = socket.create_server((host, port))
    link = server.accept()[0]
else:
    while True:
        try:
            link = socket.create_connection((host, port))
            break
        except OSError:
            time.sleep(0.05)
again = os.path.exists(marker)
open(marker, "w").close()
link.sendall(b"1" if again else b"0")
if link.recv(1) != (b"1" if again else b"0"):
    sys.exit("one of the two pods is new")
if again:
    while not os.path.exists("TOLD"):
        time.sleep(0.05)
    print("both pods have been here before", flush=True)
    sys.exit(0)
if rank == 1:
    sys.exit(CODE)  # the first failure
link.recv(1)
sys.exit(CODE)  # its consequence
"""


@pytest.mark.parametrize(("policy", "code"), [("OnFailure", 3), ("ExitCode", 133)])
def test_both_ranks_restart_in_their_pods(tmp_path: Path, policy: str, code: int) -> None:
    told = tmp_path / "told"
    command = [sys.executable, "-c", PROGRAM.replace("CODE", str(code)).replace("TOLD", str(told))]
    container = {
        "name": "jax",
        "image": "none",
        "command": command,
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    }
    pod = {"containers": [container], "volumes": [{"name": "scratch", "emptyDir": {}}]}
    worker = {"replicas": 2, "restartPolicy": policy, "template": {"spec": pod}}
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "JAXJob",
        "metadata": {"name": "ring", "annotations": {"trainop.kubeflow.org/restart-mode": "in-place"}},
        "spec": {"jaxReplicaSpecs": {"Worker": worker}, "runPolicy": {"backoffLimit": 1}},
    }
    (file := tmp_path / "job.json").write_text(json.dumps(job))
    run = subprocess.Popen(
        [sys.executable, "-m", "trainop", "run", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    ending = threading.Timer(2 * PATIENCE, run.kill)
    ending.daemon = True
    ending.start()
    output = ""
    with run:
        assert run.stdout is not None
        for line in run.stdout:
            output += line
            if BEGINS in line:
                told.touch()  # the ranks do not end before the operator has seen that they restarted
    ending.cancel()
    assert run.returncode == 0, output
    assert output.count("both pods have been here before") == 2
    assert "RestartModeIgnored" not in output
