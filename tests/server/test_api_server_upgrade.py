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
from tests.upgrades.fleet import complete_fleet, watches, writes

MORE = 2
"""How many writes jobs may need in proportion to the same jobs before. A busy machine splits statuses."""
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
    fleet = complete_fleet(plane.api, operator, "team")
    needed = writes(operator)
    state = fleet.state()
    for number, release in enumerate((way[1], way[0])):
        before, written = watches(operator), writes(operator)
        plane.change_release("kube-apiserver", release.name)
        check_release(plane, release)
        fleet.wait_served(plane.api)
        fleet.wait_watches(operator, before)
        assert writes(operator) == written, "the new watches show nothing that needs a write"
        newcomers = complete_fleet(plane.api, operator, f"newcomers-{number}")
        assert writes(operator) - written <= needed * MORE
        fleet.check_untouched(state, f"by the change to {release.name}")
        newcomers.replace_pod()
        assert operator.running
        assert "permission denied" not in operator.text()
    fleet.replace_pod()


def check_release(plane: ControlPlane, release: Release) -> None:
    assert plane.api("GET", "/version").body["gitVersion"] == release.version
