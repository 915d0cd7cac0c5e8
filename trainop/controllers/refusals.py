"""Back-off for owned objects that the API server refused while their job goes on, or that another client undoes.

What refuses one pod (an admission policy, a LimitRange, PodSecurity, a missing PriorityClass) usually refuses its
siblings too, and lasts until an administrator changes it: minutes, not milliseconds. Each message is reported in one
event. A change of the job's spec or annotations resets the back-off, so that a user need not wait for the next retry.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from trainop.controllers.job_state import JobStates, RefusedWrites, RepeatedWrite
from trainop.engine.actions import Action, Ensure
from trainop.engine.children import ChildEvents
from trainop.engine.restart_history import RESTARTS
from trainop.engine.seen import Snapshot
from trainop.runtime import Clock, Metadata
from trainop.runtime.lowlevel import exponential_delay

FIRST_RETRY, MAX_RETRY = 60.0, 300.0
"""Seconds until refused objects are retried: the first delay, and the limit of the back-off."""

NEXT_BATCH_AFTER = 1.0
"""Seconds until the remaining objects are tried, after a pass that stopped at `outcome.MAX_REFUSALS`."""

MAX_MESSAGES = 20
"""Distinct messages reported per job."""

FIRST_REPEAT, MAX_REPEAT = 1.0, 300.0
"""Seconds between two writes of an object whose job has not changed: each of them has been undone by another client,
such as a second operator or a user's script."""
CALM = 900.0
"""Seconds without such a write after which the back-off starts again."""
DISPUTED = 3
"""Repeated writes from which there is a Warning."""


class Refused(NamedTuple):
    """An object that the API server refused. `message` has `*` in place of its name, so that it is equal for its
    siblings."""

    kind: str
    name: str
    message: str
    texts: tuple[str, str] = ChildEvents().not_created
    """Reason and message of the event (`ChildEvents`)."""


class Refusals:
    """One per controller. The back-off is kept in `JobState.refused` and restarts with the process."""

    def __init__(self, states: JobStates, clock: Clock, rng: random.Random) -> None:
        self._states = states
        self._clock = clock
        self._rng = rng

    def allow(self, job: Metadata, actions: Sequence[Action]) -> tuple[Sequence[Action], float | None]:
        """Returns the actions without the creates that have to wait, and the seconds until those are due."""
        held = self._held(job)
        if held is None:
            return actions, None
        wait = held.until - self._clock.monotonic()
        if wait <= 0:
            held.objects.clear()
            return actions, None
        allowed = [action for action in actions if not _is_among(action, held)]
        return allowed, wait if len(allowed) < len(actions) else None

    def record(self, job: Metadata, refused: Iterable[Refused]) -> tuple[list[Refused], float | None]:
        """Records refusals. Returns those with a message not yet reported, and the seconds until all are retried."""
        fresh: list[Refused] = []
        wait: float | None = None
        state = self._states.find(job.uid)
        for each in refused:
            state = state or self._states.ensure(job.uid)
            held = state.refused = state.refused or RefusedWrites(edition_of(job))
            if wait is None:
                wait = exponential_delay(self._rng, held.failures, base=FIRST_RETRY, cap=MAX_RETRY)
                held.until, held.failures = self._clock.monotonic() + wait, held.failures + 1
            held.objects[each.kind, each.name] = each.message
            if each.message not in held.messages and len(held.messages) < MAX_MESSAGES:
                held.messages.add(each.message)
                fresh.append(each)
        if wait is None and state and state.refused and not state.refused.objects:
            state.refused = None  # all retries succeeded, so the next refusal starts a new back-off
        return fresh, wait

    def show(self, seen: Snapshot) -> Snapshot:
        """Adds why the job's PodGroup was refused, and when the write is repeated."""
        job, held = seen.job.metadata, self._held(seen.job.metadata)
        message = held.objects.get(("PodGroup", job.name)) if held else None
        if held is None or message is None:
            return seen
        retry_in = max(0.0, held.until - self._clock.monotonic())
        return replace(seen, gang=replace(seen.gang, refused=message.replace("*", job.name), retry_in=retry_in))

    def _held(self, job: Metadata) -> RefusedWrites | None:
        """What was refused. An edit of the job ends the back-off."""
        state = self._states.find(job.uid)
        held = state.refused if state else None
        if held is not None and held.edition != (edition := edition_of(job)):
            held.edition, held.until, held.failures = edition, 0.0, 0
        return held


class Disputes:
    """Back-off for an object that another client changes back after each write. Kept in `JobState.repeated`."""

    def __init__(self, states: JobStates, clock: Clock, rng: random.Random) -> None:
        self._states = states
        self._clock = clock
        self._rng = rng

    def seconds_to_write(self, job: Metadata) -> float:
        """Seconds for which the object has to wait; 0 after an edit of the job."""
        last = self._states.ensure(job.uid).repeated
        return 0.0 if last is None or last.edition != edition_of(job) else last.until - self._clock.monotonic()

    def record(self, job: Metadata) -> bool:
        """Records a successful write. Returns whether it was often undone."""
        state, now, edition = self._states.ensure(job.uid), self._clock.monotonic(), edition_of(job)
        last = state.repeated
        is_repeated = last is not None and last.edition == edition and now - last.until < CALM
        repeats = last.repeats + 1 if last is not None and is_repeated else 0
        wait = exponential_delay(self._rng, repeats, base=FIRST_REPEAT, cap=MAX_REPEAT)
        state.repeated = RepeatedWrite(edition, now + wait, repeats)
        return repeats >= DISPUTED


def edition_of(job: Metadata) -> int:
    """Changes with the spec and with annotations of other clients, and not with the status."""
    return hash((job.generation, frozenset(item for item in job.annotations.items() if item[0] != RESTARTS)))


def _is_among(action: Action, held: RefusedWrites) -> bool:
    return isinstance(action, Ensure) and (action.resource.kind, action.name) in held.objects
