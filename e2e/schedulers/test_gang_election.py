"""Two operators with leader election and gangs of kube-scheduler: the leader is killed, the other one keeps them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.schedulers.gangs import GangScheduler, KubeScheduler
from e2e.schedulers.members import LARGE, GangWorld
from tests.server.process import Operator
from tests.server.test_election import holder, start_two
from tests.server.world import CORE

pytestmark = pytest.mark.parametrize("scheduler", [KubeScheduler], ids=[KubeScheduler.name], indirect=True)
MANY = 30
ADMITTED = 12
"""Of so many pods, before the leader is killed."""


@pytest.fixture
def pair(world: GangWorld, scheduler: GangScheduler, tmp_path: Path) -> Iterator[tuple[Operator, Operator, str]]:
    """The leader, its standby, and the leader's identity."""
    made: list[Operator] = []

    def make(kubeconfig: Path, *flags: str) -> Operator:
        given = (f"--kubeconfig={kubeconfig}", f"--gang-scheduler-name={scheduler.name}")
        made.append(Operator(tmp_path / f"operator-{len(made)}.log", *given, *flags))
        return made[-1]

    try:
        yield start_two(scheduler.plane, world, make)
    finally:
        for operator in made:
            if operator.running:
                operator.end()


def kill(world: GangWorld, leader: Operator, identity: str) -> None:
    """Kills the leader and waits until the other one leads."""
    leader.end(signal.SIGKILL)
    world.wait(lambda: holder(world) not in {"", identity}, "another leader")


def groups_of(world: GangWorld) -> dict[str, str]:
    """Kind and name -> UID of all PodGroups and Workloads."""
    return {
        f"{kind}/{each['metadata']['name']}": each["metadata"]["uid"]
        for kind in ("podgroups", "workloads")
        for each in world.ask("GET", world.groups.replace("podgroups", kind))["items"]
    }


def test_gang_of_which_a_part_exists_is_completed(world: GangWorld, pair: tuple[Operator, Operator, str]) -> None:
    """A quota holds the leader up in the middle, so that it is killed there."""
    leader, standby, identity = pair
    quota = f"{CORE}/resourcequotas"
    world.ask("POST", quota, {"metadata": {"name": "pods"}, "spec": {"hard": {"pods": str(ADMITTED)}}})
    world.wait(lambda: world.ask("GET", f"{quota}/pods").get("status", {}).get("hard"), "the quota in force")
    with world.record() as recorder:
        world.submit("a", MANY, "100m")
        world.wait(lambda: len(world.members("a")) == ADMITTED, "a part of the gang")
        before = groups_of(world)
        kill(world, leader, identity)
        assert recorder.peak("a") == 0
        world.ask("DELETE", f"{quota}/pods")
        world.wait_running("a", MANY)
        world.wait_condition("Running", "a")
        recorder.check_never_in_part({"a": MANY})
        assert recorder.made() == {f"a-worker-{index}": 1 for index in range(MANY)}
    assert groups_of(world) == before
    assert standby.running


def test_gangs_that_wait_keep_their_turn(world: GangWorld, pair: tuple[Operator, Operator, str]) -> None:
    """One runs, one waits, and one is submitted while nobody leads."""
    leader, standby, identity = pair
    with world.record() as recorder:
        world.submit("a", 3, LARGE)
        world.wait_running("a", 3)
        world.wait_condition("Running", "a")
        world.submit("b", 3, LARGE)
        world.wait(lambda: world.condition("GangReady", "b").get("status") == "False", "a gang that waits")
        before, told, pods = groups_of(world), conditions(world), uids(world, "a")
        leader.end(signal.SIGKILL)
        world.submit("c", 3, LARGE)
        world.wait(lambda: holder(world) not in {"", identity}, "another leader")
        world.wait(lambda: world.group_of("c"), "the PodGroup of the new job")
        assert before.items() <= groups_of(world).items()
        assert conditions(world) == told
        assert uids(world, "a") == pods
        assert {recorder.peak("b"), recorder.peak("c")} == {0}
        left = set("abc")
        while left:
            placed: str = world.wait(lambda: next((j for j in left if world.running(j, 3)), None), "a placed gang")
            world.wait_condition("Running", placed)
            if placed in "ab":
                assert world.group_of(placed)["metadata"]["uid"] == before[f"podgroups/{placed}"]
            world.end_pods(placed)
            world.wait_condition("Succeeded", placed)
            left.remove(placed)
        recorder.check_never_in_part(dict.fromkeys("abc", 3))
        assert recorder.made() == {f"{job}-worker-{index}": 1 for job in "abc" for index in range(3)}
    world.wait(lambda: not groups_of(world), "no groups of finished jobs")
    assert standby.running


def conditions(world: GangWorld) -> list[tuple[str, str, str]]:
    """Of the jobs that were submitted first."""
    found = [each for job in "ab" for each in world.status(job)["conditions"]]
    return [(each["type"], each["status"], each["reason"]) for each in found]


def uids(world: GangWorld, job: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in world.members(job).values()}
