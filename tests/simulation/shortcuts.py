"""What takes time in a run and decides nothing is left out of it."""

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
    """What a server makes of the CRD of that kind, as if it had been created there."""
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
    """Without what takes time and decides nothing: collections of garbage, registries for queues whose metrics nobody
    wants, who manages which field, whether there are others (nobody writes any), old versions as bytes, probes and
    scrapes."""
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
        gc.collect(0)  # all that the run has left behind is young
        if collects:
            gc.enable()
