"""Fixtures: a control plane with the CRDs of training-operator, its audit log, and the operators."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.cluster.components import ClusterOptions
from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.places import default_data
from e2e.peers import PEERS
from e2e.takeover.observers import AUDIT_POLICY
from e2e.takeover.operators import need_mounts, need_peer
from e2e.takeover.theatre import Theatre
from tests.conftest import remove_leftovers
from tests.needs import need_built

CONTROLLERS = "kube-controller-manager=--controllers=garbage-collector-controller,serviceaccount-controller"
"""Garbage collection, and what the start waits for. Others would delete the pods of a node that does not exist."""


@pytest.fixture(params=PEERS)
def peer(request: pytest.FixtureRequest) -> str:
    """Each release in turn."""
    need_mounts()
    need_peer(request.param)
    return str(request.param)


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    """An empty control plane with an audit log in `tmp_path`."""
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps(AUDIT_POLICY))
    flags = (
        f"kube-apiserver=--audit-policy-file={policy}",
        f"kube-apiserver=--audit-log-path={tmp_path / 'audit.log'}",
        CONTROLLERS,
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
