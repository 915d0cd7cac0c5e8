"""Fixtures: a new cluster for each upgrade, and the factory of operators that the tests on an API server have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.components import ClusterOptions
from e2e.cluster.places import binary
from tests.conftest import start_control_plane
from tests.server.conftest import make_operator  # noqa: F401  # a fixture
from tests.upgrades.cluster import Cluster


@pytest.fixture
def kubectl() -> str:
    return str(binary("kubectl"))


@pytest.fixture
def cluster(tmp_path: Path, make_operator: Callable[..., Any], kubectl: str) -> Iterator[Cluster]:  # noqa: F811  # the fixture
    for plane in start_control_plane("chart", ClusterOptions(), crds=False):
        yield Cluster(plane, tmp_path, make_operator, kubectl)
