"""The documentation of annotations and of TF_CONFIG matches the code."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.controllers.kinds import env, make, pods_of
from trainop.engine.extensions import (
    AVOID_BAD_NODES,
    BAD_NODE_AFTER,
    BAD_NODE_FOR,
    BAD_NODES,
    CHECKPOINT_GRACE,
    GANG_CLAIMS,
    GANG_DISRUPTION,
    GANG_TOPOLOGY,
    INFRA_RESTART_LIMIT,
    MODES,
    ON_DISRUPTION,
    RESTART_MODE,
    RESTART_SCOPE,
    SCOPES,
    SERVICE_MODE,
    TRAIN_NODE,
)
from trainop.engine.progress import AUTHORITY, PROGRESS
from trainop.engine.restart_history import RESTARTS
from trainop.engine.stalls import ON_STALL, STALLED_AFTER
from trainop.engine.startup import ON_STARTUP_DEADLINE, STARTUP_DEADLINE
from trainop.engine.steps.checkpoints import AWAITED
from trainop.engine.steps.companions import FINGERPRINT
from trainop.engine.steps.rights import GRANTED_AT
from trainop.kinds.dijob.names import ADMISSION, JOURNAL, REPLICAS, REQUEST, REQUESTED
from trainop.kinds.mpi.hosts import HOSTS_AT
from trainop.kinds.mpi.ssh.annotations import CLEAN_LAUNCHER, OPEN_MPI_VERSION, REMOTE_SHELL, REPLACE_FAILED
from trainop.kinds.mpi.transport import TRANSPORT
from trainop.kinds.tf_config import CLUSTER_FILE
from trainop.kinds.trainjob.names import SPEC_HASH, SUSPENDED_AS

DOCS = Path(__file__).parents[2] / "docs"


def test_every_annotation_is_described_with_its_values():
    text = (DOCS / "annotations.md").read_text()
    rows = {cells[1].strip(" `"): cells[2] for line in text.splitlines() if len(cells := line.split("|")) == 5}
    assert [value for value in SCOPES if f"`{value}`" not in rows[RESTART_SCOPE]] == []
    assert [value for value in MODES if f"`{value}`" not in rows[SERVICE_MODE]] == []
    assert "whole number" in rows[INFRA_RESTART_LIMIT]
    assert set(re.findall(r"`(trainop\.kubeflow\.org/[a-z-]+)`", text)) == {
        RESTART_SCOPE,
        RESTART_MODE,
        SERVICE_MODE,
        INFRA_RESTART_LIMIT,
        CHECKPOINT_GRACE,
        ON_DISRUPTION,
        AVOID_BAD_NODES,
        BAD_NODE_AFTER,
        BAD_NODE_FOR,
        BAD_NODES,
        GANG_TOPOLOGY,
        GANG_DISRUPTION,
        GANG_CLAIMS,
        AWAITED,
        PROGRESS,
        AUTHORITY,
        STALLED_AFTER,
        ON_STALL,
        STARTUP_DEADLINE,
        ON_STARTUP_DEADLINE,
        RESTARTS,
        FINGERPRINT,
        TRANSPORT,
        REMOTE_SHELL,
        CLEAN_LAUNCHER,
        REPLACE_FAILED,
        OPEN_MPI_VERSION,
        HOSTS_AT,
        TRAIN_NODE,
        SPEC_HASH,
        SUSPENDED_AS,
        GRANTED_AT,
        JOURNAL,
        REQUEST,
        REQUESTED,
        REPLICAS,
        ADMISSION,
    }


@pytest.mark.parametrize("workers", [2, 5000])
def test_the_documented_lines_read_tf_config(workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    text = (DOCS / "tf-config.md").read_text()
    assert CLUSTER_FILE in text
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    cluster = {"worker": [f"big-worker-{i}.ns.svc:2222" for i in range(workers)]}
    mounted = tmp_path / "cluster.json"
    mounted.write_text(json.dumps(cluster))
    value = env(pods_of(make("TFJob", {"Worker": workers}, name="big"))["big-worker-1"])["TF_CONFIG"]
    assert (CLUSTER_FILE in value) == (workers == 5000)
    monkeypatch.setenv("TF_CONFIG", value.replace(CLUSTER_FILE, str(mounted)))
    exec(compile(code, "tf-config.md", "exec"), {})  # noqa: S102  # the documentation is run as its readers run it
    task = {"type": "worker", "index": 1}
    assert json.loads(os.environ["TF_CONFIG"]) == {"cluster": cluster, "task": task, "environment": "cloud"}
