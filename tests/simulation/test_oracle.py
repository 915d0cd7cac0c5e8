"""The observer follows the specification, and imports nothing from the product."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.simulation.oracle.kinds import Job, Json
from tests.simulation.oracle.observer import Observer
from tests.simulation.oracle.variables import variables_of

ROOT = Path(__file__).parents[2]
PROGRAM = """
import importlib, pathlib, sys
for path in sorted(pathlib.Path("tests/simulation/oracle").glob("*.py")):
    importlib.import_module(f"tests.simulation.oracle.{path.stem}")
    print(path.stem)
print("product:", *(name for name in sys.modules if name.partition(".")[0] == "trainop"))
"""


def test_the_observer_imports_nothing_of_the_product():
    """Neither directly nor through its imports."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    *modules, product = done.stdout.splitlines()
    assert product == "product:"
    assert {"observer", "variables", "duties"} <= set(modules)


class Ear:
    """The setting of a run in which nothing happens."""

    zero, exact, gang = datetime(2025, 1, 1, tzinfo=UTC), True, False

    def __init__(self) -> None:
        self.heard: list[str] = []

    def now(self) -> float:
        return 0.0

    def fair_since(self) -> float:
        return 0.0

    def flag(self, rule: str, text: str) -> None:
        self.heard.append(f"{rule}: {text}")


def test_a_kind_that_the_observer_does_not_know_is_a_problem():
    """Not silence, as if all its jobs were well."""
    ear = Ear()
    observe = Observer(ear, lambda _name: {})
    for table in ("events", "podgroups.scheduling.x-k8s.io", "newjobs.kubeflow.org"):
        observe(SimpleNamespace(name=table), SimpleNamespace(old=None, new=SimpleNamespace(value={})))
    assert ear.heard == ["every kind is known: newjobs.kubeflow.org have no row in oracle/kinds.py: nobody judges"]


def job(kind: str, field: str, container: str, **replicas: int) -> Job:
    """A job without annotations, as in the examples of frameworks-v1 §6."""
    template = {"spec": {"containers": [{"name": container, "image": "img"}]}}
    specs = {role: {"replicas": count, "template": template} for role, count in replicas.items()}
    return Job({"kind": kind, "metadata": {"name": "x", "namespace": "ns", "uid": "1"}, "spec": {field: specs}})


TABLE: list[tuple[Job, tuple[str, int], Json]] = [
    (job("TFJob", "tfReplicaSpecs", "tensorflow", Worker=1), ("worker", 0), {}),
    (
        job("PyTorchJob", "pytorchReplicaSpecs", "pytorch", Master=1, Worker=2),
        ("worker", 1),
        {"MASTER_ADDR": "x-master-0", "MASTER_PORT": "23456", "WORLD_SIZE": "3", "RANK": "2", "PET_NNODES": "3"},
    ),
    (
        job("XGBoostJob", "xgbReplicaSpecs", "xgboost", Master=1, Worker=2),
        ("worker", 0),
        {"RANK": "1", "WORLD_SIZE": "3", "WORKER_PORT": "9999", "WORKER_ADDRS": "x-worker-0,x-worker-1"},
    ),
    (
        job("PaddleJob", "paddleReplicaSpecs", "paddle", Master=1, Worker=1),
        ("worker", 0),
        {"PADDLE_MASTER": "x-master-0:36543", "PADDLE_TRAINER_NUM": "1", "PADDLE_NNODES": "2"},
    ),
    (
        job("PaddleJob", "paddleReplicaSpecs", "paddle", Worker=2),
        ("worker", 0),
        {"POD_IP_DUMMY": "{status.podIP}", "PADDLE_MASTER": "$(POD_IP_DUMMY):36543"},
    ),
    (
        job("JAXJob", "jaxReplicaSpecs", "jax", Worker=3),
        ("worker", 2),
        {"COORDINATOR_ADDRESS": "x-worker-0", "COORDINATOR_PORT": "6666", "NUM_PROCESSES": "3", "PROCESS_ID": "2"},
    ),
    (
        job("MXJob", "mxReplicaSpecs", "mxnet", Scheduler=1, Server=1, Worker=1),
        ("worker", 0),
        {
            "DMLC_PS_ROOT_PORT": "9091",
            "DMLC_PS_ROOT_URI": "x-scheduler-0",
            "DMLC_ROLE": "worker",
            "DMLC_WORKER_ID": "0",
        },
    ),
]


@pytest.mark.parametrize(("spec", "slot", "wanted"), TABLE, ids=lambda each: getattr(each, "kind_name", ""))
def test_variables_are_those_of_the_specification(spec: Job, slot: tuple[str, int], wanted: Json):
    found = variables_of(spec, slot, f"{spec.namespace}.svc")
    assert found == {} if not wanted else wanted.items() <= found.items()


def test_tf_config_is_that_of_the_specification():
    spec = job("TFJob", "tfReplicaSpecs", "tensorflow", Chief=1, PS=1, Worker=2, Evaluator=1)
    assert variables_of(spec, ("worker", 1), f"{spec.namespace}.svc")["TF_CONFIG"] == (
        '{"cluster":{"chief":["x-chief-0.ns.svc:2222"],"evaluator":["x-evaluator-0.ns.svc:2222"],'
        '"ps":["x-ps-0.ns.svc:2222"],"worker":["x-worker-0.ns.svc:2222","x-worker-1.ns.svc:2222"]},'
        '"task":{"type":"worker","index":1},"environment":"cloud"}'
    )


def test_tf_config_of_service_mode_job_names_the_service():
    spec = job("TFJob", "tfReplicaSpecs", "tensorflow", Worker=2)
    assert '"x-worker-1.x-pods.ns.svc:2222"' in variables_of(spec, ("worker", 0), "x-pods.ns.svc")["TF_CONFIG"]
