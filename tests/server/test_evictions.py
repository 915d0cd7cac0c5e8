"""Evictions of Kubernetes 1.37 on real API servers, with the feature gate EvictionRequestAPI and without it.

Kubernetes 1.37 has no controller for them yet, and no kubelet runs: the tests write what the controller writes, by the
API's description of it, and the statuses of pods. The API server checks both, and the operator's answers.
"""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from e2e.cluster.components import ClusterOptions
from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.places import ClusterError, binary
from tests.conftest import start_control_plane
from tests.server.process import Operator
from tests.server.test_permissions import Account
from tests.server.world import CORE, JOBS, MERGE, Json, World, replicas
from trainop.manifests.rbac import component_roles
from trainop.runtime.clock import timestamp

PREFIX = "trainop.kubeflow.org/"
GRACE, ON_DISRUPTION = f"{PREFIX}checkpoint-grace", f"{PREFIX}on-disruption"
RESPOND = {ON_DISRUPTION: "checkpoint-and-respond"}
LIFECYCLE = "/apis/lifecycle.k8s.io/v1alpha1"
EVICTIONS = LIFECYCLE + "/namespaces/{namespace}/evictions"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
OURS, LAST = f"{PREFIX}checkpoint", "imperative-eviction.k8s.io/evictor"
NODE = {"nodeName": "somewhere"}  # bound pods are deleted with their grace period, as on a real node
PODS = ("j-master-0", "j-worker-0", "j-worker-1")
GATE = "kube-apiserver=--feature-gates=EvictionRequestAPI=true"
CLUSTERS: dict[str, ClusterOptions] = {
    "served": ClusterOptions(
        release="1.37", flags=(GATE, "kube-apiserver=--runtime-config=lifecycle.k8s.io/v1alpha1=true")
    ),
    "gate off": ClusterOptions(release="1.37"),
    "older": ClusterOptions(release="1.34"),
}
NUMBERS = itertools.count()


class Place:
    """A cluster with an operator that has the shipped rights and those of the component."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane = plane
        self.world = World(plane.api, "operator")
        account = Account(self.world, plane, folder, "", "")
        role, binding = component_roles()["eviction-responder"]
        binding["subjects"][0] |= {"name": "operator-operator", "namespace": "operator"}
        self.world.ask("POST", f"{RBAC}/clusterroles", role)
        self.world.ask("POST", f"{RBAC}/clusterrolebindings", binding)
        self.operator = Operator(folder / "operator.log", f"--kubeconfig={account.kubeconfig}")

    def requests(self) -> str:
        """What the API server counts of requests about Evictions."""
        lines = str(self.plane.api("GET", "/metrics").body).splitlines()
        return "\n".join(each for each in lines if each.startswith("apiserver_request_total") and "lifecycle" in each)


@pytest.fixture(scope="module")
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    options = CLUSTERS[request.param]
    try:
        binary("kube-apiserver", options.release)
    except ClusterError as error:  # in CI, too, which builds one release for all tests
        pytest.skip(str(error))
    for plane in start_control_plane(f"evictions-{list(CLUSTERS).index(request.param)}", options):
        made = Place(plane, tmp_path_factory.mktemp("evictions"))
        made.operator.start()
        yield made
        if made.operator.running:
            made.operator.end()


@pytest.fixture
def world(place: Place) -> World:
    return World(place.plane.api, f"evictions-{next(NUMBERS)}")


served = pytest.mark.parametrize("place", ["served"], indirect=True)
not_served = pytest.mark.parametrize("place", ["gate off", "older"], indirect=True)


def start(world: World, annotations: dict[str, str]) -> dict[str, Json]:
    roles = {"Master": replicas(1, "OnFailure", **NODE), "Worker": replicas(2, "OnFailure", **NODE)}
    body = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "j", "annotations": annotations},
        "spec": {"pytorchReplicaSpecs": roles},
    }
    world.ask("POST", JOBS, body)
    pods = world.wait_pods(*PODS)
    world.run_pod(*PODS)
    world.wait_condition("Running")
    return pods


def now(seconds: float = 0) -> str:
    return timestamp(datetime.now(UTC) + timedelta(seconds=seconds))


def begin(world: World, pod: Json) -> str:
    """The controller of Evictions makes one of the requests, and it is the operator's turn. Returns its name."""
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    spec = {"target": {"pod": {"name": name, "uid": uid}}}
    body = {
        "apiVersion": "lifecycle.k8s.io/v1alpha1",
        "kind": "Eviction",
        "metadata": {"name": f"{name}-of"},
        "spec": spec,
    }
    world.ask("POST", EVICTIONS, body)
    status = {
        "requesters": [{"name": "acme.io/drain", "intent": "Eviction"}],
        "targetResponders": [
            *({**each, "state": "Active"} for each in pod["spec"]["evictionResponders"]),
            {"name": LAST, "priority": 100, "state": "Inactive"},
        ],
        "responders": [{"name": OURS, "startTime": now()}, {"name": LAST}],
    }
    world.ask("PATCH", f"{EVICTIONS}/{name}-of/status", {"status": status}, MERGE)
    return f"{name}-of"


def answer(world: World, name: str) -> Json:
    """What the operator has reported."""
    found = world.ask("GET", f"{EVICTIONS}/{name}")["status"]["responders"]
    return next(each for each in found if each["name"] == OURS)


def ending(world: World) -> dict[str, Json]:
    return {name: pod for name, pod in world.pods().items() if "deletionTimestamp" in pod["metadata"]}


def history(world: World) -> Json:
    found: Json = json.loads(world.job()["metadata"]["annotations"].get(f"{PREFIX}restarts", "{}"))
    return found


@served
def test_where_no_job_asks_no_request_is_sent(place: Place, world: World):
    """The first test, before any other asks."""
    pods = start(world, {ON_DISRUPTION: "checkpoint-all"})
    world.settle()
    assert all("evictionResponders" not in pod["spec"] for pod in pods.values())
    assert place.requests() == ""


@served
def test_all_replicas_save_before_the_pod_is_evicted(place: Place, world: World):
    pods = start(world, RESPOND | {GRACE: "5m"})
    assert [pod["spec"]["evictionResponders"] for pod in pods.values()] == [[{"name": OURS, "priority": 10000}]] * 3
    name = begin(world, pods["j-worker-1"])
    left = world.wait(lambda: found if len(found := ending(world)) == 3 else None, "the end of all pods")
    assert {pod["metadata"]["deletionGracePeriodSeconds"] for pod in left.values()} == {300}
    said = world.wait(lambda: found if "heartbeatTime" in (found := answer(world, name)) else None, "a heartbeat")
    assert said["message"].startswith("All replicas of PyTorchJob j")
    assert said["startTime"] <= said["heartbeatTime"] < said["expectedCompletionTime"]
    world.wait_condition("Restarting")
    assert "was asked to leave its node (EvictionRequested)" in world.condition("Restarting")["message"]
    assert world.status()["lastFailure"]["reason"] == "EvictionRequested"

    place.operator.end(signal.SIGKILL)
    second = begin(world, pods["j-worker-0"])
    world.end_pod("j-master-0", 0)  # it has saved
    world.reap_pod("j-worker-1")
    place.operator.start()
    world.wait(lambda: "heartbeatTime" in answer(world, second), "a heartbeat for the other Eviction")
    world.wait(lambda: "completionTime" in answer(world, name), "that the first is complete")
    assert answer(world, name)["message"] == "The pod has ended"
    assert "completionTime" not in answer(world, second)
    for each in ("j-master-0", "j-worker-0"):
        world.reap_pod(each)
    world.wait(lambda: "completionTime" in answer(world, second), "that the second is complete")
    world.wait_pods(*PODS)
    world.run_pod(*PODS)
    world.wait_condition("Running")
    assert (history(world)["disruptions"], history(world).get("failures", 0)) == (1, 0)
    assert 'resource="evictions"' in place.requests()


@served
def test_a_job_runs_on_until_its_next_checkpoint_and_a_canceled_eviction_changes_nothing(world: World):
    pods = start(world, RESPOND | {GRACE: "5m"})
    report(world, now(-100))
    name = begin(world, pods["j-worker-1"])
    world.wait(lambda: "runs on until" in answer(world, name).get("message", ""), "that the operator waits")
    world.wait_events("CheckpointAwaited")
    canceled = world.ask("GET", f"{EVICTIONS}/{name}")["status"]
    canceled["targetResponders"][0]["state"] = "Canceled"
    failed = {"type": "Failed", "status": "True", "reason": "CanceledDueToNoRequesters", "message": ""}
    canceled["conditions"] = [
        {**failed, "lastTransitionTime": now()},
        {**failed, "type": "TargetEvicted", "status": "False", "reason": "EvictionFailed", "lastTransitionTime": now()},
    ]
    world.ask("PATCH", f"{EVICTIONS}/{name}/status", {"status": canceled}, MERGE)
    report(world, now(5))
    world.settle()
    assert not ending(world)
    again = begin(world, pods["j-worker-0"])
    report(world, now(10))
    world.wait(lambda: len(ending(world)) == 3, "the end of all pods")
    for each in PODS:
        world.reap_pod(each)
    world.wait(lambda: "completionTime" in answer(world, again), "that it is complete")


def report(world: World, saved: str) -> None:
    """As the endpoint of progress writes it."""
    metrics = [{"name": "checkpoint_step", "value": "1"}, {"name": "checkpoint_time", "value": saved}]
    body = {"status": {"trainerStatus": {"metrics": metrics, "lastUpdatedTime": now()}}}
    world.ask("PATCH", f"{JOBS}/j/status", body, MERGE)


@served
def test_without_the_component_a_job_has_one_warning_and_runs(place: Place, world: World, tmp_path: Path):
    place.operator.end()
    account = Account(world, place.plane, tmp_path, "", "")
    operator = Operator(tmp_path / "operator.log", f"--kubeconfig={account.kubeconfig}")
    operator.start()
    try:
        pods = start(world, RESPOND)
        assert all("evictionResponders" not in pod["spec"] for pod in pods.values())
        (event,) = world.wait_events("EvictionsNotAnswered")
        assert "component eviction-responder" in event["message"]
    finally:
        operator.end()
        place.operator.start()


@not_served
def test_where_they_are_not_served_a_job_has_one_warning_and_runs(world: World):
    pods = start(world, RESPOND)
    assert all("evictionResponders" not in pod["spec"] for pod in pods.values())
    (event,) = world.wait_events("EvictionsNotAnswered")
    assert "Kubernetes 1.37 has with the feature gate EvictionRequestAPI" in event["message"]
    assert event["type"] == "Warning"
    world.ask(
        "POST",
        f"{CORE}/pods/j-worker-1/eviction",
        {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "j-worker-1"}},
    )
    world.wait(lambda: len(ending(world)) == 3, "the end of all pods")
    for each in PODS:
        world.reap_pod(each)
    world.wait_pods(*PODS)
    assert not world.events("EvictionsNotAnswered")[1:]


def test_the_component_grants_what_the_operator_asks_for():
    """The role of these tests is that of the file."""
    path = Path(__file__).parents[2] / "manifests" / "components" / "eviction-responder"
    (text,) = (each.read_text() for each in path.iterdir() if each.name != "kustomization.yaml")
    assert next(iter(yaml.safe_load_all(text)))["rules"] == component_roles()["eviction-responder"][0]["rules"]
