"""No example trains if the environment that the operator injects is wrong, so that its success is evidence.

Each row runs an example that succeeds in the test of its kind, with one variable changed in one pod before the program
starts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from e2e.realnode.derived import delivery
from e2e.realnode.images import ROOT
from e2e.realnode.proof import Json, Proof
from e2e.realnode.training import logs_of

DEADLINE = 60
"""Seconds after which a job that waits for a rank fails. The trainings of the rows need 15 to 40 s."""
STARTED = "the environment is wrong"
LATE = "active longer than specified deadline"


@dataclass(frozen=True)
class Wrong:
    name: str
    example: str
    job: str
    image: str
    pod: str
    """Host name of the pod whose environment is changed."""
    change: str
    """Shell command that changes it."""
    end: str
    """Regular expression of what is said then, by a program or by the condition Failed."""


V1, V2 = "mpijobs.v1.kubeflow.org", "mpijobs.v2beta1.kubeflow.org"
ROWS = (
    Wrong("pytorch-rank", "pytorch/ddp.yaml", "pytorchjob/ddp", "torch", "ddp-worker-0", "export RANK=2", LATE),
    Wrong(
        "pytorch-alone", "pytorch/ddp.yaml", "pytorchjob/ddp", "torch", "ddp-master-0", "export WORLD_SIZE=1",
        r"the ranks are \[0\]",
    ),
    Wrong(
        "tensorflow-index", "tensorflow/multiworker.yaml", "tfjob/multiworker", "tensorflow", "multiworker-worker-1",
        """export TF_CONFIG="$(echo "$TF_CONFIG" | sed 's/"index": *1/"index":0/')" """,
        "unexpectedly tried to connect|CoordinationServiceError",
    ),
    Wrong(
        "xgboost-rank", "xgboost/train.yaml", "xgboostjob/train-xgboost", "xgboost", "train-xgboost-worker-1",
        "export RANK=1", r"the ranks are counted \[1\. 2\. 0\.\]",
    ),
    Wrong(
        "jax-process", "jax/data_parallel.yaml", "jaxjob/data-parallel", "jax", "data-parallel-worker-2",
        "export PROCESS_ID=1", "JAX distributed service detected fatal errors",
    ),
    Wrong(
        "paddle-alone", "paddle/data_parallel.yaml", "paddlejob/data-parallel", "paddle", "data-parallel-worker-0",
        "export PADDLE_NNODES=1", "The global group is not initialized",
    ),
    Wrong(
        "mxnet-role", "mxnet/kvstore.yaml", "mxjob/kvstore", "mxnet", "kvstore-worker-1", "export DMLC_ROLE=server",
        f"van.cc.*Check failed|{LATE}",
    ),
    Wrong(
        "mpi-hosts", "mpi/train.yaml", f"{V2}/train-mpi", "openmpi", "train-mpi-launcher",
        "export OMPI_MCA_orte_default_hostfile=/dev/null", "not enough slots|all ranks are on",
    ),
    Wrong(
        "mpi-exec-agent", "mpi/exec.yaml", f"{V1}/pi-exec", "openmpi", "pi-exec-launcher",
        "export OMPI_MCA_plm_rsh_agent=/bin/false", "ORTE was unable to reliably start one or more daemons",
    ),
    Wrong(
        "dijob-server", "dijob/cartpole.yaml", "dijob/cartpole", "base", "cartpole-coordinator",
        "export KUBERNETES_SERVER_URL=http://127.0.0.1:1", "ConnectionRefusedError",
    ),
)  # fmt: skip


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name, marks=pytest.mark.images(row.image)) for row in ROWS])
def test_a_wrong_variable(proof: Proof, row: Wrong) -> None:
    """A variable that is wrong in one pod: the job fails"""
    if row.job.startswith(V1):
        proof.cluster.import_image(delivery())
    proof.apply(yaml.safe_dump_all(changed(row)), image=row.image)
    logs: dict[str, str] = {}

    def look() -> str:
        end = end_of(proof.job(row.job))
        logs.update(logs_of(proof))  # after that, so that they have the last lines
        return end

    proof.wait_until(lambda: look() or STARTED in "".join(logs.values()), f"the program of {row.pod} has started")
    end = str(proof.wait_until(look, "the job has ended"))
    assert end.startswith("Failed"), proof.describe()
    text = "\n".join((*logs.values(), end))
    assert STARTED in text, text
    found = re.search(row.end, text)
    assert found, text
    proof.expect(f"{row.change.strip()} in {row.pod}: the job fails", f"{end}; {found[0]}")


def changed(row: Wrong) -> list[Json]:
    """The objects of the example, with the changed environment, no retries and a deadline."""
    text = (ROOT / "examples" / row.example).read_text(encoding="utf-8")
    # no object may be shared, as those of YAML's aliases are
    objects: list[Json] = json.loads(json.dumps([one for one in yaml.safe_load_all(text) if one]))
    change = f'case "$(uname -n)" in {row.pod}) echo {STARTED}; {row.change};; esac; exec "$@"'
    for holder in (each for one in objects for each in mappings(one)):
        if "containers" in holder:
            for container in holder["containers"]:
                if "command" in container:
                    container["command"] = ["sh", "-c", change, "sh", *container["command"]]
            if row.job.startswith("dijob/"):
                holder["restartPolicy"] = "Never"
        if "replicas" in holder and "restartPolicy" in holder:
            holder["restartPolicy"] = "Never"
    for job in (one for one in objects if one["kind"].endswith("Job") and one["kind"] != "DIJob"):
        job["spec"].setdefault("runPolicy", {}).update(activeDeadlineSeconds=DEADLINE, backoffLimit=0)
    return objects


def mappings(value: Any) -> Iterator[Json]:
    """A value and all that it contains, as far as they are mappings."""
    if isinstance(value, dict):
        yield value
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from mappings(inner)


def end_of(job: Json) -> str:
    """Succeeded or Failed with the message of the condition, empty before."""
    status = job.get("status", {})
    if status.get("phase") in {"Succeeded", "Failed"}:
        return str(status["phase"])
    for condition in status.get("conditions") or ():
        if condition["type"] in {"Succeeded", "Failed"} and condition["status"] == "True":
            return f"{condition['type']}: {condition.get('message')}"
    return ""
