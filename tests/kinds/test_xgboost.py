"""Specifics of XGBoostJob: tracker, rank and machine list, and the required master."""

from __future__ import annotations

from typing import Any

import pytest

from tests.controllers.kinds import line, make, pods_of, world_of
from trainop.engine.framework import JOB_ROLE
from trainop.engine.parse import parse
from trainop.kinds.xgboost import XGBOOST
from trainop.runtime.objects.metadata import Json, Unstructured


def xgb(roles: dict[str, int], **fields: Any) -> Json:
    return make("XGBoostJob", roles, name="xgb", **fields)


@pytest.mark.case("frameworks-v1-29", "a")
def test_environment():
    pods = pods_of(xgb({"Master": 1, "Worker": 2}))
    for rank, pod in enumerate(pods.values()):
        assert line(pod) == (
            f"MASTER_PORT=9999 MASTER_ADDR=xgb-master-0 WORLD_SIZE=3 RANK={rank} PYTHONUNBUFFERED=1 "
            "WORKER_PORT=9999 WORKER_ADDRS=xgb-worker-0,xgb-worker-1"
        )
    assert [pod["metadata"]["labels"].get(JOB_ROLE) for pod in pods.values()] == ["master", None, None]


@pytest.mark.case("frameworks-v1-29", "b")
def test_a_master_alone_has_no_workers_to_know():
    (pod,) = pods_of(xgb({"Master": 1})).values()
    assert line(pod) == "MASTER_PORT=9999 MASTER_ADDR=xgb-master-0 WORLD_SIZE=1 RANK=0 PYTHONUNBUFFERED=1"


def test_ports_are_each_types_own():
    job = xgb({"Master": 1, "Worker": 1})
    container = {"name": "xgboost", "image": "i", "ports": [{"name": "xgboostjob-port", "containerPort": 8888}]}
    job["spec"]["xgbReplicaSpecs"]["Worker"]["template"] = {"spec": {"containers": [container]}}
    assert "MASTER_PORT=9999" in line(pods_of(job)["xgb-worker-0"])
    assert "WORKER_PORT=8888" in line(pods_of(job)["xgb-worker-0"])


@pytest.mark.case("frameworks-v1-29", "c")
def test_there_must_be_one_master():
    (error,) = parse(XGBOOST, Unstructured(xgb({"Worker": 1}))).errors
    assert str(error) == "spec.xgbReplicaSpecs[Master]: Required value: must be present"
    (error,) = parse(XGBOOST, Unstructured(xgb({"Master": 2}))).errors
    assert str(error) == "spec.xgbReplicaSpecs[Master].replicas: Forbidden: must be 1"
    assert parse(XGBOOST, Unstructured(make("XGBoostJob", {"Master": None}))).errors == ()


def test_a_job_whose_master_was_edited_away_has_not_succeeded():
    world = world_of("XGBoostJob", {"Master": 1, "Worker": 1}, name="xgb")
    world.run()
    world.settle()
    world.spec["xgbReplicaSpecs"]["Master"]["replicas"] = 0
    world.settle()
    assert world.is_true("Running")
    assert len(world.event_messages("XGBoostJobFailedValidation")) == 1


@pytest.mark.case("frameworks-v1-30", "a")
def test_success_before_running_was_seen():
    world = world_of("XGBoostJob", {"Master": 1, "Worker": 1}, name="xgb")
    world.end("xgb-master-0", 0)
    world.settle()
    assert world.conditions == [
        ("Created", "True", "XGBoostJobCreated"),
        ("Running", "False", "XGBoostJobRunning"),
        ("Succeeded", "True", "XGBoostJobSucceeded"),
    ]


@pytest.mark.case("frameworks-v1-30", "b")
@pytest.mark.parametrize("policy", ["OnFailure", "Always"])
def test_a_worker_that_restarts_does_not_fail_the_job(policy: str):
    world = world_of("XGBoostJob", {"Master": 1, "Worker": 1}, name="xgb", policy=policy)
    world.run()
    world.settle()
    world.end("xgb-worker-0", 1)
    world.settle()
    assert world.conditions[-1] == ("Restarting", "True", "XGBoostJobRestarting")
    assert not world.is_true("Failed")


def test_failure_before_running_was_seen():
    world = world_of("XGBoostJob", {"Master": 1, "Worker": 1}, name="xgb")
    world.end("xgb-worker-0", 1)
    world.settle()
    assert world.conditions[1:] == [
        ("Running", "False", "XGBoostJobRunning"),
        ("Failed", "True", "XGBoostJobFailed"),
    ]
