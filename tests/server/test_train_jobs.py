"""TrainJobs with the operator as a process on a real API server, with the rights that are shipped. No kubelet runs: the
tests write the statuses of pods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import wait_until
from tests.kustomize import combine
from tests.patience import PATIENCE
from tests.server.pod import PodStandIn
from tests.server.process import Operator
from tests.server.test_installation import apply
from tests.server.world import CORE, MERGE, Json, World
from trainop.kinds.trainjob.crd import train_job_crds
from trainop.kinds.trainjob.runtimes import shipped_runtimes

GROUP = "/apis/trainer.kubeflow.org/v1alpha1"
JOBS = GROUP + "/namespaces/{namespace}/trainjobs"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
FLAGS = ("--enable-scheme=TrainJob", "--webhook-server-port=0")


PLURALS = ("trainjobs", "trainingruntimes", "clustertrainingruntimes")


@pytest.fixture(scope="module")
def installed(control_plane: ControlPlane) -> Iterator[None]:
    """Our CRDs and runtimes."""
    api, paths = control_plane.api, [f"{DEFINITIONS}/{plural}.trainer.kubeflow.org" for plural in PLURALS]
    for each in train_job_crds():
        apply(api, each)
    assert wait_until(lambda: all(api("GET", f"{GROUP}/{each}").status == 200 for each in PLURALS), PATIENCE)
    for each in shipped_runtimes():
        assert api("POST", f"{GROUP}/clustertrainingruntimes", each).status == 201
    yield
    for path in paths:
        api("DELETE", path)
    assert wait_until(lambda: all(api("GET", path).status == 404 for path in paths), PATIENCE)


@pytest.fixture
def definitions(installed: None, quiet_world: World, alone: None) -> World:
    """A new namespace, without any operator."""
    return quiet_world


def submit(
    world: World, name: str = "t", runtime: str = "torch-distributed", kind: str = "ClusterTrainingRuntime", **spec: Any
) -> Json:
    body = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {"runtimeRef": {"name": runtime, "kind": kind}, **spec},
    }
    made: Json = world.ask("POST", JOBS, body)
    return made


def status(world: World, name: str = "t") -> Json:
    found: Json = world.ask("GET", f"{JOBS}/{name}").get("status", {})
    return found


def conditions(world: World, name: str = "t") -> list[tuple[str, str, str]]:
    return [(c["type"], c["status"], c["reason"]) for c in status(world, name).get("conditions", ())]


def live(world: World, name: str, runtime: str) -> None:
    """A TrainJob of two nodes from its suspension to its end."""
    nodes = (f"{name}-worker-0", f"{name}-worker-1")
    submit(world, name, runtime, suspend=True, trainer={"numNodes": 2})
    world.wait(lambda: conditions(world, name) == [("Suspended", "True", "Suspended")], "the suspension")
    world.wait(lambda: status(world, name).get("jobsStatus", [{}])[0].get("suspended") == 1, "the counter")
    world.ask("PATCH", f"{JOBS}/{name}", {"spec": {"suspend": False}}, MERGE)
    pods = world.wait_pods(*nodes)
    assert [pods[each]["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] for each in nodes] == [
        "0",
        "1",
    ]
    world.run_pod(*nodes)
    world.wait(lambda: status(world, name)["jobsStatus"][0]["ready"] == 1, "all nodes")
    for each in nodes:
        world.set_pod(each, {"phase": "Succeeded"})
    world.wait(lambda: ("Complete", "True", "AllJobsCompleted") in conditions(world, name), "the end")
    for each in nodes:
        world.ask("DELETE", f"{CORE}/pods/{each}?gracePeriodSeconds=0")


def test_in_all_namespaces_with_the_rights_of_the_component(
    control_plane: ControlPlane,
    definitions: World,
    make_operator: Callable[..., Operator],
    kubectl: str,
    tmp_path: Path,
):
    home = f"{definitions.namespace}-home"
    for document in combine(kubectl, tmp_path / "overlay", "standalone", ["train-jobs", "mpi-ssh"], namespace=home):
        if document["kind"] != "Service" and "webhooks" not in document:
            apply(control_plane.api, document)
    operator = PodStandIn(control_plane, tmp_path / "serviceaccount", make_operator).start(home, *FLAGS)
    live(definitions, "torch", "torch-distributed")
    live(definitions, "jax", "jax-distributed")
    submit(definitions, "mpi", "deepspeed-distributed", trainer={"numNodes": 2})
    pod = definitions.wait_pods("mpi-worker-0")["mpi-worker-0"]
    assert pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] == "0"
    jobs = "/apis/batch/v1/namespaces/{namespace}/jobs/mpi-launcher"
    definitions.wait(lambda: definitions.try_to("GET", jobs).status == 200, "the launcher")
    submit(definitions, "plain", initializer={"dataset": {"storageUri": "hf://x"}})
    definitions.wait(lambda: conditions(definitions, "plain"), "the refusal")
    own = f"namespace={definitions.namespace} "  # other tests have jobs, too
    assert [line for line in operator.text().splitlines() if "permission denied" in line and own in line] == []


def test_in_one_namespace_without_any_cluster_role(
    control_plane: ControlPlane,
    definitions: World,
    make_operator: Callable[..., Operator],
    kubectl: str,
    tmp_path: Path,
):
    """A runtime of the namespace is used; one of the cluster is refused, with a reason."""
    namespace = definitions.namespace
    overlay = combine(kubectl, tmp_path / "overlay", "namespaced", ["train-jobs-namespaced"], namespace=namespace)
    for document in overlay:
        apply(control_plane.api, document)
    PodStandIn(control_plane, tmp_path / "serviceaccount", make_operator).start(
        namespace, *FLAGS, f"--namespace={namespace}"
    )
    torch = {**shipped_runtimes()[0], "kind": "TrainingRuntime", "metadata": {"name": "mine"}}
    definitions.ask("POST", GROUP + "/namespaces/{namespace}/trainingruntimes", torch)
    submit(definitions, "t", "mine", "TrainingRuntime")
    definitions.wait_pods("t-worker-0")
    submit(definitions, "wide")
    definitions.wait(lambda: conditions(definitions, "wide"), "the refusal")
    assert (
        "the operator has no right to read ClusterTrainingRuntimes"
        in status(definitions, "wide")["conditions"][0]["message"]
    )


def test_upstreams_crds_are_left_alone(
    control_plane: ControlPlane, definitions: World, make_operator: Callable[..., Operator]
):
    """Without our category, as Kubeflow Trainer's."""
    path = f"{DEFINITIONS}/trainjobs.trainer.kubeflow.org"
    definitions.ask("PATCH", path, {"spec": {"names": {"categories": None}}}, MERGE)

    def unmarked() -> bool:
        found = definitions.ask("GET", GROUP)["resources"]
        return not any(each["name"] == "trainjobs" and each.get("categories") for each in found)

    definitions.wait(unmarked, "discovery without the category")
    make_operator(control_plane.kubeconfig, *FLAGS).start()
    submit(definitions)
    definitions.wait(lambda: definitions.events("NotManaged"), "the event")
    assert status(definitions) == {}
    assert definitions.pods() == {}
