"""The operator's own integration with Kueue: jobs of every kind, and the requests that the operator sends for them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.controllers.kinds import KINDS, make
from tests.engine.queue_world import QUEUE, QueueWorld, WithKueue
from tests.kinds.mpi_world import MpiWorld, mpi_job, replicas
from trainop.engine.kueue import SeenQueue
from trainop.kinds.mpi.transport import LAUNCHER_JOBS
from trainop.programs.queues import QUEUED, with_queue
from trainop.programs.schemes import FRAMEWORKS
from trainop.programs.schemes import KINDS as SCHEMES
from trainop.runtime.objects.metadata import Json


class QueuedMpi(WithKueue, MpiWorld):
    def __init__(self, job: Json, *, ssh: bool = True) -> None:
        super().__init__(job, ssh=ssh)
        self.kind = with_queue(self.kind)

    @property
    def launcher_suspended(self) -> bool:
        return self.launcher["spec"].get("suspend") is True


def queued(job: Json) -> Json:
    job["metadata"]["labels"] = {**job["metadata"].get("labels", {}), QUEUE: "q"}
    return job


def world_of(kind: str, **run: Any) -> WithKueue:
    if kind.startswith("MPIJob"):
        transport = kind.removeprefix("MPIJob over ")
        job = mpi_job(transport=transport, run=run or None, worker=replicas(2, resources={"requests": {"cpu": "1"}}))
        return QueuedMpi(queued(job), ssh=transport == "ssh")
    job = queued(make(kind, policy="Never"))
    if run:
        job["spec"]["runPolicy"] = run
    return QueueWorld(job, framework=FRAMEWORKS[kind])


EVERY = [*KINDS, "MPIJob over ssh", "MPIJob over exec"]
every_kind = pytest.mark.parametrize("kind", EVERY)


def run(world: WithKueue) -> None:
    """All pods run."""
    world.settle()
    if isinstance(world, QueuedMpi) and world.kind.launcher is not None:
        world.launch()
        world.run_workers()
    world.run()
    world.settle()


def test_all_kinds_that_the_flag_names_are_here() -> None:
    assert {kind.split()[0] for kind in EVERY} == set(QUEUED) == set(SCHEMES) - {"DIJob"}


@every_kind
def test_job_waits_is_placed_preempted_and_placed_again(kind: str) -> None:
    world = world_of(kind, backoffLimit=3)
    world.settle()
    assert not world.pods
    assert world.suspended() is True
    assert world.is_true("Suspended")
    sets = world.workload["spec"]["podSets"]
    count = sum(each["count"] for each in sets)

    world.admit(flavor="spot")
    run(world)
    assert world.suspended() is False
    assert len(world.living()) == count
    assert world.said()["PodsReady"] == ("True", "Started")
    names = {each["name"] for each in sets}
    assert {placed_set(pod) for pod in templates(world)} == names
    assert all(pod["spec"]["nodeSelector"]["pool"] == "spot" for pod in templates(world))

    world.evict()
    world.settle()
    assert world.suspended() is True
    if isinstance(world, QueuedMpi) and world.kind.launcher is not None:
        assert world.launcher_suspended
        world.delete("foo-launcher-x")  # by the Job controller
    assert not world.living()
    assert world.said()["QuotaReserved"][0] == "True"
    world.reap()
    world.settle()
    assert world.said()["QuotaReserved"][0] == "False"

    world.admit()
    run(world)
    assert len(world.living()) == count
    assert not any("nodeSelector" in pod["spec"] for pod in templates(world)), "the other flavor has no labels"
    assert not world.is_true("Failed")


def templates(world: WithKueue) -> list[Json]:
    """What pods are made of: pods without an owner in this world are those of the launcher's Job."""
    found = [pod for pod in world.pods.values() if "spec" in pod and pod["metadata"]["name"] != "foo-launcher-x"]
    if isinstance(world, QueuedMpi) and world.kind.launcher is not None:
        found.append(world.launcher["spec"]["template"])
    return found


def placed_set(pod: Json) -> str:
    name: str = pod["metadata"]["labels"]["kueue.x-k8s.io/podset"]
    return name


@every_kind
def test_absent_api_starts_nothing_and_stops_nothing(kind: str) -> None:
    world = world_of(kind)
    known, world.queue = world.queue, SeenQueue(unavailable="absent")
    world.settle()
    assert not world.pods
    world.queue = known
    world.settle()
    world.admit()
    run(world)
    before = world.living()
    world.queue = SeenQueue(unavailable="absent")
    world.settle()
    assert world.living() == before
    assert world.shown[1] == "WorkloadUnavailable"


@pytest.mark.parametrize("transport", ["ssh", "exec"])
def test_mpi_job_without_a_transport_has_no_workload(transport: str) -> None:
    world = QueuedMpi(queued(mpi_job(transport=None)), ssh=transport == "ssh")
    world.step()
    assert not world.workloads
    assert not world.pods
    world = QueuedMpi(queued(mpi_job(transport=transport, run={"managedBy": "kueue.x-k8s.io/multikueue"})))
    world.step()
    assert not world.workloads


def test_pod_sets_of_an_mpi_job_over_ssh() -> None:
    world = world_of("MPIJob over ssh")
    world.settle()
    launcher, worker = world.workload["spec"]["podSets"]
    assert [(each["name"], each["count"]) for each in (launcher, worker)] == [("launcher", 1), ("worker", 2)]
    assert worker["template"]["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "1"}}
    world = QueuedMpi(queued(mpi_job(0)))
    world.settle()
    assert [each["name"] for each in world.workload["spec"]["podSets"]] == ["launcher"]


def test_invalid_mpi_job_asks_for_no_quota() -> None:
    world = QueuedMpi(queued(mpi_job(launcher=replicas(2))))
    world.step()
    assert not world.workloads
    assert LAUNCHER_JOBS not in {resource for resource, held in world.companions.items() if held}
