"""MPIJobs of both versions with Kueue's own integration, which reads them all in `v2beta1`, and a kind that both
integrations have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.cluster.controlplane import ControlPlane
from e2e.schedulers.conftest import run_queue_operator
from e2e.schedulers.kueue import Kueue
from e2e.schedulers.queues import SELECTOR, SSD, TOLERATION, QueueWorld, priority
from tests.server.process import Operator

SIZE = {"Launcher": 1, "Worker": 2}

pytestmark = pytest.mark.usefixtures("free_nodes")


@pytest.fixture(scope="module")
def plane(integrating_kueue: Kueue) -> ControlPlane:
    return integrating_kueue.plane


@pytest.fixture(scope="module", autouse=True)
def operator(plane: ControlPlane) -> Iterator[Operator]:
    yield from run_queue_operator(plane, "--kueue=JAXJob")


@pytest.mark.parametrize("kind", ["MPIJob", "MPIJob/v2beta1"])
def test_mpi_job_waits_runs_is_preempted_and_ends(plane: ControlPlane, kind: str) -> None:
    world = QueueWorld(plane.api, kind)
    world.submit("low", SIZE, labels=priority("low"), runPolicy={"cleanPodPolicy": "Running"})
    pods = world.wait_running("low", 3)
    for pod in pods.values():
        assert pod["spec"]["nodeSelector"] == {**SSD, **SELECTOR}
        assert TOLERATION in pod["spec"]["tolerations"]
    world.wait_condition("Running", "low")
    world.wait_workload("low", "PodsReady")
    world.wait_used_cpus("3")

    world.submit("high", SIZE, labels=priority("high"), runPolicy={"cleanPodPolicy": "Running"})
    world.wait_running("high", 3)
    world.wait(lambda: not world.pods_of("low"), "no pods of the evicted job")
    assert world.suspended("low")
    world.end_pods("high")
    world.wait_condition("Succeeded", "high")
    world.wait_workload("high", "Finished")
    world.wait_running("low", 3)
    world.end_pods("low")
    world.wait_condition("Succeeded", "low")
    world.wait_used_cpus("0")


def test_kind_of_both_integrations_is_left_to_kueue(plane: ControlPlane) -> None:
    """JAXJob is named in `--kueue`, although Kueue integrates it."""
    world = QueueWorld(plane.api, "JAXJob")
    world.submit("j")
    world.wait_running("j")
    world.wait(lambda: world.condition_reason("Admitted") == "KueueIntegration", "the condition")
    world.end_pods("j")
    world.wait_condition("Succeeded")
    world.wait_used_cpus("0")
