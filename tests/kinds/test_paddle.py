"""Specifics of PaddleJob: the two modes of its environment, and the elastic policy, which requires workers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.controllers.kinds import env, make, pods_of, running, services_of
from trainop.engine.framework import JOB_ROLE
from trainop.engine.parse import parse
from trainop.kinds.paddle import PADDLE
from trainop.runtime.objects.metadata import Json, Unstructured

OWN = {"fieldRef": {"fieldPath": "status.podIP"}}


def pd(roles: dict[str, int], **fields: Any) -> Json:
    return make("PaddleJob", roles, name="pd", **fields)


@pytest.mark.case("frameworks-v1-31", "ab")
def test_collective_environment():
    pods = pods_of(pd({"Worker": 2}))
    shared = {"PYTHONUNBUFFERED": "1", "PADDLE_JOB_ID": "pd", "PADDLE_NNODES": "2"}
    first = {**shared, "POD_IP_DUMMY": OWN, "PADDLE_MASTER": "$(POD_IP_DUMMY):36543"}
    assert list(env(pods["pd-worker-0"]).items()) == list(first.items())
    assert list(env(pods["pd-worker-1"]).items()) == list({**shared, "PADDLE_MASTER": "pd-worker-0:36543"}.items())
    assert all(JOB_ROLE not in pod["metadata"]["labels"] for pod in pods.values())


@pytest.mark.case("frameworks-v1-31", "c")
def test_environment_with_servers():
    pods = pods_of(pd({"Master": 2, "Worker": 1}))
    shared = {"PYTHONUNBUFFERED": "1", "PADDLE_JOB_ID": "pd", "PADDLE_NNODES": "3"}
    first = {"POD_IP_DUMMY": OWN, "PADDLE_MASTER": "$(POD_IP_DUMMY):36543"}
    other = {"PADDLE_MASTER": "pd-master-0:36543"}
    assert {name: env(pod) for name, pod in pods.items()} == {
        "pd-master-0": {**shared, **first, "PADDLE_SERVER_NUM": "1"},
        "pd-master-1": {**shared, **other, "PADDLE_SERVER_NUM": "1"},
        "pd-worker-0": {**shared, **other, "PADDLE_TRAINER_NUM": "1"},
    }
    assert [pod["metadata"]["labels"].get(JOB_ROLE) for pod in pods.values()] == ["master", "master", None]


def test_no_masters_are_none():
    assert env(pods_of(pd({"Master": 0, "Worker": 1}))["pd-worker-0"])["PADDLE_MASTER"] == "$(POD_IP_DUMMY):36543"


def test_of_several_masters_rendezvous_needs_the_first():
    services = services_of(pd({"Master": 2, "Worker": 2}), service_mode="leader")
    assert list(services) == ["pd-master-0"]
    assert list(services_of(pd({"Worker": 2}), service_mode="leader")) == ["pd-worker-0"]


@pytest.mark.case("frameworks-v1-31", "d")
def test_an_elastic_policy_needs_workers():
    (error,) = parse(PADDLE, Unstructured(pd({"Master": 1}, elasticPolicy={}))).errors
    assert str(error) == (
        "spec.paddleReplicaSpecs[Worker]: Required value: must be configured if elastic policy is used"
    )
    assert parse(PADDLE, Unstructured(pd({"Worker": 1}, elasticPolicy={}))).errors == ()


def test_messages_contain_the_namespace_if_no_master_leads():
    world = running("PaddleJob", {"Worker": 2}, name="pd")
    assert world.status["conditions"][-1]["message"] == "PaddleJob ns/pd is running."
    world.end("pd-worker-0", 0)
    world.settle()
    assert world.is_true("Running")
    world.end("pd-worker-1", 0)
    world.settle()
    assert world.event_messages("PaddleJobSucceeded") == ["PaddleJob ns/pd successfully completed."]


def test_replica_statuses_name_their_selector():
    world = running("PaddleJob", {"Worker": 1}, name="pd")
    assert world.status["replicaStatuses"]["Worker"]["selector"] == (
        "training.kubeflow.org/job-name=pd,training.kubeflow.org/operator-name=paddlejob-controller,"
        "training.kubeflow.org/replica-type=worker"
    )
