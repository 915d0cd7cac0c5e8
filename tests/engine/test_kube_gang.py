"""Gangs of kube-scheduler: Workload, PodGroup and pods as scheduling.k8s.io/v1beta1 has them (Kubernetes 1.37)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.builders import UID, group_updated, make_job, template
from tests.engine.test_gang import KUBE, gang_ready, gang_world, group_actions, group_of, spec_of
from tests.engine.world import World
from trainop.engine.actions import Ensure, Patch
from trainop.engine.gang_scheduler import KUBE_WORKLOADS
from trainop.engine.seen import Options, SeenGang
from trainop.runtime.objects.metadata import Json, owner_reference

CLAIM = {"name": "gpus", "resourceClaimTemplateName": "eight"}
POD_CLAIMS = {"resourceClaims": [CLAIM, {"name": "own", "resourceClaimTemplateName": "one"}]}


def kube_world(scheduling: Json | None = None, *, pods: Json | None = None, **job: Any) -> World:
    """`scheduling`: the scheduling policy. `pods`: fields of the pod templates."""
    run = {"schedulingPolicy": scheduling} if scheduling is not None else {}
    return World(make_job(**{"master": None, "tmpl": template(**(pods or {})), **job}, run=run), options=KUBE)


def workload_of(world: World) -> Json:
    (found,) = world.companions[KUBE_WORKLOADS].values()
    return found


def schedule(world: World, status: str = "True", reason: str = "Scheduled", message: str = "") -> None:
    """kube-scheduler's verdict about the group; the pods get nodes with True."""
    condition = {"type": "PodGroupInitiallyScheduled", "status": status, "reason": reason, "message": message}
    group_of(world)["status"] = {"conditions": [{"type": "Other", "status": "True"}, condition]}
    if status == "True":
        place(world)


def place(world: World) -> None:
    for pod in world.pods.values():
        pod["spec"]["nodeName"] = "n"


def started(**job: Any) -> World:
    """A settled world whose pods have nodes and run."""
    world = kube_world(**job)
    world.settle()
    schedule(world)
    world.run()
    world.settle()
    assert world.is_true("Running")
    return world


def resume_after(world: World, name: str) -> None:
    """A replica fails and is replaced."""
    world.end(name, 1)
    world.settle()
    world.reap()
    world.settle()
    assert world.pods[name]["status"]["phase"] == "Pending"


PLACED = {"status": "True", "reason": "Scheduled", "message": ""}


def verdict_of(world: World) -> Json:
    """The condition GangReady, without times."""
    found = gang_ready(world)
    assert found is not None
    return {name: found[name] for name in PLACED}


# What is written ------------------------------------------------------------------------------------------------------


def test_the_objects_of_a_job():
    world = kube_world(master=1, worker=2)
    made = world.step()
    common = {"schedulingPolicy": {"gang": {"minCount": 3}}, "disruptionMode": {"all": {}}}
    group, workload = group_of(world), workload_of(world)
    assert (group["apiVersion"], group["kind"]) == ("scheduling.k8s.io/v1beta1", "PodGroup")
    assert group["spec"] == {**common, "workloadRef": {"workloadName": "j", "templateName": "replicas"}}
    assert (workload["apiVersion"], workload["kind"]) == ("scheduling.k8s.io/v1beta1", "Workload")
    assert workload["spec"] == {
        "controllerRef": {"apiGroup": "kubeflow.org", "kind": "PyTorchJob", "name": "j"},
        "podGroupTemplates": [{"name": "replicas", **common}],
    }
    for each in (group, workload):
        assert each["metadata"]["name"] == "j"
        assert each["metadata"]["ownerReferences"] == [owner_reference("kubeflow.org/v1", "PyTorchJob", "j", UID)]
    written = [each.resource.kind for each in made.actions if isinstance(each, Ensure)]
    assert written[:2] == ["PodGroup", "Workload"]
    assert "Pod" in written, "the scheduler holds them, so they are made in the same pass"
    place(world)
    world.settle()
    assert world.step().actions == ()


def test_pods_name_their_group():
    world = kube_world()
    world.step()
    for pod in world.pods.values():
        assert pod["spec"]["schedulingGroup"] == {"podGroupName": "j"}
        assert not pod["spec"].keys() & {"schedulerName", "priorityClassName"}
        assert not any(
            "scheduling" in name for name in (*pod["metadata"]["labels"], *pod["metadata"].get("annotations", ()))
        )


def test_a_profile_of_the_scheduler_in_the_template_stays():
    world = kube_world(pods={"schedulerName": "packing"})
    world.settle()
    pod = world.pods["j-worker-0"]["spec"]
    assert (pod["schedulerName"], pod["schedulingGroup"]) == ("packing", {"podGroupName": "j"})
    assert world.event_messages("SetPodTemplateSchedulerName") == []


def test_a_group_in_the_template_stays_with_a_warning():
    world = kube_world(pods={"schedulingGroup": {"podGroupName": "mine"}})
    world.settle()
    assert world.pods["j-worker-0"]["spec"]["schedulingGroup"] == {"podGroupName": "mine"}
    text = "schedulingGroup is specified when gang-scheduling is enabled and it will not be overwritten"
    assert world.event_messages("SetPodTemplateSchedulerName") == [text]


@pytest.mark.parametrize(
    ("policy", "elastic", "least"),
    [
        ({}, None, 4),
        ({"minAvailable": 2}, None, 2),
        ({"minAvailable": 0}, None, 1),
        ({"minAvailable": 7}, None, 7),
        ({}, {"minReplicas": 2, "maxReplicas": 5}, 3),
        ({}, {"minReplicas": 9, "maxReplicas": 9}, 4),
        ({"minAvailable": 4}, {"minReplicas": 2, "maxReplicas": 5}, 4),
    ],
    ids=["all", "policy", "at least one", "more than all", "elastic", "elastic above", "policy before elastic"],
)
def test_how_many_start_together(policy: Json, elastic: Json | None, least: int):
    spec = {"elasticPolicy": elastic} if elastic else {}
    world = kube_world(policy, master=1, worker=3, spec=spec)
    world.step()
    assert spec_of(world)["schedulingPolicy"] == {"gang": {"minCount": least}}
    mode = "single" if least < 4 else "all"
    assert spec_of(world)["disruptionMode"] == {mode: {}}


@pytest.mark.parametrize("minimum", [0, -1, "2", True, None, 1.5])
def test_an_unreadable_elastic_minimum_counts_as_all(minimum: object):
    world = kube_world(worker=3, spec={"elasticPolicy": {"minReplicas": minimum, "maxReplicas": 3}})
    world.settle()
    if world.group is not None:
        assert spec_of(world)["schedulingPolicy"] == {"gang": {"minCount": 3}}


def test_a_policy_for_workers_of_a_job_without_workers():
    world = kube_world(master=1, worker=None, spec={"elasticPolicy": {"minReplicas": 1}})
    world.settle()
    assert world.group is None or spec_of(world)["schedulingPolicy"] == {"gang": {"minCount": 1}}


def test_scaling_changes_group_and_workload():
    world = started(worker=2)
    world.spec["pytorchReplicaSpecs"]["Worker"]["replicas"] = 3
    made = world.step()
    (patch,) = [each for each in made.actions if group_updated(each)]
    assert patch.body == {"spec": {"schedulingPolicy": {"gang": {"minCount": 3}}}}
    (part,) = workload_of(world)["spec"]["podGroupTemplates"]
    assert part["schedulingPolicy"] == {"gang": {"minCount": 3}}
    place(world)
    world.settle()
    assert world.step().actions == ()


@pytest.mark.parametrize("finished", [False, True], ids=["suspended", "finished"])
def test_both_go_when_the_job_ends_or_is_suspended(finished: bool):
    world = started(worker=2)
    if finished:
        for name in list(world.pods):
            world.end(name, 0)
    else:
        world.spec["runPolicy"] = {"suspend": True}
    world.settle()
    assert world.group is None
    assert world.companions[KUBE_WORKLOADS] == {}
    assert gang_ready(world) is None


def test_a_deleted_workload_is_made_again():
    world = started()
    world.companions[KUBE_WORKLOADS].clear()
    made = world.step()
    assert [each.resource.kind for each in made.actions if isinstance(each, Ensure)] == ["Workload"]
    workload_of(world)


# Priority and annotations ---------------------------------------------------------------------------------------------


def test_the_priority_of_the_policy_is_that_of_group_and_pods():
    """kube-scheduler refuses a group whose pods have another priority."""
    world = kube_world({"priorityClass": "high"})
    world.step()
    assert spec_of(world)["priorityClassName"] == "high"
    assert {pod["spec"]["priorityClassName"] for pod in world.pods.values()} == {"high"}


def test_the_priority_of_a_template_is_that_of_the_group():
    world = kube_world(pods={"priorityClassName": "low"})
    world.step()
    assert spec_of(world)["priorityClassName"] == "low"
    both = kube_world({"priorityClass": "high"}, pods={"priorityClassName": "low"})
    both.step()
    assert spec_of(both)["priorityClassName"] == "high"
    assert both.pods["j-worker-0"]["spec"]["priorityClassName"] == "low", "the scheduler says that they differ"


@pytest.mark.parametrize(
    ("annotation", "value", "field", "wanted"),
    [
        ("gang-topology", "example.org/rack", "schedulingConstraints", {"topology": [{"key": "example.org/rack"}]}),
        ("gang-topology", "rack", "schedulingConstraints", {"topology": [{"key": "rack"}]}),
        ("gang-disruption", "single", "disruptionMode", {"single": {}}),
        ("gang-disruption", "all", "disruptionMode", {"all": {}}),
        ("gang-claims", "gpus", "resourceClaims", [CLAIM]),
        ("gang-claims", " gpus , gpus,", "resourceClaims", [CLAIM]),
    ],
)  # fmt: skip
def test_annotations(annotation: str, value: str, field: str, wanted: object):
    world = kube_world(annotations={f"trainop.kubeflow.org/{annotation}": value}, pods=POD_CLAIMS)
    world.settle()
    assert spec_of(world)[field] == wanted
    assert workload_of(world)["spec"]["podGroupTemplates"][0][field] == wanted
    assert world.event_messages("InvalidSchedulingPolicy") == []


@pytest.mark.parametrize(
    ("annotation", "value", "words"),
    [
        ("gang-topology", "no key", "must be the key of a node label"),
        ("gang-topology", "a/b/c", "must be the key of a node label"),
        ("gang-topology", "x" * 64, "must be the key of a node label"),
        ("gang-disruption", "All", 'supported values: "single", "all"'),
        ("gang-claims", "other", "is not the name of an entry in spec.resourceClaims of a template"),
        ("gang-claims", "a,b,c,d,e", "must name at most 4 claims"),
    ],
)
def test_a_wrong_annotation_counts_as_not_given(annotation: str, value: str, words: str):
    world = kube_world(annotations={f"trainop.kubeflow.org/{annotation}": value}, pods=POD_CLAIMS)
    world.settle()
    plain = kube_world(pods=POD_CLAIMS)
    plain.settle()
    assert spec_of(world) == spec_of(plain)
    (said,) = world.event_messages("InvalidSchedulingPolicy")
    assert f"metadata.annotations[trainop.kubeflow.org/{annotation}]" in said
    assert words in said
    assert len(world.pods) == 2


@pytest.mark.parametrize("claims", [7, "gpus", [7, "gpus"], [{"name": ["gpus"]}], {"gpus": {}}])
def test_claims_of_a_wrong_type(claims: object):
    world = kube_world(annotations={"trainop.kubeflow.org/gang-claims": "gpus"}, pods={"resourceClaims": claims})
    world.step()
    if world.group is not None:
        assert "resourceClaims" not in spec_of(world)


def test_claims_that_differ_between_roles():
    job = make_job(master=1, worker=1, annotations={"trainop.kubeflow.org/gang-claims": "gpus"})
    for role, named in (("Master", "one"), ("Worker", "eight")):
        pod = job["spec"]["pytorchReplicaSpecs"][role]["template"]["spec"]
        pod["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": named}]
    world = World(job, options=KUBE)
    world.settle()
    (said,) = world.event_messages("InvalidSchedulingPolicy")
    assert "must be the same entry of spec.resourceClaims in all templates" in said
    assert "resourceClaims" not in spec_of(world)


def test_claims_that_the_api_server_drops():
    world = kube_world(annotations={"trainop.kubeflow.org/gang-claims": "gpus"}, pods=POD_CLAIMS)
    world.settle()
    assert world.event_messages("ResourceClaimsDropped") == []
    del spec_of(world)["resourceClaims"]
    world.settle()
    (said,) = world.event_messages("ResourceClaimsDropped")
    assert said.endswith("each pod gets its own: turn on the feature gate DRAWorkloadResourceClaims")


@pytest.mark.parametrize("options", [Options()], ids=["off"])
def test_without_the_scheduler_the_annotations_mean_nothing(options: Options):
    annotations = {f"trainop.kubeflow.org/gang-{each}": "?!" for each in ("topology", "disruption", "claims")}
    world, plain = gang_world(options, annotations=annotations), gang_world(options)
    world.settle()
    plain.settle()
    assert {name: pod["spec"] for name, pod in world.pods.items()} == {
        name: pod["spec"] for name, pod in plain.pods.items()
    }
    assert world.events == plain.events


# What the scheduler says ----------------------------------------------------------------------------------------------


def test_the_verdict_of_the_scheduler_is_shown():
    world = kube_world()
    world.settle()
    assert gang_ready(world) is None
    schedule(world, "False", "Unschedulable", "0/2 nodes are available: 2 Insufficient cpu.")
    world.settle()
    found = gang_ready(world)
    assert found is not None
    assert (found["status"], found["reason"]) == ("False", "Unschedulable")
    assert found["message"] == "0/2 nodes are available: 2 Insufficient cpu."
    schedule(world)
    world.settle()
    found = gang_ready(world)
    assert found is not None
    assert (found["status"], found["reason"]) == ("True", "Scheduled")
    assert world.step().status is None


def refuse_further_pods(world: World) -> None:
    """kube-scheduler 1.37 replaces the verdict about a group that it has placed, as it still judges by the copy from
    before: pods that do not fit any more make it False, and it stays so until they fit."""
    schedule(world, "False", "Unschedulable", "pod group is unschedulable")


def elastic_world() -> World:
    """A settled world of three pods, of which one is the minimum."""
    world = kube_world(worker=3, spec={"elasticPolicy": {"minReplicas": 1, "maxReplicas": 3}})
    world.settle()
    return world


@pytest.mark.parametrize("seen", [False, True], ids=["only the second verdict is seen", "both are seen"])
def test_a_gang_that_has_its_minimum_is_ready_whatever_is_said_of_further_pods(seen: bool):
    world = elastic_world()
    world.pods["j-worker-0"]["spec"]["nodeName"] = "n"
    if seen:
        group_of(world)["status"] = {"conditions": [{**PLACED, "type": "PodGroupInitiallyScheduled"}]}
        world.settle()
    refuse_further_pods(world)
    world.settle()
    assert verdict_of(world) == PLACED
    assert waits_of(world) == []
    assert world.step().status is None


def test_a_gang_without_its_minimum_waits_though_a_part_has_nodes():
    world = kube_world(worker=3)
    world.settle()
    for name in ("j-worker-0", "j-worker-1"):
        world.pods[name]["spec"]["nodeName"] = "n"
    refuse_further_pods(world)
    world.settle()
    assert verdict_of(world) == {"status": "False", "reason": "Unschedulable", "message": "pod group is unschedulable"}
    assert waits_of(world) == ["Pods wait for PodGroup j: pod group is unschedulable"]


def test_a_gang_that_was_placed_stays_ready_while_a_pod_is_replaced():
    world = started(master=1, worker=2, policy="OnFailure")
    resume_after(world, "j-worker-1")
    refuse_further_pods(world)
    world.settle()
    assert verdict_of(world) == PLACED


def test_a_group_that_is_made_again_is_judged_again():
    world = elastic_world()
    schedule(world)
    world.settle()
    for pod in world.pods.values():
        del pod["spec"]["nodeName"]
    world.group = None
    world.settle()
    refuse_further_pods(world)
    world.settle()
    assert verdict_of(world)["status"] == "False"


def waits_of(world: World) -> list[str]:
    """What the job says that it waits for, besides its pods."""
    return [f"{each.what}: {each.why}" for each in world.step().waits or () if each.reason == "GangNotReady"]


def test_a_group_that_nobody_looks_at_is_named():
    world = kube_world()
    world.settle()
    why = "kube-scheduler has not looked at it; its feature gate GenericWorkload may be off"
    assert waits_of(world) == [f"Pods wait for PodGroup j: {why}"]


def test_pods_that_are_scheduled_without_the_group_wait_for_nothing():
    """The gate is off in the scheduler, and on in the API server."""
    world = kube_world()
    world.settle()
    place(world)
    world.run()
    world.settle()
    assert world.is_true("Running")
    assert waits_of(world) == []


def test_a_group_without_room_is_named():
    world = kube_world()
    world.settle()
    schedule(world, "False", "Unschedulable", "no room")
    assert waits_of(world) == ["Pods wait for PodGroup j: no room"]


def test_an_api_server_without_the_kind():
    world = kube_world()
    assert KUBE.gang is not None
    world.gang = SeenGang(unavailable=KUBE.gang.absence)
    world.settle()
    assert (world.group, world.companions[KUBE_WORKLOADS], world.pods) == (None, {}, {})
    found = gang_ready(world)
    assert found is not None
    assert found["reason"] == "PodGroupUnavailable"
    assert "GenericWorkload" in found["message"]
    assert "1.37" in found["message"]


# Pods that have ended -------------------------------------------------------------------------------------------------


def test_the_replacement_of_a_pod_starts_although_others_have_succeeded():
    """kube-scheduler counts pods that are to run: with one of three ended, it would wait for ever for three."""
    world = started(master=1, worker=2, policy="OnFailure")
    world.end("j-worker-0", 0)
    made = world.step()
    assert group_actions(made) == [], "not for each pod that ends"
    resume_after(world, "j-worker-1")
    assert spec_of(world)["schedulingPolicy"]["gang"]["minCount"] == 2
    place(world)
    world.run()
    world.settle()
    assert spec_of(world)["schedulingPolicy"]["gang"]["minCount"] == 2, "and is not raised again"
    assert world.step().actions == ()


def test_the_number_returns_with_the_pods():
    world = started(master=1, worker=2, policy="OnFailure")
    world.end("j-worker-0", 0)
    resume_after(world, "j-worker-1")
    place(world)
    world.pods["j-worker-0"]["status"]["phase"] = "Running"
    world.settle()
    assert spec_of(world)["schedulingPolicy"]["gang"]["minCount"] == 3


def test_a_minimum_that_ended_pods_do_not_touch():
    world = started(scheduling={"minAvailable": 2}, master=1, worker=3, policy="OnFailure")
    world.end("j-worker-0", 0)
    resume_after(world, "j-worker-1")
    assert spec_of(world)["schedulingPolicy"]["gang"]["minCount"] == 2


def test_a_patch_names_uid_and_version():
    world = started(worker=1)
    group_of(world)["metadata"]["resourceVersion"] = "7"
    world.spec["pytorchReplicaSpecs"]["Worker"]["replicas"] = 2
    (patch,) = [each for each in world.step().actions if isinstance(each, Patch)]
    assert (patch.uid, patch.version) == (group_of(world)["metadata"]["uid"], "7")
