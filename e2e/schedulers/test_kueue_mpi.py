"""MPIJobs of both versions with Kueue's own integration, which reads them all in `v2beta1`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.cluster.controlplane import ControlPlane
from e2e.schedulers.conftest import make_nodes, run_operator, start_plane
from e2e.schedulers.kueue import Kueue
from e2e.schedulers.manifests import Json
from e2e.schedulers.queues import QUEUE, SELECTOR, TAINT, TOLERATION, QueueWorld, clear, make_flavor, make_priority
from tests.server.process import Operator

VERSIONS = {"ssh": "v2beta1", "exec": "v1"}


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    for plane in start_plane("scheduler"):
        make_nodes(plane, (SELECTOR, [TAINT]))
        yield plane


@pytest.fixture(scope="module", autouse=True)
def kueue(plane: ControlPlane) -> Iterator[Kueue]:
    kueue = Kueue(plane)
    try:
        kueue.install()
        kueue.start()
        make_flavor(plane.api)
        make_priority(plane.api, "low", 1)
        make_priority(plane.api, "high", 1000)
        yield kueue
    finally:
        kueue.stop()


@pytest.fixture(scope="module", autouse=True)
def operator(plane: ControlPlane, kueue: Kueue) -> Iterator[Operator]:
    del kueue
    yield from run_operator(plane)


@pytest.fixture(autouse=True)
def free_nodes(plane: ControlPlane) -> Iterator[None]:
    yield
    clear(plane.api)


class MpiQueueWorld(QueueWorld):
    """A queue for MPIJobs of one transport."""

    def __init__(self, plane: ControlPlane, transport: str) -> None:
        super().__init__(plane.api, "PyTorchJob")
        self.jobs = f"/apis/kubeflow.org/{VERSIONS[transport]}/namespaces/{{namespace}}/mpijobs"
        self.version = VERSIONS[transport]

    def submit_mpi(self, name: str, priority: str) -> None:
        container: Json = {"name": "mpi", "image": "none", "resources": {"requests": {"cpu": "1"}}}
        template: Json = {"spec": {"containers": [container]}}
        specs = {"Launcher": {"replicas": 1, "template": template}, "Worker": {"replicas": 2, "template": template}}
        body = {
            "apiVersion": f"kubeflow.org/{self.version}",
            "kind": "MPIJob",
            "metadata": {"name": name, "labels": {**QUEUE, "kueue.x-k8s.io/priority-class": priority}},
            "spec": {"mpiReplicaSpecs": specs, "runPolicy": {"cleanPodPolicy": "Running"}},
        }
        self.ask("POST", self.jobs, body)


@pytest.mark.parametrize("transport", VERSIONS)
def test_mpi_job_waits_runs_is_preempted_and_ends(plane: ControlPlane, transport: str) -> None:
    world = MpiQueueWorld(plane, transport)
    world.submit_mpi("low", "low")
    pods = world.wait_running("low", 3)
    for pod in pods.values():
        assert pod["spec"]["nodeSelector"] == SELECTOR
        assert TOLERATION in pod["spec"]["tolerations"]
    world.wait_condition("Running", "low")
    world.wait_workload("low", "PodsReady")
    world.wait_used_cpus("3")

    world.submit_mpi("high", "high")
    world.wait_running("high", 3)
    world.wait(lambda: not world.pods_of("low"), "no pods of the evicted job")
    assert world.suspended("low")
    end_launcher(world, "high")
    world.wait_condition("Succeeded", "high")
    world.wait_workload("high", "Finished")
    world.wait_running("low", 3)
    end_launcher(world, "low")
    world.wait_condition("Succeeded", "low")
    world.wait_used_cpus("0")


def end_launcher(world: MpiQueueWorld, job: str) -> None:
    (launcher,) = (name for name in world.pods_of(job) if "launcher" in name)
    world.end_some(job, launcher)
