"""Children, statuses and events of our operator beside those of the Go operators, which are recorded in `e2e/parity`.

Each difference is named by a row of a migrate page (`e2e/parity/rules.toml`), and each row names one that exists.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest

from e2e.cluster.api import Api
from e2e.cluster.controlplane import ControlPlane
from e2e.parity import children
from e2e.parity.children import CREATED, RESUMED, SCENARIOS, Leaves, Scenario, Stage
from e2e.parity.rules import covering, rules
from tests.patience import PATIENCE
from tests.server.process import Operator

ALL = {f"{peer}-{scenario.name}": (peer, scenario) for peer, scenarios in SCENARIOS.items() for scenario in scenarios}
AT_ONCE = 8

Rows = set[str]
"""Patterns of rows."""


def unnamed(operator: str, scenario: Scenario, moment: str, ours: Leaves) -> dict[str, str]:
    """The differences at a moment that no row names."""
    theirs = children.recorded(operator, scenario.name)[moment]
    found = children.compare(theirs, ours)
    return {path: both for path, both in found.items() if not covering(operator, scenario.name, moment, path)}


def rest(operator: str, stage: Stage, moment: str) -> Leaves:
    """Waits until all pods are there and no difference is left but those that are named."""
    until = time.monotonic() + PATIENCE
    while True:
        stage.remove_terminating()
        complete = moment not in (CREATED, RESUMED) or stage.complete()
        found = stage.look()
        left = unnamed(operator, stage.scenario, moment, found)
        if complete and not left:
            return found
        if time.monotonic() > until:
            lines = [f"{moment} {path}: {both}" for path, both in left.items()]
            raise AssertionError("\n".join(lines or [f"{moment}: pods are missing"]))
        time.sleep(0.2)


def play(api: Api, peer: str, scenario: Scenario) -> Rows:
    """The rows that the differences of a scenario need."""
    stage = Stage(api, scenario, f"parity-{peer.replace('.', '-')}-{scenario.name}")
    needed: Rows = set()
    for moment, ours in children.play(stage, partial(rest, peer, stage)).items():
        theirs = children.recorded(peer, scenario.name)[moment]
        for path in children.compare(theirs, ours):
            needed.update(covering(peer, scenario.name, moment, path))
    return needed


@pytest.fixture(scope="module")
def played(
    control_plane_with_controllers: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Rows]]]:
    """All scenarios, at once, with one operator."""
    plane = control_plane_with_controllers
    log = tmp_path_factory.mktemp("parity") / "operator.log"
    operator = Operator(log, f"--kubeconfig={plane.kubeconfig}", "--webhook-server-port=0")
    operator.start()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        yield {name: threads.submit(play, plane.api, *each) for name, each in ALL.items()}
        threads.shutdown(cancel_futures=True)
    operator.end()


@pytest.mark.parametrize("name", ALL)
def test_each_difference_has_its_row(played: dict[str, Future[Rows]], name: str) -> None:
    played[name].result()


def test_each_row_names_a_difference(played: dict[str, Future[Rows]]) -> None:
    needed: Rows = set().union(*(each.result() for each in played.values()))
    stale = {pattern for rule in rules() for pattern in rule.leaves} - needed
    assert not stale, f"rows of differences that are no more: {sorted(stale)}"
