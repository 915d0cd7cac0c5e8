"""What takes time in a run and decides nothing is left out of it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import msgspec

from tests.simulation.replica import metrics
from trainop import operator
from trainop.local.api import apply, crds
from trainop.local.api.schema import Schema
from trainop.local.api.store import Stored
from trainop.runtime import workqueue
from trainop.runtime.manager import Manager
from trainop.runtime.objects import Json


@contextmanager
def schemas_compiled_once() -> Iterator[None]:
    with mock.patch.object(crds, "Schema", _compile):
        yield


_compiled: dict[bytes, Schema] = {}


def _compile(document: Json) -> Schema:
    text = msgspec.json.encode(document)
    if text not in _compiled:
        _compiled[text] = Schema(document)
    return _compiled[text]


async def _turn_no_more(_: Manager) -> None:
    await asyncio.Event().wait()


def _serve_nobody(*_: object) -> None:
    """Neither probes nor metrics."""


def _stay(_: Stored) -> None:
    """Stays decoded."""


@contextmanager
def undisturbed() -> Iterator[None]:
    """Without what takes time and decides nothing: collections of garbage, registries for queues whose metrics nobody
    wants, who manages which field, old versions as bytes, probes and scrapes."""
    collects = gc.isenabled()
    gc.disable()
    try:
        with (
            mock.patch.object(workqueue, "Metrics", metrics),
            mock.patch.object(apply, "track_update", lambda _, new, **__: new),
            mock.patch.object(Stored, "become_history", _stay),
            mock.patch.object(Manager, "_count_turns", _turn_no_more),
            mock.patch.object(operator, "_add_servers", _serve_nobody),
        ):
            yield
    finally:
        gc.collect(0)  # all that the run has left behind is young
        if collects:
            gc.enable()
