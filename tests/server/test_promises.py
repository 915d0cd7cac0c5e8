"""A running job keeps its guarantees when its spec is edited, or pods are planted or deleted by others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from e2e.cluster.controlplane import ControlPlane
from tests.server.kinds import KindWorld
from tests.server.process import Operator
from tests.server.world import CORE, JOBS, MERGE, Json, World, container, replicas
from trainop.programs.schemes import FRAMEWORKS

NODE = {"nodeName": "somewhere"}  # bound pods are deleted with their grace period, as on a real node
LABELS = "training.kubeflow.org/"
EMPTY_IMAGE = {"template": {"spec": {"containers": [{"name": "pytorch", "image": ""}]}}}


def patch(world: World, body: Json, name: str = "j") -> Json:
    answer: Json = world.ask("PATCH", f"{JOBS}/{name}", body, MERGE)
    return answer


def uid(pod: Json) -> str:
    return str(pod["metadata"]["uid"])


@pytest.mark.parametrize("annotation", ["a", "kubectl.kubernetes.io/last-applied-configuration"])
def test_a_status_takes_no_field_of_the_job_from_its_manager(world: World, annotation: str):
    """A manager that has lost a label can no longer remove it by server-side apply."""
    metadata = {"name": "j", "labels": {"a": "b"}, "annotations": {annotation: "{}"}, "finalizers": ["x.y/z"]}
    spec = {"pytorchReplicaSpecs": {"Worker": replicas(1)}}
    body = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": metadata, "spec": spec}
    applied = world.ask("PATCH", f"{JOBS}/j?fieldManager=user", body, "application/apply-patch+yaml")
    world.wait_pods("j-worker-0")
    world.run_pod("j-worker-0")
    world.wait_condition("Running")
    (before,) = applied["metadata"]["managedFields"]
    after = [each for each in world.job()["metadata"]["managedFields"] if each["manager"] == "user"]
    assert after == [before]
    patch(world, {"metadata": {"finalizers": None}})


# Wrong fields ---------------------------------------------------------------------------------------------------------

EDITS: dict[str, Json] = {
    "annotation": {"metadata": {"annotations": {"trainop.kubeflow.org/restart-scope": "Pod"}}},
    "clean-up": {"spec": {"runPolicy": {"cleanPodPolicy": "running"}}},
    "time-to-live": {"spec": {"runPolicy": {"ttlSecondsAfterFinished": -1}}},
    "image": {"spec": {"pytorchReplicaSpecs": {"Worker": EMPTY_IMAGE}}},
    "extra-role": {"spec": {"pytorchReplicaSpecs": {"Boss": replicas(1)}}},
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_into_something_wrong_does_not_stop_a_job(world: World, edit: str):
    world.create_job("j", {"Worker": replicas(2)})
    before = world.wait_pods("j-worker-0", "j-worker-1")
    world.run_pod(*before)
    world.wait_condition("Running")
    patch(world, EDITS[edit])
    world.wait(lambda: world.events("PyTorchJobFailedValidation"), "the warning")
    for name in before:
        world.end_pod(name)
    world.wait(lambda: world.events("PyTorchJobSucceeded"), "the end")
    world.wait_events("PyTorchJobFailedValidation")
    assert world.is_now("Succeeded")
    assert not world.condition("Failed")


@pytest.fixture
def tf(control_plane: ControlPlane, operator: Operator) -> Iterator[KindWorld]:
    """A namespace for TFJobs. The operator is stopped until the test starts it."""
    operator.end()
    yield KindWorld(control_plane.api, FRAMEWORKS["TFJob"])
    if not operator.running:
        operator.start()


def make_child(tf: KindWorld, job: Json, role: str, index: int) -> str:
    """Create a pod as training-operator made it."""
    name = f"j-{role}-{index}"
    labels = {"operator-name": "tfjob-controller", "job-name": "j", "replica-type": role, "replica-index": str(index)}
    owner = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "name": "j",
        "uid": job["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    metadata = {
        "name": name,
        "labels": {LABELS + key: value for key, value in labels.items()},
        "ownerReferences": [owner],
    }
    spec = {"containers": [{"name": "tensorflow", "image": "none"}], "restartPolicy": "Never"}
    tf.ask("POST", f"{CORE}/pods", {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    return name


def test_a_job_of_the_old_operator_with_unknown_values_succeeds(tf: KindWorld, operator: Operator):
    """training-operator's CRDs accept any string, and it ignores unknown roles."""
    roles = {"Chief": tf.role(1, "Never"), "Worker": tf.role(2, "Never"), "Boss": tf.role(1, "Never")}
    policy = {"cleanPodPolicy": "Succeeded"}
    job = tf.ask("POST", tf.jobs, tf.body("j", roles, runPolicy=policy, successPolicy="ChiefWorker"))
    names = [make_child(tf, job, "chief", 0), make_child(tf, job, "worker", 0), make_child(tf, job, "worker", 1)]
    tf.run_pod(*names)
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    fields = {"lastTransitionTime": now, "lastUpdateTime": now, "status": "True", "message": ""}
    conditions = [{"type": type_, "reason": f"TFJob{type_}", **fields} for type_ in ("Created", "Running")]
    counts = {"Chief": {"active": 1}, "Worker": {"active": 2}}
    status = {"startTime": now, "conditions": conditions, "replicaStatuses": counts}
    tf.ask("PATCH", f"{tf.jobs}/j/status", {"status": status}, MERGE)
    before = {name: uid(pod) for name, pod in tf.pods().items()}
    operator.start()
    tf.wait(lambda: tf.events("TFJobFailedValidation"), "the warning")
    for name in names:
        tf.end_pod(name)
    tf.wait_condition("Succeeded")
    assert {name: uid(pod) for name, pod in tf.pods().items()} == before
    tf.wait_events("TFJobFailedValidation")
    assert not tf.condition("Failed")


# Pods of others -------------------------------------------------------------------------------------------------------


def plant(world: World, name: str, role: str, index: str = "0") -> str:
    """Create a pod with all labels of a job `j`, at least a second older than all later objects; returns its UID."""
    labels = {"operator-name": "pytorchjob-controller", "job-name": "j", "replica-type": role, "replica-index": index}
    metadata = {"name": name, "labels": {LABELS + key: value for key, value in labels.items()}}
    spec = {"containers": [{"name": "pytorch", "image": "none"}], "restartPolicy": "Never"}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    pod = world.ask("POST", f"{CORE}/pods", body)
    born = datetime.fromisoformat(pod["metadata"]["creationTimestamp"]).timestamp()
    world.wait(lambda: time.time() >= born + 1.1, "the next second")
    return uid(pod)


@pytest.mark.parametrize("name", ["j-master-0", "trojan"])
def test_a_planted_pod_is_neither_adopted_nor_counted(world: World, name: str):
    planted = plant(world, name, "master")
    world.end_pod(name)
    world.create_job("j", {"Master": replicas(1), "Worker": replicas(1)})
    warning = world.wait(lambda: world.events("UnexpectedPods"), "the warning")[0]
    assert name in warning["message"]
    world.wait_pod("j-worker-0")
    world.settle()
    assert not world.is_now("Succeeded")
    counts = world.status().get("replicaStatuses", {}).get("Master", {})
    assert not counts.keys() & {"active", "succeeded", "failed"}
    stranger = world.pods()[name]
    assert uid(stranger) == planted
    assert "ownerReferences" not in stranger["metadata"]
    world.wait_events("UnexpectedPods")
    world.reap_pod(name)
    world.wait_successor("j-master-0", planted)
    world.run_pod("j-master-0", "j-worker-0")
    world.end_pod("j-master-0")
    world.wait_condition("Succeeded")
    world.wait_events("UnexpectedPods")


# Scaled down ----------------------------------------------------------------------------------------------------------


def test_surplus_pods_are_deleted_when_scaling_down_completes_the_job(world: World):
    world.create_job("j", {"Worker": replicas(3)}, cleanPodPolicy="None")
    names = [f"j-worker-{index}" for index in range(3)]
    world.wait_pods(*names)
    world.run_pod(*names)
    world.end_pod(names[0])
    world.end_pod(names[1])
    world.wait(lambda: world.tally("Worker").get("succeeded") == 2, "two successes")
    world.patch_job({"pytorchReplicaSpecs": {"Worker": {"replicas": 2}}})
    world.wait_condition("Succeeded")
    world.wait_pods(*names[:2])
    world.wait_services(*names[:2])


def test_a_lost_replica_that_was_scaled_away_is_no_failure(world: World):
    world.create_job("j", {"Worker": replicas(3, "Never", **NODE)})
    names = [f"j-worker-{index}" for index in range(3)]
    world.wait_pods(*names)
    world.run_pod(*names)
    world.wait_condition("Running")
    world.ask("DELETE", f"{CORE}/pods/{names[2]}")
    world.wait(lambda: "deletionTimestamp" in world.pods()[names[2]]["metadata"], "the deletion")
    world.patch_job({"pytorchReplicaSpecs": {"Worker": {"replicas": 2}}})
    world.wait_services(*names[:2])
    world.reap_pod(names[2])
    world.wait_pods(*names[:2])
    world.end_pod(names[0])
    world.end_pod(names[1])
    world.wait_condition("Succeeded")
    assert not world.condition("Failed")


# Pods that are deleted
# --------------------------------------------------------------------------------------------------


def test_a_pod_that_vanishes_while_the_jobs_owners_are_written_comes_back(world: World, operator: Operator):
    owner = world.ask(
        "POST", f"{CORE}/configmaps", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "o"}}
    )
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": owner["metadata"]["uid"]}
    world.create_job("j", {"Worker": replicas(1)})
    pod = world.wait_pods("j-worker-0")["j-worker-0"]
    world.run_pod("j-worker-0")
    world.wait_condition("Running")
    for number in range(6):
        owners: dict[str, Any] = {"metadata": {"ownerReferences": [reference] if number % 2 else []}}
        if number % 3 == 0:
            with operator.frozen():
                world.reap_pod("j-worker-0")
                patch(world, owners)
        else:
            world.reap_pod("j-worker-0")
            patch(world, owners)
        pod = world.wait_successor("j-worker-0", uid(pod))


@pytest.mark.parametrize("code", [0, 1, 143])
def test_an_evicted_pod_of_policy_exit_code_is_recreated(world: World, code: int):
    """Whatever exit code the user's code has after SIGTERM."""
    world.create_job("j", {"Master": replicas(1, **NODE), "Worker": replicas(1, "ExitCode", **NODE)})
    before = world.wait_pods("j-master-0", "j-worker-0")
    world.run_pod(*before)
    world.wait_condition("Running")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "j-worker-0"}}
    world.ask("POST", f"{CORE}/pods/j-worker-0/eviction", eviction)
    conditions = world.pods()["j-worker-0"]["status"]["conditions"]
    assert [c["reason"] for c in conditions if c["type"] == "DisruptionTarget"] == ["EvictionByEvictionAPI"]
    world.end_pod("j-worker-0", code)
    world.settle()
    world.reap_pod("j-worker-0")
    world.wait_successor("j-worker-0", uid(before["j-worker-0"]))
    assert not world.condition("Failed")
    assert uid(world.pods()["j-master-0"]) == uid(before["j-master-0"])


DISRUPTED: dict[str, Json] = {
    "condition": {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}]},
    "terminated": {"reason": "Terminated"},
    "evicted": {"reason": "Evicted"},
}


@pytest.mark.parametrize("sign", DISRUPTED)
@pytest.mark.parametrize("code", [0, 1])
def test_a_disrupted_pod_is_recreated_whatever_its_exit_code(world: World, code: int, sign: str):
    world.create_job("j", {"Master": replicas(1), "Worker": replicas(1, "ExitCode")})
    before = world.wait_pods("j-master-0", "j-worker-0")
    world.run_pod(*before)
    world.wait_condition("Running")
    state = {"terminated": {"exitCode": code, "reason": "Error"}}
    world.set_pod("j-worker-0", {"phase": "Failed", "containerStatuses": [container(state)], **DISRUPTED[sign]})
    world.wait_successor("j-worker-0", uid(before["j-worker-0"]))
    assert not world.condition("Failed")
    assert uid(world.pods()["j-master-0"]) == uid(before["j-master-0"])
