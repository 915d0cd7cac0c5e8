"""Jobs in a queue of Kueue, with the operator's own integration: `docs/kueue.md`, "The operator's own integration"."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from tests.engine.builders import UID, make_job, template
from tests.engine.queue_world import QUEUE, QueueWorld, queued_job
from trainop.engine.actions import Ensure, Patch, Plan, is_creation
from trainop.engine.kueue import WORKLOADS, SeenQueue
from trainop.engine.queueing.placement import place_roles
from trainop.engine.seen import Options
from trainop.kinds.mxnet import MXNET
from trainop.kinds.tensorflow import TENSORFLOW
from trainop.runtime.objects.metadata import PODS, Json, owner_reference

L = "training.kubeflow.org/"
ELASTIC = {"kueue.x-k8s.io/elastic-job": "true"}


def cpu(amount: str, **spec: Any) -> Json:
    resources = {"requests": {"cpu": amount}}
    return template(containers=[{"name": "pytorch", "image": "img", "resources": resources}], **spec)


# The life of a job ----------------------------------------------------------------------------------------------------


def test_job_waits_until_it_is_admitted() -> None:
    world = QueueWorld(queued_job())
    world.settle()
    assert not world.pods
    assert world.suspended() is True
    assert world.is_true("Suspended")
    assert world.shown == ("False", "Pending", "The job waits in the queue q")
    assert world.event_messages("Pending")

    world.say(world.workload, "insufficient quota", QuotaReserved=("False", "WaitingForQuota"))
    world.settle()
    assert world.shown == ("False", "WaitingForQuota", "insufficient quota")

    world.admit()
    world.settle()
    assert len(world.living()) == 3
    assert world.suspended() is False
    assert world.shown == ("True", "Admitted", "Admitted by ClusterQueue cq")
    assert world.event_messages("Admitted") == ["Admitted by ClusterQueue cq"]
    assert world.said()["PodsReady"] == ("False", "WaitForStart")
    world.run()
    world.settle()
    assert world.said()["PodsReady"] == ("True", "Started")
    for name in world.living():
        world.end(name, 0)
    world.settle()
    assert world.is_true("Succeeded")
    assert world.said()["Finished"] == ("True", "Succeeded")
    assert "Admitted" not in {type_ for type_, _, _ in world.conditions}


def test_job_without_a_queue_is_planned_as_ever() -> None:
    world, plain = QueueWorld(make_job()), QueueWorld(make_job())
    plain.kind = replace(plain.kind, queued=None)
    for each in (world, plain):
        each.settle()
        each.run()
        each.settle()
    assert (world.job, world.pods, world.events) == (plain.job, plain.pods, plain.events)
    assert not world.workloads
    assert len(world.pods) == 3


def test_operator_without_its_integration_leaves_the_label_to_kueue() -> None:
    world = QueueWorld(queued_job())
    world.kind = replace(world.kind, queued=None)
    world.settle()
    assert len(world.living()) == 3
    assert not world.workloads


def test_workload_of_a_job() -> None:
    pods = cpu("2", nodeSelector={"disk": "ssd"}, subdomain="s")
    pods["metadata"] = {"annotations": {"a": "b"}, "labels": {"l": "m"}}
    world = QueueWorld(queued_job(tmpl=pods, labels={"kueue.x-k8s.io/max-exec-time-seconds": "60"}))
    world.settle()
    metadata, spec = world.workload["metadata"], world.workload["spec"]
    assert metadata["name"].startswith("pytorchjob-j-")
    assert metadata["ownerReferences"] == [owner_reference("kubeflow.org/v1", "PyTorchJob", "j", UID)]
    assert metadata["labels"]["kueue.x-k8s.io/job-uid"] == UID
    assert metadata["labels"][f"{L}job-name"] == "j"
    assert (spec["queueName"], spec["priority"], spec["maximumExecutionTimeSeconds"]) == ("q", 0, 60)
    assert "priorityClassRef" not in spec
    master, worker = spec["podSets"]
    assert [(each["name"], each["count"]) for each in (master, worker)] == [("master", 1), ("worker", 2)]
    assert master["topologyRequest"] == {"podIndexLabel": f"{L}replica-index"}
    assert (
        worker["template"]["metadata"]["labels"] | {"l": "m", f"{L}replica-type": "worker"}
        == (worker["template"]["metadata"]["labels"])
    )
    assert worker["template"]["metadata"]["annotations"]["a"] == "b"
    assert "hostname" not in worker["template"]["spec"]
    assert worker["template"]["spec"]["nodeSelector"] == {"disk": "ssd"}
    assert worker["template"]["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "2"}}
    # what the operator adds is counted, too
    assert [each["name"] for each in worker["template"]["spec"]["initContainers"]] == ["init-pytorch"]
    assert "initContainers" not in master["template"]["spec"]


@pytest.mark.parametrize(
    ("resources", "counted"),
    [
        ({"requests": {"cpu": "2"}}, {"limits": {"cpu": "100m"}, "requests": {"cpu": "50m"}}),
        ({"limits": {"memory": "1Gi"}}, {"limits": {"memory": "20Mi"}, "requests": {"memory": "10Mi"}}),
        ({}, {}),
    ],
)
def test_what_the_operator_adds_needs_no_further_quota(resources: Json, counted: Json) -> None:
    """A queue may have no quota for memory, which the operator's init container asks for although the user does not."""
    pods = template(containers=[{"name": "pytorch", "image": "img", "resources": resources}])
    world = QueueWorld(queued_job(tmpl=pods))
    world.settle()
    (made,) = world.workload["spec"]["podSets"][1]["template"]["spec"]["initContainers"]
    assert made["resources"] == counted


def test_the_users_own_init_containers_are_counted_as_they_are() -> None:
    pods = cpu("2")
    pods["spec"]["initContainers"] = [{"name": "fetch", "image": "i", "resources": {"requests": {"memory": "1Gi"}}}]
    world = QueueWorld(queued_job(tmpl=pods))
    world.settle()
    made = {each["name"]: each for each in world.workload["spec"]["podSets"][1]["template"]["spec"]["initContainers"]}
    assert made["fetch"]["resources"] == {"requests": {"memory": "1Gi"}}
    assert made["init-pytorch"]["resources"]["requests"] == {"cpu": "50m", "memory": "10Mi"}


@pytest.mark.parametrize("seconds", ["0", "-1", "x", "", "²", str(2**31), "9" * 5000])
def test_invalid_execution_time_is_no_limit(seconds: str) -> None:
    world = QueueWorld(queued_job(labels={"kueue.x-k8s.io/max-exec-time-seconds": seconds}))
    world.settle()
    assert "maximumExecutionTimeSeconds" not in world.workload["spec"]


def test_long_names_are_cut() -> None:
    names = set()
    for last in "ab":
        world = QueueWorld(queued_job(1, None, name="n" * 50 + last, uid=f"u{last}"))
        world.settle()
        names.add(world.workload["metadata"]["name"])
    assert {len(name) for name in names} == {63}
    assert len(names) == 2


def test_topology_of_a_template() -> None:
    asked = {"required-topology": "rack", "group-name": "g", "slice-required-topology": "host", "slice-size": "2"}
    for prefix, expected in (
        (
            asked,
            {"required": "rack", "podSetGroupName": "g", "podSetSliceRequiredTopology": "host", "podSetSliceSize": 2},
        ),
        ({"preferred-topology": "rack"}, {"preferred": "rack"}),
        ({"unconstrained-topology": "true"}, {"unconstrained": True}),
        ({"unconstrained-topology": "x", "slice-required-topology": "host", "slice-size": "y"}, {}),
    ):
        pods = template()
        pods["metadata"] = {"annotations": {f"kueue.x-k8s.io/podset-{name}": text for name, text in prefix.items()}}
        world = QueueWorld(queued_job(1, None, tmpl=pods))
        world.settle()
        (found,) = world.workload["spec"]["podSets"]
        assert found["topologyRequest"] == {"podIndexLabel": f"{L}replica-index", **expected}


# Priority -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "run", "in_template", "default", "expected"),
    [
        ({"kueue.x-k8s.io/priority-class": "w"}, {"priorityClass": "p"}, "t", "d", (3, "WorkloadPriorityClass", "w")),
        ({}, {"priorityClass": "p"}, "t", "d", (1, "PriorityClass", "p")),
        ({}, None, "t", "d", (2, "PriorityClass", "t")),
        ({}, None, "", "d", (4, "PriorityClass", "d")),
        ({}, None, "", "", (0, None, None)),
    ],
)
def test_priority(labels: Json, run: Json | None, in_template: str, default: str, expected: tuple[Any, ...]) -> None:
    fields = {"priorityClassName": in_template} if in_template else {}
    policy = {"schedulingPolicy": run} if run else None
    world = QueueWorld(queued_job(labels=labels, run=policy, tmpl=template(**fields)))
    world.queue = replace(world.queue, classes={"w": 3}, priorities={"p": 1, "t": 2, "d": 4}, default_class=default)
    world.settle()
    reference = world.workload["spec"].get("priorityClassRef") or {}
    assert (world.workload["spec"]["priority"], reference.get("kind"), reference.get("name")) == expected
    assert reference.get("group") in (None, "kueue.x-k8s.io" if labels else "scheduling.k8s.io")


@pytest.mark.parametrize(("label", "kind"), [("w", "WorkloadPriorityClass"), ("", "PriorityClass")])
def test_unknown_priority_class_is_named_and_looked_for(label: str, kind: str) -> None:
    labels = {"kueue.x-k8s.io/priority-class": label} if label else {}
    world = QueueWorld(queued_job(labels=labels, tmpl=template(priorityClassName="t")))
    made = world.step()
    world.settle()
    assert not world.workloads
    name = label or "t"
    assert world.shown == ("False", "UnknownPriorityClass", f"{kind} {name} does not exist, or cannot be read")
    assert made.requeue_after == 30
    world.queue = replace(world.queue, classes={"w": 3}, priorities={"t": 2})
    world.settle()
    assert world.workload["spec"]["priorityClassRef"]["name"] == name


# Changes while it waits -----------------------------------------------------------------------------------------------


def test_waiting_workload_follows_the_job() -> None:
    world = QueueWorld(queued_job())
    world.settle()
    uid = world.workload["metadata"]["uid"]
    world.raw["metadata"]["labels"][QUEUE] = "other"
    world.spec["pytorchReplicaSpecs"]["Worker"]["replicas"] = 5
    world.settle()
    assert world.workload["spec"]["queueName"] == "other"
    assert world.workload["spec"]["podSets"][1]["count"] == 5
    world.raw["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "w"
    world.settle()
    assert world.workload["spec"]["priority"] == 0, "a class that does not exist changes nothing"
    world.queue = replace(world.queue, classes={"w": 3})
    world.settle()
    assert world.workload["spec"]["priority"] == 3
    del world.raw["metadata"]["labels"]["kueue.x-k8s.io/priority-class"]
    world.spec["pytorchReplicaSpecs"]["Worker"]["template"] = cpu("3")
    world.settle()
    assert "priorityClassRef" not in world.workload["spec"]
    assert world.workload["spec"]["podSets"][1]["template"]["spec"]["containers"][0]["resources"]
    assert world.workload["metadata"]["uid"] == uid, "it keeps its place in the queue"
    world.admit()
    world.settle()
    assert len(world.living()) == 6


def test_message_of_the_queue_is_kept_up_to_date_at_leisure() -> None:
    world = QueueWorld(queued_job())
    world.settle()
    for text in ("1 more", "2 more", "3 more"):
        world.say(world.workload, text, QuotaReserved=("False", "Pending"))
        made = world.step()
        world.settle()
        assert world.shown[2] == "1 more", "one write per minute"
        assert made.requeue_after == (None if text == "1 more" else 60)
    world.pass_time(61)
    world.settle()
    assert world.shown[2] == "3 more"
    assert len(world.event_messages("Pending")) == 1


def test_admission_checks_are_waited_for() -> None:
    world = QueueWorld(queued_job())
    world.settle()
    world.admit()
    world.say(world.workload, "not all checks ready", Admitted=("False", "UnsatisfiedChecks"))
    world.settle()
    assert not world.pods
    assert world.shown == ("False", "UnsatisfiedChecks", "not all checks ready")


# Placement ------------------------------------------------------------------------------------------------------------


def test_pods_get_what_the_flavor_and_the_checks_say() -> None:
    tolerated = {"key": "own", "operator": "Exists"}
    pods = template(nodeSelector={"disk": "ssd"}, tolerations=[tolerated])
    world = QueueWorld(queued_job(tmpl=pods))
    world.settle()
    before = world.spec["pytorchReplicaSpecs"]
    update = {
        "name": "worker",
        "labels": {"tier": "spot"},
        "annotations": {"provisioned": "r"},
        "nodeSelector": {"zone": "z"},
        "tolerations": [{"key": "more", "operator": "Exists"}, tolerated],
    }
    world.workload["status"]["admissionChecks"] = [{"name": "c", "podSetUpdates": [update]}, {"name": "d"}]
    world.admit(flavor="spot")
    world.settle()
    name = world.workload["metadata"]["name"]
    master, worker = world.pods["j-master-0"], world.pods["j-worker-1"]
    spot = {"key": "spot", "operator": "Exists", "effect": "NoSchedule"}
    assert master["spec"]["nodeSelector"] == {"disk": "ssd", "pool": "spot"}
    assert master["spec"]["tolerations"] == [tolerated, spot]
    assert master["metadata"]["labels"]["kueue.x-k8s.io/podset"] == "master"
    assert master["metadata"]["annotations"]["kueue.x-k8s.io/workload"] == name
    assert "schedulingGates" not in master["spec"]
    assert worker["spec"]["nodeSelector"] == {"disk": "ssd", "pool": "spot", "zone": "z"}
    assert worker["spec"]["tolerations"] == [tolerated, spot, {"key": "more", "operator": "Exists"}]
    assert worker["metadata"]["labels"]["tier"] == "spot"
    assert worker["metadata"]["annotations"]["provisioned"] == "r"
    assert world.spec["pytorchReplicaSpecs"] == before, "the user's templates are never written"


@pytest.mark.parametrize("asks", [True, False])
def test_pods_with_a_topology_are_gated(asks: bool) -> None:
    pods = template()
    pods["metadata"] = {"annotations": {"kueue.x-k8s.io/podset-required-topology": "rack"} if asks else {}}
    world = QueueWorld(queued_job(1, None, tmpl=pods))
    world.settle()
    world.admit()
    (assigned,) = world.workload["status"]["admission"]["podSetAssignments"]
    assigned["topologyAssignment"] = {"levels": ["kubernetes.io/hostname"], "slices": []}
    world.settle()
    pod = world.pods["j-master-0"]
    assert pod["spec"]["schedulingGates"] == [{"name": "kueue.x-k8s.io/topology"}]
    unconstrained = "kueue.x-k8s.io/podset-unconstrained-topology"
    assert pod["metadata"]["annotations"].get(unconstrained) == (None if asks else "true")


@pytest.mark.parametrize("by", ["flavor", "check"])
def test_impossible_placement_returns_the_quota(by: str) -> None:
    world = QueueWorld(queued_job(tmpl=template(nodeSelector={"pool": "other"})))
    world.settle()
    if by == "check":
        update = {"name": "worker", "nodeSelector": {"pool": "third"}}
        world.workload["status"]["admissionChecks"] = [{"name": "c", "podSetUpdates": [update]}]
    world.admit(flavor="spot")
    world.step()
    assert not world.pods
    status, reason, message = world.shown
    assert (status, reason) == ("False", "PlacementImpossible")
    assert message.startswith("node selector pool must be ")
    assert world.workload["spec"]["active"] is False
    world.settle()  # Kueue has not evicted it yet
    world.evict("Deactivated", "inactive")
    world.settle()
    assert world.said()["QuotaReserved"][0] == "False"
    for role in world.spec["pytorchReplicaSpecs"].values():
        del role["template"]["spec"]["nodeSelector"]
    world.settle()
    world.workload["spec"]["active"] = True  # by the user
    world.workload["status"].pop("admissionChecks", None)
    world.admit(flavor="spot")
    world.settle()
    assert len(world.living()) == 3


@pytest.mark.parametrize("flavors", [None, "x", {"cpu": {"a": 1}}, {"cpu": ["a"]}, {"cpu": 3}])
def test_hostile_admission_is_named(flavors: object) -> None:
    world = QueueWorld(queued_job())
    world.settle()
    world.admit()
    for each in world.workload["status"]["admission"]["podSetAssignments"]:
        each["flavors"] = flavors
    world.workload["status"]["admissionChecks"] = [{"podSetUpdates": "x"}, {"podSetUpdates": [{"name": 3}]}]
    world.settle()
    named = isinstance(flavors, dict)
    assert world.shown[1] == ("UnknownResourceFlavor" if named else "Admitted")
    assert len(world.living()) == (0 if named else 3)


def test_unknown_flavor_starts_nothing_and_stops_nothing() -> None:
    world = QueueWorld(queued_job())
    world.settle()
    known = world.queue
    world.queue = replace(known, flavors={})
    world.admit()
    made = world.step()
    assert made.requeue_after == 30
    assert not world.pods
    assert world.shown[1] == "UnknownResourceFlavor"
    world.queue = known
    world.settle()
    world.run()
    world.settle()
    world.queue = replace(known, flavors={})
    world.delete("j-worker-0")
    world.reap()
    world.settle()
    assert world.living() == ["j-master-0", "j-worker-1"], "the missing pod is not made without its place"
    assert world.suspended() is False
    world.queue = known
    world.settle()
    assert len(world.living()) == 3


def test_partial_admission_down_to_the_elastic_minimum() -> None:
    world = QueueWorld(queued_job(None, 4, spec={"elasticPolicy": {"minReplicas": 2, "maxReplicas": 8}}))
    world.settle()
    (worker,) = world.workload["spec"]["podSets"]
    assert (worker["count"], worker["minCount"]) == (4, 2)
    world.begin(worker=3)
    assert world.living() == ["j-worker-0", "j-worker-1", "j-worker-2"]
    assert world.spec["pytorchReplicaSpecs"]["Worker"]["replicas"] == 4
    assert world.said()["PodsReady"] == ("True", "Started")


def test_job_that_has_its_minimum_is_not_admitted_in_part() -> None:
    world = QueueWorld(queued_job(None, 2, spec={"elasticPolicy": {"minReplicas": 2, "maxReplicas": 8}}))
    world.settle()
    assert "minCount" not in world.workload["spec"]["podSets"][0]


def test_admission_of_more_pods_than_asked_for_changes_nothing() -> None:
    job = queued_job(None, 2)
    del job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"]
    world = QueueWorld(job)
    world.settle()
    world.admit(worker=5)
    del world.workload["status"]["admission"]["podSetAssignments"][0]["count"]
    world.settle()
    assert world.living() == ["j-worker-0"]


# Eviction -------------------------------------------------------------------------------------------------------------


def test_evicted_job_returns_its_quota_and_runs_again() -> None:
    world = QueueWorld(queued_job(run={"backoffLimit": 0}))
    world.begin()
    world.evict()
    world.settle()
    assert not world.living()
    assert world.suspended() is True
    assert world.shown == ("False", "Preempted", "to make room")
    assert world.event_messages("Preempted") == ["to make room"]
    assert world.said()["QuotaReserved"][0] == "True", "its pods still terminate"

    world.reap()
    world.settle()
    assert "admission" not in world.workload["status"]
    assert world.said() == {
        "QuotaReserved": ("False", "Pending"),
        "Admitted": ("False", "NoReservation"),
        "Evicted": ("True", "Preempted"),
        "Requeued": ("True", "Preempted"),
        "PodsReady": ("False", "WaitForStart"),
    }
    world.admit()
    world.settle()
    assert len(world.living()) == 3
    assert world.suspended() is False
    assert not world.is_true("Failed")


def test_deactivated_workload_is_not_queued_again() -> None:
    world = QueueWorld(queued_job(labels={"kueue.x-k8s.io/max-exec-time-seconds": "60"}))
    world.begin()
    world.pass_time(70)
    world.evict("Deactivated", "for too long")
    world.settle()
    world.reap()
    world.settle()
    assert world.said()["Requeued"] == ("False", "Deactivated")
    assert world.workload["status"]["accumulatedPastExecutionTimeSeconds"] == 70
    assert world.shown[1] == "Deactivated"


def test_deleted_workload_stops_the_job_until_a_new_one_is_admitted() -> None:
    world = QueueWorld(queued_job())
    world.begin()
    world.workloads.clear()
    world.settle()
    assert not world.living()
    assert not world.workloads, "the old pods still use their resources"
    world.reap()
    world.settle()
    world.admit()
    world.settle()
    assert len(world.living()) == 3


def test_terminating_workload_is_waited_for() -> None:
    world = QueueWorld(queued_job())
    world.begin()
    world.workload["metadata"]["deletionTimestamp"] = "2025-06-01T12:00:00Z"
    world.settle()
    assert not world.living()
    assert world.shown == ("False", "Pending", "The Workload of the job is being deleted")


def test_workload_that_others_have_finished_is_made_anew() -> None:
    world = QueueWorld(queued_job())
    world.begin()
    world.say(world.workload, Finished=("True", "OutOfSync"))
    world.settle()
    assert not world.workloads
    world.reap()
    world.settle()
    assert "Finished" not in world.said()


# What Kueue is told ---------------------------------------------------------------------------------------------------


def test_pods_that_have_to_be_replaced_are_waited_for() -> None:
    world = QueueWorld(queued_job(policy="OnFailure", run={"backoffLimit": 5}))
    world.begin()
    world.end("j-master-0", 1)
    world.settle()
    world.reap()
    world.settle()
    assert world.said()["PodsReady"] == ("False", "WaitForRecovery")
    world.pass_time(1)
    world.settle()
    assert world.said()["PodsReady"] == ("False", "WaitForRecovery")
    world.run()
    world.settle()
    assert world.said()["PodsReady"] == ("True", "Recovered")


def test_finished_pods_return_their_quota() -> None:
    world = QueueWorld(queued_job(worker=3))
    world.begin()
    world.end("j-worker-0", 0)
    world.settle()
    assert world.workload["status"]["reclaimablePods"] == [{"name": "worker", "count": 1}]
    world.end("j-worker-2", 0)
    world.settle()
    assert world.workload["status"]["reclaimablePods"] == [{"name": "worker", "count": 2}]
    world.delete("j-worker-2")
    world.settle()
    assert world.workload["status"]["reclaimablePods"] == [{"name": "worker", "count": 2}]
    world.evict()
    world.settle()
    world.reap()
    world.settle()
    assert "reclaimablePods" not in world.workload["status"]


@pytest.mark.parametrize("why", ["together", "elastic", "invalid"])
def test_pods_that_may_be_needed_again_return_no_quota(why: str) -> None:
    annotations = {"trainop.kubeflow.org/restart-scope": "job"} if why == "together" else None
    spec = {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 3}} if why == "elastic" else None
    world = QueueWorld(queued_job(None if spec else 1, 3, annotations=annotations, spec=spec))
    world.begin()
    if why == "invalid":
        world.spec["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] = "Sometimes"
    world.end("j-worker-1", 0)
    world.settle()
    assert "reclaimablePods" not in world.workload["status"]


@pytest.mark.parametrize("code", [0, 1])
def test_end_of_the_job_finishes_its_workload(code: int) -> None:
    world = QueueWorld(queued_job(1, None, policy="Never"))
    world.begin()
    world.end("j-master-0", code)
    world.step()
    assert world.said()["Finished"] == ("True", "Failed" if code else "Succeeded")
    world.settle()
    assert world.is_true("Failed" if code else "Succeeded")


def test_time_to_live_counts_although_the_field_says_suspended() -> None:
    world = QueueWorld(queued_job(1, None, run={"ttlSecondsAfterFinished": 10}))
    world.begin()
    world.end("j-master-0", 0)
    world.settle()
    world.spec["runPolicy"]["suspend"] = True
    world.pass_time(11)
    world.step()
    assert world.job is None


# Changes while it runs ------------------------------------------------------------------------------------------------


def test_changed_job_is_queued_again() -> None:
    world = QueueWorld(queued_job())
    world.begin()
    old = world.workload["metadata"]["name"]
    world.spec["pytorchReplicaSpecs"]["Worker"]["replicas"] = 4
    world.settle()
    assert not world.living()
    assert world.workload["metadata"]["name"] == old, "its pods still terminate"
    assert world.shown == ("False", "Pending", "The job has been changed and is queued again")
    world.reap()
    world.settle()
    assert world.workload["metadata"]["name"] != old
    world.admit()
    world.settle()
    assert len(world.living()) == 5


def test_new_image_does_not_queue_a_running_job_again() -> None:
    world = QueueWorld(queued_job())
    world.begin()
    for role in world.spec["pytorchReplicaSpecs"].values():
        role["template"]["spec"]["containers"][0]["image"] = "new"
    world.settle()
    assert len(world.living()) == 3
    assert world.shown[0] == "True"


def test_elastic_job_grows_by_a_new_slice() -> None:
    world = QueueWorld(queued_job(None, 2, annotations=ELASTIC, spec={"elasticPolicy": {"minReplicas": 1}}))
    world.begin()
    old = world.workload
    assert old["metadata"]["annotations"] | ELASTIC == old["metadata"]["annotations"]
    assert "minCount" not in old["spec"]["podSets"][0]
    workers = world.spec["pytorchReplicaSpecs"]["Worker"]
    workers["replicas"] = 3
    world.settle()
    (new,) = (each for each in world.workloads.values() if each is not old and each["metadata"] != old["metadata"])
    assert new["metadata"]["annotations"]["kueue.x-k8s.io/workload-slice-replacement-for"] == (
        f"ns/{old['metadata']['name']}"
    )
    assert world.living() == ["j-worker-0", "j-worker-1"]
    assert world.shown[0] == "True"
    workers["replicas"] = 4
    world.settle()
    assert len(world.workloads) == 2
    new = world.workloads[new["metadata"]["name"]]
    assert new["spec"]["podSets"][0]["count"] == 4

    world.say(world.workloads[old["metadata"]["name"]], Finished=("True", "WorkloadSliceReplaced"))
    world.admit(new)
    world.settle()
    assert world.workload["metadata"]["name"] == new["metadata"]["name"]
    assert len(world.living()) == 4
    chain = {pod["metadata"]["annotations"]["kueue.x-k8s.io/workload-slice-name"] for pod in world.pods.values()}
    assert chain == {old["metadata"]["name"]}, "Kueue counts the pods of all slices by it"
    workers["replicas"] = 5
    world.settle()
    names = {
        each["metadata"]["annotations"].get("kueue.x-k8s.io/workload-slice-name") for each in world.workloads.values()
    }
    assert names == chain


def test_elastic_job_shrinks_by_a_new_slice() -> None:
    world = QueueWorld(queued_job(None, 3, annotations=ELASTIC))
    world.begin()
    world.spec["pytorchReplicaSpecs"]["Worker"]["replicas"] = 1
    world.settle()
    assert world.living() == ["j-worker-0"]
    assert sorted(each["spec"]["podSets"][0]["count"] for each in world.workloads.values()) == [1, 3]
    world.spec["pytorchReplicaSpecs"]["Worker"]["replicas"] = 3
    world.settle()
    assert len(world.workloads) == 1, "the slice is not needed any more"


def test_superfluous_slices_are_removed() -> None:
    world = QueueWorld(queued_job(None, 2, annotations=ELASTIC))
    world.begin()
    world.spec["pytorchReplicaSpecs"]["Worker"]["replicas"] = 3
    world.settle()
    (slice_,) = (each for each in world.workloads.values() if "admission" not in each["status"])
    for number, created in enumerate(("2025-06-01T11:00:00Z", "2025-06-01T11:30:00Z")):
        metadata = {**slice_["metadata"], "name": f"more-{number}", "uid": f"m{number}", "creationTimestamp": created}
        world.workloads[f"more-{number}"] = {**slice_, "metadata": metadata, "status": {}}
    world.settle()
    assert len(world.workloads) == 2
    assert slice_["metadata"]["name"] in world.workloads


def test_slice_with_quota_is_not_rewritten() -> None:
    world = QueueWorld(queued_job(None, 2, annotations=ELASTIC))
    world.begin()
    workers = world.spec["pytorchReplicaSpecs"]["Worker"]
    workers["replicas"] = 3
    world.settle()
    (slice_,) = (each for each in world.workloads.values() if "admission" not in each["status"])
    world.say(slice_, QuotaReserved=("True", "QuotaReserved"))
    workers["replicas"] = 4
    world.settle()
    assert world.workloads[slice_["metadata"]["name"]]["spec"]["podSets"][0]["count"] == 3


def test_job_that_leaves_its_queue_runs() -> None:
    world = QueueWorld(queued_job())
    world.settle()
    del world.raw["metadata"]["labels"][QUEUE]
    world.settle()
    assert not world.workloads
    assert world.is_true("Suspended"), "as with Kueue, the user resumes it"
    assert "Admitted" not in {type_ for type_, _, _ in world.conditions}
    world.spec["runPolicy"]["suspend"] = False
    world.settle()
    assert len(world.living()) == 3


# Never both integrations ----------------------------------------------------------------------------------------------


def kueues_own(world: QueueWorld, **labels: str) -> Json:
    """The Workload that Kueue's own integration makes for the job: the pod sets are the user's templates."""
    metadata = {
        "name": "pytorchjob-j-1234",
        "namespace": "ns",
        "uid": "uid-k",
        "resourceVersion": "1",
        "labels": labels,
        "annotations": {},
        "ownerReferences": [world.owner()],
    }
    sets = [{"name": "master", "count": 1, "template": template()}]
    return {"metadata": metadata, "spec": {"podSets": sets, "queueName": "q"}, "status": {}}


def test_job_with_a_workload_of_kueues_own_integration_is_left_to_it() -> None:
    world = QueueWorld(queued_job())
    world.settle()
    ours = world.workload["metadata"]["name"]
    world.workloads["pytorchjob-j-1234"] = kueues_own(world)
    world.settle()
    assert ours not in world.workloads
    status, reason, message = world.shown
    assert (status, reason) == ("False", "KueueIntegration")
    assert message.startswith("Workload pytorchjob-j-1234 of another integration")
    assert len(world.event_messages("KueueIntegration")) == 1
    # what Kueue's integration writes is followed
    world.spec["runPolicy"]["suspend"] = False
    world.settle()
    assert len(world.living()) == 3
    assert world.suspended() is False


def test_workload_that_kueues_integration_takes_over_is_left_to_it() -> None:
    """Kueue rewrites the Workload of a suspended job if its pod sets differ from those of the job."""
    world = QueueWorld(queued_job())
    world.settle()
    ours = world.workload
    ours["spec"]["podSets"] = kueues_own(world)["spec"]["podSets"]
    world.settle()
    assert world.workloads == {ours["metadata"]["name"]: ours}
    assert world.shown[1] == "KueueIntegration"


def test_former_workload_of_kueues_integration_is_no_obstacle() -> None:
    world = QueueWorld(queued_job())
    former = kueues_own(world)
    former["status"] = {"conditions": [{"type": "Finished", "status": "True", "reason": "OutOfSync"}]}
    world.workloads["pytorchjob-j-1234"] = former
    world.settle()
    assert len(world.workloads) == 2
    assert world.shown[1] == "Pending"


# Faults and bad input -------------------------------------------------------------------------------------------------


def test_absent_api_starts_nothing_and_stops_nothing() -> None:
    world = QueueWorld(queued_job())
    known, absent = world.queue, SeenQueue(unavailable="the CRD is not installed")
    world.queue = absent
    made = world.step()
    world.settle()
    assert made.requeue_after == 30
    assert not world.pods
    assert world.suspended() is True
    assert world.shown == ("False", "WorkloadUnavailable", "the CRD is not installed")
    world.queue = known
    world.begin()
    world.queue = absent
    world.delete("j-worker-0")
    world.reap()
    world.settle()
    assert world.living() == ["j-master-0", "j-worker-1"]
    assert world.suspended() is False


def test_refused_workload_is_named_and_tried_again() -> None:
    world = QueueWorld(queued_job())
    world.queue = replace(world.queue, refused="no", retry_in=60.0)
    made = world.step()
    assert made.requeue_after == 60
    assert any(isinstance(each, Ensure) and each.resource == WORKLOADS for each in made.actions)
    assert world.shown == ("False", "WorkloadRefused", "The API server refuses the Workload: no")
    world.raw["metadata"]["labels"][QUEUE] = "other"
    made = world.step()
    assert any(isinstance(each, Patch) and each.resource == WORKLOADS for each in made.actions)
    assert world.shown[1] == "WorkloadRefused"


def test_invalid_job_fails_and_asks_for_no_quota() -> None:
    world = QueueWorld(queued_job(tmpl={"spec": {"containers": [{"name": "other"}]}}))
    world.settle()
    assert world.is_true("Failed")
    assert not world.workloads
    assert not world.pods


def test_job_that_becomes_invalid_keeps_its_pods() -> None:
    world = QueueWorld(queued_job())
    world.begin()
    world.spec["pytorchReplicaSpecs"]["Worker"]["template"] = {"spec": {"containers": []}}
    world.settle()
    assert len(world.living()) == 3
    assert world.shown[0] == "True"


@pytest.mark.parametrize("spec", [None, "x", [], {"runPolicy": "x"}, {"pytorchReplicaSpecs": "x"}])
def test_hostile_spec_makes_no_pods(spec: object) -> None:
    job = queued_job()
    job["spec"] = {**job["spec"], **spec} if isinstance(spec, dict) else spec
    world = QueueWorld(job)
    for _ in range(3):
        world.carry_out(replace(world.kind.decide(world.snapshot()), suspend=None))
    assert not world.pods


def test_broken_run_policy_starts_no_pods_while_the_job_waits() -> None:
    world = QueueWorld(queued_job())
    world.begin()
    world.evict()
    world.spec["runPolicy"] = "x"
    made = world.kind.decide(world.snapshot())
    world.pods.clear()
    made = world.kind.decide(world.snapshot())
    assert not any(isinstance(each, Ensure) and each.resource == PODS for each in made.actions)


def test_terminating_job_and_job_of_another_controller_are_left_alone() -> None:
    world = QueueWorld(queued_job())
    world.raw["metadata"]["deletionTimestamp"] = "2025-06-01T12:00:00Z"
    world.step()
    assert not world.workloads
    world = QueueWorld(queued_job(run={"managedBy": "kueue.x-k8s.io/multikueue"}))
    world.step()
    assert not world.workloads


def test_startup_deadline_does_not_fight_with_the_queue() -> None:
    deadline = {"trainop.kubeflow.org/startup-deadline": "60s"}
    world = QueueWorld(queued_job(annotations=deadline))
    world.settle()
    world.admit()
    world.settle()
    world.pass_time(61)
    world.settle()
    assert world.suspended() is False
    assert len(world.living()) == 3


@pytest.mark.parametrize("framework", [MXNET, TENSORFLOW], ids=lambda each: each.kind)
def test_other_frameworks(framework: Any) -> None:
    container = {"name": framework.container, "image": "img"}
    role = {"replicas": 2, "template": {"spec": {"containers": [container]}}}
    job = queued_job()
    job["kind"], job["spec"] = framework.kind, {framework.replica_specs: {"worker": role}}
    if framework is MXNET:
        job["spec"] |= {"jobMode": "MXTrain"}
        one = {"replicas": 1, "template": {"spec": {"containers": [container]}}}
        job["spec"][framework.replica_specs] |= {"Scheduler": one, "SERVER": one}
    world = QueueWorld(job, framework=framework, options=Options())
    world.begin(flavor="spot")
    assert world.living()
    assert all(world.pod_spec(name)["nodeSelector"] == {"pool": "spot"} for name in world.pods)
    assert world.said()["PodsReady"] == ("True", "Started")


def test_pods_of_others_do_not_keep_a_job_from_its_queue() -> None:
    world = QueueWorld(queued_job())
    world.begin()
    foreign = world.pods.pop("j-worker-1")
    foreign["metadata"] |= {"name": "x", "ownerReferences": [{**world.owner(), "uid": "other"}]}
    world.workloads.clear()
    world.settle()
    world.reap()
    world.pods["x"] = foreign
    world.settle()
    assert world.workload


def test_roles_without_a_placement_stay() -> None:
    spec = {"specs": {"Worker": {"replicas": 1}, "Other": "x"}}
    assert place_roles("specs", spec, {}) == spec


class KilledWorld(QueueWorld):
    """The operator is killed between any two writes of a pass."""

    def __init__(self, job: Json, seed: int) -> None:
        super().__init__(job)
        self.rng = random.Random(seed)
        self.killed = True

    def carry_out(self, made: Plan) -> None:
        writes = [replace(Plan(), actions=(each,)) for each in made.actions]
        status = [replace(Plan(), status=made.status, transitions=made.transitions)] if made.status else []
        writes = [*status, *writes] if made.status_first else [*writes, *status]
        last = [replace(Plan(), suspend=made.suspend)] if made.suspend is not None else []
        parts = [replace(Plan(), annotations=made.annotations), *writes, *last]
        for part in parts[: self.rng.randrange(len(parts) + 1)] if self.killed else parts:
            admitted = any(self.said(each).get("Admitted", ("",))[0] == "True" for each in self.workloads.values())
            assert admitted or not any(is_creation(each, PODS) for each in part.actions)
            super().carry_out(part)


@pytest.mark.parametrize("seed", range(60))
def test_operator_that_is_killed_at_any_write_comes_to_the_same_end(seed: int) -> None:
    world = KilledWorld(queued_job(policy="OnFailure"), seed)

    def disturb() -> None:
        world.killed = True
        for _ in range(world.rng.randrange(6)):
            world.step()
        world.killed = False
        world.settle()

    disturb()
    world.admit(flavor="spot")
    disturb()
    world.run()
    disturb()
    assert len(world.living()) == 3
    assert world.said()["PodsReady"] == ("True", "Started")
    world.evict()
    disturb()
    world.reap()
    disturb()
    assert (world.said()["QuotaReserved"][0], world.suspended()) == ("False", True)
    world.admit()
    disturb()
    world.run()
    disturb()
    for name in world.living():
        world.end(name, 0)
    disturb()
    assert world.said()["Finished"] == ("True", "Succeeded")
    assert world.counts == {"created": 1, "successful": 1}


def test_edits_of_a_waiting_workload_are_undone() -> None:
    world = QueueWorld(queued_job())
    world.settle()
    world.workload["spec"]["podSets"][1]["count"] = 1
    world.workload["spec"]["queueName"] = "other"
    world.settle()
    assert (world.workload["spec"]["podSets"][1]["count"], world.workload["spec"]["queueName"]) == (2, "q")
