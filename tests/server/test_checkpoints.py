"""Checkpoints before the end on a real API server: the deletions, the Eviction API, and a suspension that waits."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from tests.patience import PATIENCE
from tests.server.world import CORE, JOBS, MERGE, Json, World, replicas
from trainop.runtime.clock import parse_timestamp

PREFIX = "trainop.kubeflow.org/"
GRACE, ON_DISRUPTION = f"{PREFIX}checkpoint-grace", f"{PREFIX}on-disruption"
NODE = {"nodeName": "somewhere"}  # bound pods are deleted with their grace period, as on a real node
MANY = 64


def start(world: World, workers: int, annotations: dict[str, str], **template: Any) -> list[str]:
    specs = {"Master": replicas(1, **NODE, **template), "Worker": replicas(workers, **NODE, **template)}
    metadata = {"name": "j", "annotations": annotations}
    world.ask("POST", JOBS, _job(specs, metadata))
    names = ["j-master-0", *(f"j-worker-{index}" for index in range(workers))]
    world.wait_pods(*names)
    world.run_pod(*names)
    world.wait_condition("Running")
    return names


def _job(specs: Json, metadata: Json) -> Json:
    spec = {"pytorchReplicaSpecs": specs}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": metadata, "spec": spec}


def ending(world: World) -> dict[str, Json]:
    return {name: pod for name, pod in world.pods().items() if "deletionTimestamp" in pod["metadata"]}


def asked_at(pod: Json) -> datetime:
    """When the deletion was requested, by the API server's clock."""
    metadata = pod["metadata"]
    end = parse_timestamp(metadata["deletionTimestamp"]).timestamp() - metadata["deletionGracePeriodSeconds"]
    return datetime.fromtimestamp(end).astimezone()


def history(world: World) -> Json:
    found: Json = json.loads(world.job()["metadata"]["annotations"].get(f"{PREFIX}restarts", "{}"))
    return found


def test_all_pods_of_a_large_job_are_asked_to_end_before_anything_else_is_done(world: World):
    """A busy machine takes its time; what the operator promises of its own is the order, and many at once."""
    names = start(world, MANY - 1, {GRACE: "5m"})
    since = world.ask("GET", f"{CORE}/pods")["metadata"]["resourceVersion"]
    world.patch_run_policy(suspend=True)
    pods = world.wait(lambda: found if len(found := ending(world)) == MANY else None, "the end of all pods")
    assert {pod["metadata"]["deletionGracePeriodSeconds"] for pod in pods.values()} == {300}
    world.wait(lambda: not world.services(), "the end of all services")
    last = max(int(pod["metadata"]["resourceVersion"]) for pod in pods.values())
    assert last < min(versions(world, "services", "DELETED", since))
    times = sorted(map(asked_at, pods.values()))
    assert (times[-1] - times[0]).total_seconds() <= PATIENCE / 10
    for name in names:
        world.reap_pod(name)


def versions(world: World, plural: str, type_: str, since: str) -> list[int]:
    """The resourceVersions of the events of this type after `since`."""
    lines = str(world.ask("GET", f"{CORE}/{plural}?watch=1&timeoutSeconds=1&resourceVersion={since}")).splitlines()
    events = [json.loads(line) for line in lines]
    return [int(event["object"]["metadata"]["resourceVersion"]) for event in events if event["type"] == type_]


def test_pods_from_before_the_annotation_get_the_grace_period_too(world: World):
    start(world, 1, {})
    world.ask("PATCH", f"{JOBS}/j", {"metadata": {"annotations": {GRACE: "5m"}}}, MERGE)
    world.patch_run_policy(suspend=True)
    pods = world.wait(lambda: found if len(found := ending(world)) == 2 else None, "the end of all pods")
    assert {pod["metadata"]["deletionGracePeriodSeconds"] for pod in pods.values()} == {300}
    for name in pods:
        world.reap_pod(name)


def test_an_eviction_ends_all_pods_and_the_job_restarts_as_a_whole(world: World):
    names = start(world, 3, {GRACE: "5m", ON_DISRUPTION: "checkpoint-all"})
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "j-worker-1"}}
    world.ask("POST", f"{CORE}/pods/j-worker-1/eviction", eviction)
    pods = world.wait(lambda: found if len(found := ending(world)) == len(names) else None, "the end of all pods")
    assert {pod["metadata"]["deletionGracePeriodSeconds"] for pod in pods.values()} == {300}
    world.wait_condition("Restarting")
    said = world.condition("Restarting")["message"]
    assert "Worker 1 (rank 2, pod j-worker-1 on node somewhere) was evicted by another client" in said
    assert world.status()["lastFailure"]["reason"] == "EvictionByEvictionAPI"
    world.end_pod("j-master-0", 0)  # it has saved
    for name in names[:-1]:
        world.reap_pod(name)
    world.settle()
    assert world.pods().keys() == {names[-1]}
    assert not world.is_now("Succeeded")
    world.reap_pod(names[-1])
    world.wait_pods(*names)
    world.run_pod(*names)
    world.wait_condition("Running")
    assert (history(world)["disruptions"], history(world).get("failures", 0)) == (1, 0)
    events = world.wait(lambda: world.events("PyTorchJobRestarting"), "the event")
    assert [event.get("count", 1) for event in events] == [1]


def test_a_suspension_waits_for_the_next_checkpoint(world: World):
    start(world, 1, {GRACE: "5m"})
    report(world, 100)
    world.patch_run_policy(suspend=True)
    world.wait(lambda: world.events("CheckpointAwaited"), "the wait")
    world.settle()
    assert not ending(world)
    assert not world.is_now("Suspended")
    report(world, 101)
    world.wait_condition("Suspended")
    pods = world.wait(lambda: found if len(found := ending(world)) == 2 else None, "the end of all pods")
    for name in pods:
        world.reap_pod(name)
    world.wait(lambda: f"{PREFIX}checkpoint-awaited" not in world.job()["metadata"]["annotations"], "no annotation")


def report(world: World, step: int) -> None:
    """What the endpoint for progress writes."""
    status = {"trainerStatus": {"metrics": [{"name": "checkpoint_step", "value": str(step)}]}}
    world.ask("PATCH", f"{JOBS}/j/status", {"status": status}, MERGE)


def test_a_malformed_annotation_is_one_warning_and_the_job_runs(world: World):
    start(world, 1, {GRACE: "soon", ON_DISRUPTION: "save"})
    events = world.wait(lambda: world.events("CheckpointNotPossible"), "the warning")
    assert [(event["type"], event.get("count", 1)) for event in events] == [("Warning", 1)]
    assert "must be a duration from 1s to 1h" in events[0]["message"]
