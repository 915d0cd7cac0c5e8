"""An operator with `--kueue` in a cluster that gets Kueue later, loses its process, and gets it back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.cluster.controlplane import ControlPlane
from e2e.schedulers.conftest import run_operator, start_queue_plane
from e2e.schedulers.kueue import Kueue
from e2e.schedulers.queues import QueueWorld, counts_of, make_queue_objects
from tests.server.process import Operator


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    yield from start_queue_plane()


@pytest.fixture(scope="module", autouse=True)
def operator(plane: ControlPlane) -> Iterator[Operator]:
    yield from run_operator(plane, "--kueue=MXJob")


@pytest.fixture(scope="module")
def kueue(plane: ControlPlane) -> Iterator[Kueue]:
    """Not installed."""
    kueue = Kueue(plane, ["MXJob"])
    try:
        yield kueue
    finally:
        kueue.stop()


def test_job_waits_for_kueue_and_outlives_it(plane: ControlPlane, kueue: Kueue) -> None:
    world = QueueWorld(plane.api, "MXJob", queue=False)
    body = world.body("j", {role: world.role(count) for role, count in counts_of("MXJob").items()})
    world.ask("POST", world.jobs, body)
    world.wait(lambda: world.condition_reason("Admitted") == "WorkloadUnavailable", "the condition")
    assert not world.pods_of("j")

    kueue.install()
    kueue.start()
    make_queue_objects(plane.api)
    world.make_queue(plane.api)
    before = world.wait_settled("j")

    kueue.stop()
    world.ask("POST", world.jobs, {**body, "metadata": {**body["metadata"], "name": "next"}})
    world.wait(lambda: world.condition_reason("Admitted", "next"), "the condition of a job without Kueue")
    after = world.wait_running("j")
    assert {pod["metadata"]["uid"] for pod in after.values()} == {pod["metadata"]["uid"] for pod in before.values()}
    assert not world.pods_of("next")

    kueue.start()
    world.wait_running("next")
    for name in ("j", "next"):
        world.end_pods(name)
        world.wait_condition("Succeeded", name)
    world.wait_used_cpus("0")
