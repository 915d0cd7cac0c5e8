"""Skips work that costs time in a run without an effect on its result."""

from __future__ import annotations

import asyncio
import base64
import gc
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from unittest import mock

from tests.simulation.replica import metrics
from trainop.engine.schema.crd import crd
from trainop.kinds.dijob.crd import dijob_crd
from trainop.kinds.mpi.crd import mpi_crd
from trainop.kinds.mpi.ssh import workers as ssh_workers
from trainop.local.api.fields import server_side_apply
from trainop.local.api.registry.crds import kinds_of_crd
from trainop.local.api.registry.kinds import Kind
from trainop.local.api.request import bodies
from trainop.local.api.storage.versioned_store import Stored
from trainop.programs import schemes
from trainop.runtime import Operator
from trainop.runtime.controller import workqueue
from trainop.runtime.manager.manager import Manager
from trainop.runtime.objects.metadata import Json


@cache
def kinds_served(kind: str) -> list[Kind]:
    """The resource definition of the kind, as if its CRD had been created."""
    others = {"MPIJob": mpi_crd, "DIJob": dijob_crd}
    return kinds_of_crd(others[kind]() if kind in others else crd(schemes.FRAMEWORKS[kind]))


async def _turn_no_more(_: Manager) -> None:
    await asyncio.Event().wait()


def _serve_nobody(*_: object) -> None:
    """Neither probes nor metrics."""


def _know_all(value: Json, _kind: Kind, **_: object) -> tuple[Json, list[str]]:
    return value, []


def _stay(_: Stored) -> None:
    """Stays decoded."""


def _count_keys() -> Callable[[], Json]:
    """Keys of ssh in the order in which they are made, because real ones are random and cost milliseconds."""
    numbers = itertools.count()

    def make() -> Json:
        key = base64.b64encode(f"key {next(numbers)}".encode()).decode()
        return {"data": {"ssh-privatekey": key, "ssh-publickey": key}}

    return make


def _are_complete(secret: Json) -> bool:
    return set(secret.get("data") or ()) == {"ssh-privatekey", "ssh-publickey"}


@contextmanager
def undisturbed(*, tracks: bool = False) -> Iterator[None]:
    """Disable work without an effect on the result: Python's garbage collection, queue metrics, managed fields unless
    `tracks`, discovery of other resources, old versions as bytes, probes and scrapes."""
    collects = gc.isenabled()
    track = server_side_apply.track_update if tracks else lambda _, new, **__: new
    gc.disable()
    try:
        with (
            mock.patch.object(workqueue, "Metrics", metrics),
            mock.patch.object(server_side_apply, "track_update", track),
            mock.patch.object(ssh_workers, "make_keys", _count_keys()),
            mock.patch.object(ssh_workers, "are_usable", _are_complete),
            mock.patch.object(bodies, "known_fields", _know_all),
            mock.patch.object(Stored, "drop_value", _stay),
            mock.patch.object(Manager, "_beat", _turn_no_more),
            mock.patch.object(Operator, "_add_servers", _serve_nobody),
        ):
            yield
    finally:
        gc.collect(0)  # all garbage of the run is in the young generation
        if collects:
            gc.enable()
