"""Specifics of JAXJob: the coordinator."""

from __future__ import annotations

import pytest

from tests.controllers.kinds import line, make, pods_of, running, services_of
from tests.engine.builders import see
from trainop.engine.framework import JOB_ROLE
from trainop.engine.job import Job
from trainop.engine.leaders import follow
from trainop.kinds.jax import JAX
from trainop.runtime.objects.metadata import Unstructured


@pytest.mark.case("frameworks-v1-32", "ab")
def test_environment():
    pods = pods_of(make("JAXJob", {"Worker": 3}, name="jx"))
    for index, pod in enumerate(pods.values()):
        assert line(pod) == (
            "PYTHONUNBUFFERED=1 COORDINATOR_PORT=6666 COORDINATOR_ADDRESS=jx-worker-0 NUM_PROCESSES=3 "
            f"PROCESS_ID={index}"
        )
    assert [pod["metadata"]["labels"].get(JOB_ROLE) for pod in pods.values()] == ["master", None, None]
    services = services_of(make("JAXJob", {"Worker": 3}, name="jx"))
    assert services["jx-worker-2"]["spec"]["ports"] == [{"name": "jaxjob-port", "port": 6666}]


@pytest.mark.case("frameworks-v1-32", "cd")
def test_all_workers_have_to_succeed():
    world = running("JAXJob", {"Worker": 3}, name="jx")
    for index in (0, 1):
        world.end(f"jx-worker-{index}", 0)
    world.settle()
    assert world.is_true("Running")
    assert world.status["replicaStatuses"]["Worker"] == {
        "active": 1,
        "succeeded": 2,
        "selector": "training.kubeflow.org/job-name=jx,training.kubeflow.org/operator-name=jaxjob-controller,"
        "training.kubeflow.org/replica-type=worker",
    }
    world.end("jx-worker-2", 0)
    world.settle()
    assert world.event_messages("JAXJobSucceeded") == ["JAXJob ns/jx successfully completed."]


def test_scaled_below_what_has_succeeded_is_success():
    world = running("JAXJob", {"Worker": 3}, name="jx")
    for index in (0, 1):
        world.end(f"jx-worker-{index}", 0)
    world.spec["jaxReplicaSpecs"]["Worker"]["replicas"] = 1
    world.settle()
    assert world.is_true("Succeeded")


def test_a_job_without_roles_has_no_leader():
    job = Job(Unstructured({"metadata": {}}).metadata, {})
    assert JAX.progress(job, {}) == follow(None, {})
    assert JAX.companions(job, see({"metadata": {}})) == ()
