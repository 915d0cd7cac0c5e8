"""Fixtures that run the operator as a process against a real kube-apiserver. No kubelet runs: the tests write the
statuses of pods."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.controlplane import ControlPlane
from tests.server.crowd import PodRecorder
from tests.server.page import served
from tests.server.process import OPERATORS, Operator
from tests.server.world import World

NUMBERS = itertools.count(1)
LOG_SHOWN = 20_000
"""Characters of an operator's log that a failed test shows."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.server)


@pytest.fixture(scope="session")
def shared_operator(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    log = tmp_path_factory.mktemp("operator") / "operator.log"
    operator = Operator(log, f"--kubeconfig={control_plane.kubeconfig}")
    yield operator
    if operator.running:
        operator.end()


@pytest.fixture
def operator(shared_operator: Operator) -> Operator:
    """One operator for all tests and namespaces, started if it does not run."""
    if not shared_operator.running:
        shared_operator.start()
    return shared_operator


@pytest.fixture
def quiet_world(control_plane: ControlPlane) -> World:
    """A new namespace; an operator may or may not run."""
    return World(control_plane.api, f"ns{next(NUMBERS)}")


@pytest.fixture
def world(operator: Operator, quiet_world: World) -> World:
    """A new namespace, with the shared operator running."""
    return quiet_world


@pytest.fixture
def alone(shared_operator: Operator) -> None:
    """Stops the shared operator, so that only operators of the test run."""
    if shared_operator.running:
        shared_operator.end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shows the ends of the operators' logs with a test that fails."""
    report = yield
    if report.when == "call" and report.failed:
        for operator in sorted((each for each in OPERATORS if each.log.exists()), key=lambda each: each.log):
            report.sections.append((f"log of {operator.log.name}", operator.text()[-LOG_SHOWN:]))
    return report


@pytest.fixture
def record_pods() -> Iterator[Callable[[World], PodRecorder]]:
    """Factory of recorders that end with the test."""
    recorders: list[PodRecorder] = []

    def record(world: World) -> PodRecorder:
        recorders.append(PodRecorder(world))
        return recorders[-1]

    yield record
    for recorder in recorders:
        recorder.end()


@pytest.fixture
def make_operator(tmp_path: Path) -> Iterator[Callable[..., Operator]]:
    """Factory of operators that are stopped with the test: `make_operator(kubeconfig or None, *flags)`."""
    made: list[Operator] = []

    def make(kubeconfig: Path | None, *flags: str, **surroundings: Any) -> Operator:
        config = [f"--kubeconfig={kubeconfig}"] if kubeconfig else []
        made.append(Operator(tmp_path / f"operator-{len(made)}.log", *config, *flags, **surroundings))
        return made[-1]

    yield make
    for operator in made:
        if operator.running:
            operator.end()


@pytest.fixture
def page_url(control_plane: ControlPlane, tmp_path: Path) -> Iterator[str]:
    """The page for users behind a proxy, as a process whose kubeconfig has all rights."""
    with served(control_plane.kubeconfig, tmp_path) as url:
        yield url
