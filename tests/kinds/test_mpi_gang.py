"""Gang scheduling of MPIJobs with both transports."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kinds.mpi_world import MpiWorld, mpi_job, replicas
from trainop.engine.gang_scheduler import GROUP_NAME, POD_GROUP_LABEL, GangScheduler, choose_scheduler
from trainop.engine.seen import Options, SeenGang
from trainop.kinds.mpi.ssh_gang import QUEUE
from trainop.runtime.objects.metadata import Json


def scheduler(name: str) -> GangScheduler:
    found = choose_scheduler(name)
    assert found is not None
    return found


def world_of(name: str = "volcano", *, priorities: dict[str, int] | None = None, **fields: Any) -> MpiWorld:
    world = MpiWorld(mpi_job(**fields), options=Options(gang=scheduler(name)))
    world.gang = SeenGang(priorities=priorities or {})
    world.settle()
    return world


def group_of(world: MpiWorld) -> Json:
    """The spec of the PodGroup, without absent fields."""
    assert world.group is not None
    return {name: value for name, value in world.group["spec"].items() if value is not None}


def has_group(world: MpiWorld) -> bool:
    return world.group is not None


def asking(cpu: int, memory: int, priority: str = "") -> Json:
    resources = {"requests": {"cpu": str(cpu), "memory": f"{memory}Gi"}}
    named = {"priorityClassName": priority} if priority else {}
    return {"containers": [{"name": "c", "image": "i", "resources": resources}], **named}


POLICY = {
    "minAvailable": 2,
    "queue": "project-y",
    "priorityClass": "high",
    "minResources": {"cpu": "5"},
    "scheduleTimeoutSeconds": 100,
}


@pytest.mark.case("mpi-v2beta1-35", "ab")
def test_a_given_policy():
    fields: Json = {"annotations": {QUEUE: "project-x"}, "run": {"schedulingPolicy": POLICY}}
    assert group_of(world_of("volcano", **fields)) == {
        "minMember": 2,
        "queue": "project-y",
        "priorityClassName": "high",
        "minResources": {"cpu": "5"},
    }
    found = group_of(world_of("my-scheduler", **fields))
    assert found == {"minMember": 2, "scheduleTimeoutSeconds": 100, "minResources": {"cpu": "5"}}


@pytest.mark.case("mpi-v2beta1-35", "c")
def test_computed_values():
    fields: Json = {
        "annotations": {QUEUE: "project-x"},
        "launcher": replicas(1, template=asking(1, 2)),
        "worker": replicas(2, template=asking(10, 20)),
    }
    found = group_of(world_of("volcano", **fields))
    assert (found["minMember"], found["queue"], found["minResources"]) == (
        3,
        "project-x",
        {"cpu": "21", "memory": "42Gi"},
    )
    assert group_of(world_of("my-scheduler", **fields))["scheduleTimeoutSeconds"] == 0


@pytest.mark.case("mpi-v2beta1-36", "abd")
@pytest.mark.parametrize(
    ("launcher", "worker", "count", "least", "expected"),
    [
        (asking(2, 4, "high"), asking(20, 64, "low"), 100, 2, {"cpu": "22", "memory": "68Gi"}),
        (asking(2, 2, "gone"), asking(5, 16, "gone"), 2, 2, {"cpu": "7", "memory": "18Gi"}),
        (asking(2, 4, "low"), asking(20, 64, "high"), 4, 3, {"cpu": "60", "memory": "192Gi"}),
    ],
)
def test_minimum_resources(launcher: Json, worker: Json, count: int, least: int, expected: Json):
    world = world_of(
        priorities={"high": 100_010, "low": 10_010},
        launcher=replicas(1, template=launcher),
        worker=replicas(count, template=worker),
        run={"schedulingPolicy": {"minAvailable": least}},
    )
    assert group_of(world)["minResources"] == expected


@pytest.mark.case("mpi-v2beta1-36", "c")
def test_limits_count_where_there_is_no_request():
    resources = {
        "requests": {"cpu": "10", "memory": "16Gi"},
        "limits": {"cpu": "20", "memory": "32Gi", "nvidia.com/gpu": "8"},
    }
    world = world_of(workers=0, launcher=replicas(1, resources=resources))
    assert group_of(world)["minResources"] == {"cpu": "10", "memory": "16Gi", "nvidia.com/gpu": "8"}


@pytest.mark.case("mpi-v2beta1-37", "ab")
@pytest.mark.parametrize(
    ("name", "labels", "annotations"),
    [("volcano", {}, {GROUP_NAME: "foo"}), ("my-sched", {POD_GROUP_LABEL: "foo"}, {})],
)
def test_pods_are_those_of_the_group(name: str, labels: Json, annotations: Json):
    theirs = {"schedulerName": "other"}
    world = world_of(name, launcher=replicas(1, template=theirs), worker=replicas(1, template=theirs))
    for pod in (world.pods["foo-worker-0"], world.launcher["spec"]["template"]):
        assert pod["spec"]["schedulerName"] == name
        assert labels.items() <= pod["metadata"]["labels"].items()
        assert pod["metadata"].get("annotations", {}) == annotations


@pytest.mark.case("mpi-v2beta1-37", "c")
def test_suspension_deletes_the_group():
    world = world_of()
    world.spec["runPolicy"] = {"suspend": True}
    world.settle()
    assert not has_group(world)
    world.spec["runPolicy"] = {"suspend": False}
    world.settle()
    assert has_group(world)
    world.end_launcher()
    world.settle()
    assert not has_group(world)


def test_the_group_comes_before_the_pods_and_does_not_delay_them():
    """The phase of Volcano's PodGroup is Pending until there is room; mpi-operator does not wait for it."""
    world = world_of()
    assert group_of(world)["minMember"] == 3
    assert world.living() == ["foo-worker-0", "foo-worker-1"]
    assert world.has_launcher()


def test_a_launcher_that_waits_is_no_member_of_the_gang():
    """Otherwise the workers would wait for its pod (kubeflow/mpi-operator 608)."""
    assert group_of(world_of(launcherCreationPolicy="WaitForWorkersReady"))["minMember"] == 2


def test_without_its_group_a_job_gets_no_pods():
    world = MpiWorld(mpi_job(), options=Options(gang=scheduler("volcano")))
    world.gang = SeenGang(unavailable="no CRD")
    world.settle()
    assert world.living() == []
    assert not world.has_launcher()


def test_transport_exec_has_the_gang_of_all_kinds():
    world = MpiWorld(mpi_job(transport="exec"), options=Options(gang=scheduler("volcano")), ssh=False)
    world.step()
    assert group_of(world)["minMember"] == 3
    assert world.pods == {}
