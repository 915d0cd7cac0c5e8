"""Fixtures: a control plane with the CRDs of the replaced operators, its audit log, and the operators."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from e2e.cluster.components import ClusterOptions
from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.places import cache, default_data
from e2e.peers import MPI_OPERATOR, TRAINING_OPERATORS
from e2e.takeover.mpi_theatre import MpiTheatre
from e2e.takeover.observers import AUDIT_POLICY
from e2e.takeover.operators import need_mounts, need_peer
from e2e.takeover.theatre import Theatre
from tests.conftest import remove_leftovers
from tests.needs import need_built

CONTROLLERS = ("garbage-collector-controller", "serviceaccount-controller")
"""Garbage collection, and what the start waits for. Others would delete the pods of a node that does not exist."""
JOB_CONTROLLERS = (*CONTROLLERS, "job-controller", "ttl-after-finished-controller")


@pytest.fixture(params=TRAINING_OPERATORS)
def peer(request: pytest.FixtureRequest) -> str:
    """Each release in turn."""
    need_mounts()
    need_peer(request.param)
    return str(request.param)


@contextlib.contextmanager
def started_plane(tmp_path: Path, controllers: Sequence[str]) -> Iterator[ControlPlane]:
    """An empty control plane with an audit log in `tmp_path`."""
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps(AUDIT_POLICY))
    flags = (
        f"kube-apiserver=--audit-policy-file={policy}",
        f"kube-apiserver=--audit-log-path={tmp_path / 'audit.log'}",
        f"kube-controller-manager=--controllers={','.join(controllers)}",
    )
    options = ClusterOptions(extras=("controller-manager",), flags=flags)
    need_built(options)
    data = default_data(f"pytest-{os.getpid()}-takeover")
    remove_leftovers(data.parent)
    plane = ControlPlane(data, die_with_parent=True)
    try:
        plane.up(options)
        yield plane
    finally:
        plane.down()


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    with started_plane(tmp_path, CONTROLLERS) as plane:
        yield plane


@pytest.fixture
def mpi_theatre(tmp_path: Path) -> Iterator[MpiTheatre]:
    """A control plane with the Job controller and without a CRD of MPIJob. There is one at a time on the machine, as
    the port of mpi-operator's health endpoint is not configurable."""
    need_peer(MPI_OPERATOR)
    with (cache() / "mpi-operator.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with (
            started_plane(tmp_path, JOB_CONTROLLERS) as plane,
            contextlib.closing(MpiTheatre(plane, tmp_path)) as theatre,
        ):
            yield theatre


@pytest.fixture
def make_theatre(plane: ControlPlane, tmp_path: Path) -> Iterator[Callable[[str], Theatre]]:
    """Factory: the control plane with the CRDs of a release of training-operator."""
    made: list[Theatre] = []

    def make(peer: str) -> Theatre:
        made.append(Theatre(plane, peer, tmp_path))
        return made[-1]

    yield make
    for theatre in made:
        theatre.close()


@pytest.fixture
def theatre(make_theatre: Callable[[str], Theatre], peer: str) -> Theatre:
    return make_theatre(peer)
