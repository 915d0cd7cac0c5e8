"""Edits, deletions and scaling at unfortunate moments: each job converges to exactly what its spec says."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.server.kinds import KindWorld
from tests.server.process import Operator
from tests.server.world import CORE, JOBS, MERGE, Json, World, replicas
from trainop.programs.schemes import FRAMEWORKS

PREFIX = "training.kubeflow.org/"
NODE = {"nodeName": "somewhere"}  # bound pods are deleted with their grace period, as on a real node
FINALIZER = "example.com/hold"


def uids(pods: dict[str, Json]) -> dict[str, str]:
    return {name: str(pod["metadata"]["uid"]) for name, pod in pods.items()}


def edit_pod(world: World, name: str, **metadata: Any) -> None:
    world.ask("PATCH", f"{CORE}/pods/{name}", {"metadata": metadata}, MERGE)


def edit_job(world: World, name: str = "j", **metadata: Any) -> None:
    world.ask("PATCH", f"{JOBS}/{name}", {"metadata": metadata}, MERGE)


def leaving(world: World, name: str) -> bool:
    return "deletionTimestamp" in world.pods()[name]["metadata"]


TIME = "2025-06-01T12:00:00Z"
ODD = {"lastTransitionTime": TIME, "lastUpdateTime": TIME, "message": "", "reason": ""}
STATUS: dict[str, Json | None] = {
    "none": None,
    "nothing": {"conditions": None, "replicaStatuses": None, "startTime": None},
    "counts": {"replicaStatuses": {"Worker": {"active": 5, "failed": 2**31 - 1}, "Boss": {"succeeded": 7}}},
    "conditions": {
        "conditions": [
            {"type": "Failed", "status": "False", **ODD},
            {"type": "Running", "status": "Unknown", **ODD},
            {"type": "Running", "status": "True", **ODD},
            {"type": "", "status": "maybe", **ODD},
        ]
    },
    "times": {"startTime": "9999-12-31T23:59:59Z", "completionTime": "0001-01-01T00:00:00Z", "lastReconcileTime": TIME},
}


@pytest.mark.parametrize("nonsense", STATUS)
def test_a_status_written_by_hand_moves_no_pod(world: World, nonsense: str):
    world.create_job("j", {"Worker": replicas(2)})
    before = uids(world.wait_pods("j-worker-0", "j-worker-1"))
    world.run_pod(*before)
    world.wait_condition("Running")
    for _ in range(5):
        world.ask("PATCH", f"{JOBS}/j/status", {"status": STATUS[nonsense]}, MERGE)
    world.end_pod("j-worker-0")
    world.wait(lambda: world.status().get("replicaStatuses", {}).get("Worker", {}).get("succeeded") == 1, "one success")
    world.wait_condition("Running")
    assert uids(world.pods()) == before
    world.end_pod("j-worker-1")
    world.wait_condition("Succeeded")
    assert uids(world.pods()) == before
    assert not world.is_now("Failed")
    assert world.status()["completionTime"] > "2026"


def test_a_job_that_is_recreated_many_times_gets_new_pods_each_time(world: World):
    """The test acts as the garbage collector, with a delay."""
    for number in range(12):
        job = world.create_job("j", {"Master": replicas(1), "Worker": replicas(2)})
        if number < 11:
            if number % 3 == 0:
                world.wait_pod("j-worker-0")
            world.ask("DELETE", f"{JOBS}/j?propagationPolicy=Background")

    def collected() -> bool:
        for kind, children in (("pods", world.pods()), ("services", world.services())):
            for name, child in children.items():
                if child["metadata"]["ownerReferences"][0]["uid"] != job["metadata"]["uid"]:
                    body = {"gracePeriodSeconds": 0, "preconditions": {"uid": child["metadata"]["uid"]}}
                    world.try_to("DELETE", f"{CORE}/{kind}/{name}", body)
        owners = {pod["metadata"]["ownerReferences"][0]["uid"] for pod in world.pods().values()}
        return len(world.pods()) == len(world.services()) == 3 and owners == {job["metadata"]["uid"]}

    world.wait(collected, "three pods of the last job")
    before = uids(world.pods())
    world.run_pod(*before)
    world.wait_condition("Running")
    world.end_pod("j-master-0")
    world.wait_condition("Succeeded")
    assert uids(world.pods()) == before


@pytest.mark.parametrize("seed", range(3))
def test_a_job_scaled_while_its_pods_restart_reaches_its_last_spec(world: World, seed: int):
    rng = random.Random(seed)
    world.create_job("j", {"Worker": replicas(3, "ExitCode")})
    world.wait_pod("j-worker-0")
    for _ in range(40):
        count = rng.randrange(1, 6)
        world.patch_job({"pytorchReplicaSpecs": {"Worker": {"replicas": count}}})
        name = f"j-worker-{rng.randrange(5)}"
        if name in world.pods():
            status = {"phase": "Failed", "containerStatuses": [ended(rng.choice((130, 137, 143)))]}
            world.try_to("PATCH", f"{CORE}/pods/{name}/status", {"status": status}, MERGE)
    world.patch_job({"pytorchReplicaSpecs": {"Worker": {"replicas": 3}}})
    names = [f"j-worker-{index}" for index in range(3)]

    def fresh() -> bool:
        pods = world.pods()
        return sorted(pods) == names and all(pod["status"]["phase"] == "Pending" for pod in pods.values())

    world.wait(fresh, "three new pods")
    world.wait_services(*names)
    world.run_pod(*names)
    world.wait_condition("Running")
    for name in names:
        world.end_pod(name)
    world.wait_condition("Succeeded")
    assert not world.condition("Failed")


def ended(code: int) -> Json:
    state = {"terminated": {"exitCode": code, "reason": "Error"}}
    return {"name": "pytorch", "image": "none", "imageID": "", "ready": False, "restartCount": 0, "state": state}


def test_a_deleted_job_that_a_finalizer_holds_gets_no_more_pods(world: World):
    world.create_job("j", {"Worker": replicas(2)})
    world.wait_pods("j-worker-0", "j-worker-1")
    edit_job(world, finalizers=[FINALIZER])
    world.ask("DELETE", f"{JOBS}/j")
    world.reap_pod("j-worker-0")
    world.settle()
    edit_job(world, labels={"a": "b"})
    world.settle()
    assert set(world.pods()) == {"j-worker-1"}
    edit_job(world, finalizers=None)
    world.wait(lambda: world.try_to("GET", f"{JOBS}/j").status == 404, "the end of the job")
    world.settle()
    assert set(world.pods()) == {"j-worker-1"}


def test_a_pod_that_a_finalizer_holds_is_replaced_once_it_has_gone(world: World):
    world.create_job("j", {"Worker": replicas(2, "ExitCode")})
    before = uids(world.wait_pods("j-worker-0", "j-worker-1"))
    edit_pod(world, "j-worker-0", finalizers=[FINALIZER])
    world.run_pod(*before)
    world.end_pod("j-worker-0", 137)
    world.wait(lambda: leaving(world, "j-worker-0"), "the deletion")
    world.settle()
    assert uids(world.pods()) == before
    edit_pod(world, "j-worker-0", finalizers=None)
    world.wait_successor("j-worker-0", before["j-worker-0"])
    assert not world.condition("Failed")


def test_pods_that_an_orphaning_deletion_left_belong_to_no_later_job(world: World):
    """The test acts as the garbage collector: it removes the owner references, then the finalizer `orphan`."""
    world.create_job("j", {"Worker": replicas(2)})
    before = uids(world.wait_pods("j-worker-0", "j-worker-1"))
    world.run_pod(*before)
    world.ask("DELETE", f"{JOBS}/j?propagationPolicy=Orphan")
    for name in before:
        edit_pod(world, name, ownerReferences=None)
        world.ask("PATCH", f"{CORE}/services/{name}", {"metadata": {"ownerReferences": None}}, MERGE)
    world.settle()
    assert all("ownerReferences" not in pod["metadata"] for pod in world.pods().values()), "they are not adopted again"
    edit_job(world, finalizers=None)
    world.wait(lambda: world.try_to("GET", f"{JOBS}/j").status == 404, "the end of the job")
    world.settle(1.1)
    world.create_job("j", {"Worker": replicas(2)})
    world.wait(lambda: world.events("UnexpectedPods"), "the warning")
    world.end_pod("j-worker-0")
    world.settle()
    assert uids(world.pods()) == before
    assert world.status().get("replicaStatuses", {}).get("Worker", {}).get("succeeded") is None
    for name in before:
        world.reap_pod(name)
    for name, uid in before.items():
        world.wait_successor(name, uid)


def relabel(**labels: str | None) -> Callable[[World], None]:
    return lambda world: edit_pod(
        world, "j-worker-0", labels={PREFIX + key.replace("_", "-"): labels[key] for key in labels}
    )


LABELS = {
    "index": relabel(replica_index="1"),
    "index-beyond": relabel(replica_index="7"),
    "role": relabel(replica_type="master"),
    "no-role": relabel(replica_type="boss"),
}


@pytest.mark.parametrize("change", LABELS)
def test_a_pod_under_other_labels_counts_for_nothing_and_its_slot_is_filled(world: World, change: str):
    world.create_job("j", {"Master": replicas(1), "Worker": replicas(2)})
    before = uids(world.wait_pods("j-master-0", "j-worker-0", "j-worker-1"))
    world.run_pod(*before)
    world.wait_condition("Running")
    LABELS[change](world)
    world.try_to("PATCH", f"{CORE}/pods/j-worker-0/status", {"status": {"phase": "Succeeded"}}, MERGE)
    world.wait_successor("j-worker-0", before["j-worker-0"])
    world.wait_pods("j-master-0", "j-worker-0", "j-worker-1")
    after = uids(world.pods())
    assert (after["j-master-0"], after["j-worker-1"]) == (before["j-master-0"], before["j-worker-1"])
    assert not world.is_now("Succeeded")
    assert not world.condition("Failed")


def test_a_pod_that_loses_its_labels_for_a_while_comes_back_to_its_job(world: World):
    world.create_job("j", {"Master": replicas(1), "Worker": replicas(1)})
    before = uids(world.wait_pods("j-master-0", "j-worker-0"))
    world.run_pod(*before)
    world.wait_condition("Running")
    edit_pod(world, "j-worker-0", labels={f"{PREFIX}job-name": "other"})
    world.wait(lambda: not world.pods()["j-worker-0"]["metadata"].get("ownerReferences"), "the release")
    world.settle()
    edit_pod(world, "j-worker-0", labels={f"{PREFIX}job-name": "j"})
    world.wait(lambda: world.pods()["j-worker-0"]["metadata"].get("ownerReferences"), "the adoption")
    assert uids(world.pods()) == before
    world.end_pod("j-master-0")
    world.wait_condition("Succeeded")


def test_jobs_of_two_kinds_with_one_name_do_not_interfere(world: World, operator: Operator):
    del operator
    other = KindWorld(world.api, FRAMEWORKS["TFJob"], world.namespace)
    first = world.create_job("j", {"Worker": replicas(2)})
    before = uids(world.wait_pods("j-worker-0", "j-worker-1"))
    other.create("j", {"Chief": 1, "Worker": 2})
    other.wait_pod("j-chief-0")
    other.wait(lambda: other.warnings_about("j"), "the warning")
    world.run_pod(*before)
    world.wait_condition("Running")
    world.settle()
    now = uids(world.pods())
    assert {name: now[name] for name in before} == before
    assert not other.condition("Failed")
    assert not other.condition("Succeeded")
    for name in before:
        world.end_pod(name)
    world.wait_condition("Succeeded")
    assert not other.condition("Succeeded")
    world.ask("DELETE", f"{JOBS}/{first['metadata']['name']}?propagationPolicy=Background")
    for name in before:
        world.reap_pod(name)
        world.try_to("DELETE", f"{CORE}/services/{name}")
    other.ask("PATCH", f"{other.jobs}/j", {"metadata": {"annotations": {"try": "1"}}}, MERGE)  # not in 30 s
    for name, uid in before.items():
        other.wait_successor(name, uid)
