"""DIJobs with `--kueue` beside a real Kueue and di-server, which creates what the queue has admitted."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import free_ports, wait_until
from e2e.schedulers.conftest import run_queue_operator
from e2e.schedulers.kueue import Kueue
from e2e.schedulers.manifests import Json, create
from e2e.schedulers.queues import QUEUE, SELECTOR, TOLERATION, QueueWorld, is_running, priority
from tests.patience import PATIENCE
from tests.server.process import ROOT, Operator, fetch
from trainop.kinds.dijob.names import REPLICAS, coordinator_name, job_selector

VERSION = "diengine.opendilab.org/v1alpha1"


@pytest.fixture(scope="module")
def plane(external_kueue: Kueue) -> ControlPlane:
    return external_kueue.plane


@pytest.fixture(scope="module", autouse=True)
def operator(plane: ControlPlane) -> Iterator[Operator]:
    yield from run_queue_operator(plane, "--kueue=DIJob", "--enable-scheme=DIJob")


@pytest.fixture(scope="module")
def port(plane: ControlPlane) -> Iterator[int]:
    """Of di-server. It does not check callers: simulated pods send nothing."""
    create(plane.api, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "di-system"}})
    (port,) = free_ports(1)
    flags = [f"--kubeconfig={plane.kubeconfig}", f"--server-bind-address=127.0.0.1:{port}", "--caller-check=off"]
    command = [sys.executable, "-m", "trainop", "di-server", *flags]
    with (plane.data / "di-server.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT)
    try:
        assert wait_until(lambda: fetch(f"http://127.0.0.1:{port}/readyz")[0] == 200, PATIENCE)
        yield port
    finally:
        server.terminate()
        server.wait(PATIENCE)


class DiQueueWorld(QueueWorld):
    """A namespace with a queue for DIJobs, each pod of which asks for one CPU."""

    def __init__(self, plane: ControlPlane, port: int, **queue: str) -> None:
        super().__init__(plane.api, "PyTorchJob", **queue)  # type: ignore[arg-type]  # fields of the queue
        self.port = port
        self.jobs = f"/apis/{VERSION}/namespaces/{{namespace}}/dijobs"

    def start(self, name: str, declared: str, order: str = "low") -> None:
        container: Json = {"name": "di-container", "image": "none", "resources": {"requests": {"cpu": "1"}}}
        section = {"template": {"spec": {"containers": [container]}}}
        body = {
            "apiVersion": VERSION,
            "kind": "DIJob",
            "metadata": {
                "name": name,
                "labels": {**QUEUE, **priority(order)},
                "annotations": {REPLICAS: declared},
            },
            "spec": dict.fromkeys(("coordinator", "collector", "learner"), section),
        }
        self.ask("POST", self.jobs, body)

    def pods_of(self, name: str) -> dict[str, Json]:
        found = self.ask("GET", f"/api/v1/namespaces/{{namespace}}/pods?labelSelector={job_selector(name)}")["items"]
        return {pod["metadata"]["name"]: pod for pod in found if "deletionTimestamp" not in pod["metadata"]}

    def request(self, name: str, **counts: int) -> tuple[int, str]:
        """A request of the coordinator: status and message of the answer."""
        body = {role: {"replicas": count} for role, count in counts.items()}
        body |= {"namespace": self.namespace, "coordinator": coordinator_name(name)}  # type: ignore[dict-item]  # texts
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.request("POST", "/v1alpha1/replicas", json.dumps(body))
        with closing(connection):
            answer = connection.getresponse()
            return answer.status, str(json.loads(answer.read())["message"])


def test_dijob_waits_grows_to_what_it_declares_and_returns_its_quota(plane: ControlPlane, port: int) -> None:
    world = DiQueueWorld(plane, port, stopPolicy="Hold")
    world.start("j", "collector=2,learner=1")
    world.wait(lambda: world.workload("j"), "the Workload")
    assert not world.pods()
    world.patch_queue({"stopPolicy": "None"})
    world.wait_running("j", 1)
    world.wait_used_cpus("4")
    world.wait_workload("j", "PodsReady")
    assert world.request("j", collectors=2)[0] == 200
    assert world.request("j", learners=1)[0] == 200
    for pod in world.wait_running("j", 4).values():
        assert pod["spec"]["nodeSelector"] == SELECTOR
        assert TOLERATION in pod["spec"]["tolerations"]
    status, message = world.request("j", collectors=1)
    assert status == 400
    assert "the queue has admitted 2 pods of role collector, 2 exist" in message
    world.end_some("j", coordinator_name("j"))
    world.wait_condition("Succeeded")
    world.wait_workload("j", "Finished")
    world.wait_used_cpus("0")
    world.wait(lambda: not any(is_running(pod) for pod in world.pods_of("j").values()), "the clean-up")


def test_preempted_dijob_runs_again(plane: ControlPlane, port: int) -> None:
    world = DiQueueWorld(plane, port)
    world.start("low", "collector=3")
    world.wait_running("low", 1)
    world.wait_workload("low", "PodsReady")
    assert world.request("low", collectors=3)[0] == 200
    world.wait_running("low", 4)
    world.start("high", "collector=3", "high")
    world.wait_running("high", 1)
    assert not world.pods_of("low")
    assert world.status("low")["phase"] == "Created"
    assert world.request("low", collectors=1)[0] == 404
    assert not world.pods_of("low")
    assert world.request("high", collectors=3)[0] == 200
    world.wait_running("high", 4)
    world.end_some("high", coordinator_name("high"))
    world.wait_condition("Succeeded", "high")
    world.wait_running("low", 1)
    assert world.request("low", collectors=3)[0] == 200
    world.wait_running("low", 4)
    world.end_some("low", coordinator_name("low"))
    world.wait_condition("Succeeded", "low")
    world.wait_used_cpus("0")


def test_deleted_workload_stops_the_dijob_and_queues_it_again(plane: ControlPlane, port: int) -> None:
    world = DiQueueWorld(plane, port)
    world.start("j", "collector=1")
    before = world.wait_running("j", 1)
    uids = {pod["metadata"]["uid"] for pod in before.values()}
    assert world.request("j", collectors=1)[0] == 200
    world.delete_workload("j")
    world.wait(
        lambda: (found := world.pods_of("j")) and uids.isdisjoint(pod["metadata"]["uid"] for pod in found.values()),
        "a new coordinator",
    )
    assert set(world.wait_running("j", 1)) == {coordinator_name("j")}
