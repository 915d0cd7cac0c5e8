"""DI-orchestrator starts jobs, and our di-operator and di-server continue them.

DI-orchestrator cannot be built from the Go module proxy, which does not serve it. The tests run if
`TRAINOP_DI_ORCHESTRATOR` names a folder with the programs `di-operator` and `di-server` of its release v0.2.2.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import wait_until
from e2e.takeover.theatre import reconciles
from tests.conftest import read_crds
from tests.patience import PATIENCE
from tests.server.di_programs import PYTHON, DiOperator, DiServer
from tests.server.di_world import DiWorld, request, share_aggregators

FOLDER = os.environ.get("TRAINOP_DI_ORCHESTRATOR", "")
pytestmark = pytest.mark.skipif(not FOLDER, reason="needs the programs of DI-orchestrator v0.2.2")


@pytest.fixture
def start(plane: ControlPlane, tmp_path: Path) -> Iterator[Callable[..., tuple[DiOperator, DiServer]]]:
    """Starts the operator and the server of one side: `theirs` or ours."""
    started: list[DiOperator | DiServer] = []

    def make(*, theirs: bool) -> tuple[DiOperator, DiServer]:
        side = "theirs" if theirs else "ours"
        config = f"--kubeconfig={plane.kubeconfig}"
        command = [f"{FOLDER}/di-operator"] if theirs else ()
        operator = DiOperator(tmp_path / f"{side}.log", config, command=command)
        operator.start()
        started.append(operator)
        own = [f"{FOLDER}/di-server"] if theirs else [*PYTHON, "di-server", "--caller-check=off"]
        server = DiServer(tmp_path / f"{side}-server.log", [*own, config])
        started.append(server)
        return operator, server

    yield make
    for each in started:
        if isinstance(each, DiServer) or each.running:
            each.end()


def ask(server: DiServer, method: str, job: str, collectors: int, learners: int, *, gpus: int = 0) -> list[str]:
    """The names of the pods that were created or deleted."""
    body = {
        "namespace": "default",
        "coordinator": f"{job}-coordinator",
        "collectors": {"replicas": collectors},
        "learners": {"replicas": learners, "gpus": str(gpus)},
    }
    status, answer = request(server.port, method, "/v1alpha1/replicas", body)
    assert (status, answer["success"]) == (200, True), answer
    return [url.split(".")[0] for role in ("collectors", "learners") for url in answer["data"][role]]


def await_cached(server: DiServer, job: str) -> None:
    """Waits for the cache of upstream's di-server: it answers 404 for a coordinator that it has not seen."""
    path = f"/v1alpha1/replicas?namespace=default&coordinator={job}-coordinator"
    assert wait_until(lambda: request(server.port, "GET", path, {})[0] == 200, PATIENCE), job


class Namespace(DiWorld):
    """The namespace `default`, which exists."""

    def __init__(self, plane: ControlPlane) -> None:
        self.api, self.namespace = plane.api, "default"


def begin(world: DiWorld, server: DiServer) -> None:
    """Jobs in many states, under DI-orchestrator."""
    for name, policy, roles in (
        ("running", "Running", ("collector", "learner")),
        ("pending", "Running", ("collector", "learner")),
        ("done", "All", ()),
        ("kept", "Running", ("collector", "learner")),
        ("failed", "None", ()),
    ):
        world.create_dijob(name, policy, *roles)
        world.wait(lambda name=name: world.pods_of(name), f"the coordinator of {name}")  # type: ignore[misc]  # mypy cannot infer the lambda
    for name in ("running", "pending", "kept"):
        await_cached(server, name)
    ask(server, "POST", "running", 2, 1)
    ask(server, "POST", "running", 0, 1, gpus=2)
    ask(server, "POST", "pending", 1, 0)
    ask(server, "POST", "kept", 2, 0)
    world.wait_all_services("running", "pending", "kept")
    world.set_pods("Running", *world.pods_of("running"), *world.pods_of("kept"))
    for name in ("running", "kept"):
        world.wait_phase(name, "Running")
    world.set_pods("Failed", "failed-coordinator")
    world.set_pods("Succeeded", "done-coordinator", "kept-coordinator")
    world.wait_phase("failed", "Failed")
    world.wait_phase("done", "Succeeded")
    world.wait_phase("kept", "Succeeded")
    world.wait(lambda: not world.pods_of("done"), "the clean-up by policy All")
    world.wait(lambda: list(world.pods_of("kept")) == ["kept-coordinator"], "the clean-up by policy Running")


def wait_quiet(world: DiWorld) -> None:
    before: dict[str, tuple[str, str]] = {}
    for _ in range(100):
        now = world.versions()
        if now == before:
            return
        before = now
        time.sleep(0.5)
    raise AssertionError("the cluster does not come to rest")


def test_jobs_of_di_orchestrator_are_continued(
    plane: ControlPlane, start: Callable[..., tuple[DiOperator, DiServer]]
) -> None:
    for crd in read_crds():
        if crd["spec"]["group"] == "diengine.opendilab.org":
            answer = plane.api("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
            assert answer.status == 201, answer
            path = f"/apis/diengine.opendilab.org/v1alpha1/{crd['spec']['names']['plural']}"
            assert wait_until(lambda path=path: plane.api("GET", path).status == 200, PATIENCE)  # type: ignore[misc]  # mypy cannot infer the lambda
    share_aggregators(plane.api)
    world = Namespace(plane)
    operator, server = start(theirs=True)
    begin(world, server)
    wait_quiet(world)
    before, told = world.versions(), world.told()
    operator.end()
    server.end()

    operator, server = start(theirs=False)
    assert wait_until(lambda: reconciles(operator) >= 5, PATIENCE), operator.text()
    wait_quiet(world)
    assert world.versions() == before, "nothing is written that does not change"
    assert world.told() == told

    # the jobs go on: replicas of either server are counted, have services and are deleted alike
    made = ask(server, "POST", "running", 1, 0)
    world.wait_all_services("running")
    world.set_pods("Running", *made)
    world.wait(lambda: world.dijob("running")["status"]["replicaStatus"]["Collector"] == {"active": 3}, "the count")
    gone = ask(server, "DELETE", "running", 3, 2)
    assert len(gone) == 5
    world.wait(lambda: list(world.pods_of("running")) == ["running-coordinator"], "pods of the coordinator alone")
    world.wait_all_services("running")
    world.set_pods("Running", "pending-coordinator")
    world.wait_phase("pending", "Running")
    world.set_pods("Succeeded", "running-coordinator")
    world.set_pods("Failed", "pending-coordinator")
    world.wait_phase("running", "Succeeded")
    world.wait_phase("pending", "Failed")
    for name in ("running", "pending"):
        world.wait(lambda name=name: not world.services_of(name), "the end of the services")  # type: ignore[misc]  # mypy cannot infer the lambda
    reasons = [reason for reason, _, count in world.told() for _ in range(count)]
    assert reasons.count("DIJobCreated") == 5
    assert (reasons.count("DIJobSucceeded"), reasons.count("DIJobFailed")) == (3, 2)
