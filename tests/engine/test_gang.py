"""Gang scheduling: the PodGroup of a job, and what its pods wait for."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.engine.builders import (
    UID,
    group_created,
    group_deleted,
    group_updated,
    make_job,
    manifest_of,
    names,
    pod_created,
    pod_deleted,
    replica,
    service_created,
    stamp,
    template,
    written,
)
from tests.engine.world import World
from trainop.engine.actions import Action, Plan
from trainop.engine.gang_scheduler import BACK_ENDS, PLUGIN_GROUPS, VOLCANO_GROUPS, GangScheduler, choose_scheduler
from trainop.engine.restart_history import RESTARTS
from trainop.engine.seen import Options, PodGroup, SeenGang
from trainop.kinds.tensorflow import TENSORFLOW
from trainop.manifests.rbac import rules
from trainop.runtime.objects.metadata import Json, owner_reference

ROOT = Path(__file__).parent.parent.parent
VOLCANO = Options(gang=choose_scheduler("Volcano"))
PLUGINS = Options(gang=choose_scheduler("my-sched"))
KUBE = Options(gang=choose_scheduler("kube-scheduler"))
ADDED = pytest.mark.parametrize("options", [VOLCANO, PLUGINS], ids=["volcano", "scheduler-plugins"])
"""The schedulers that are installed beside kube-scheduler."""
EACH = pytest.mark.parametrize("options", [VOLCANO, PLUGINS, KUBE], ids=["volcano", "scheduler-plugins", "kube"])


def cpu(amount: str, **spec: Any) -> Json:
    """A template whose container requests that much."""
    made = template(**spec)
    made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": amount}}
    return made


def gang_world(options: Options = VOLCANO, policy: Json | None = None, **job: Any) -> World:
    run = {"suspend": False, **({"schedulingPolicy": policy} if policy is not None else {}), **job.pop("run", {})}
    return World(make_job(**{"master": None, "tmpl": cpu("1"), **job}, run=run), options=options)


def group_of(world: World) -> Json:
    assert world.group is not None
    return world.group


def spec_of(world: World) -> Json:
    spec: Json = group_of(world)["spec"]
    return spec


def members_of(world: World) -> int:
    """The number of pods that are scheduled together."""
    spec = spec_of(world)
    count: int = spec["minMember"] if "minMember" in spec else spec["schedulingPolicy"]["gang"]["minCount"]
    return count


def admit(world: World, phase: str = "Inqueue") -> None:
    group_of(world)["status"] = {"phase": phase}


def running(options: Options = VOLCANO, **job: Any) -> World:
    """A settled world whose pods run."""
    world = gang_world(options, **job)
    world.step()
    admit(world, "Running")
    world.settle()
    world.run()
    world.settle()
    assert world.is_true("Running")
    return world


def group_actions(made: Plan) -> list[str]:
    words: dict[Callable[[Action], bool], str] = {
        group_created: "created",
        group_updated: "updated",
        group_deleted: "deleted",
    }
    return [word for action in made.actions for does, word in words.items() if does(action)]


def refuse(world: World, message: str = "no groups today", retry_in: float = 60.0) -> None:
    world.gang = SeenGang(refused=message, retry_in=retry_in)


# Selection by the flag ------------------------------------------------------------------------------------------------


@pytest.mark.case("job-engine-33", "b")
@pytest.mark.parametrize("flag", ["volcano", "Volcano", "VOLCANO"])
def test_volcano_in_any_case(flag: str):
    scheduler = choose_scheduler(flag)
    assert scheduler is not None
    assert (scheduler.name, scheduler.groups) == ("volcano", VOLCANO_GROUPS)


def test_other_names_are_those_of_a_scheduler_with_plugins():
    scheduler = choose_scheduler("My-Sched")
    assert scheduler is not None
    assert (scheduler.name, scheduler.groups) == ("My-Sched", PLUGIN_GROUPS)
    assert choose_scheduler("none") is not None
    assert choose_scheduler("None") is choose_scheduler("") is None


def test_without_a_gang_scheduler_nothing_changes():
    world = gang_world(Options(), policy={"minAvailable": -1, "queue": 7})
    made = world.step()
    assert group_actions(made) == []
    assert made.notices == ()
    pod = world.pods["j-worker-0"]
    assert "schedulerName" not in pod["spec"]
    assert "annotations" not in pod["metadata"]


# The PodGroup ---------------------------------------------------------------------------------------------------------


@pytest.mark.case("job-engine-27", "ab")
def test_the_group_of_volcano():
    world = gang_world(annotations={"a": "1", RESTARTS: "state"})
    made = world.step()
    group = group_of(world)
    assert (group["apiVersion"], group["kind"]) == ("scheduling.volcano.sh/v1beta1", "PodGroup")
    assert (group["metadata"]["name"], group["metadata"]["namespace"]) == ("j", "ns")
    assert group["spec"] == {"minMember": 2, "queue": "default", "minResources": {"cpu": "2"}}
    assert group["metadata"]["ownerReferences"] == [owner_reference("kubeflow.org/v1", "PyTorchJob", "j", UID)]
    assert group["metadata"]["annotations"] == {"a": "1"}
    assert group_actions(made) == ["created"]


@pytest.mark.case("job-engine-27", "c")
@pytest.mark.parametrize("phase", [None, "", "Pending"])
def test_pods_wait_for_volcano(phase: str | None):
    world = gang_world(run={"activeDeadlineSeconds": 5})
    world.step()
    if phase is not None:
        admit(world, phase)
    made = world.step()
    assert (made.actions, made.status) == ((), None)
    assert made.requeue_after == 10
    world.pass_time(60)
    assert (world.step().actions, world.pods) == ((), {})
    assert [name for name, _, _ in world.conditions] == ["Created"]
    assert "startTime" not in world.status


@pytest.mark.case("job-engine-27", "d")
@pytest.mark.parametrize("phase", ["Inqueue", "Running", "Unknown", "Completed"])
def test_pods_that_volcano_admits(phase: str):
    world = gang_world()
    world.step()
    world.pass_time(60)
    admit(world, phase)
    world.step()
    assert sorted(world.pods) == ["j-worker-0", "j-worker-1"]
    assert world.status["startTime"] == stamp(60)
    pod = world.pods["j-worker-1"]
    assert pod["spec"]["schedulerName"] == "volcano"
    assert pod["metadata"]["annotations"] == {
        "scheduling.k8s.io/group-name": "j",
        "volcano.sh/task-spec": "worker",
    }
    assert not any("scheduling" in label for label in pod["metadata"]["labels"])


@pytest.mark.case("job-engine-29", "abc")
def test_scheduler_plugins():
    world = gang_world(PLUGINS, {"minAvailable": 1, "scheduleTimeoutSeconds": 30, "queue": "q", "priorityClass": "p"})
    made = world.step()
    group = group_of(world)
    assert group["apiVersion"] == "scheduling.x-k8s.io/v1alpha1"
    assert group["spec"] == {"minMember": 1, "scheduleTimeoutSeconds": 30, "minResources": {"cpu": "1"}}
    assert group_created(made.actions[0])
    assert len(names(made, pod_created)) == 2
    pod = world.pods["j-worker-0"]
    assert pod["spec"]["schedulerName"] == "my-sched"
    assert pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == "j"
    assert "annotations" not in pod["metadata"]
    assert "startTime" not in world.status, "the PodGroup could have been refused"
    assert world.step().actions == ()
    assert "startTime" in world.status


def test_the_fields_of_the_policy():
    policy: Json = {
        "minAvailable": 1,
        "queue": "q1",
        "priorityClass": "high",
        "minResources": {"cpu": "0.5", "x/gpu": 2},
        "scheduleTimeoutSeconds": 9,
    }
    world = gang_world(policy=policy)
    world.step()
    assert spec_of(world) == {
        "minMember": 1,
        "queue": "q1",
        "priorityClassName": "high",
        "minResources": {"cpu": "0.5", "x/gpu": 2},
    }


@pytest.mark.parametrize(
    ("options", "count", "policy", "least"),
    [
        (VOLCANO, 2, {}, 2),
        (VOLCANO, 2, {"minAvailable": 0}, 0),
        (VOLCANO, 2, {"minAvailable": 2}, 2),
        (VOLCANO, 2, {"minAvailable": 5}, 5),
        (PLUGINS, 2, {"minAvailable": 0}, 1),
        (PLUGINS, 2, {"minAvailable": 5}, 5),
    ],
)
def test_the_number_of_members(options: Options, count: int, policy: Json, least: int):
    world = gang_world(options, policy, worker=count)
    world.step()
    assert members_of(world) == least


def test_what_the_policy_asks_for_in_vain_is_one_warning():
    wrong = {"minAvailable": "5", "queue": 7, "minResources": {"cpu": "many", "memory": "1Gi"}}
    world = gang_world(policy=wrong)
    world.settle()
    assert spec_of(world)["minResources"] == {"memory": "1Gi"}
    (message,) = world.event_messages("InvalidSchedulingPolicy")
    assert 'minAvailable: Invalid value: "5"' in message
    assert "queue: Invalid value: 7" in message
    assert 'minResources[cpu]: Invalid value: "many": must be a quantity' in message


@pytest.mark.parametrize("policy", [7, {"minResources": 7}, {"minResources": None}, {"minAvailable": -1}])
def test_an_unreadable_policy_counts_as_not_given(policy: Any):
    world = gang_world(policy=policy)
    world.step()
    assert spec_of(world) == {"minMember": 2, "queue": "default", "minResources": {"cpu": "2"}}


def test_explicitly_no_resources():
    world = gang_world(policy={"minResources": {}})
    world.step()
    assert "minResources" not in spec_of(world)


# minResources ---------------------------------------------------------------------------------------------------------


def two_roles(master: Json, worker: Json, least: int) -> Json:
    specs = {"Master": replica(1, tmpl=master), "Worker": replica(3, tmpl=worker)}
    job = make_job(run={"schedulingPolicy": {"minAvailable": least}})
    job["spec"]["pytorchReplicaSpecs"] = specs
    return job


@pytest.mark.case("job-engine-31", "a")
@pytest.mark.parametrize(
    ("priorities", "least", "total"),
    [
        ({"high": 1000}, 2, "3"),
        ({"high": -5}, 2, "4"),
        ({"high": 1000}, 4, "7"),
        ({"high": 0}, 2, "3"),
        ({"high": 0}, 0, None),
        (None, 3, "5"),
    ],
)
def test_the_first_pods_by_priority(priorities: dict[str, int] | None, least: int, total: str | None):
    world = World(two_roles(cpu("1", priorityClassName="high"), cpu("2"), least), options=VOLCANO)
    world.gang = SeenGang(priorities=priorities)
    world.step()
    assert spec_of(world).get("minResources", {}).get("cpu", "0") == (total or "0")
    assert world.event_messages("UnknownPriorityClass") == []


@pytest.mark.case("job-engine-31", "b")
def test_limits_count_where_there_are_no_requests():
    world = gang_world()
    for role in world.spec["pytorchReplicaSpecs"].values():
        role["template"]["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "3"}, "requests": {"memory": "1Gi"}}
    world.step()
    assert spec_of(world)["minResources"] == {"cpu": "6", "memory": "2Gi"}


def test_an_unknown_priority_class_is_one_warning():
    world = World(two_roles(cpu("1", priorityClassName="high"), cpu("2", priorityClassName=7), 2), options=VOLCANO)
    world.gang = SeenGang(priorities={})
    world.settle()
    assert world.event_messages("UnknownPriorityClass") == [
        "PriorityClasses that do not exist count as priority 0 in minResources: high"
    ]


@pytest.mark.parametrize("policy", [{"minAvailable": 4}, {"minAvailable": 2, "minResources": {"cpu": "1"}}])
def test_priorities_without_effect_are_no_warning(policy: Json):
    job = two_roles(cpu("1", priorityClassName="high"), cpu("2"), 4)
    job["spec"]["runPolicy"]["schedulingPolicy"] = policy
    world = World(job, options=VOLCANO)
    world.gang = SeenGang(priorities={})
    world.settle()
    assert world.event_messages("UnknownPriorityClass") == []


# Updates --------------------------------------------------------------------------------------------------------------


@pytest.mark.case("job-engine-28", "a")
def test_the_queue_of_an_existing_group_stays():
    world = gang_world(policy={"queue": "q2"})
    world.step()
    spec_of(world)["queue"] = "q1"
    assert world.step().actions == ()
    spec_of(world)["queue"] = ""
    world.step()
    assert spec_of(world)["queue"] == "q2"


@pytest.mark.case("job-engine-28", "b")
@EACH
def test_an_unchanged_group_is_not_written(options: Options):
    world = running(options)
    before = copy.deepcopy(world.group)
    assert group_actions(world.step()) == []
    assert world.group == before


@EACH
@pytest.mark.parametrize(
    "resources", [{"cpu": "2"}, {"cpu": 2}, {"cpu": "2000m"}], ids=["text", "number", "another form"]
)
def test_the_group_of_a_former_operator_is_continued_without_a_write(options: Options, resources: Json):
    """It has neither labels nor annotations of ours, and volcano groups may have fields that we do not know."""
    world = running(options)
    group = group_of(world)
    group["metadata"] = {name: group["metadata"][name] for name in ("name", "namespace", "uid", "ownerReferences")}
    group["spec"] |= {"minResources": resources, "minTaskMember": {"worker": 1}}
    made = world.step()
    assert (made.actions, made.status) == ((), None)


def test_only_what_differs_is_patched():
    world = running(policy={"minResources": {"cpu": "1", "memory": "1Gi"}, "priorityClass": "high"})
    spec_of(world)["minTaskMember"] = {"worker": 1}
    world.spec["runPolicy"]["schedulingPolicy"] = {"minResources": {"cpu": "2"}, "minAvailable": 1}
    made = world.step()
    (update,) = [action for action in made.actions if group_updated(action)]
    assert update.body["spec"] == {
        "minMember": 1,
        "priorityClassName": None,
        "minResources": {"cpu": "2", "memory": None},
    }
    assert spec_of(world) == {
        "minMember": 1,
        "minResources": {"cpu": "2"},
        "minTaskMember": {"worker": 1},
        "queue": "default",
    }
    world.spec["runPolicy"]["schedulingPolicy"] = {"minResources": {}}
    world.settle()
    assert spec_of(world) == {"minMember": 2, "minTaskMember": {"worker": 1}, "queue": "default"}


def test_a_timeout_of_zero_is_not_absent():
    world = running(PLUGINS, policy={"scheduleTimeoutSeconds": 0})
    assert spec_of(world)["scheduleTimeoutSeconds"] == 0
    assert world.step().actions == ()
    world.spec["runPolicy"]["schedulingPolicy"] = {}
    world.settle()
    assert "scheduleTimeoutSeconds" not in spec_of(world)


@EACH
def test_scaling_changes_the_members(options: Options):
    world = running(options, spec={"elasticPolicy": {"minReplicas": 1, "maxReplicas": 5}})
    world.spec["pytorchReplicaSpecs"]["Worker"]["replicas"] = 4
    world.settle()
    assert members_of(world) == (4 if options is not KUBE else 1), (
        "kube-scheduler starts an elastic job with its minimum"
    )
    assert spec_of(world).get("minResources") == ({"cpu": "4"} if options is not KUBE else None)
    assert len(world.living()) == 4


# The gate of a running job --------------------------------------------------------------------------------------------


def test_a_running_job_whose_group_falls_back_keeps_its_status_and_replaces_no_pod():
    world = running(policy=None, worker=2)
    admit(world, "Pending")
    assert world.step().requeue_after is None, "nothing waits"
    world.end("j-worker-1", 1)
    made = world.step()
    assert names(made, pod_deleted) == ["j-worker-1"]
    world.reap()
    world.settle()
    assert world.is_true("Restarting")
    assert world.living() == ["j-worker-0"]
    assert world.step().requeue_after == 10
    admit(world, "Inqueue")
    world.settle()
    assert world.living() == ["j-worker-0", "j-worker-1"]
    admit(world, "Pending")
    world.run("j-worker-1")
    world.settle()
    assert world.is_true("Running")
    world.end("j-worker-0", 0)
    world.end("j-worker-1", 0)
    world.settle()
    assert world.is_true("Succeeded")


def test_the_deadline_runs_although_the_group_falls_back():
    world = running(run={"activeDeadlineSeconds": 60})
    admit(world, "Pending")
    world.pass_time(61)
    world.settle()
    assert world.is_true("Failed")
    assert world.group is None


@EACH
def test_a_deleted_group_is_made_again(options: Options):
    world = running(options)
    world.group = None
    made = world.step()
    assert group_actions(made) == ["created"]
    assert members_of(world) == 2
    assert world.is_true("Running")


@EACH
def test_a_group_that_terminates_is_waited_for(options: Options):
    world = gang_world(options)
    world.step()
    world.pods.clear()
    admit(world, "Running")
    group_of(world)["metadata"]["deletionTimestamp"] = stamp()
    made = world.step()
    assert (group_actions(made), names(made, pod_created), made.requeue_after) == ([], [], 10)
    assert made.notices == ()


# Problems -------------------------------------------------------------------------------------------------------------


def gang_ready(world: World) -> Json | None:
    """The condition GangReady, which must be the first if there is one."""
    conditions = world.status.get("conditions", [])
    found = [place for place, each in enumerate(conditions) if each["type"] == "GangReady"]
    assert found in ([], [0])
    return conditions[0] if found else None


@EACH
@pytest.mark.parametrize(("count", "pods"), [(1, "1 pod is"), (2, "2 pods are")])
def test_a_gang_that_can_never_be_complete_says_so(options: Options, count: int, pods: str):
    world = gang_world(options, {"minAvailable": 10}, worker=count)
    world.step()
    admit(world)
    world.settle()
    assert members_of(world) == 10
    assert len(world.pods) == count
    text = (
        f"spec.runPolicy.schedulingPolicy.minAvailable is 10, and only {pods} scheduled together: pods that are not "
        f"running yet never start. Set it to {count} or less, or remove it"
    )
    found = gang_ready(world)
    assert found is not None
    assert (found["status"], found["reason"], found["message"]) == ("False", "MinAvailableUnsatisfiable", text)
    assert world.event_messages("MinAvailableUnsatisfiable") == [text]
    assert world.step().actions == ()
    assert not world.is_true("Running")

    world.spec["runPolicy"]["schedulingPolicy"] = {"minAvailable": count}
    world.settle()
    assert members_of(world) == count
    assert gang_ready(world) is None
    world.run()
    world.settle()
    assert world.is_true("Running")


@EACH
def test_a_gang_whose_pods_run_has_no_such_condition(options: Options):
    """Its pods were started when the gang was smaller, or by a scheduler that does not count them."""
    world = running(options)
    world.spec["runPolicy"]["schedulingPolicy"] = {"minAvailable": 10}
    world.settle()
    assert members_of(world) == 10
    assert gang_ready(world) is None
    world.pods["j-worker-0"]["status"]["phase"] = "Pending"
    world.settle()
    assert gang_ready(world) is not None


@EACH
def test_a_job_without_replicas_has_no_such_condition(options: Options):
    world = gang_world(options, {"minAvailable": 10}, worker=0)
    world.settle()
    assert gang_ready(world) is None


@EACH
def test_without_the_kind_jobs_wait_and_say_so(options: Options):
    world = gang_world(options)
    assert options.gang is not None
    text = f"the CustomResourceDefinition {options.gang.groups} is not installed"
    world.gang = SeenGang(unavailable=text)
    made = world.step()
    assert names(made, pod_created) == []
    assert made.requeue_after == 10
    condition = gang_ready(world)
    assert condition is not None
    assert (condition["status"], condition["reason"]) == ("False", "PodGroupUnavailable")
    assert condition["message"] == f"Pods wait for their PodGroup: {text}"
    assert world.conditions[-1][0] == "Created"
    assert "startTime" not in world.status
    for _ in range(3):
        world.pass_time(60)
        made = world.step()
        assert (made.status, made.actions, made.transitions, made.notices) == (None, (), (), ())
    world.gang = SeenGang()
    world.step()
    if world.group:
        admit(world)
    world.settle()
    assert gang_ready(world) is None
    assert len(world.living()) == 2


def test_the_condition_goes_if_gang_scheduling_is_switched_off():
    world = gang_world()
    world.gang = SeenGang(unavailable="no such kind")
    world.settle()
    world.options = Options()
    world.settle()
    assert gang_ready(world) is None
    assert len(world.living()) == 2


def test_a_begun_job_goes_on_without_the_kind():
    world = running()
    world.group = None
    world.gang = SeenGang(unavailable="no such kind")
    world.settle()
    assert gang_ready(world) is not None
    assert world.conditions[-1][:2] == ("Running", "True")
    world.end("j-worker-0", 0)
    world.end("j-worker-1", 0)
    world.settle()
    assert [name for name, _, _ in world.conditions] == ["Created", "Running", "Succeeded"]


def test_a_suspended_job_waits_for_nothing():
    world = gang_world()
    world.gang = SeenGang(unavailable="no such kind")
    world.step()
    world.spec["runPolicy"]["suspend"] = True
    world.settle()
    assert [name for name, _, _ in world.conditions] == ["Created", "Suspended"]


@pytest.mark.parametrize(
    "owners",
    [[], [owner_reference("batch.volcano.sh/v1alpha1", "Job", "j", "theirs")]],
    ids=["nobody's", "another controller's"],
)
@EACH
def test_a_foreign_group_is_never_touched(options: Options, owners: list[Json]):
    world = gang_world(options)
    theirs: Json = {"metadata": {"name": "j", "namespace": "ns", "uid": "x", "ownerReferences": owners}, "spec": {}}
    world.group = copy.deepcopy(theirs)
    for _ in range(3):
        made = world.step()
        assert (group_actions(made), names(made, pod_created)) == ([], [])
    assert made.requeue_after == 30
    text = "PodGroup j already exists and does not belong to PyTorchJob j"
    assert world.event_messages("FailedCreatePodGroup") == [f"Error creating: {text}"]
    condition = gang_ready(world)
    assert condition is not None
    assert (condition["reason"], condition["message"]) == ("PodGroupNameTaken", text)
    world.spec["runPolicy"]["suspend"] = True
    world.settle()
    assert world.group == theirs
    assert world.event_messages("JobTerminated") == []


@pytest.mark.parametrize(
    "going",
    [
        {"deletionTimestamp": stamp()},
        {"ownerReferences": [owner_reference("kubeflow.org/v1", "PyTorchJob", "j", "previous")]},
    ],
    ids=["terminating", "a previous job's"],
)
def test_a_group_that_is_about_to_go_is_waited_for(going: Json):
    world = gang_world()
    world.group = {"metadata": {"name": "j", "uid": "x", **going}}
    made = world.step()
    assert (group_actions(made), names(made, pod_created), made.notices) == ([], [], ())
    assert made.requeue_after == 10
    assert gang_ready(world) is None


def test_a_group_that_cannot_be_read_holds_up_the_pods():
    world = gang_world()
    world.gang = SeenGang(fault="spec: wrong")
    made = world.step()
    assert (group_actions(made), names(made, pod_created), made.requeue_after) == ([], [], 30)
    assert world.event_messages("UnreadablePodGroup") == ["PodGroup j cannot be read: spec: wrong"]
    condition = gang_ready(world)
    assert condition is not None
    assert condition["reason"] == "PodGroupUnreadable"


@pytest.mark.parametrize(
    ("group", "reason"),
    [
        ({}, "PodGroupUnreadable"),
        ({"ownerReferences": [owner_reference("kubeflow.org/v1", "PyTorchJob", "j", UID)]}, "PodGroupUnreadable"),
        ({"ownerReferences": []}, "PodGroupNameTaken"),
    ],
    ids=["nothing readable", "ours", "theirs"],
)
def test_a_group_with_readable_metadata_has_an_owner(group: Json, reason: str):
    world = gang_world()
    world.group = {"metadata": {"name": "j", "uid": "x", **group}} if group else None
    world.gang = SeenGang(fault="spec: wrong")
    world.step()
    condition = gang_ready(world)
    assert condition is not None
    assert condition["reason"] == reason
    world.spec["runPolicy"]["suspend"] = True
    made = world.step()
    assert group_actions(made) == (["deleted"] if group.get("ownerReferences") else [])


@EACH
def test_a_refused_group_is_retried_later(options: Options):
    world = gang_world(options)
    refuse(world)
    made = world.step()
    assert (group_actions(made), names(made, pod_created)) == ([], [])
    assert made.requeue_after == 60
    condition = gang_ready(world)
    assert condition is not None
    assert condition["reason"] == "PodGroupRefused"
    assert condition["message"] == "The API server refuses the PodGroup: no groups today"
    refuse(world, retry_in=0)
    made = world.step()
    assert group_actions(made) == ["created"]
    assert made.status is None or gang_ready(world) is not None, "it is shown until the PodGroup exists"
    world.gang = SeenGang()
    world.settle()
    assert gang_ready(world) is None


def test_another_message_is_shown_without_a_new_transition():
    world = gang_world()
    refuse(world, "first")
    world.step()
    world.pass_time(30)
    refuse(world, "second")
    world.step()
    condition = gang_ready(world)
    assert condition is not None
    assert condition["message"].endswith("second")
    assert (condition["lastTransitionTime"], condition["lastUpdateTime"]) == (stamp(), stamp(30))


@EACH
def test_a_refused_update_holds_up_nothing(options: Options):
    world = running(options)
    world.spec["pytorchReplicaSpecs"]["Worker"]["replicas"] = 3
    refuse(world, retry_in=60)
    made = world.step()
    assert group_actions(made) == []
    assert names(made, pod_created) == ["j-worker-2"]
    assert made.requeue_after == 60
    assert gang_ready(world) is not None
    refuse(world, retry_in=0)
    assert group_actions(world.step()) == ["updated"]
    assert world.step().status is not None
    assert gang_ready(world) is None


# The end --------------------------------------------------------------------------------------------------------------


@pytest.mark.case("job-engine-32", "a")
@EACH
def test_a_job_that_succeeds_loses_its_group_after_the_status(options: Options):
    world = running(options)
    world.end("j-worker-0", 0)
    world.end("j-worker-1", 0)
    made = world.step()
    assert made.status_first
    assert group_actions(made) == ["deleted"]
    assert world.is_true("Succeeded")
    assert world.step().actions == ()


def test_a_later_pass_deletes_what_was_left():
    world = running()
    left = copy.deepcopy(world.group)
    world.end("j-worker-0", 0)
    world.end("j-worker-1", 0)
    world.step()
    world.group = left
    assert group_actions(world.step()) == ["deleted"]
    world.group = copy.deepcopy(left)
    group_of(world)["metadata"]["deletionTimestamp"] = stamp()
    assert world.step().actions == ()


@EACH
def test_suspend_and_resume(options: Options):
    world = running(options, run={"activeDeadlineSeconds": 60})
    world.spec["runPolicy"]["suspend"] = True
    world.settle()
    assert world.group is None
    world.reap()
    world.pass_time(100)
    world.spec["runPolicy"]["suspend"] = False
    world.step()
    assert group_of(world)
    if options is VOLCANO:
        assert "startTime" not in world.status, "the deadline does not run in the queue"
        world.pass_time(100)
        world.settle()
        assert world.living() == []
        admit(world)
    world.settle()
    assert world.status["startTime"] == stamp(200 if options is VOLCANO else 100)
    assert len(world.living()) == 2
    world.run()
    world.settle()
    assert world.conditions[-1][:2] == ("Running", "True")


def test_a_resumed_job_in_the_queue_counts_as_begun():
    """An invalid edit is a warning, not the end."""
    world = running()
    world.spec["runPolicy"]["suspend"] = True
    world.settle()
    world.reap()
    world.spec["runPolicy"]["suspend"] = False
    world.settle()
    world.spec["runPolicy"]["backoffLimit"] = -1
    world.settle()
    assert not world.is_true("Failed")
    assert len(world.event_messages("PyTorchJobFailedValidation")) == 1


def test_a_job_with_unreadable_roles_keeps_its_group():
    world = running()
    world.spec["pytorchReplicaSpecs"]["Worker"]["replicas"] = "two"
    made = world.step()
    assert group_actions(made) == []
    assert world.group is not None


def test_the_time_to_live_leaves_the_group_to_the_garbage_collector():
    world = running(run={"ttlSecondsAfterFinished": 0, "schedulingPolicy": {}})
    world.end("j-worker-0", 0)
    world.end("j-worker-1", 0)
    world.settle()
    assert world.job is None


# The template's scheduler ---------------------------------------------------------------------------------------------

OTHER = "Another scheduler is specified when gang-scheduling is enabled and it will not be overwritten"


@pytest.mark.case("job-engine-30", "abc")
@ADDED
def test_another_scheduler_of_the_template_stays(options: Options):
    world = gang_world(options, tmpl=cpu("1", schedulerName="custom"))
    world.step()
    if options is VOLCANO:
        admit(world)
    world.settle()
    for pod in world.pods.values():
        assert pod["spec"]["schedulerName"] == "custom"
        decorated = pod["metadata"].get("annotations", {}) | pod["metadata"]["labels"]
        assert decorated.keys() & {"scheduling.k8s.io/group-name", "scheduling.x-k8s.io/pod-group"}
    assert world.event_messages("SetPodTemplateSchedulerName") == [OTHER]


@pytest.mark.case("job-engine-30", "d")
@EACH
@pytest.mark.parametrize("named", [True, False])
def test_the_gang_scheduler_in_the_template_is_no_warning(options: Options, named: bool):
    assert options.gang is not None
    world = running(options, tmpl=cpu("1", **({"schedulerName": options.gang.name} if named else {})))
    assert world.pods["j-worker-0"]["spec"].get("schedulerName", "") == options.gang.name
    assert world.event_messages("SetPodTemplateSchedulerName") == []


def test_metadata_of_the_template_is_kept_and_ours_prevails():
    tmpl = cpu("1")
    tmpl["metadata"] = {
        "annotations": {"a": "1", "scheduling.k8s.io/group-name": "x"},
        "labels": {"b": "2", "scheduling.x-k8s.io/pod-group": "x"},
    }
    pod = running(VOLCANO, tmpl=tmpl).pods["j-worker-0"]["metadata"]
    assert (pod["annotations"]["a"], pod["annotations"]["scheduling.k8s.io/group-name"]) == ("1", "j")
    assert pod["labels"]["scheduling.x-k8s.io/pod-group"] == "x"
    pod = running(PLUGINS, tmpl=tmpl).pods["j-worker-0"]["metadata"]
    assert (pod["labels"]["b"], pod["labels"]["scheduling.x-k8s.io/pod-group"]) == ("2", "j")


def test_services_do_not_wait():
    made = gang_world().step()
    assert names(made, service_created) == ["j-worker-0", "j-worker-1"]
    assert names(made, pod_created) == []


def test_every_kind_has_a_group():
    job = make_job(None, None)
    container = {"name": "tensorflow", "image": "img"}
    entry = {"replicas": 2, "template": {"spec": {"containers": [container]}}}
    job |= {"kind": "TFJob", "spec": {"tfReplicaSpecs": {"PS": entry, "Worker": entry}}}
    world = World(job, framework=TENSORFLOW, options=PLUGINS)
    made = world.step()
    assert spec_of(world) == {"minMember": 4}
    assert written(made)["conditions"][0]["type"] == "Created"
    pods = [manifest_of(action) for action in made.actions if pod_created(action)]
    assert {pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] for pod in pods} == {"j"}


def test_few_fields_are_kept_of_a_group():
    raw = {
        "metadata": {"name": "j", "uid": "u", "annotations": {"a": "b" * 1000}, "labels": {"app": "x"}},
        "spec": {"minMember": 1, "minTaskMember": {"a": 1}},
        "status": {"phase": "Running", "conditions": [{"type": "Scheduled"}], "running": 3},
    }
    group = msgspec.json.decode(msgspec.json.encode(raw), type=PodGroup)
    assert msgspec.to_builtins(group)["metadata"] == {"name": "j", "uid": "u"}
    assert (group.spec.min_member, group.status.phase) == (1, "Running")


# The table of schedulers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheduler", BACK_ENDS, ids=lambda row: row.groups.group)
def test_each_scheduler_of_the_table_has_its_rights_and_its_line_in_the_docs(scheduler: GangScheduler):
    groups = scheduler.groups
    (rule,) = (rule for rule in rules() if rule["apiGroups"] == [groups.group])
    assert (rule["resources"], rule["verbs"]) == (
        [groups.plural, *(["workloads"] if scheduler.in_tree else [])],
        ["get", "list", "watch", "create", "patch", "delete"],
    )
    assert f"`{groups.api_version}`" in (ROOT / "docs" / "gang.md").read_text(encoding="utf-8")
