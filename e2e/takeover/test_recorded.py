"""The recordings of `e2e/parity` are what the programs of the replaced operators do.

With `TRAINOP_RECORD=1` they are written anew instead.
"""

from __future__ import annotations

import itertools
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from e2e.cluster.api import Api
from e2e.cluster.places import binary
from e2e.parity import children, flags
from e2e.parity.children import CREATED, RESUMED, SCENARIOS, Leaves, Scenario, Stage
from e2e.peers import MPI_OPERATOR, PEERS
from e2e.takeover.mpi_theatre import MpiTheatre, definition_of
from e2e.takeover.operators import need_peer
from e2e.takeover.theatre import Theatre
from tests.patience import PATIENCE

RECORD = os.environ.get("TRAINOP_RECORD") == "1"
NUMBERS = itertools.count(1)
VARYING = re.compile(
    r"training-operator\S* mpi\S* \S+ events/(Normal MPIJob(Running|Succeeded)|Warning MPIJobFailed)"
    r"|training-operator\S* \S+ ended status/replicaStatuses/\w+/selector"
)
"""What depends on whether a cache of the Go operator is behind: an error after a second attempt to create the launcher,
the event of a status that another pass wrote, which of two events of one reason is the last, and whether a pass after
the end cleared the counters."""
CALM = 4.0
"""Seconds without a change after which an operator is at rest: longer than its delays between two attempts."""


@pytest.mark.parametrize("peer", PEERS)
def test_flags(peer: str) -> None:
    need_peer(peer)
    if RECORD:
        flags.record(peer)
    assert flags.ask(binary(peer)) == flags.releases()[flags.file_of(peer).stem][1]


def rest(stage: Stage, moment: str) -> Leaves:
    """Waits until the operator changes nothing any more."""
    last: Leaves = {}
    until, since = time.monotonic() + PATIENCE, time.monotonic()
    while time.monotonic() < until:
        stage.remove_terminating()
        found = stage.look()
        if found != last:
            last, since = found, time.monotonic()
        if time.monotonic() - since > CALM and (moment not in (CREATED, RESUMED) or stage.complete()):
            return found
        time.sleep(0.2)
    raise AssertionError(f"{stage.scenario.name} does not come to rest at the moment {moment}: {last}")


def examine(api: Api, operator: str, scenario: Scenario) -> None:
    stage = Stage(api, scenario, f"recorded{next(NUMBERS)}")
    found = children.play(stage, partial(rest, stage))
    if RECORD:
        children.write(operator, scenario.name, found)
    for moment, stored in children.recorded(operator, scenario.name).items():
        differing = children.compare(stored, found[moment])
        fixed = {
            path: both
            for path, both in differing.items()
            if not VARYING.fullmatch(f"{operator} {scenario.name} {moment} {path}")
        }
        assert not fixed, moment


def examine_all(api: Api, operator: str) -> None:
    """All scenarios at once, in a namespace each."""
    with ThreadPoolExecutor(8) as threads:
        examined = [threads.submit(examine, api, operator, scenario) for scenario in SCENARIOS[operator]]
    for each in examined:
        each.result()


def test_children_of_training_operator(theatre: Theatre) -> None:
    theatre.kubelet.close()  # the scenarios play it
    theatre.old().start()
    examine_all(theatre.api, theatre.peer)


def test_children_of_mpi_operator(mpi_theatre: MpiTheatre) -> None:
    mpi_theatre.kubelet.close()
    mpi_theatre.install_mpi(definition_of(MPI_OPERATOR))
    mpi_theatre.mpi_operator().start()
    examine_all(mpi_theatre.api, MPI_OPERATOR)
