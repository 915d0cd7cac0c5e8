"""Variables that grow with the job: one that exceeds the limit of Linux is a clear error instead of failing pods."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tests.controllers.kinds import make, world_of
from tests.engine.world import World
from trainop.engine.manifests import MAX_VARIABLE_SIZE
from trainop.programs.schemes import FRAMEWORKS
from trainop.runtime.objects.metadata import Json

MOST: dict[str, tuple[dict[str, int], str, dict[str, Any]]] = {
    "MXJob": ({"Scheduler": 1, "Server": 1}, "MX_CONFIG", {"jobMode": "MXTrain"}),
    "XGBoostJob": ({"Master": 1}, "WORKER_ADDRS", {}),
}
"""Of each kind whose variables name every replica: the other roles, the variable, other fields."""


def job_of(kind: str, workers: int) -> Json:
    others, _, fields = MOST[kind]
    return make(kind, {**others, "Worker": workers}, **fields)


def refusal(kind: str, workers: int) -> str:
    """The failure message if the job fails in its first pass."""
    world = World(job_of(kind, workers), framework=FRAMEWORKS[kind])
    world.step()
    last: Json = world.status["conditions"][-1]
    return str(last["message"]) if last["reason"] == f"{kind}FailedValidation" else ""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_the_limit_is_that_of_linux():
    name = "TRAINOP_TEST"
    longest = "x" * (MAX_VARIABLE_SIZE - len(name) - 1)
    subprocess.run(["/bin/true"], env={name: longest}, check=True)
    with pytest.raises(OSError, match="Argument list too long"):
        subprocess.run(["/bin/true"], env={name: longest + "x"}, check=True)


@pytest.mark.parametrize(("kind", "fits", "fails"), [("MXJob", 3000, 5000), ("XGBoostJob", 8000, 20_000)])
def test_a_job_whose_variables_exceed_the_limit_is_refused(kind: str, fits: int, fails: int):
    variable = MOST[kind][1]
    assert refusal(kind, fits) == ""
    world = World(job_of(kind, fails), framework=FRAMEWORKS[kind])
    world.settle()
    assert world.conditions == [("Created", "True", f"{kind}Created"), ("Failed", "True", f"{kind}FailedValidation")]
    (text,) = world.event_messages(f"{kind}FailedValidation")
    at = f"spec.{FRAMEWORKS[kind].replica_specs}"
    assert text.startswith(f"{kind} failed validation because {at}[")
    assert f"]: Forbidden: the variable {variable} of " in text
    assert text.endswith(f" bytes, and Linux starts no program with more than {MAX_VARIABLE_SIZE}")
    assert (world.pods, world.services, world.counts) == ({}, {}, {"created": 1, "failed": 1})


@pytest.mark.parametrize(("excess", "ends"), [(0, "Created"), (1, "Failed")])
def test_the_limit_is_met_to_the_byte(excess: int, ends: str):
    pair = {"key": "k", "value": "x" * (MAX_VARIABLE_SIZE + excess - len("PET_RDZV_CONF=k="))}
    world = world_of("PyTorchJob", {"Worker": 1}, elasticPolicy={"rdzvConf": [pair]})
    assert world.conditions[-1][0] == ends


def test_a_job_scaled_too_far_continues_with_its_pods():
    kind = "MXJob"
    world = world_of(kind, {"Scheduler": 1, "Server": 1, "Worker": 2}, jobMode="MXTrain")
    world.run()
    world.settle()
    before = world.living()
    world.spec["mxReplicaSpecs"]["Worker"]["replicas"] = 5000
    for _ in range(3):
        made = world.step()
        assert (made.actions, made.annotations) == ((), {})
    assert world.living() == before
    assert world.is_true("Running")
    (text,) = world.event_messages("FailedCreatePod")
    assert text.startswith("Error creating: the variable MX_CONFIG of Scheduler replicas would have ")
    world.spec["mxReplicaSpecs"]["Worker"]["replicas"] = 3
    world.settle()
    assert "j-worker-2" in world.living()


def test_dynamic_workers_have_a_limit_of_servers():
    """Other workers get a file for a large cluster; dynamic workers do not."""
    world = world_of("TFJob", {"PS": 6000, "Worker": 1}, enableDynamicWorker=True)
    (text,) = world.event_messages("TFJobFailedValidation")
    assert "the variable TF_CONFIG of Worker replicas would have " in text


def test_a_long_variable_of_the_user_is_reported_in_the_same_way():
    world = world_of("PyTorchJob", {"Worker": 1}, elasticPolicy={"rdzvConf": [{"key": "k", "value": "ü" * 70_000}]})
    (text,) = world.event_messages("PyTorchJobFailedValidation")
    assert "the variable PET_RDZV_CONF of Worker replicas would have 140016 bytes" in text
