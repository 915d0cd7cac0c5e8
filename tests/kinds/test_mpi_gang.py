"""Gang scheduling of MPIJobs with both transports."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kinds.mpi_world import MpiWorld, mpi_job, replicas
from trainop.engine.gang_scheduler import GROUP_NAME, POD_GROUP_LABEL, GangScheduler, choose_scheduler
from trainop.engine.seen import Options, SeenGang
from trainop.kinds.mpi.ssh.gang import QUEUE
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


def test_a_gang_of_kube_scheduler():
    world = world_of("kube-scheduler", run={"schedulingPolicy": {"priorityClass": "high"}})
    assert group_of(world) == {
        "schedulingPolicy": {"gang": {"minCount": 3}},
        "disruptionMode": {"all": {}},
        "priorityClassName": "high",
        "workloadRef": {"workloadName": "foo", "templateName": "replicas"},
    }
    for pod in (world.pods["foo-worker-0"], world.launcher["spec"]["template"]):
        assert pod["spec"]["schedulingGroup"] == {"podGroupName": "foo"}
        assert pod["spec"]["priorityClassName"] == "high"
        assert "schedulerName" not in pod["spec"]
    waiting = world_of("kube-scheduler", launcherCreationPolicy="WaitForWorkersReady")
    assert group_of(waiting)["schedulingPolicy"] == {"gang": {"minCount": 2}}


def with_policy(world: MpiWorld, **policy: Any) -> Json:
    world.spec["runPolicy"] = {"schedulingPolicy": policy}
    world.settle()
    return group_of(world)


@pytest.mark.parametrize(
    ("name", "policy", "fields"),
    [
        ("volcano", {"queue": "q2"}, {"queue": "q2"}),
        ("volcano", {"minAvailable": 2, "queue": "q2"}, {"queue": "q2", "minMember": 2}),
        ("volcano", {"priorityClass": "high"}, {"priorityClassName": "high"}),
        ("volcano", {"minResources": {"cpu": "7"}}, {"minResources": {"cpu": "7"}}),
        ("my-sched", {"minAvailable": 2}, {"minMember": 2}),
        ("my-sched", {"minResources": {"cpu": "7"}}, {"minResources": {"cpu": "7"}}),
        ("my-sched", {"scheduleTimeoutSeconds": 7}, {"scheduleTimeoutSeconds": 7}),
    ],
)
def test_a_changed_policy_reaches_the_group(name: str, policy: Json, fields: Json):
    """As with mpi-operator, whose PodGroup has the fields of the present policy."""
    world = world_of(name, run={"schedulingPolicy": {"minAvailable": 3, "queue": "q1"}})
    expected = {**group_of(world), "minMember": 3, **fields}
    assert with_policy(world, **{"minAvailable": 3, "queue": "q1", **policy}) == expected


def test_the_queue_of_a_group_stays_while_the_policy_names_none():
    """Volcano's admission webhook, or a user, may have chosen it."""
    world = world_of("volcano")
    assert world.group is not None
    world.group["spec"]["queue"] = "chosen"
    assert with_policy(world, minAvailable=2)["queue"] == "chosen"


def test_with_transport_exec_the_group_keeps_its_queue():
    """As with training-operator, whose CRD refuses another queue."""
    job = mpi_job(transport="exec", run={"schedulingPolicy": {"queue": "q1"}})
    world = MpiWorld(job, options=Options(gang=scheduler("volcano")), ssh=False)
    world.step()
    assert group_of(world)["queue"] == "q1"
    world.spec["runPolicy"] = {"schedulingPolicy": {"queue": "q2"}}
    world.step()
    assert group_of(world)["queue"] == "q1"


def test_a_gang_that_can_never_be_complete_says_so():
    world = world_of(run={"schedulingPolicy": {"minAvailable": 10}})
    assert group_of(world)["minMember"] == 10
    first = world.status["conditions"][0]
    assert (first["type"], first["status"], first["reason"]) == ("GangReady", "False", "MinAvailableUnsatisfiable")
    assert "only 3 pods are scheduled together" in first["message"]
    assert (world.living(), world.has_launcher()) == (["foo-worker-0", "foo-worker-1"], True)


def test_all_pods_of_a_gang_whose_launcher_waits_are_the_workers():
    policy = {"schedulingPolicy": {"minAvailable": 3}}
    world = world_of(launcherCreationPolicy="WaitForWorkersReady", run=policy)
    assert group_of(world)["minMember"] == 2
    assert [each["type"] for each in world.status["conditions"]] == ["Created"]


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
