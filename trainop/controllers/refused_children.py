"""Back-off for children that the API server refused while their job goes on.

What refuses one pod (an admission policy, a LimitRange, PodSecurity, a missing PriorityClass) usually refuses its
siblings too, and lasts until an administrator changes it: minutes, not milliseconds. Each message is reported in one
event. A change of the job's spec or annotations resets the back-off, so that a user need not wait for the next retry.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from trainop.controllers.job_state import JobStates, RefusedCreates
from trainop.engine.actions import Action, Apply, CreateOnce, CreatePod, CreateService
from trainop.engine.restart_history import RESTARTS
from trainop.runtime.clock import Clock
from trainop.runtime.controller.ratelimit import exponential_delay
from trainop.runtime.objects.metadata import Metadata

FIRST_RETRY, MAX_RETRY = 60.0, 900.0
"""Seconds until refused children are retried: the first delay, and the limit of the back-off."""

NEXT_BATCH_AFTER = 1.0
"""Seconds until the remaining children are tried, after a pass that stopped at `outcome.MAX_REFUSALS`."""

MAX_MESSAGES = 20
"""Distinct messages reported per job."""


class RefusedChild(NamedTuple):
    """A child that the API server refused. `message` has `*` in place of the child's name, so that it is equal for its
    siblings."""

    kind: str
    name: str
    message: str


class RefusedChildren:
    """One per controller. The back-off is kept in `JobState.refused_creates` and restarts with the process."""

    def __init__(self, states: JobStates, clock: Clock, rng: random.Random) -> None:
        self._states = states
        self._clock = clock
        self._rng = rng

    def allow(self, job: Metadata, actions: Sequence[Action]) -> tuple[Sequence[Action], float | None]:
        """Returns the actions without the creates that have to wait, and the seconds until those are due."""
        state = self._states.find(job.uid)
        held = state.refused_creates if state else None
        if held is None:
            return actions, None
        if held.edition != (edition := edition_of(job)):
            held.edition, held.until, held.failures = edition, 0.0, 0
        wait = held.until - self._clock.monotonic()
        if wait <= 0:
            held.names.clear()
            return actions, None
        allowed = [action for action in actions if _child_of(action) not in held.names]
        return allowed, wait if len(allowed) < len(actions) else None

    def record(self, job: Metadata, refused: Iterable[RefusedChild]) -> tuple[list[RefusedChild], float | None]:
        """Records refusals. Returns those with a message not yet reported, and the seconds until all are retried."""
        state = self._states.ensure(job.uid)
        fresh: list[RefusedChild] = []
        wait: float | None = None
        for each in refused:
            held = state.refused_creates = state.refused_creates or RefusedCreates(edition_of(job))
            if wait is None:
                wait = exponential_delay(self._rng, held.failures, base=FIRST_RETRY, cap=MAX_RETRY)
                held.until, held.failures = self._clock.monotonic() + wait, held.failures + 1
            held.names.add((each.kind, each.name))
            if each.message not in held.messages and len(held.messages) < MAX_MESSAGES:
                held.messages.add(each.message)
                fresh.append(each)
        if wait is None and state.refused_creates and not state.refused_creates.names:
            state.refused_creates = None  # all retries succeeded, so the next refusal starts a new back-off
        return fresh, wait


def edition_of(job: Metadata) -> int:
    """Changes with the spec and with annotations of other clients, and not with the status."""
    return hash((job.generation, frozenset(item for item in job.annotations.items() if item[0] != RESTARTS)))


def _child_of(action: Action) -> tuple[str, str] | None:
    match action:
        case CreatePod(name):
            return "Pod", name
        case CreateService(name):
            return "Service", name
        case Apply(resource, manifest) | CreateOnce(resource, manifest):
            return resource.kind, manifest["metadata"]["name"]
    return None
