"""One table of requests and responses for two API servers: the embedded one must answer like kube-apiserver."""

from __future__ import annotations

import itertools

import pytest

from tests.conformance import (
    rows_background,
    rows_clients,
    rows_lists,
    rows_objects,
    rows_streams,
    rows_tokens,
    rows_values,
    rows_writes,
)
from tests.conformance.client import Backend, Call, Row

ROWS = [
    *rows_objects.ROWS,
    *rows_lists.ROWS,
    *rows_writes.ROWS,
    *rows_clients.ROWS,
    *rows_streams.ROWS,
    *rows_values.ROWS,
    *rows_tokens.ROWS,
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


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_embedded(row: Row, embedded: Backend):
    check(row, embedded)


@pytest.mark.server
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_real(row: Row, real: Backend):
    check(row, real)


@pytest.mark.parametrize("row", BACKGROUND, ids=lambda row: row.name)
def test_background_embedded(row: Row, embedded: Backend):
    check(row, embedded)


@pytest.mark.server
@pytest.mark.parametrize("row", BACKGROUND, ids=lambda row: row.name)
def test_background_real(row: Row, real_with_controllers: Backend):
    check(row, real_with_controllers)
