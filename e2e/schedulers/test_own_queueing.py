"""The operator's own integration (`--kueue`) beside a real Kueue, for every kind that can be queued."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator

import pytest

from e2e.cluster.controlplane import ControlPlane
from e2e.schedulers.conftest import run_queue_operator
from e2e.schedulers.kueue import Kueue
from e2e.schedulers.manifests import Json
from e2e.schedulers.queues import SELECTOR, SSD, TOLERATION, WORKLOADS, QueueWorld, priority
from e2e.schedulers.recorder import Recorder
from tests.server.process import Operator, fetch
from tests.server.world import MERGE
from trainop.programs.schemes import FRAMEWORKS

KINDS = (*FRAMEWORKS, "MPIJob")
WORLDS = (*KINDS, "MPIJob/v2beta1")
ELASTIC = {"kueue.x-k8s.io/elastic-job": "true"}

pytestmark = pytest.mark.usefixtures("free_nodes")


@pytest.fixture(scope="module")
def plane(external_kueue: Kueue) -> ControlPlane:
    return external_kueue.plane


@pytest.fixture(scope="module", autouse=True)
def operator(plane: ControlPlane) -> Iterator[Operator]:
    yield from run_queue_operator(plane, f"--kueue={','.join(KINDS)}")


@pytest.mark.parametrize("kind", WORLDS)
def test_job_waits_runs_and_returns_its_quota(plane: ControlPlane, kind: str) -> None:
    world = QueueWorld(plane.api, kind, stopPolicy="Hold")
    with Recorder(world.api, world.namespace) as recorder:
        world.submit("j")
        world.wait_condition("Suspended")
        world.wait(lambda: world.suspended("j") and world.workload("j"), "the field suspend, and the Workload")
        assert not world.pods()
        assert not recorder.made(), "not for a moment"
    world.patch_queue({"stopPolicy": "None"})
    for pod in world.wait_running("j").values():
        assert pod["spec"]["nodeSelector"] == {**SSD, **SELECTOR}
        assert TOLERATION in pod["spec"]["tolerations"]
    assert all(each["spec"]["nodeSelector"] == SSD for each in world.templates("j"))
    world.wait_used_cpus("2")
    world.wait_workload("j", "PodsReady")
    world.end_pods("j")
    world.wait_condition("Succeeded")
    world.wait_workload("j", "Finished")
    world.wait_used_cpus("0")


@pytest.mark.parametrize("kind", WORLDS)
def test_preempted_job_runs_again(plane: ControlPlane, kind: str) -> None:
    world = QueueWorld(plane.api, kind)
    policy = {"backoffLimit": 0, "cleanPodPolicy": "Running"}  # as MPIJobs need, which keep their workers by default
    world.submit("low", cpus=2, labels=priority("low"), runPolicy=policy)
    before = world.wait_settled("low")
    world.submit("high", cpus=2, labels=priority("high"), runPolicy=policy)
    world.wait_running("high")
    assert not world.pods_of("low")
    assert world.suspended("low")
    world.end_pods("high")
    world.wait_condition("Succeeded", "high")
    after = world.wait_running("low")
    assert len(after) == len(before)
    assert not {uid(pod) for pod in after.values()} & {uid(pod) for pod in before.values()}
    world.end_pods("low")
    world.wait_condition("Succeeded", "low")
    world.wait_used_cpus("0")


def test_finished_pods_return_their_quota(plane: ControlPlane) -> None:
    world = QueueWorld(plane.api, "PyTorchJob")
    world.submit("j")
    world.wait_settled("j")
    world.end_some("j", "j-worker-0")
    world.wait_used_cpus("1")
    world.end_pods("j")
    world.wait_condition("Succeeded")
    world.wait_used_cpus("0")


def test_job_is_admitted_in_part(plane: ControlPlane) -> None:
    world = QueueWorld(plane.api, "PyTorchJob", cpus=3)
    world.submit("j", {"Worker": 4}, elasticPolicy={"minReplicas": 2, "maxReplicas": 8})
    assert len(world.wait_running("j", 3)) == 3
    world.wait_used_cpus("3")


def test_elastic_job_grows_by_a_new_slice(plane: ControlPlane) -> None:
    world = QueueWorld(plane.api, "PyTorchJob")
    world.submit("j", {"Worker": 2}, annotations=ELASTIC)
    before = world.wait_settled("j")
    world.patch_job({world.framework.replica_specs: {"Worker": {"replicas": 4}}})
    after = world.wait_running("j", 4)
    assert all(after[name]["metadata"]["uid"] == pod["metadata"]["uid"] for name, pod in before.items())
    world.wait_used_cpus("4")
    world.patch_job({world.framework.replica_specs: {"Worker": {"replicas": 1}}})
    world.wait_running("j", 1)
    world.wait_used_cpus("1")


def test_changed_job_is_queued_with_its_new_size(plane: ControlPlane) -> None:
    world = QueueWorld(plane.api, "MXJob")
    world.submit("j")
    world.wait_running("j")
    world.patch_job({world.framework.replica_specs: {"Server": {"replicas": 2}}})
    world.wait_running("j", 3)
    world.wait_used_cpus("3")


@pytest.mark.parametrize("kind", ["PaddleJob", "PyTorchJob", "TFJob"])
def test_topology_places_replicas_by_index(plane: ControlPlane, kind: str) -> None:
    world = QueueWorld(plane.api, kind, cpus=8, flavor="by-host")
    world.submit("j", {"Worker": 2}, cpus=3)
    pods = world.wait_running("j")
    assert [pods[f"j-worker-{index}"]["spec"]["nodeName"] for index in (0, 1)] == ["sim-0", "sim-1"]
    world.end_pods("j")
    world.wait_condition("Succeeded")
    world.wait_used_cpus("0")


def test_deleted_workload_stops_the_job_and_queues_it_again(plane: ControlPlane) -> None:
    world = QueueWorld(plane.api, "MXJob")
    world.submit("j")
    before = world.wait_running("j")
    world.delete_workload("j")
    world.wait(
        lambda: all(
            world.pods_of("j").get(name, pod)["metadata"]["uid"] != pod["metadata"]["uid"]
            for name, pod in before.items()
        ),
        "new pods",
    )
    world.wait_running("j")


def test_drained_queue_stops_the_job_until_it_is_open_again(plane: ControlPlane) -> None:
    world = QueueWorld(plane.api, "MXJob")
    world.submit("j", runPolicy={"backoffLimit": 0})
    world.wait_settled("j")
    world.patch_queue({"stopPolicy": "HoldAndDrain"})
    world.wait(lambda: not world.pods_of("j"), "no pods of the evicted job")
    world.wait_used_cpus("0")
    assert world.suspended("j")
    world.patch_queue({"stopPolicy": "None"})
    world.wait_running("j")
    world.end_pods("j")
    world.wait_condition("Succeeded")


def test_smaller_quota_holds_the_next_job_only(plane: ControlPlane) -> None:
    """As Kueue promises: admitted jobs run on."""
    world = QueueWorld(plane.api, "MXJob")
    world.submit("j")
    world.wait_settled("j")
    world.set_quota(2)
    world.submit("next")
    world.wait(lambda: world.condition_reason("Admitted", "next") == "Pending", "the condition of the next job")
    assert len(world.wait_running("j")) == 2
    assert not world.pods_of("next")
    world.end_pods("j")
    world.wait_condition("Succeeded")
    world.wait_running("next")


def test_deactivated_workload_pauses_the_job(plane: ControlPlane) -> None:
    world = QueueWorld(plane.api, "PyTorchJob")
    world.submit("j")
    world.wait_settled("j")
    world.patch_workload("j", {"spec": {"active": False}})
    world.wait(lambda: not world.pods_of("j"), "no pods")
    world.wait_used_cpus("0")
    world.patch_workload("j", {"spec": {"active": True}})
    world.wait_running("j")


def test_suspend_of_a_user_is_set_back(plane: ControlPlane) -> None:
    """The queue decides: a job that waits cannot be started, one that runs is not stopped."""
    world = QueueWorld(plane.api, "MXJob", stopPolicy="Hold")
    world.submit("j")
    world.wait(lambda: world.suspended("j"), "the field suspend")
    world.patch_job({"runPolicy": {"suspend": False}})
    world.wait(lambda: world.suspended("j"), "the field suspend again")
    assert not world.pods_of("j")
    world.patch_queue({"stopPolicy": "None"})
    before = world.wait_running("j")
    world.patch_job({"runPolicy": {"suspend": True}})
    world.wait(lambda: not world.suspended("j"), "the field suspend set back")
    after = world.wait_running("j")
    assert {pod["metadata"]["uid"] for pod in after.values()} == {pod["metadata"]["uid"] for pod in before.values()}


@pytest.mark.parametrize("kind", ["MXJob", "PyTorchJob"])
def test_operator_that_is_killed_starts_what_was_admitted_meanwhile(
    plane: ControlPlane, operator: Operator, kind: str
) -> None:
    world = QueueWorld(plane.api, kind, stopPolicy="Hold")
    world.submit("j")
    world.wait(lambda: world.suspended("j") and world.workload("j"), "the Workload")
    operator.end(signal.SIGKILL)
    world.patch_queue({"stopPolicy": "None"})
    world.wait_workload("j", "Admitted")
    assert world.suspended("j")
    assert not world.pods_of("j")
    operator.start()
    world.wait_running("j")
    world.end_pods("j")
    world.wait_condition("Succeeded")
    world.wait_used_cpus("0")


def test_edited_workload_is_that_of_the_job_again(plane: ControlPlane) -> None:
    world = QueueWorld(plane.api, "MXJob", stopPolicy="Hold")
    world.submit("j")
    world.wait(lambda: world.workload("j"), "the Workload")
    before = world.workload("j")["spec"]
    pod_sets = [{**each, "count": 1 + each["count"]} for each in before["podSets"]]
    world.patch_workload("j", {"spec": {"queueName": "other", "podSets": pod_sets}})
    world.wait(lambda: world.workload("j").get("spec") == before, "the Workload as it was")
    world.patch_queue({"stopPolicy": "None"})
    world.wait_running("j")
    world.wait_used_cpus("2")


@pytest.mark.parametrize("kind", ["MXJob", "MPIJob/v2beta1"])
def test_foreign_workload_of_the_same_name_is_left_alone(plane: ControlPlane, operator: Operator, kind: str) -> None:
    """The job says so, and is queued once the name is free."""
    world = QueueWorld(plane.api, kind, stopPolicy="Hold")
    world.submit("j")
    world.wait(lambda: world.workload("j"), "the Workload")
    ours = world.workload("j")
    operator.end()
    world.delete_workload("j")
    world.wait(lambda: not world.workload("j"), "the end of the Workload")
    foreign = {"name": ours["metadata"]["name"], "namespace": world.namespace}
    made = world.ask("POST", WORKLOADS, {**ours, "metadata": foreign, "status": {}})
    operator.start()
    world.wait(lambda: ours["metadata"]["name"] in world.condition("Admitted").get("message", ""), "the condition")
    assert world.ask("GET", f"{WORKLOADS}/{foreign['name']}")["metadata"]["uid"] == made["metadata"]["uid"]
    world.patch_queue({"stopPolicy": "None"})
    world.ask("DELETE", f"{WORKLOADS}/{foreign['name']}")
    edit = {"metadata": {"annotations": {"edited": "true"}}}  # without one it is tried again after a minute
    world.ask("PATCH", f"{world.jobs}/j", edit, MERGE)
    world.wait_running("j")
    world.end_pods("j")
    world.wait_condition("Succeeded")


def test_a_thousand_waiting_jobs_cost_a_bounded_number_of_requests(plane: ControlPlane, operator: Operator) -> None:
    world = QueueWorld(plane.api, "PyTorchJob", stopPolicy="Hold")
    before = requests_of(operator)
    for number in range(MANY):
        world.submit(f"j{number}", {"Master": 1})
    world.wait(
        lambda: all(each["spec"].get("runPolicy", {}).get("suspend") for each in jobs_of(world)), "the field suspend"
    )
    world.wait(lambda: len(world.ask("GET", WORKLOADS)["items"]) == MANY, "the Workloads")
    world.wait(lambda: all(is_told(each) for each in jobs_of(world)), "the conditions")
    queued = requests_of(operator)
    assert queued - before < 8 * MANY
    assert operator.resident_mib() < 200

    other = QueueWorld(plane.api, "PyTorchJob")
    other.submit("one")
    other.wait_settled("one")
    other.end_pods("one")
    other.wait_condition("Succeeded", "one")
    other.wait_used_cpus("0")
    assert requests_of(operator) - queued < 60
    assert not world.pods()


def uid(pod: Json) -> str:
    return str(pod["metadata"]["uid"])


MANY = 1000


def jobs_of(world: QueueWorld) -> list[Json]:
    found: list[Json] = world.ask("GET", world.jobs)["items"]
    return found


def is_told(job: Json) -> bool:
    """Whether the job says that its queue is on hold."""
    return any(each["type"] == "Admitted" for each in job.get("status", {}).get("conditions", ()))


def requests_of(operator: Operator) -> float:
    """The requests that the operator has sent to the API server."""
    text = fetch(operator.metrics_url)[1]
    return sum(map(float, re.findall(r"^rest_client_requests_total\{.*\} (\S+)$", text, re.MULTILINE)))
