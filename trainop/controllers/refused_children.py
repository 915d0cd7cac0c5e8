"""Children that the API server refused while their job goes on: each is tried again ever later, and told of once.

What refuses one pod (an admission policy, a LimitRange, PodSecurity, a PriorityClass that is still missing) mostly
refuses its siblings too, and lasts until somebody changes it: minutes, not milliseconds. Whoever has changed it and
does not want to wait edits the job: a new spec or annotation of others is tried at once.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from trainop.controllers.job_state import JobStates, RefusedCreates
from trainop.engine.actions import Action, Apply, CreatePod, CreateService
from trainop.engine.restart_history import RESTARTS
from trainop.runtime.clock import Clock
from trainop.runtime.controller.ratelimit import exponential_delay
from trainop.runtime.objects.metadata import Metadata

SOONEST, LATEST = 60.0, 900.0
"""Seconds until what was refused is tried again: at first, and at most."""

OTHERS_AFTER = 1.0
"""Seconds until the others are tried, after as many refusals as one pass accepts."""

MOST_TEXTS = 20
"""Different refusals of one job that are told."""


class RefusedChild(NamedTuple):
    """One child of the kind that could not be made, and the API server's words without the child's name, as they are
    the same for its siblings."""

    kind: str
    name: str
    text: str


class RefusedChildren:
    """Of one controller. Nothing of it outlives the process: then all is tried once more."""

    def __init__(self, states: JobStates, clock: Clock, rng: random.Random) -> None:
        self._states = states
        self._clock = clock
        self._rng = rng

    def allow(self, job: Metadata, actions: Sequence[Action]) -> tuple[Sequence[Action], float | None]:
        """The actions without those that have to wait, and the seconds until these are due."""
        state = self._states.find(job.uid)
        held = state.refused_creates if state else None
        if held is None:
            return actions, None
        if held.edition != (edition := _edition(job)):
            held.edition, held.until, held.failures = edition, 0.0, 0
        wait = held.until - self._clock.monotonic()
        if wait <= 0:
            held.names.clear()
            return actions, None
        allowed = [action for action in actions if _place(action) not in held.names]
        return allowed, wait if len(allowed) < len(actions) else None

    def note(self, job: Metadata, refused: Iterable[RefusedChild]) -> tuple[list[RefusedChild], float | None]:
        """Those whose words are new, and the seconds until all that was refused is due again."""
        state = self._states.ensure(job.uid)
        fresh: list[RefusedChild] = []
        wait: float | None = None
        for each in refused:
            held = state.refused_creates = state.refused_creates or RefusedCreates(_edition(job))
            if wait is None:
                wait = exponential_delay(self._rng, held.failures, base=SOONEST, cap=LATEST)
                held.until, held.failures = self._clock.monotonic() + wait, held.failures + 1
            held.names.add((each.kind, each.name))
            if each.text not in held.messages and len(held.messages) < MOST_TEXTS:
                held.messages.add(each.text)
                fresh.append(each)
        if wait is None and state.refused_creates and not state.refused_creates.names:
            state.refused_creates = None  # what was due has been made: the next refusal is a new one
        return fresh, wait


def _edition(job: Metadata) -> int:
    """Changes with the spec and with annotations that are not our own, and not with the status."""
    return hash((job.generation, frozenset(item for item in job.annotations.items() if item[0] != RESTARTS)))


def _place(action: Action) -> tuple[str, str] | None:
    match action:
        case CreatePod(name):
            return "Pod", name
        case CreateService(name):
            return "Service", name
        case Apply(resource, manifest):
            return resource.kind, manifest["metadata"]["name"]
    return None
