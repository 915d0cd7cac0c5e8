"""Skips work that costs time in a run without an effect on its result."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from unittest import mock

from tests.simulation.replica import metrics
from trainop import operator
from trainop.engine.schema.crd import crd
from trainop.local.api.fields import server_side_apply
from trainop.local.api.registry.crds import kinds_of_crd
from trainop.local.api.registry.kinds import Kind
from trainop.local.api.request import bodies
from trainop.local.api.storage.versioned_store import Stored
from trainop.runtime.controller import workqueue
from trainop.runtime.manager.manager import Manager
from trainop.runtime.objects.metadata import Json


@cache
def kinds_served(kind: str) -> list[Kind]:
    """The resource definition of the kind, as if its CRD had been created."""
    return kinds_of_crd(crd(operator.FRAMEWORKS[kind]))


async def _turn_no_more(_: Manager) -> None:
    await asyncio.Event().wait()


def _serve_nobody(*_: object) -> None:
    """Neither probes nor metrics."""


def _know_all(value: Json, _kind: Kind, **_: object) -> tuple[Json, list[str]]:
    return value, []


def _stay(_: Stored) -> None:
    """Stays decoded."""


@contextmanager
def undisturbed() -> Iterator[None]:
    """Disable work without an effect on the result: Python's garbage collection, queue metrics, managed fields,
    discovery of other resources, old versions as bytes, probes and scrapes."""
    collects = gc.isenabled()
    gc.disable()
    try:
        with (
            mock.patch.object(workqueue, "Metrics", metrics),
            mock.patch.object(server_side_apply, "track_update", lambda _, new, **__: new),
            mock.patch.object(bodies, "known_fields", _know_all),
            mock.patch.object(Stored, "drop_value", _stay),
            mock.patch.object(Manager, "_beat", _turn_no_more),
            mock.patch.object(operator, "_add_servers", _serve_nobody),
        ):
            yield
    finally:
        gc.collect(0)  # all garbage of the run is in the young generation
        if collects:
            gc.enable()
