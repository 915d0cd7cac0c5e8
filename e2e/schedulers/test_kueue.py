"""Jobs of every kind that Kueue integrates, in its queues, on simulated nodes.

The expectations follow Kueue's `pkg/controller/jobs/kubeflow/kubeflowjob` and `pkg/podset`: what it writes to a job
when it admits or evicts it, and what it reads from the job's status.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from e2e.cluster.controlplane import ControlPlane
from e2e.schedulers.conftest import run_queue_operator
from e2e.schedulers.kueue import Kueue
from e2e.schedulers.manifests import Json, create
from e2e.schedulers.queues import COUNTS, KUEUE, QUEUES, SELECTOR, SSD, TOLERATION, QueueWorld, priority
from tests.server.process import Operator
from tests.server.webhooks import Webhooks
from tests.server.world import MERGE


@pytest.fixture(scope="module")
def plane(integrating_kueue: Kueue) -> ControlPlane:
    return integrating_kueue.plane


@pytest.fixture(scope="module")
def validated(plane: ControlPlane) -> QueueWorld:
    """The operator's namespace. Its webhooks validate the jobs of this namespace once a test installs them."""
    return QueueWorld(plane.api)


@pytest.fixture(scope="module")
def webhooks(validated: QueueWorld) -> Webhooks:
    return Webhooks(validated)


@pytest.fixture(scope="module", autouse=True)
def operator(plane: ControlPlane, webhooks: Webhooks) -> Iterator[Operator]:
    yield from run_queue_operator(plane, environment=webhooks.environment)


@pytest.mark.parametrize("kind", sorted(COUNTS))
def test_job_waits_runs_and_returns_its_quota(plane: ControlPlane, kind: str) -> None:
    world = QueueWorld(plane.api, kind, stopPolicy="Hold")
    created = world.submit("j")
    assert created["spec"]["runPolicy"]["suspend"] is True
    world.wait_condition("Suspended")
    assert not world.pods()

    world.patch_queue({"stopPolicy": "None"})
    pods = world.wait_running("j")
    for pod in pods.values():
        assert pod["spec"]["nodeSelector"] == {**SSD, **SELECTOR}
        assert TOLERATION in pod["spec"]["tolerations"]
        assert pod["spec"]["nodeName"] == "sim-0"
    world.wait_condition("Running")
    assert not world.is_now("Suspended")
    world.wait_used_cpus("2")
    world.wait_workload("j", "PodsReady")

    world.end_pods("j")
    world.wait_condition("Succeeded")
    world.wait_workload("j", "Finished")
    world.wait_used_cpus("0")


@pytest.mark.parametrize("kind", sorted(COUNTS))
def test_preempted_job_runs_again(plane: ControlPlane, kind: str) -> None:
    world = QueueWorld(plane.api, kind)
    # Kueue's eviction must not count as a failure of the job.
    world.submit("low", cpus=2, labels=priority("low"), runPolicy={"backoffLimit": 0})
    before = world.wait_settled("low")

    world.submit("high", cpus=2, labels=priority("high"))
    world.wait_running("high")
    world.wait(lambda: not world.pods_of("low"), "no pods of the evicted job")
    assert world.suspended("low")
    world.wait_condition("Suspended", "low")
    assert [template["spec"]["nodeSelector"] for template in world.templates("low")] == [SSD] * len(COUNTS[kind])
    assert not any("tolerations" in template["spec"] for template in world.templates("low"))

    world.end_pods("high")
    world.wait_condition("Succeeded", "high")
    after = world.wait_running("low")
    assert set(after) == set(before)
    for name, pod in after.items():
        assert pod["metadata"]["uid"] != before[name]["metadata"]["uid"]
        assert pod["spec"]["nodeSelector"] == {**SSD, **SELECTOR}
        assert TOLERATION in pod["spec"]["tolerations"]
    world.end_pods("low")
    world.wait_condition("Succeeded", "low")
    world.wait_used_cpus("0")


def test_conditions_that_kueue_does_not_know_change_nothing(plane: ControlPlane) -> None:
    """`Started` and `Stalled` of a job of every kind: its Workload stays admitted, is evicted, and finishes as ever."""
    worlds = {kind: QueueWorld(plane.api, kind) for kind in sorted(COUNTS)}
    survives = {"progress": "true", "stalled-after": "1m", "startup-deadline": "1h", "checkpoint-grace": "5s"}
    annotations = {f"trainop.kubeflow.org/{name}": value for name, value in survives.items()}
    for kind, world in worlds.items():
        small: Json = {"resources": {"requests": {"cpu": "200m"}}}
        roles = {role: world.role(count, **small) for role, count in COUNTS[kind].items()}
        world.ask("POST", world.jobs, world.body("j", roles, annotations=annotations))
    for world in worlds.values():
        world.wait_settled("j")
        world.wait_condition("Started")
    percent = itertools.count(1)
    for world in worlds.values():
        world.wait(lambda world=world: report(world, next(percent) % 100), "the first report")  # type: ignore[misc]  # mypy cannot infer the lambda
    for world in worlds.values():
        world.wait_condition("Stalled")
        assert world.is_now("Running")
        assert all(world.workload_is("j", each) for each in ("Admitted", "PodsReady"))
        world.patch_workload("j", {"spec": {"active": False}})  # an eviction
    for world in worlds.values():
        world.wait(lambda world=world: not world.pods_of("j"), "no pods")  # type: ignore[misc]  # mypy cannot infer the lambda
        world.wait_condition("Suspended")
        assert not world.is_now("Stalled")
        world.wait_used_cpus("0")
        world.patch_workload("j", {"spec": {"active": True}})
    for world in worlds.values():
        world.wait_settled("j")
        world.wait_condition("Started")
        world.end_pods("j")
        world.wait_condition("Succeeded")
        world.wait_workload("j", "Finished")
        world.wait_used_cpus("0")


def report(world: QueueWorld, percent: int) -> bool:
    """Reports as another replica of the operator does. Returns whether the operator counts a report to this run: one
    that comes soon after the start of a job that was suspended may be of the run before."""
    world.ask("PATCH", f"{world.jobs}/j/status", {"status": {"trainerStatus": {"progressPercentage": percent}}}, MERGE)
    return bool(world.condition_reason("Stalled"))


def test_operators_webhooks_accept_what_kueue_writes(
    validated: QueueWorld, webhooks: Webhooks, operator: Operator
) -> None:
    webhooks.install(operator.webhook_port, "Fail")
    webhooks.wait_injected()
    webhooks.wait_called()
    validated.submit("low", cpus=2, labels=priority("low"))
    validated.wait_settled("low")
    validated.submit("high", cpus=2, labels=priority("high"))
    validated.wait_running("high")
    assert validated.suspended("low")
    validated.end_pods("high")
    validated.wait_running("low")
    validated.end_pods("low")
    validated.wait_condition("Succeeded", "low")
    validated.wait_used_cpus("0")
    webhooks.remove()


def test_priority_class_of_the_scheduling_policy_preempts(plane: ControlPlane) -> None:
    create(plane.api, {**PRIORITY_CLASS, "metadata": {"name": "urgent"}, "value": 1000})
    world = QueueWorld(plane.api)
    world.submit("usual", cpus=2)
    world.wait_settled("usual")
    world.submit("urgent", cpus=2, runPolicy={"schedulingPolicy": {"priorityClass": "urgent"}})
    world.wait_running("urgent")
    assert world.suspended("usual")
    world.end_pods("urgent")
    world.wait_running("usual")
    world.end_pods("usual")
    world.wait_condition("Succeeded", "usual")


PRIORITY_CLASS: Json = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}


@pytest.mark.parametrize("kind", sorted(COUNTS))
def test_job_for_another_cluster_is_ignored(plane: ControlPlane, kind: str) -> None:
    """Kueue hands a job to MultiKueue when its queue has such an admission check."""
    check = f"multikueue-{kind.lower()}"
    make_check(plane, check, "kueue.x-k8s.io/multikueue")
    world = QueueWorld(plane.api, kind, admissionChecks=[check])
    created = world.submit("remote")
    assert created["spec"]["runPolicy"]["managedBy"] == "kueue.x-k8s.io/multikueue"
    local = QueueWorld(plane.api, kind)
    local.submit("local")
    local.wait_running("local")
    # As the controller of MultiKueue: a job that runs elsewhere is not suspended here.
    world.patch_job({"runPolicy": {"suspend": False}}, "remote")
    local.end_pods("local")
    local.wait_condition("Succeeded", "local")
    assert not world.pods()
    assert not world.services()
    assert not world.status("remote")


def make_check(plane: ControlPlane, name: str, controller: str) -> None:
    """An active AdmissionCheck of a controller, which the test plays."""
    body = {"apiVersion": KUEUE, "kind": "AdmissionCheck", "metadata": {"name": name}}
    create(plane.api, {**body, "spec": {"controllerName": controller}})
    active = {"type": "Active", "status": "True", "reason": "Test", "message": "", "lastTransitionTime": NOW}
    path = f"{QUEUES}/admissionchecks/{name}/status"
    assert plane.api("PATCH", path, {"status": {"conditions": [active]}}, MERGE).status == 200


NOW = "2026-01-01T00:00:00Z"


@pytest.mark.parametrize("kind", sorted(COUNTS))
def test_updates_of_an_admission_check_reach_the_pods(plane: ControlPlane, kind: str, operator: Operator) -> None:
    check = f"provisioning-{kind.lower()}"
    make_check(plane, check, "trainop.test/check")
    world = QueueWorld(plane.api, kind, admissionChecks=[check])
    world.submit("j", runPolicy={"backoffLimit": 0})
    world.wait_workload("j", "QuotaReserved")
    assert world.suspended("j")

    tolerated = {"key": "spot", "operator": "Exists", "effect": "NoSchedule"}
    update = {
        "annotations": {"provisioned": "request-1"},
        "labels": {"tier": "spot"},
        "nodeSelector": {"kubernetes.io/hostname": "sim-0"},
        "tolerations": [tolerated],
    }
    podsets = world.workload("j")["spec"]["podSets"]
    updates = [{"name": podset["name"], **update} for podset in podsets]
    ready = {"name": check, "state": "Ready", "message": "", "lastTransitionTime": NOW, "podSetUpdates": updates}
    world.patch_workload("j", {"status": {"admissionChecks": [ready]}}, "/status")

    assert_updated(world.wait_running("j"), tolerated)
    # Another process and another status of the job leave the injected fields of the template alone.
    operator.end()
    operator.start()
    world.wait_condition("Running")
    for template in world.templates("j"):
        assert template["metadata"]["labels"]["tier"] == "spot"
        assert template["spec"]["nodeSelector"] == {**SSD, **SELECTOR, "kubernetes.io/hostname": "sim-0"}
    assert_updated(world.wait_running("j"), tolerated)

    # Deactivated, as an administrator would: suspended and restored.
    world.patch_workload("j", {"spec": {"active": False}})
    world.wait(lambda: not world.pods_of("j"), "no pods")
    assert world.suspended("j")
    world.wait_used_cpus("0")
    for template in world.templates("j"):
        assert "tier" not in template.get("metadata", {}).get("labels", {})
        assert template["spec"]["nodeSelector"] == SSD


def assert_updated(pods: dict[str, Json], tolerated: Json) -> None:
    for pod in pods.values():
        assert pod["metadata"]["annotations"]["provisioned"] == "request-1"
        assert pod["metadata"]["labels"]["tier"] == "spot"
        assert pod["spec"]["nodeSelector"] == {**SSD, **SELECTOR, "kubernetes.io/hostname": "sim-0"}
        assert tolerated in pod["spec"]["tolerations"]
        assert TOLERATION in pod["spec"]["tolerations"]


def test_deactivated_job_runs_again(plane: ControlPlane) -> None:
    world = QueueWorld(plane.api)
    world.submit("j")
    world.wait_running("j")
    world.patch_workload("j", {"spec": {"active": False}})
    world.wait(lambda: not world.pods_of("j"), "no pods")
    world.wait_used_cpus("0")
    world.patch_workload("j", {"spec": {"active": True}})
    world.wait_running("j")
    world.end_pods("j")
    world.wait_condition("Succeeded")


@pytest.mark.parametrize("kind", ["JAXJob", "PaddleJob", "PyTorchJob", "TFJob"])  # XGBoostJob needs a master
def test_topology_places_replicas_by_index(plane: ControlPlane, kind: str) -> None:
    """Kueue gates the pods, and assigns them to hosts in the order of the operator's label `replica-index`."""
    world = QueueWorld(plane.api, kind, cpus=8, flavor="by-host")
    world.submit("j", {"Worker": 2}, cpus=3)
    pods = world.wait_running("j")
    assert [pods[f"j-worker-{index}"]["spec"]["nodeName"] for index in (0, 1)] == ["sim-0", "sim-1"]
    world.end_pods("j")
    world.wait_condition("Succeeded")
    world.wait_used_cpus("0")


@pytest.mark.parametrize("kind", sorted(COUNTS))
def test_job_with_defaults_only_is_counted_and_runs(plane: ControlPlane, kind: str) -> None:
    """Kueue counts one pod for a role without `replicas`, as the operator does."""
    world = QueueWorld(plane.api, kind)
    role = world.role(1)
    del role["replicas"]
    first = next(iter(COUNTS[kind]))
    world.ask("POST", world.jobs, world.body("j", {first: role}))
    world.wait_running("j", 1)
    world.wait_used_cpus("1")
    world.end_pods("j")
    world.wait_condition("Succeeded")
    world.wait_used_cpus("0")


@pytest.mark.parametrize("kind", sorted(COUNTS))
def test_invalid_job_holds_no_quota(plane: ControlPlane, kind: str) -> None:
    """A job that the operator rejects ends, so that its quota goes to the next job."""
    world = QueueWorld(plane.api, kind, cpus=2)
    role = world.role(2)
    role["template"]["spec"]["containers"][0]["name"] = "other"  # not the kind's container
    world.ask("POST", world.jobs, world.body("wrong", {next(iter(COUNTS[kind])): role}))
    world.wait_condition("Failed", "wrong")
    # Kueue makes no Workload for a job that it first sees finished.
    world.wait(lambda: not world.workload("wrong") or world.workload_is("wrong", "Finished"), "the end of its Workload")
    world.submit("right")
    world.wait_running("right")
    assert not world.pods_of("wrong")
    world.end_pods("right")
    world.wait_condition("Succeeded", "right")


def test_failed_job_returns_its_quota(plane: ControlPlane) -> None:
    world = QueueWorld(plane.api)
    roles = {"Master": world.role(1, "Never"), "Worker": world.role(1, "Never")}
    world.ask("POST", world.jobs, world.body("j", roles))
    world.wait_running("j")
    world.end_pods("j", exit_code=1)
    world.wait_condition("Failed")
    world.wait_workload("j", "Finished")
    world.wait_used_cpus("0")


def test_deleted_job_returns_its_quota(plane: ControlPlane) -> None:
    world = QueueWorld(plane.api)
    world.submit("j")
    world.wait_running("j")
    world.ask("DELETE", f"{world.jobs}/j")
    world.wait(lambda: not world.pods(), "no pods")
    world.wait_used_cpus("0")


def test_scaled_job_is_queued_with_its_new_size(plane: ControlPlane) -> None:
    world = QueueWorld(plane.api)
    world.submit("j")
    world.wait_running("j")
    world.patch_job({world.framework.replica_specs: {"Worker": {"replicas": 3}}})
    world.wait_running("j", 4)
    world.wait_used_cpus("4")
    world.end_pods("j")
    world.wait_condition("Succeeded")
    world.wait_used_cpus("0")


def test_job_without_a_queue_runs_at_once(plane: ControlPlane) -> None:
    world = QueueWorld(plane.api, cpus=0)
    body = world.body("j", {"Master": world.role(1)})
    del body["metadata"]["labels"]
    world.ask("POST", world.jobs, body)
    world.wait_running("j", 1)
    assert not world.workload("j")
    world.end_pods("j")
    world.wait_condition("Succeeded")


def test_queue_moves_on_while_the_operator_is_away(plane: ControlPlane, operator: Operator) -> None:
    """What Kueue decides meanwhile is done once the operator is back."""
    world = QueueWorld(plane.api)
    world.submit("low", cpus=2, labels=priority("low"))
    world.wait_settled("low")
    operator.end()
    world.submit("high", cpus=2, labels=priority("high"))
    world.wait(lambda: world.suspended("low"), "the eviction")
    assert len(world.pods_of("low")) == 2
    operator.start()
    world.wait_running("high")
    assert not world.pods_of("low")
    world.end_pods("high")
    world.wait_running("low")
    world.end_pods("low")
    world.wait_condition("Succeeded", "low")
