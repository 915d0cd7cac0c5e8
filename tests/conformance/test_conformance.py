"""One table of requests and responses for two API servers: the embedded one must answer like kube-apiserver."""

from __future__ import annotations

import itertools

import pytest

from e2e.cluster.releases import NEWEST, RELEASES, find_release
from tests.conformance import (
    rows_background,
    rows_clients,
    rows_lists,
    rows_objects,
    rows_releases,
    rows_streams,
    rows_tokens,
    rows_values,
    rows_writes,
)
from tests.conformance.client import Backend, Call, Row
from trainop.local import KUBERNETES

ROWS = [
    *rows_objects.ROWS,
    *rows_lists.ROWS,
    *rows_writes.ROWS,
    *rows_clients.ROWS,
    *rows_streams.ROWS,
    *rows_values.ROWS,
    *rows_tokens.ROWS,
    *rows_releases.ROWS,
]
BACKGROUND = [*rows_background.ROWS, *rows_tokens.BACKGROUND]
NAMESPACES = itertools.count(1)


def check(row: Row, backend: Backend) -> None:
    """Run the steps of a row in a new namespace."""
    namespace = f"row-{next(NAMESPACES)}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    Call("POST", "/api/v1/namespaces", body, 201).take(backend, {})
    variables = {"ns": namespace}
    for step in row.steps:
        step.take(backend, variables)


def for_version(rows: list[Row], version: str) -> pytest.MarkDecorator:
    """The rows that concern a version of Kubernetes, as parameter `row`."""
    return pytest.mark.parametrize("row", [row for row in rows if row.concerns(version)], ids=lambda row: row.name)


def test_the_embedded_server_imitates_the_newest_release():
    assert NEWEST.version == KUBERNETES


def test_each_release_has_one_row_for_what_releases_answer_differently():
    pairs = {row.name.partition(", before")[0]: set[str]() for row in rows_releases.ROWS}
    for release in RELEASES:
        names = [row.name for row in rows_releases.ROWS if row.concerns(release.version)]
        assert [name.partition(", before")[0] for name in names] == [*pairs]
        for name, seen in zip(names, pairs.values(), strict=True):
            seen.add(name)
    assert {len(seen) for seen in pairs.values()} == {2}, "each way is that of a release"


@for_version(ROWS, KUBERNETES)
def test_embedded(row: Row, embedded: Backend):
    check(row, embedded)


@pytest.mark.server
@for_version(ROWS, find_release().version)
def test_real(row: Row, real: Backend):
    check(row, real)


@for_version(BACKGROUND, KUBERNETES)
def test_background_embedded(row: Row, embedded: Backend):
    check(row, embedded)


@pytest.mark.server
@for_version(BACKGROUND, find_release().version)
def test_background_real(row: Row, real_with_controllers: Backend):
    check(row, real_with_controllers)
