"""The API server becomes one of another release and comes back while jobs of every kind run: they do not notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from e2e.cluster.components import ClusterOptions
from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.releases import NEWEST, OLDEST, Release
from tests.conftest import start_control_plane
from tests.needs import need_built
from tests.server.process import Operator
from tests.upgrades.fleet import Fleet

WAYS = {"up": (OLDEST, NEWEST), "down": (NEWEST, OLDEST)}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> tuple[Release, Release]:
    return WAYS[request.param]


@pytest.fixture
def plane(way: tuple[Release, Release]) -> Iterator[ControlPlane]:
    for release in way:
        need_built(ClusterOptions(release=release.name))
    yield from start_control_plane("releases", ClusterOptions(release=way[0].name))


@pytest.mark.slow  # needs the programs of two releases: make test-kubernetes
def test_jobs_outlive_another_release_of_the_api_server_and_its_return(
    plane: ControlPlane, way: tuple[Release, Release], make_operator: Callable[..., Operator]
):
    operator = make_operator(plane.kubeconfig)
    operator.start()
    check_release(plane, way[0])
    fleet = complete_fleet(plane, operator, "team")
    state = fleet.state()
    for number, release in enumerate((way[1], way[0])):
        plane.change_release("kube-apiserver", release.name)
        check_release(plane, release)
        newcomers = complete_fleet(plane, operator, f"newcomers-{number}")
        fleet.check_untouched(state, f"by the change to {release.name}")
        replace_pod(newcomers)
        assert operator.running
        assert "permission denied" not in operator.text()
    replace_pod(fleet)


def check_release(plane: ControlPlane, release: Release) -> None:
    assert plane.api("GET", "/version").body["gitVersion"] == release.version


def complete_fleet(plane: ControlPlane, operator: Operator, namespace: str) -> Fleet:
    """Jobs of every kind that have all their pods, and of which everything is written."""
    fleet = Fleet(plane.api, namespace)
    fleet.create()
    fleet.wait_complete()
    fleet.wait_written()
    fleet.wait_idle(operator)
    return fleet


def replace_pod(fleet: Fleet) -> None:
    """A pod that is deleted is replaced: watches, writes and the owner's UID are those of before."""
    name = "pytorch-worker-0"
    uid = fleet.world.pods()[name]["metadata"]["uid"]
    fleet.world.reap_pod(name)
    fleet.world.wait_successor(name, uid)
    fleet.wait_complete()
