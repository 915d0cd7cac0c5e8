"""Adds the operator's log lines to the trace."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import structlog

if TYPE_CHECKING:
    from tests.simulation.world import World

NO_BUGS = "no bugs"
"""The rule that the operator raises no unexpected exception."""

UNFORGIVABLE = {"reconcile raised", "handler failed", "reconcile is stuck", "index failed"}


@contextmanager
def logs_into(world_of: Callable[[], World | None], *, everything: bool) -> Iterator[None]:
    """Redirect log lines to the trace: all of them with `everything`, otherwise only unexpected errors."""

    def take(_: Any, level: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        world = world_of()
        if world is not None:
            event = entry.pop("event")
            error = entry.pop("exc_info", None)
            keys = " ".join(f"{key}={value}" for key, value in sorted(entry.items()) if key != "reconcile_id")
            world.note("log", f"{level} {event} {keys}")
            if event in UNFORGIVABLE:
                world.judge.flag(NO_BUGS, f"{event}: {keys} {error!r}")
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, take],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG if everything else logging.ERROR),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.configure(**before)
