"""Upgrades and their return by kubectl, between two different versions, while jobs of every kind run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from e2e.cluster.components import ClusterOptions
from tests.conftest import start_control_plane
from tests.server.process import ROOT, Operator
from tests.upgrades.cluster import HOME, Cluster, upgrade_and_return
from tests.upgrades.versions import PAIRS, Version

MakeOperator = Callable[..., Operator]
CLIENT = ("apply",)
SERVER = ("apply", "--server-side", "--force-conflicts")
"""As docs/upgrade.md says."""
OTHER = (*SERVER, "--field-manager=another-tool")
WAYS = {
    "client-side": ("to-the-version-after", CLIENT, CLIENT, CLIENT),
    "server-side": ("to-the-version-after", SERVER, SERVER, SERVER),
    "server-side-from-the-version-before": ("from-the-version-before", SERVER, SERVER, SERVER),
    "server-side-after-client-side": ("from-the-version-before", CLIENT, SERVER, SERVER),
    "server-side-after-another-tool": ("to-the-version-after", OTHER, SERVER, SERVER),
}
"""The versions; how the first is installed, how it is upgraded, and how it comes back."""


@pytest.fixture
def cluster(tmp_path: Path, make_operator: MakeOperator, kubectl: str) -> Iterator[Cluster]:
    for plane in start_control_plane("upgrades", ClusterOptions(), crds=False):
        yield Cluster(plane, tmp_path, make_operator, kubectl)


SHORT = {"server-side-from-the-version-before", "client-side"}
"""What every run shows; `make test-chart` runs all."""


@pytest.mark.parametrize("way", [pytest.param(way, marks=() if way in SHORT else pytest.mark.slow) for way in WAYS])
def test_jobs_do_not_notice_an_upgrade_and_its_return(cluster: Cluster, tmp_path: Path, way: str):
    pair, *commands = WAYS[way]
    before, after = (make(tmp_path / name) for make, name in zip(PAIRS[pair], ("before", "after"), strict=True))
    steps = [partial(lambda command, version: cluster.apply(version, *command), command) for command in commands]

    def check(version: Version) -> None:
        command = () if way == "client-side" else SERVER[1:]
        assert not cluster.differences(version, *command)
        budgets = cluster.get(f"/apis/policy/v1/namespaces/{HOME}/poddisruptionbudgets")["items"]
        assert [each["metadata"]["name"] for each in budgets] == ["training-operator"], "kubectl removes no object"

    upgrade_and_return(cluster, before, after, steps, check)


def test_the_page_has_these_commands(cluster: Cluster, tmp_path: Path):
    """And without --force-conflicts the upgrade of an installation that another tool made is refused half-way."""
    text = (ROOT / "docs" / "upgrade.md").read_text(encoding="utf-8")
    for folder in ("manifests/crds", "manifests/overlays/standalone"):
        assert f"kubectl {' '.join(SERVER)} -k {folder}" in text
    before, after = (make(tmp_path / make.__name__) for make in PAIRS["to-the-version-after"])
    cluster.apply(before, *OTHER)
    done = cluster.kubectl(after, "apply", "--server-side", "-k", "manifests/crds")
    assert done.returncode != 0
    assert "conflict" in done.stderr
    cluster.apply(after, *SERVER)
    cluster.check_installed(after)
