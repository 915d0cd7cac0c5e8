"""Planted bugs of what jobs say that do not move."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from tests.simulation.families import STILL, ThemeOf
from tests.simulation.planting import bug, patch
from tests.simulation.still_draw import BLIGHTS
from trainop.controllers.outcome import Passes
from trainop.engine import plan as engine
from trainop.engine import waiting
from trainop.engine.actions import Plan, Wait
from trainop.kinds.mpi.ssh import plan as ssh

THEME = {blight.__name__: ThemeOf(number, len(BLIGHTS)) for number, blight in enumerate(BLIGHTS)}
of_still = functools.partial(bug, family=STILL)


def without(*reasons: str) -> Any:
    """Nothing is said for these reasons."""
    every = waiting._ages

    def some(*args: Any) -> Iterator[tuple[Wait, float]]:
        return ((wait, age) for wait, age in every(*args) if wait.reason not in reasons)

    return patch(waiting, "_ages", some)


@of_still("A job never says what it waits for.")
def silence():
    return without(*waiting.REASONS)


@of_still("Pods that cannot start are not named.", theme=THEME["_never_starts"])
def pending_pods_ignored():
    return without(waiting.PODS_PENDING)


@of_still("Pods that terminate for ever are not named.", theme=THEME["_never_leaves"])
def terminating_pods_ignored():
    return without(waiting.PODS_TERMINATING)


@of_still("What the API server refuses is forgotten with its event.", theme=THEME["_refused"])
def refusals_forgotten():
    return patch(Passes, "show", lambda _self, seen: seen)


@of_still("A pod without labels is in nobody's way.", theme=THEME["_unlabelled"])
def lost_labels_ignored():
    return patch(engine, "INVALID_LABELS", "")


@of_still("An invalid MPIJob over ssh has no status at all.", theme=THEME["_invalid"])
def invalid_job_without_status():
    planned = ssh._plan

    def silent(seen: Any) -> Plan:
        made = planned(seen)
        invalid = made.waits and made.waits[0].reason == waiting.INVALID_SPEC
        return Plan(notices=made.notices) if invalid else made

    return patch(ssh, "_plan", silent)


@of_still("A launcher does not say which workers it waits for.", theme=THEME["_never_ready"])
def unready_workers_ignored():
    return patch(ssh, "note_waits", lambda *_, **__: None)


@of_still("A launcher whose batch Job makes no pod is not named.", theme=THEME["_no_job_controller"])
def idle_launcher_ignored():
    return without(waiting.LAUNCHER_PENDING)


@of_still("The times of a job that waits count from the start of the process.", theme=THEME["_never_starts"])
def age_of_the_process():
    return patch(waiting, "_by_age", lambda seen, wait, found: [wait._replace(since=seen.now)] if found else [])


@of_still("A message names no object.", theme=THEME["_never_starts"])
def nameless_message():
    name = waiting._name
    nothing: Any = {"what": "Something is missing", "why": ""}
    return patch(waiting, "_name", lambda status, wait: name(status, wait._replace(**nothing)))
