"""`trainop plan --diff cluster` on a real API server: what was planned is what is stored, also after its defaulting."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from e2e.cluster.controlplane import ControlPlane
from tests.server.kinds import ROWS, KindWorld
from tests.server.process import Operator
from trainop.programs.schemes import FRAMEWORKS


@pytest.mark.parametrize("kind", FRAMEWORKS)
def test_a_running_job_differs_in_nothing_until_its_file_is_edited(
    kind: str, control_plane: ControlPlane, operator: Operator, tmp_path: Path
):
    del operator
    stage, row = KindWorld(control_plane.api, FRAMEWORKS[kind]), ROWS[kind]
    stored = stage.create("p", row.counts)
    pods = stage.wait_pods(*row.names("p"))
    stage.wait(lambda: set(stage.services()) == set(pods), "a service for each pod")
    job = {name: stored[name] for name in ("apiVersion", "kind", "spec")}
    job["metadata"] = {"name": "p", "namespace": stage.namespace}
    file = tmp_path / "job.yaml"

    def diff() -> tuple[int, str]:
        file.write_text(yaml.safe_dump(job), encoding="utf-8")
        command = [sys.executable, "-m", "trainop", "plan", str(file), "--diff", "cluster"]
        done = subprocess.run(
            [*command, "--kubeconfig", str(control_plane.kubeconfig)], capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    assert diff() == (0, "")
    for role in job["spec"][stage.framework.replica_specs].values():
        role["template"]["spec"]["containers"][0]["image"] = "another"
    code, said = diff()
    assert code == 1
    assert "].image: " in said
    assert said.count("-> another") == said.count(":\n")
