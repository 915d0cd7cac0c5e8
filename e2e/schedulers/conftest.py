"""Fixtures: control planes with simulated nodes and the programs under test. Those that start slowly are shared by
modules; each module has its own operator."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.cluster.components import ClusterOptions
from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.places import default_data
from e2e.cluster.simulated import make_node, wait_ready
from e2e.schedulers.gangs import Coscheduling, GangScheduler, KubeScheduler, Volcano
from e2e.schedulers.kueue import EXTERNAL, Kueue
from e2e.schedulers.manifests import create, install_crds
from e2e.schedulers.members import GangWorld
from e2e.schedulers.queues import SELECTOR, SSD, TAINT, clear, make_queue_objects
from tests.server.process import Operator
from trainop.programs.schemes import FRAMEWORKS

CRDS = Path(__file__).parents[2] / "manifests" / "crds"
NODE_SIZE = {"cpu": "4", "memory": "16Gi", "ephemeral-storage": "16Gi", "pods": "100"}
NUMBERS = itertools.count(1)


def start_plane(*extras: str, options: ClusterOptions | None = None) -> Iterator[ControlPlane]:
    """A control plane with kube-controller-manager, kwok and our CRDs, without nodes. `options`: what else it needs."""
    plane = ControlPlane(default_data(f"schedulers-{os.getpid()}-{next(NUMBERS)}"), die_with_parent=True)
    try:
        plane.up(replace(options or ClusterOptions(), extras=("controller-manager", "kwok", *extras), nodes=0))
        install_crds(plane.api, *(path for path in CRDS.glob("*.yaml") if path.stem != "kustomization"))
        yield plane
    finally:
        plane.down()


def make_nodes(plane: ControlPlane, *pools: tuple[dict[str, str], list[dict[str, str]]]) -> None:
    """One node of 4 CPUs for each pair of labels and taints."""
    for number, (labels, taints) in enumerate(pools):
        make_node(plane.api, f"sim-{number}", NODE_SIZE, labels, taints)
    wait_ready(plane.api, len(pools))


def start_queue_plane() -> Iterator[ControlPlane]:
    """A control plane with two nodes: one of the flavor, one without taints that lacks the flavor's label."""
    for plane in start_plane("scheduler"):
        make_nodes(plane, ({**SELECTOR, **SSD}, [TAINT]), (SSD, []))
        yield plane


def start_kueue(*external: str) -> Iterator[Kueue]:
    """Kueue on a control plane of its own, with what the queues of the tests refer to. `external`: the kinds that the
    operator queues itself."""
    for plane in start_queue_plane():
        kueue = Kueue(plane, external)
        try:
            kueue.install()
            kueue.start()
            make_queue_objects(plane.api)
            yield kueue
        finally:
            kueue.stop()


@pytest.fixture(scope="session")
def integrating_kueue() -> Iterator[Kueue]:
    """Kueue with its own integrations of all kinds that it has."""
    yield from start_kueue()


@pytest.fixture(scope="session")
def external_kueue() -> Iterator[Kueue]:
    """Kueue that leaves all kinds to the operator."""
    yield from start_kueue(*FRAMEWORKS, "MPIJob", *EXTERNAL)


@pytest.fixture
def free_nodes(plane: ControlPlane) -> Iterator[None]:
    """The nodes are free for the next test."""
    yield
    clear(plane.api)


def run_operator(plane: ControlPlane, *flags: str, environment: Mapping[str, str] | None = None) -> Iterator[Operator]:
    """The operator as a process."""
    config = f"--kubeconfig={plane.kubeconfig}"
    operator = Operator(plane.data / "operator.log", config, *flags, environment=environment)
    operator.start()
    try:
        yield operator
    finally:
        if operator.running:
            operator.end()


def run_queue_operator(
    plane: ControlPlane, *flags: str, environment: Mapping[str, str] | None = None
) -> Iterator[Operator]:
    """The same beside a Kueue that modules share: it leaves no jobs to the next one."""
    for operator in run_operator(plane, *flags, environment=environment):
        yield operator
        clear(plane.api)


@pytest.fixture(
    scope="session", params=[Coscheduling, Volcano, KubeScheduler], ids=lambda scheduler: str(scheduler.name)
)
def scheduler(request: pytest.FixtureRequest) -> Iterator[GangScheduler]:
    """A control plane with two nodes and this scheduler alone."""
    for plane in start_plane(options=request.param.options):
        make_nodes(plane, ({}, []), ({}, []))
        for name, value in (("low", 1), ("high", 1000)):
            body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
            create(plane.api, {**body, "value": value})
        scheduler = request.param(plane)
        scheduler.install()
        scheduler.start()
        yield scheduler
        scheduler.stop()


@pytest.fixture
def world(scheduler: GangScheduler) -> Iterator[GangWorld]:
    """A namespace for gangs. Its pods are gone after the test, because all tests share the nodes."""
    world = GangWorld(scheduler.plane.api, scheduler)
    yield world
    world.ask("DELETE", world.jobs)
    world.ask("DELETE", world.groups)
    world.ask("DELETE", f"/api/v1/namespaces/{world.namespace}/pods")
    world.wait_pods()


def pytest_report_header() -> str:
    return "needs kwok, kube-scheduler and the programs under test: `make test-schedulers` builds them"
