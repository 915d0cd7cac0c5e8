"""Suspend and resume, `managedBy`, adoption, recreated jobs and immutable fields."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.world import CORE, JOBS, MERGE, Json, World, replicas

NODE = {"nodeName": "somewhere"}  # bound pods are deleted with their grace period, as on a real node
PREFIX = "training.kubeflow.org/"
PAIR = ("j-master-0", "j-worker-0")


def pair(**template: Any) -> Json:
    return {"Master": replicas(1, **template), "Worker": replicas(1, **template)}


@pytest.mark.case("job-engine-16", "abc")
@pytest.mark.case("frameworks-v1-24", "abc")
def test_created_suspended(world: World):
    world.create_job("j", pair(), suspend=True)
    world.wait_condition("Suspended")
    world.settle()
    assert world.conditions() == [
        ("Created", "True", "PyTorchJobCreated"),
        ("Suspended", "True", "PyTorchJobSuspended"),
    ]
    assert world.condition("Suspended")["message"] == "PyTorchJob j is suspended."
    assert world.pods() == world.services() == {}
    assert "startTime" not in world.status()


@pytest.mark.case("job-engine-17", "abcde")
@pytest.mark.case("job-engine-18", "abc")
@pytest.mark.case("frameworks-v1-25", "abcde")
def test_suspended_and_resumed(world: World):
    world.create_job("j", pair())
    world.wait_pods(*PAIR)
    world.run_pod(*PAIR)
    world.wait_condition("Running")
    started = world.status()["startTime"]
    world.settle(1.1)  # so that a new startTime would differ
    world.patch_run_policy(suspend=True)
    world.wait_condition("Suspended")
    world.wait_pods()
    world.wait(lambda: not world.services(), "no services")
    assert world.conditions() == [
        ("Created", "True", "PyTorchJobCreated"),
        ("Running", "False", "PyTorchJobSuspended"),
        ("Suspended", "True", "PyTorchJobSuspended"),
    ]
    assert world.status()["startTime"] == started
    assert all(not tally.get("active") for tally in world.status()["replicaStatuses"].values())
    events = world.wait(lambda: world.events("PyTorchJobSuspended"), "the event")
    assert [(event["type"], event.get("count", 1)) for event in events] == [("Normal", 1)]
    world.patch_run_policy(suspend=False)
    world.wait_pods(*PAIR)
    world.wait_services(*PAIR)
    world.run_pod(*PAIR)
    world.wait_condition("Running")
    assert world.conditions() == [
        ("Created", "True", "PyTorchJobCreated"),
        ("Suspended", "False", "PyTorchJobResumed"),
        ("Running", "True", "PyTorchJobRunning"),
    ]
    assert world.condition("Suspended")["message"] == "PyTorchJob j is resumed."
    assert world.status()["startTime"] > started


@pytest.mark.case("frameworks-v1-27", "ab")
def test_suspended_and_resumed_within_the_grace_period(world: World):
    world.create_job("j", pair(**NODE))
    old = world.wait_pods(*PAIR)
    world.run_pod(*PAIR)
    world.wait_condition("Running")
    world.patch_run_policy(suspend=True)
    world.wait(lambda: all("deletionTimestamp" in p["metadata"] for p in world.pods().values()), "pods leaving")
    world.patch_run_policy(suspend=False)
    world.settle()
    assert not world.is_now("Failed")
    assert not world.is_now("Restarting")
    for name in PAIR:
        world.reap_pod(name)
    new = world.wait_pods(*PAIR)
    assert all(new[name]["metadata"]["uid"] != old[name]["metadata"]["uid"] for name in PAIR)
    world.run_pod(*PAIR)
    world.wait_condition("Running")
    assert not world.is_now("Failed")
    assert world.condition("Suspended")["reason"] == "PyTorchJobResumed"
    assert world.events("FailedCreatePod") == []


@pytest.mark.case("job-engine-19", "b")
def test_suspended_with_a_time_to_live(world: World):
    world.create_job("j", pair(), suspend=True, ttlSecondsAfterFinished=0)
    world.wait_condition("Suspended")
    world.settle(1)
    assert "completionTime" not in world.status()


@pytest.mark.case("job-engine-20", "abd")
@pytest.mark.case("frameworks-v1-23", "abc")
def test_managed_by_another_controller(world: World):
    world.create_job("j", pair(), suspend=True, managedBy="kueue.x-k8s.io/multikueue")
    world.patch_run_policy(suspend=False)
    world.create_job("ours", {"Worker": replicas(1)}, managedBy="kubeflow.org/training-operator")
    world.wait(lambda: "ours-worker-0" in world.pods(), "the pod of our own job")
    world.settle()
    assert set(world.pods()) == {"ours-worker-0"}
    status = world.status()
    assert not status.get("conditions")
    assert "startTime" not in status
    answer = world.try_to(
        "PATCH", f"{JOBS}/j", {"spec": {"runPolicy": {"managedBy": "kubeflow.org/training-operator"}}}, MERGE
    )
    assert answer.status == 422
    assert "field is immutable" in answer.body["message"]


@pytest.mark.case("frameworks-v1-26", "a")
@pytest.mark.case("job-engine-37", "h")
def test_the_queue_is_immutable(world: World):
    world.create_job("j", {"Worker": replicas(1)}, schedulingPolicy={"queue": "a"})
    patch = {"spec": {"runPolicy": {"schedulingPolicy": {"queue": "b"}}}}
    answer = world.try_to("PATCH", f"{JOBS}/j", patch, MERGE)
    assert answer.status == 422
    assert "spec.runPolicy.schedulingPolicy.queue is immutable" in answer.body["message"]


def orphan(name: str, index: int) -> Json:
    labels = {
        f"{PREFIX}operator-name": "pytorchjob-controller",
        f"{PREFIX}job-name": "j",
        f"{PREFIX}replica-type": "worker",
        f"{PREFIX}replica-index": str(index),
    }
    container = {"name": "pytorch", "image": "none"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [container]},
    }


def test_orphans_are_adopted_and_strays_released(world: World):
    """The parts of job-engine-35 that need a live cluster."""
    made = world.ask("POST", f"{CORE}/pods", orphan("j-worker-0", 0))
    job = world.create_job("j", {"Worker": replicas(2)})
    pods = world.wait_pods("j-worker-0", "j-worker-1")
    assert pods["j-worker-0"]["metadata"]["uid"] == made["metadata"]["uid"]
    adopted = world.wait(lambda: world.pods()["j-worker-0"]["metadata"].get("ownerReferences"), "adoption")
    assert [(owner["uid"], owner["controller"]) for owner in adopted] == [(job["metadata"]["uid"], True)]
    world.ask(
        "PATCH",
        f"{CORE}/pods/j-worker-1",
        {"metadata": {"labels": {f"{PREFIX}job-name": "elsewhere"}}},
        MERGE,
    )
    world.wait(lambda: not world.pods()["j-worker-1"]["metadata"].get("ownerReferences"), "release")


@pytest.mark.case("job-engine-38", "abcd")
def test_a_namesake_still_terminating(world: World):
    world.create_job("j", {"Worker": replicas(1, "OnFailure", **NODE)})
    old = world.wait_pods("j-worker-0")["j-worker-0"]
    world.run_pod("j-worker-0")
    world.wait_condition("Running")
    world.ask("DELETE", f"{JOBS}/j?propagationPolicy=Orphan")
    for name in ("pods/j-worker-0", "services/j-worker-0"):  # what a garbage collector does
        world.ask("DELETE", f"{CORE}/{name}")
    world.wait(lambda: world.try_to("GET", f"{JOBS}/j").status == 404 or release(world), "the first job's end")
    world.create_job("j", {"Worker": replicas(1, "OnFailure", **NODE)})
    world.settle(1)
    assert world.pods()["j-worker-0"]["metadata"]["uid"] == old["metadata"]["uid"]
    world.reap_pod("j-worker-0")
    new = world.wait_successor("j-worker-0", old["metadata"]["uid"])
    assert world.events("FailedCreatePod") == []
    # a running pod that is being deleted is no failure; its slot is filled once it is gone
    world.run_pod("j-worker-0")
    world.wait_condition("Running")
    world.ask("DELETE", f"{CORE}/pods/j-worker-0")
    world.settle()
    assert not world.is_now("Failed")
    world.reap_pod("j-worker-0")
    world.wait_successor("j-worker-0", new["metadata"]["uid"])
    assert not world.is_now("Failed")


def release(world: World) -> bool:
    """Remove the finalizer of an orphaning deletion, because no garbage collector runs here."""
    answer = world.try_to("PATCH", f"{JOBS}/j", {"metadata": {"finalizers": None}}, MERGE)
    return answer.status == 404
