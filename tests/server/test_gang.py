"""Gang scheduling on the real API server, with the CRDs of Volcano and scheduler-plugins. The tests act as the
scheduler: they write the phases of PodGroups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.cluster.controlplane import ControlPlane
from tests.server.process import Operator
from tests.server.test_permissions import Account
from tests.server.world import MERGE, Json, World, replicas
from trainop.engine.gang_scheduler import PLUGIN_GROUPS, VOLCANO_GROUPS
from trainop.runtime.objects.metadata import Resource

MakeOperator = Callable[..., Operator]
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"
CPU: Json = {"container": {"resources": {"requests": {"cpu": "1"}}}}
WORKERS = ("j-worker-0", "j-worker-1")


def crd(resource: Resource) -> Json:
    """As upstream as far as it matters: Volcano's PodGroup has no status subresource, that of scheduler-plugins has
    one and requires minMember >= 1."""
    volcano = resource == VOLCANO_GROUPS
    least: Json = {} if volcano else {"minimum": 1}
    spec: Json = {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
        "properties": {"minMember": {"type": "integer", "format": "int32", **least}},
    }
    status: Json = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version: Json = {
        "name": resource.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": status}}},
        **({} if volcano else {"subresources": {"status": {}}}),
    }
    approval = {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/scheduler-plugins/pull/50"}
    names = {"kind": "PodGroup", "listKind": "PodGroupList", "plural": "podgroups", "singular": "podgroup"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": str(resource), "annotations": approval},
        "spec": {"group": resource.group, "names": names, "scope": "Namespaced", "versions": [version]},
    }


class Stage:
    """A namespace, and the kind of PodGroup of one scheduler."""

    def __init__(self, world: World, resource: Resource) -> None:
        self.world = world
        self.resource = resource
        self.path = resource.path(world.namespace)

    def install(self) -> None:
        answer = self.world.try_to("POST", CRDS, crd(self.resource))
        assert answer.status in (201, 409), answer
        self.world.wait(lambda: self.world.try_to("GET", self.path).status == 200, "the kind to be served")

    def remove(self) -> None:
        self.world.try_to("DELETE", f"{CRDS}/{self.resource}")
        self.world.wait(lambda: self.world.try_to("GET", self.path).status == 404, "the kind to be gone")

    def group(self, name: str = "j") -> Json:
        """The PodGroup, or an empty object."""
        answer = self.world.try_to("GET", f"{self.path}/{name}")
        return answer.body if answer.status == 200 else {}

    def wait_group(self, name: str = "j") -> Json:
        group: Json = self.world.wait(lambda: self.group(name), f"PodGroup {name}")
        return group

    def admit(self, phase: str = "Inqueue", name: str = "j") -> None:
        place = f"{self.path}/{name}" + ("" if self.resource == VOLCANO_GROUPS else "/status")
        self.world.ask("PATCH", place, {"status": {"phase": phase}}, MERGE)

    def run(self, *pods: str) -> None:
        self.world.wait_pods(*pods)
        self.world.run_pod(*pods)
        self.world.wait_condition("Running")

    def wait_ready(self, reason: str) -> Json:
        """Wait for the condition GangReady with this reason, which must not hide the state of the job."""
        self.world.wait(lambda: self.world.condition("GangReady").get("reason") == reason, f"GangReady {reason}")
        conditions = self.world.status()["conditions"]
        assert conditions[0]["type"] == "GangReady"
        assert conditions[-1]["type"] != "GangReady"
        found: Json = conditions[0]
        return found

    def wait_no_condition(self) -> None:
        self.world.wait(lambda: not self.world.condition("GangReady"), "no condition GangReady")


@pytest.fixture
def start(
    control_plane: ControlPlane, quiet_world: World, make_operator: MakeOperator, alone: None
) -> Iterator[Callable[..., Operator]]:
    """Starts an operator for the namespace of the test, with a gang scheduler."""

    def start(scheduler: str, kubeconfig: Path = control_plane.kubeconfig, *, wait: bool = True) -> Operator:
        flags = [f"--namespace={quiet_world.namespace}", f"--gang-scheduler-name={scheduler}"]
        operator = make_operator(kubeconfig, *flags, "--webhook-server-port=0", "--zap-devel=false")
        operator.start(wait=wait)
        return operator

    yield start
    for resource in (VOLCANO_GROUPS, PLUGIN_GROUPS):
        Stage(quiet_world, resource).remove()


@pytest.fixture
def volcano(quiet_world: World) -> Stage:
    return Stage(quiet_world, VOLCANO_GROUPS)


@pytest.fixture
def plugins(quiet_world: World) -> Stage:
    return Stage(quiet_world, PLUGIN_GROUPS)


def test_resources_of_the_pods_themselves_count(volcano: Stage, start: Callable[..., Operator]):
    volcano.install()
    start("volcano")
    volcano.world.create_job("j", {"Worker": replicas(2, resources={"requests": {"cpu": "3"}}, **CPU)})
    assert volcano.wait_group()["spec"]["minResources"] == {"cpu": "6"}
    volcano.admit()
    volcano.run(*WORKERS)


@pytest.mark.case("job-engine-27", "abcd")
@pytest.mark.case("job-engine-28", "b")
@pytest.mark.case("job-engine-32", "ab")
@pytest.mark.case("job-engine-33", "b")
def test_a_job_under_volcano(volcano: Stage, start: Callable[..., Operator]):
    world = volcano.world
    volcano.install()
    operator = start("Volcano")
    job = world.create_job("j", {"Worker": replicas(2, **CPU)})
    group = volcano.wait_group()
    assert group["spec"] == {"minMember": 2, "queue": "default", "minResources": {"cpu": "2"}}
    owner = group["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("PyTorchJob", job["metadata"]["uid"], True)
    volcano.admit("Pending")
    world.wait_services(*WORKERS)
    world.settle()
    assert world.pods() == {}
    world.wait(lambda: [name for name, _, _ in world.conditions()] == ["Created"], "the first status")
    assert "startTime" not in world.status()

    volcano.admit("Inqueue")
    pods = world.wait_pods(*WORKERS)
    for pod in pods.values():
        assert pod["spec"]["schedulerName"] == "volcano"
        annotations = {"scheduling.k8s.io/group-name": "j", "volcano.sh/task-spec": "worker"}
        assert annotations.items() <= pod["metadata"]["annotations"].items()
    world.run_pod(*WORKERS)
    world.wait_condition("Running")
    version = volcano.group()["metadata"]["resourceVersion"]
    volcano.admit("Running")
    assert "startTime" in world.status()

    world.patch_run_policy(schedulingPolicy={"minAvailable": 1})
    world.wait(lambda: volcano.group()["spec"]["minMember"] == 1, "the new minMember")
    assert volcano.group()["metadata"]["resourceVersion"] != version
    for name in WORKERS:
        world.end_pod(name)
    world.wait_condition("Succeeded")
    world.wait(lambda: not volcano.group(), "the end of the PodGroup")
    (event,) = world.wait_events("SuccessfulDeletePodGroup")
    assert event["message"] == "Deleted PodGroup: j"
    world.wait_events("JobTerminated")
    assert operator.metric("created_pod_groups_total") == operator.metric("deleted_pod_groups_total") == 1
    assert "permission denied" not in operator.text()


@pytest.mark.case("job-engine-29", "abc")
def test_a_job_under_scheduler_plugins(plugins: Stage, start: Callable[..., Operator]):
    world = plugins.world
    plugins.install()
    operator = start("my-sched")
    policy = {"minAvailable": 1, "scheduleTimeoutSeconds": 30}
    world.create_job("j", {"Worker": replicas(2, **CPU)}, schedulingPolicy=policy)
    pods = world.wait_pods(*WORKERS)
    group = plugins.group()
    assert group["spec"] == {"minMember": 1, "scheduleTimeoutSeconds": 30, "minResources": {"cpu": "1"}}
    for pod in pods.values():
        assert pod["spec"]["schedulerName"] == "my-sched"
        assert pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == "j"
    plugins.run(*WORKERS)
    assert plugins.group()["metadata"]["resourceVersion"] == group["metadata"]["resourceVersion"]
    assert operator.metric("created_pod_groups_total") == 1


@pytest.mark.case("job-engine-31", "a")
def test_priorities_are_read_from_the_cluster(volcano: Stage, start: Callable[..., Operator]):
    world = volcano.world
    name = f"high-{world.namespace}"
    world.ask("POST", CLASSES, {"metadata": {"name": name}, "value": 1000})
    volcano.install()
    start("volcano")
    two: Json = {"resources": {"requests": {"cpu": "2"}}}
    specs = {"Master": replicas(1, container=two), "Worker": replicas(3, priorityClassName=name, **CPU)}
    world.create_job("j", specs, schedulingPolicy={"minAvailable": 2})
    assert volcano.wait_group()["spec"]["minResources"] == {"cpu": "2"}, "two workers, and not the master"
    world.ask("DELETE", f"{CLASSES}/{name}")


@pytest.mark.case("job-engine-33", "a")
def test_a_missing_kind_is_waited_for(volcano: Stage, start: Callable[..., Operator]):
    """At the start, until it is installed; when it is removed later, a running job goes on to its end."""
    world = volcano.world
    volcano.remove()
    operator = start("volcano")
    operator.wait_text("crd might be missing, please install crd")
    line = next(each for each in operator.text().splitlines() if "crd might be missing" in each)
    assert '"scheduling.volcano.sh/v1beta1"' in line
    assert '"PodGroup"' in line
    world.create_job("suspended", {"Worker": replicas(1)}, suspend=True)
    world.create_job("j", {"Worker": replicas(2)})
    assert "podgroups.scheduling.volcano.sh" in volcano.wait_ready("PodGroupUnavailable")["message"]
    world.wait_condition("Suspended", "suspended")
    assert world.pods() == {}
    version = world.job()["metadata"]["resourceVersion"]

    volcano.install()
    volcano.wait_group()
    volcano.admit()
    volcano.wait_no_condition()
    volcano.run(*WORKERS)
    assert world.job()["metadata"]["resourceVersion"] != version
    assert [name for name, _, _ in world.conditions()] == ["Created", "Running"]

    volcano.remove()
    assert world.is_now("Running")
    for name in WORKERS:
        world.end_pod(name)
    world.wait_condition("Succeeded")
    assert [name for name, _, _ in world.conditions()] == ["Created", "Running", "Succeeded"]
    assert operator.running


def test_an_api_server_whose_gate_is_off(quiet_world: World, start: Callable[..., Operator]):
    world = quiet_world
    operator = start("kube-scheduler")
    operator.wait_text("the kind is not served: turn on the feature gate GenericWorkload")
    world.create_job("j", {"Worker": replicas(2)})
    world.wait(lambda: world.condition("GangReady").get("reason") == "PodGroupUnavailable", "GangReady")
    message = world.condition("GangReady")["message"]
    assert "the API server does not serve scheduling.k8s.io/v1beta1 PodGroup" in message
    assert "--runtime-config=scheduling.k8s.io/v1beta1=true in Kubernetes 1.37 or later" in message
    assert world.pods() == {}
    world.create_job("suspended", {"Worker": replicas(1)}, suspend=True)
    world.wait_condition("Suspended", "suspended")
    assert operator.running


@pytest.mark.case("job-engine-28", "ab")
def test_the_group_of_a_former_operator_is_taken_over(volcano: Stage, start: Callable[..., Operator]):
    """It has no labels, and fields that the operator does not know."""
    world = volcano.world
    volcano.install()
    job = world.create_job("j", {"Worker": replicas(2, **CPU)})
    uid = job["metadata"]["uid"]
    owner = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "j", "uid": uid, "controller": True}
    spec = {"minMember": 2, "queue": "q1", "minResources": {"cpu": "2000m"}, "minTaskMember": {"worker": 2}}
    body: Json = {"apiVersion": VOLCANO_GROUPS.api_version, "kind": "PodGroup", "spec": spec}
    made = world.ask("POST", volcano.path, body | {"metadata": {"name": "j", "ownerReferences": [owner]}})
    start("volcano")
    world.wait_services(*WORKERS)
    volcano.admit()
    version = volcano.group()["metadata"]["resourceVersion"]
    volcano.run(*WORKERS)
    found = volcano.group()
    assert (found["metadata"]["uid"], found["metadata"]["resourceVersion"]) == (made["metadata"]["uid"], version)
    world.patch_run_policy(schedulingPolicy={"minAvailable": 1, "queue": "q2"})
    world.wait(lambda: volcano.group()["spec"]["minMember"] == 1, "the update")
    assert volcano.group()["spec"] == spec | {"minMember": 1, "minResources": {"cpu": "1"}}
    for name in WORKERS:
        world.end_pod(name)
    world.wait(lambda: not volcano.group(), "the end of the PodGroup")


def test_a_group_deleted_by_hand_comes_back(volcano: Stage, start: Callable[..., Operator]):
    world = volcano.world
    volcano.install()
    start("volcano")
    world.create_job("j", {"Worker": replicas(2)})
    uid = volcano.wait_group()["metadata"]["uid"]
    volcano.admit()
    volcano.run(*WORKERS)
    world.ask("DELETE", f"{volcano.path}/j")
    world.wait(lambda: volcano.group().get("metadata", {}).get("uid") not in (None, uid), "another PodGroup")
    assert world.is_now("Running")
    assert set(world.pods()) == set(WORKERS)


def test_a_foreign_group_is_never_touched(plugins: Stage, start: Callable[..., Operator]):
    world = plugins.world
    plugins.install()
    body: Json = {"apiVersion": PLUGIN_GROUPS.api_version, "kind": "PodGroup", "metadata": {"name": "j"}}
    theirs = world.ask("POST", plugins.path, body | {"spec": {"minMember": 7}})
    start("my-sched")
    world.create_job("j", {"Worker": replicas(1)})
    text = "PodGroup j already exists and does not belong to PyTorchJob j"
    assert plugins.wait_ready("PodGroupNameTaken")["message"] == text
    world.wait(lambda: world.events("FailedCreatePodGroup"), "the warning")
    assert plugins.group() == theirs
    assert world.pods() == {}


def test_without_permission_jobs_wait_and_others_go_on(
    plugins: Stage, start: Callable[..., Operator], control_plane: ControlPlane, tmp_path: Path
):
    world = plugins.world
    plugins.install()
    account = Account(world, control_plane, tmp_path, "create", "podgroups")
    start("my-sched", account.kubeconfig)
    world.create_job("j", {"Worker": replicas(1)})
    assert "cannot create resource" in plugins.wait_ready("PodGroupRefused")["message"]
    assert world.pods() == {}
    assert not world.is_now("Failed")
    account.grant_all()
    world.patch_run_policy(backoffLimit=3)  # an edit ends the back-off
    plugins.run("j-worker-0")
    plugins.wait_no_condition()


def test_without_permission_to_read_priority_classes(
    plugins: Stage, start: Callable[..., Operator], control_plane: ControlPlane, tmp_path: Path
):
    """An installation in one namespace has no permission for PriorityClasses."""
    world = plugins.world
    plugins.install()
    account = Account(world, control_plane, tmp_path, "watch", "priorityclasses")
    start("my-sched", account.kubeconfig)
    world.create_job("j", {"Worker": replicas(1, priorityClassName="system-node-critical", **CPU)})
    plugins.wait_group()
    plugins.run("j-worker-0")
    assert world.events("UnknownPriorityClass") == []


def test_without_permission_to_watch_groups(
    plugins: Stage, start: Callable[..., Operator], control_plane: ControlPlane, tmp_path: Path
):
    world = plugins.world
    plugins.install()
    account = Account(world, control_plane, tmp_path, "watch", "podgroups")
    start("my-sched", account.kubeconfig)
    world.create_job("j", {"Worker": replicas(1)})
    assert "no permission to list and watch" in plugins.wait_ready("PodGroupUnavailable")["message"]
    account.grant_all()
    plugins.run("j-worker-0")
    plugins.wait_no_condition()


def test_a_policy_refuses_groups(plugins: Stage, start: Callable[..., Operator]):
    world = plugins.world
    plugins.install()
    forbid(world)
    start("my-sched")
    try:
        world.create_job("j", {"Worker": replicas(1)})
        assert "no groups today" in plugins.wait_ready("PodGroupRefused")["message"]
        assert world.pods() == {}
        world.wait_events("FailedCreatePodGroup")
        world.patch_run_policy(suspend=True)
        plugins.wait_no_condition()
        world.wait_condition("Suspended")
    finally:
        allow(world)
    world.patch_run_policy(suspend=False)
    plugins.run("j-worker-0")
    assert not world.is_now("Failed")


def forbid(world: World) -> None:
    name = f"no-groups-{world.namespace}"
    rule = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["podgroups"]}
    policy = {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "false", "message": "no groups today"}],
    }
    chosen = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": world.namespace}}}
    binding = {"policyName": name, "validationActions": ["Deny"], "matchResources": chosen}
    for plural, kind, spec in (("ies", "", policy), ("ybindings", "Binding", binding)):
        body = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": f"ValidatingAdmissionPolicy{kind}"}
        world.ask("POST", POLICIES + plural, body | {"metadata": {"name": name}, "spec": spec})
    owner: Json = {"apiVersion": PLUGIN_GROUPS.api_version, "kind": "PodGroup", "metadata": {"name": "probe"}}
    path = f"{PLUGIN_GROUPS.path(world.namespace)}?dryRun=All"
    world.wait(lambda: world.try_to("POST", path, owner).status == 422, "the policy")


def allow(world: World) -> None:
    for plural in ("ybindings", "ies"):
        world.try_to("DELETE", f"{POLICIES}{plural}/no-groups-{world.namespace}")
    owner: Json = {"apiVersion": PLUGIN_GROUPS.api_version, "kind": "PodGroup", "metadata": {"name": "probe"}}
    path = f"{PLUGIN_GROUPS.path(world.namespace)}?dryRun=All"
    world.wait(lambda: world.try_to("POST", path, owner).status == 201, "the end of the policy")
