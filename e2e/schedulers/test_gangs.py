"""Gangs on two nodes of 4 CPUs, with each gang scheduler: first made by hand, then jobs of the operator.

The bindings of all pods are recorded by a watch over the whole time, because a look at the end would not show a gang
that was placed in part meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.cluster.controlplane import ControlPlane
from e2e.schedulers.conftest import run_operator
from e2e.schedulers.gangs import Coscheduling, GangScheduler, KubeScheduler, Volcano
from e2e.schedulers.manifests import Json, create
from e2e.schedulers.members import LARGE, GangWorld, is_waiting, scheduling
from tests.server.process import Operator

ANNOTATIONS = "trainop.kubeflow.org/"


@pytest.fixture(scope="module")
def plane(scheduler: GangScheduler) -> ControlPlane:
    return scheduler.plane


@pytest.fixture(scope="module")
def operator(plane: ControlPlane, scheduler: GangScheduler) -> Iterator[Operator]:
    yield from run_operator(plane, f"--gang-scheduler-name={scheduler.name}")


# made by hand: the schedulers run as intended


def test_gang_is_placed(world: GangWorld) -> None:
    world.make_gang("a", 3, LARGE)
    world.wait_running("a", 3)


def test_incomplete_gang_waits(world: GangWorld) -> None:
    with world.record() as recorder:
        world.make_gang("a", 2, LARGE, members=3)
        world.make_gang("b", 3, LARGE)
        world.wait_running("b", 3)
        assert recorder.peak("a") == 0


def test_two_gangs_take_turns(world: GangWorld) -> None:
    with world.record() as recorder:
        world.make_gang("a", 3, LARGE)
        world.make_gang("b", 3, LARGE)
        first = world.wait(lambda: next((g for g in "ab" if world.running(g, 3)), None), "one placed gang")
        second = "b" if first == "a" else "a"
        world.wait_members(second, 3, is_waiting, "waiting")
        world.end_pods(first)
        world.wait_running(second, 3)
        recorder.check_never_in_part({"a": 3, "b": 3})


# jobs of the operator


@pytest.mark.usefixtures("operator")
def test_job_is_placed_as_a_gang(world: GangWorld) -> None:
    world.submit("a", 3, LARGE)
    world.wait_running("a", 3)
    world.wait_condition("Running", "a")
    group = world.group_of("a")
    assert world.scheduler.group_spec(3).items() <= group["spec"].items()
    if not isinstance(world.scheduler, KubeScheduler):
        assert group["spec"]["minResources"]["cpu"] == "4500m"
    world.end_pods("a")
    world.wait_condition("Succeeded", "a")
    world.wait(lambda: not world.group_of("a"), "no PodGroup of a finished job")


@pytest.mark.usefixtures("operator")
def test_jobs_that_do_not_fit_together_take_turns(world: GangWorld) -> None:
    names = "abc"
    with world.record() as recorder:
        for name in names:
            world.submit(name, 3, LARGE)
        left = set(names)
        while left:
            placed: str = world.wait(lambda: next((j for j in left if world.running(j, 3)), None), "a placed gang")
            world.wait_condition("Running", placed)
            world.end_pods(placed)
            world.wait_condition("Succeeded", placed)
            left.remove(placed)
        recorder.check_never_in_part(dict.fromkeys(names, 3))


@pytest.mark.usefixtures("operator")
def test_job_larger_than_the_cluster_waits_and_others_pass(world: GangWorld) -> None:
    with world.record() as recorder:
        world.submit("large", 7, LARGE)
        world.wait(lambda: world.group_of("large"), "the PodGroup")
        world.submit("small", 2, "1")
        world.wait_running("small", 2)
        world.end_pods("small")
        world.wait_condition("Succeeded", "small")
        assert recorder.peak("large") == 0
    assert not world.is_now("Failed", "large")


@pytest.mark.usefixtures("operator")
def test_job_with_priority_preempts(world: GangWorld) -> None:
    """The preempted job loses pods, is not charged for it, and runs when there is room again.

    `minResources` is lower than what the job needs, because Volcano enqueues a PodGroup only if its `minResources` are
    free in the queue, and preempts only for a PodGroup that is enqueued.
    """
    policy: Json = {"runPolicy": {"backoffLimit": 0, "schedulingPolicy": {"priorityClass": "low"}}}
    world.submit("low", 3, LARGE, priority="low", **policy)
    world.wait_running("low", 3)
    world.wait_condition("Running", "low")
    urgent: Json = {"priorityClass": "high", "minResources": {"cpu": "1"}}
    world.submit("high", 3, LARGE, priority="high", runPolicy={"schedulingPolicy": urgent})
    world.wait_running("high", 3)
    assert not world.is_now("Failed", "low")
    world.end_pods("high")
    world.wait_condition("Succeeded", "high")
    world.wait_running("low", 3)
    world.end_pods("low")
    world.wait_condition("Succeeded", "low")


@pytest.mark.usefixtures("operator")
def test_suspended_job_makes_room(world: GangWorld) -> None:
    with world.record() as recorder:
        world.submit("a", 3, LARGE)
        world.wait_running("a", 3)
        world.submit("b", 3, LARGE)
        world.patch_job({"runPolicy": {"suspend": True}}, "a")
        world.wait_running("b", 3)
        world.wait(lambda: not world.group_of("a"), "no PodGroup of a suspended job")
        world.patch_job({"runPolicy": {"suspend": False}}, "a")
        world.wait(lambda: world.group_of("a"), "the PodGroup of the resumed job")
        world.end_pods("b")
        world.wait_running("a", 3)
        recorder.check_never_in_part({"a": 3, "b": 3})


@pytest.mark.usefixtures("operator")
def test_job_waits_for_an_absent_scheduler(world: GangWorld, scheduler: GangScheduler) -> None:
    scheduler.stop()
    world.submit("a", 3, LARGE)
    world.wait(lambda: world.group_of("a"), "the PodGroup")
    world.wait_condition("Created", "a")
    assert not world.is_now("Running", "a")
    assert not world.is_now("Failed", "a")
    scheduler.start()
    world.wait_running("a", 3)


@pytest.mark.usefixtures("operator")
def test_restarted_pod_of_a_gang_is_placed_again(world: GangWorld) -> None:
    world.submit("a", 3, LARGE, runPolicy={"backoffLimit": 3})
    before = world.wait_running("a", 3)
    world.ask("DELETE", f"/api/v1/namespaces/{world.namespace}/pods/a-worker-0")
    world.wait_successor("a-worker-0", before["a-worker-0"]["metadata"]["uid"])
    world.wait_running("a", 3)


# only one of the schedulers


@pytest.mark.usefixtures("operator")
def test_volcano_admits_a_job_before_it_has_pods(world: GangWorld) -> None:
    """Volcano enqueues PodGroups up to the resources of the cluster; the others stay Pending, and so without pods."""
    need(world, Volcano)
    world.submit("a", 3, "2")
    world.wait_running("a", 3)
    world.submit("b", 3, "2")
    world.wait(lambda: world.group_of("b").get("status", {}).get("phase") == "Pending", "phase Pending")
    world.settle(2)
    assert not world.members("b")
    world.end_pods("a")
    world.wait_running("b", 3)


@pytest.mark.usefixtures("operator")
def test_volcano_holds_a_job_to_the_capability_of_its_queue(world: GangWorld) -> None:
    need(world, Volcano)
    queue = f"narrow-{world.namespace}"
    spec = {"weight": 1, "capability": {"cpu": "3"}}
    create(world.api, {"apiVersion": Volcano.group, "kind": "Queue", "metadata": {"name": queue}, "spec": spec})
    in_queue: Json = {"runPolicy": {"schedulingPolicy": {"queue": queue}}}
    with world.record() as recorder:
        world.submit("a", 2, LARGE, **in_queue)
        world.wait_running("a", 2)
        world.submit("b", 2, LARGE, **in_queue)
        world.submit("other", 2, "1")
        world.wait_running("other", 2)
        assert recorder.peak("b") == 0
        world.end_pods("a")
        world.wait_running("b", 2)
    assert world.group_of("b")["spec"]["queue"] == queue


@pytest.mark.usefixtures("operator")
def test_coscheduling_gives_up_a_gang_after_its_timeout(world: GangWorld) -> None:
    """Ten of eleven pods fit, so coscheduling keeps their places for the last one, until the job's timeout."""
    need(world, Coscheduling)
    policy = {"schedulingPolicy": {"scheduleTimeoutSeconds": 3, "minResources": {"cpu": "1"}}}
    with world.record() as recorder:
        world.submit("a", 11, "750m", runPolicy=policy)
        world.wait(lambda: any("timeout" in message for message in messages(world)), "a timeout")
        assert any("after waiting 3s" in message for message in messages(world))
        assert recorder.peak("a") == 0
    assert not world.is_now("Failed", "a")


@pytest.mark.usefixtures("operator")
def test_kube_scheduler_says_what_a_gang_waits_for(world: GangWorld) -> None:
    need(world, KubeScheduler)
    world.submit("a", 7, LARGE)
    world.wait(lambda: world.condition("GangReady", "a").get("status") == "False", "GangReady False")
    found = world.condition("GangReady", "a")
    assert found["reason"] == "Unschedulable"
    assert found["message"]
    world.submit("b", 3, LARGE)
    world.wait_running("b", 3)
    world.wait_condition("GangReady", "b")
    workload = world.ask("GET", world.groups.replace("podgroups", "workloads") + "/b")
    assert workload["spec"]["controllerRef"] == {"apiGroup": "kubeflow.org", "kind": "PyTorchJob", "name": "b"}
    assert world.group_of("b")["spec"]["workloadRef"] == {"workloadName": "b", "templateName": "replicas"}


@pytest.mark.usefixtures("operator")
def test_kube_scheduler_preempts_a_whole_gang(world: GangWorld) -> None:
    """One pod fewer would make room enough."""
    need(world, KubeScheduler)
    world.submit("low", 3, LARGE, priority="low", runPolicy={"backoffLimit": 0})
    before = {name: pod["metadata"]["uid"] for name, pod in world.wait_running("low", 3).items()}
    world.submit("high", 2, LARGE, priority="high")
    world.wait_running("high", 2)
    for name, uid in before.items():
        world.wait_successor(name, uid)
    world.wait_members("low", 3, is_waiting, "waiting")
    assert not world.is_now("Failed", "low")
    world.end_pods("high")
    world.wait_running("low", 3)


@pytest.mark.usefixtures("operator")
def test_kube_scheduler_lets_an_elastic_job_grow_above_its_minimum(world: GangWorld) -> None:
    need(world, KubeScheduler)
    world.submit("other", 3, LARGE)
    world.wait_running("other", 3)
    world.submit("a", 3, LARGE, elasticPolicy={"minReplicas": 1, "maxReplicas": 3})
    world.wait(lambda: len(bound(world, "a")) == 1, "one pod of the elastic job")
    world.wait_condition("GangReady", "a")
    world.end_pods("other")
    world.wait_running("a", 3)


@pytest.mark.usefixtures("operator")
def test_kube_scheduler_starts_the_replacement_of_a_pod_after_others_have_ended(world: GangWorld) -> None:
    need(world, KubeScheduler)
    world.submit("a", 3, LARGE, runPolicy={"backoffLimit": 3})
    before = world.wait_running("a", 3)
    world.end("a-worker-1")
    world.wait(lambda: world.pods()["a-worker-1"]["status"]["phase"] == "Succeeded", "a pod that has succeeded")
    world.ask("DELETE", f"/api/v1/namespaces/{world.namespace}/pods/a-worker-2")
    world.wait_successor("a-worker-2", before["a-worker-2"]["metadata"]["uid"])
    world.wait(lambda: "a-worker-2" in bound(world, "a"), "a node for the new pod")
    assert world.group_of("a")["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}


@pytest.mark.usefixtures("operator")
def test_kube_scheduler_with_objects_that_users_delete(world: GangWorld) -> None:
    need(world, KubeScheduler)
    world.submit("a", 3, LARGE)
    world.wait_running("a", 3)
    workloads = world.groups.replace("podgroups", "workloads")
    before = world.ask("GET", f"{workloads}/a")["metadata"]["uid"]

    def again() -> bool:
        answer = world.try_to("GET", f"{workloads}/a")
        return bool(answer.status == 200 and answer.body["metadata"]["uid"] != before)

    world.ask("DELETE", f"{workloads}/a")
    world.wait(again, "another Workload")
    world.end_pods("a")
    world.wait_condition("Succeeded", "a")
    world.wait(lambda: not world.group_of("a"), "no PodGroup of a finished job")
    world.wait(lambda: world.try_to("GET", f"{workloads}/a").status == 404, "no Workload of a finished job")


@pytest.mark.usefixtures("operator")
def test_kube_scheduler_keeps_a_gang_in_one_domain(world: GangWorld) -> None:
    """Two pods fit on each node, and are spread without the annotation."""
    need(world, KubeScheduler)
    world.submit("spread", 2, LARGE)
    nodes = {pod["spec"]["nodeName"] for pod in world.wait_running("spread", 2).values()}
    assert len(nodes) == 2
    world.end_pods("spread")
    world.wait_condition("Succeeded", "spread")
    world.submit("near", 2, LARGE, annotations={f"{ANNOTATIONS}gang-topology": "kubernetes.io/hostname"})
    nodes = {pod["spec"]["nodeName"] for pod in world.wait_running("near", 2).values()}
    assert len(nodes) == 1


@pytest.mark.usefixtures("operator")
def test_pods_of_a_gang_share_a_claim(world: GangWorld) -> None:
    """kube-controller-manager makes one ResourceClaim for the PodGroup, and one for each pod without the annotation."""
    need(world, KubeScheduler)
    api = f"/apis/resource.k8s.io/v1/namespaces/{world.namespace}"
    devices = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "none"}}]}
    template = {"metadata": {"name": "eight"}, "spec": {"spec": {"devices": devices}}}
    world.ask("POST", f"{api}/resourceclaimtemplates", template)
    pods: Json = {"resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "eight"}]}

    def claims(job: str) -> list[str]:
        names = [each["metadata"]["name"] for each in world.ask("GET", f"{api}/resourceclaims")["items"]]
        return [name for name in names if name.startswith(f"{job}-")]

    world.submit("own", 2, LARGE, pods=pods)
    world.wait(lambda: len(claims("own")) == 2, "a claim for each pod")
    world.submit("shared", 2, LARGE, pods=pods, annotations={f"{ANNOTATIONS}gang-claims": "gpus"})
    world.wait(lambda: claims("shared"), "a claim of the PodGroup")
    world.wait(lambda: world.group_of("shared")["status"].get("resourceClaimStatuses"), "its name in the status")
    world.wait_members("shared", 2, is_waiting, "waiting")
    assert len(claims("shared")) == 1


def bound(world: GangWorld, name: str) -> list[str]:
    """The pods of a gang that have a node and have not ended."""
    return [
        pod
        for pod, body in world.members(name).items()
        if body["spec"].get("nodeName") and body["status"].get("phase") not in ("Succeeded", "Failed")
    ]


def messages(world: GangWorld) -> list[str]:
    return [scheduling(pod).get("message", "") for pod in world.members("a").values()]


def need(world: GangWorld, scheduler: type[GangScheduler]) -> None:
    if not isinstance(world.scheduler, scheduler):
        pytest.skip(f"a feature of {scheduler.name}")
