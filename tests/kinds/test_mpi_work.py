"""The cost of MPIJobs grows linearly with the number of workers, measured in bytecode instructions and in writes."""

from __future__ import annotations

import pytest

from tests.controllers.test_work import instructions
from tests.engine.builders import applied, manifest_of, pod_created
from tests.kinds.mpi_world import MpiWorld, mpi_job

SIZES = (50, 100, 200)


def world_of(workers: int, transport: str) -> MpiWorld:
    return MpiWorld(mpi_job(workers, transport=transport), ssh=transport == "ssh")


def growth(worlds: list[MpiWorld]) -> float:
    """The growth factor of the cost of a plan when the number of added workers doubles: 2 if linear, 4 if quadratic."""
    worlds[0].plan(worlds[0].snapshot())  # caches between plans are not part of the cost
    costs = []
    for world in worlds:
        seen = world.snapshot()

        def work(world: MpiWorld = world, seen: object = seen) -> None:
            for action in world.plan(seen).actions:  # type: ignore[arg-type]  # of a default
                if pod_created(action):
                    manifest_of(action)

        costs.append(instructions(work))
    small, middle, large = costs
    return (large - middle) / (middle - small)


@pytest.mark.parametrize("transport", ["ssh", "exec"])
@pytest.mark.parametrize("state", ["new", "pending", "running", "scaled down", "finished"])
def test_the_cost_of_a_plan_is_linear(transport: str, state: str):
    worlds = [world_of(size, transport) for size in SIZES]
    for world in worlds if state != "new" else ():
        world.settle()
        if state != "pending":
            world.run_workers()
            world.settle()
        if state == "scaled down":
            world.spec["mpiReplicaSpecs"]["Worker"]["replicas"] = 1
        if state == "finished":
            world.spec["runPolicy"] = {"cleanPodPolicy": "All"}
            condition = {"type": "Succeeded", "status": "True", "reason": "MPIJobSucceeded", "message": ""}
            world.status["conditions"].append(condition)
    assert growth(worlds) < 2.2


@pytest.mark.parametrize("transport", ["ssh", "exec"])
def test_the_files_are_not_written_per_pod(transport: str):
    """A thousand workers start one after the other within a minute, and the script is written every 15 seconds."""
    world = world_of(1000, transport)
    world.settle()
    assert world.made.count("ConfigMap foo-config") == 1
    writes = 0
    for index in range(1000):
        world.run(f"foo-worker-{index}")
        if index % 20 == 19:
            world.pass_time(1.2)
            made = world.step()
            writes += sum(applied(action) for action in made.actions)
    assert writes <= 6
    assert world.config["discover_hosts.sh"].count("echo") == 1000
