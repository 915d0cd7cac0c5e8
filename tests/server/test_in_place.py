"""Restarts in place on real API servers of two releases: what they do with the rules, and what follows.

No kubelet runs: the tests write the statuses that kubelet 1.37 writes, which the API server accepts or refuses.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster.components import ClusterOptions
from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.places import ClusterError, binary
from tests.conftest import start_control_plane
from tests.server.process import Operator
from tests.server.world import JOBS, Json, World, container, replicas

MODE = "trainop.kubeflow.org/restart-mode"
PODS = ("j-master-0", "j-worker-0", "j-worker-1")
GATE_OFF = "kube-apiserver=--feature-gates=RestartAllContainersOnContainerExits=false"
CLUSTERS: dict[str, tuple[ClusterOptions, bool]] = {
    "dropped by 1.34": (ClusterOptions(release="1.34"), False),
    "refused as by 1.35": (ClusterOptions(release="1.37", flags=(GATE_OFF,)), False),
    "kept by 1.37": (ClusterOptions(release="1.37"), True),
}


KEPT = [name for name, (_, serves) in CLUSTERS.items() if serves]
REFUSED = [name for name in CLUSTERS if name not in KEPT]
NUMBERS = itertools.count()


class Place:
    """A cluster with an operator."""

    def __init__(self, plane: ControlPlane, operator: Operator, *, serves: bool) -> None:
        self.plane = plane
        self.operator = operator
        self.serves = serves


@pytest.fixture(scope="module", params=CLUSTERS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    options, serves = CLUSTERS[request.param]
    try:
        binary("kube-apiserver", options.release)
    except ClusterError as error:  # in CI, too, which builds one release for all tests
        pytest.skip(str(error))
    for plane in start_control_plane(f"in-place-{list(CLUSTERS).index(request.param)}", options):
        operator = Operator(tmp_path_factory.mktemp("in-place") / "operator.log", f"--kubeconfig={plane.kubeconfig}")
        operator.start()
        yield Place(plane, operator, serves=serves)
        operator.end()


@pytest.fixture
def world(place: Place) -> World:
    return World(place.plane.api, f"in-place-{next(NUMBERS)}")


def create(world: World, policy: str) -> None:
    body = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "j", "annotations": {MODE: "in-place"}},
        "spec": {
            "pytorchReplicaSpecs": {"Master": replicas(1, policy), "Worker": replicas(2, policy)},
            "runPolicy": {"backoffLimit": 1},
        },
    }
    world.ask("POST", JOBS, body)
    world.wait_pods(*PODS)
    world.run_pod(*PODS)
    world.wait_condition("Running")


def rules(pod: Json) -> Any:
    return pod["spec"]["containers"][0].get("restartPolicyRules")


def end(world: World, name: str, code: int, restarts: int = 0) -> None:
    """Kubelet has seen the exit."""
    now = "2026-01-01T00:00:00Z"
    ended = {"exitCode": code, "reason": "Error", "startedAt": now, "finishedAt": now, "message": "boom"}
    restarting = {"type": "AllContainersRestarting", "status": "True", "reason": "RestartAllContainersStarted"}
    one = container({"terminated": ended}, restarts)
    world.set_pod(name, {"phase": "Running", "containerStatuses": [one], "conditions": [restarting]})


def remove(world: World, name: str, restarts: int = 1) -> None:
    """Kubelet has removed the containers of the pod."""
    gone = {"exitCode": 137, "reason": "RestartingAllContainers", "startedAt": None, "finishedAt": None}
    one = container({"waiting": {"reason": "RestartingAllContainers"}}, restarts)
    world.set_pod(name, {"phase": "Running", "containerStatuses": [one | {"lastState": {"terminated": gone}}]})


def failures(world: World) -> Any:
    return world.job()["metadata"]["annotations"].get("trainop.kubeflow.org/restarts", "")


@pytest.mark.parametrize("policy", ["OnFailure", "ExitCode"])
def test_a_job_restarts_in_place_where_the_rules_are_kept(place: Place, world: World, policy: str) -> None:
    create(world, policy)
    condition = world.wait_condition("RestartsInPlace") if place.serves else None
    before = {name: pod["metadata"]["uid"] for name, pod in world.pods().items()}
    assert [bool(rules(pod)) for pod in world.pods().values()] == [place.serves] * 3
    if condition is None:
        world.wait(lambda: world.condition("RestartsInPlace")["status"] == "False", "that rules are not served")
        assert world.condition("RestartsInPlace")["reason"] == "RestartRulesNotServed"
        world.wait_events("RestartRulesNotServed")
        return
    end(world, "j-worker-0", 139)
    world.wait_condition("Restarting")
    failure = world.status()["lastFailure"]
    assert (failure["pod"], failure["exitCode"], failure["attempt"]) == ("j-worker-0", 139, 1)
    for name in PODS:
        if name != "j-worker-0":
            end(world, name, 134)
        remove(world, name)
    world.run_pod(*PODS, restarts=1)
    world.wait_condition("Running")
    assert '"failures":1' in failures(world)
    assert {name: pod["metadata"]["uid"] for name, pod in world.pods().items()} == before
    end(world, "j-master-0", 139, restarts=1)  # backoffLimit is 1, and the second restart exceeds it
    world.wait_condition("Failed")
    assert "backoff limit" in world.condition("Failed")["message"]


@pytest.mark.parametrize("place", REFUSED, indirect=True)
def test_replicas_without_rules_are_recreated_together(place: Place, world: World) -> None:
    create(world, "ExitCode")
    before = {pod["metadata"]["uid"] for pod in world.pods().values()}
    world.end_pod("j-worker-0", 139)

    def old() -> dict[str, bool]:
        """The first pods that are still there, and whether they are being deleted; one without a node goes at once."""
        pods = {name: pod["metadata"] for name, pod in world.pods().items()}
        return {name: "deletionTimestamp" in each for name, each in pods.items() if each["uid"] in before}

    world.wait(lambda: all(old().values()), "all leave")
    for name in old():
        world.reap_pod(name)
    world.wait(lambda: not before & {pod["metadata"]["uid"] for pod in world.pods().values()}, "new pods")
    world.wait_pods(*PODS)
    assert '"failures":1' in failures(world)


@pytest.mark.parametrize("place", KEPT, indirect=True)
def test_an_operator_killed_in_a_burst_counts_it_once(place: Place, world: World) -> None:
    create(world, "OnFailure")
    end(world, "j-worker-0", 1)
    world.wait_condition("Restarting")
    world.wait_events("PyTorchJobRestarting")
    place.operator.end(signal.SIGKILL)
    remove(world, "j-worker-0")
    for name in ("j-master-0", "j-worker-1"):
        end(world, name, 1)
        remove(world, name)
    place.operator.start()
    world.run_pod(*PODS, restarts=1)
    world.wait_condition("Running")
    assert '"failures":1' in failures(world)
    world.wait_events("PyTorchJobRestarting")
