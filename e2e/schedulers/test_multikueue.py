"""MultiKueue with two real API servers: jobs of a manager cluster run in a worker cluster, with Kueue's own
integrations and an operator in both."""

from __future__ import annotations

import base64
import copy
from collections.abc import Iterator

import pytest

from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import wait_until
from e2e.schedulers.conftest import run_queue_operator, start_kueue
from e2e.schedulers.kueue import NAMESPACE, Kueue
from e2e.schedulers.manifests import Json, create
from e2e.schedulers.queues import COUNTS, KUEUE, QUEUES, WORKLOADS, QueueWorld
from tests.patience import PATIENCE
from tests.server.process import Operator

CHECK = "other-cluster"
REFUSED = "JAXJob"
"""The webhook of Kueue 0.19 refuses the copies of JAXJobs in the worker cluster."""
KINDS = (*sorted(COUNTS.keys() - {REFUSED}), "MPIJob", "MPIJob/v2beta1")


@pytest.fixture(scope="module")
def worker(integrating_kueue: Kueue) -> ControlPlane:
    return integrating_kueue.plane


@pytest.fixture(scope="module")
def manager(worker: ControlPlane) -> Iterator[ControlPlane]:
    for kueue in start_kueue():
        connect(kueue.plane, worker)
        yield kueue.plane


@pytest.fixture(scope="module", autouse=True)
def operators(manager: ControlPlane, worker: ControlPlane) -> Iterator[tuple[Operator, Operator]]:
    """One in each cluster."""
    for here in run_queue_operator(manager):
        for there in run_queue_operator(worker):
            yield here, there


def connect(manager: ControlPlane, worker: ControlPlane) -> None:
    """Makes the worker cluster known to the manager's Kueue, and waits until it is connected."""
    config = base64.b64encode(worker.kubeconfig.read_bytes()).decode()
    named = {"metadata": {"name": "worker", "namespace": NAMESPACE}}
    create(manager.api, {"apiVersion": "v1", "kind": "Secret", **named, "data": {"kubeconfig": config}})
    source = {"kubeConfig": {"locationType": "Secret", "location": "worker"}}
    make(manager, "MultiKueueCluster", "worker", {"clusterSource": source})
    make(manager, "MultiKueueConfig", "workers", {"clusters": ["worker"]})
    parameters = {"apiGroup": "kueue.x-k8s.io", "kind": "MultiKueueConfig", "name": "workers"}
    check = {"controllerName": "kueue.x-k8s.io/multikueue", "parameters": parameters}
    make(manager, "AdmissionCheck", CHECK, check)
    seen: list[Json] = []

    def is_active() -> bool:
        seen[:] = [manager.api("GET", f"{QUEUES}/admissionchecks/{CHECK}").body.get("status", {})]
        conditions = seen[0].get("conditions", ())
        return any((each["type"], each["status"]) == ("Active", "True") for each in conditions)

    assert wait_until(is_active, PATIENCE), seen


def make(plane: ControlPlane, kind: str, name: str, spec: Json) -> None:
    create(plane.api, {"apiVersion": KUEUE, "kind": kind, "metadata": {"name": name}, "spec": spec})


def twin_of(world: QueueWorld, worker: ControlPlane) -> QueueWorld:
    """The namespace and the queue of the same name in the worker cluster."""
    twin = copy.copy(world)
    twin.api = worker.api
    create(worker.api, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": world.namespace}})
    twin.make_queue(worker.api)
    return twin


@pytest.mark.parametrize("kind", KINDS)
def test_job_runs_in_the_other_cluster_and_its_status_comes_back(
    manager: ControlPlane, worker: ControlPlane, kind: str
) -> None:
    world = QueueWorld(manager.api, kind, admissionChecks=[CHECK])
    twin = twin_of(world, worker)
    created = world.submit("j")
    assert created["spec"]["runPolicy"]["managedBy"] == "kueue.x-k8s.io/multikueue"
    twin.wait_running("j")
    assert not twin.job("j")["spec"]["runPolicy"].get("managedBy")
    world.wait_condition("Running")
    world.wait_used_cpus("2")
    twin.wait_used_cpus("2")
    assert not world.pods()
    assert not world.services()

    twin.end_pods("j")
    world.wait_condition("Succeeded")
    world.wait_workload("j", "Finished")
    world.wait_used_cpus("0")
    twin.wait(lambda: not twin.ask("GET", twin.jobs)["items"], "the end of the copy")
    twin.wait_used_cpus("0")
    assert not world.pods()


def test_kueue_refuses_the_copy_of_a_jax_job(manager: ControlPlane, worker: ControlPlane) -> None:
    """The limit that docs/kueue.md states: once Kueue accepts them, JAXJob belongs to `KINDS`."""
    world = QueueWorld(manager.api, REFUSED, admissionChecks=[CHECK])
    twin = twin_of(world, worker)
    body = world.body("j", {"Worker": world.role(1)}, annotations={"kueue.x-k8s.io/prebuilt-workload-name": "w"})
    refused = twin.try_to("POST", twin.jobs, body)
    assert refused.status != 201
    assert f"Kind={REFUSED}" in str(refused.body)
    world.submit("j")
    twin.wait(lambda: twin.ask("GET", WORKLOADS)["items"], "the copy of the Workload")
    assert not twin.ask("GET", twin.jobs)["items"]
    assert not world.pods()


def test_deleted_job_ends_in_the_other_cluster(manager: ControlPlane, worker: ControlPlane) -> None:
    world = QueueWorld(manager.api, admissionChecks=[CHECK])
    twin = twin_of(world, worker)
    world.submit("j")
    twin.wait_running("j")
    world.ask("DELETE", f"{world.jobs}/j")
    twin.wait(lambda: not twin.pods(), "no pods in the worker cluster")
    world.wait_used_cpus("0")
    twin.wait_used_cpus("0")
