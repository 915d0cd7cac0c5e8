"""The results of one pass: when the job is requeued, and what the next passes are to know.

A plan is made from objects. A child that the API server refuses is none, and the fields that it drops from a pod are in
no object. Events soon expire, so that conditions repeat both (`trainop.engine.waiting`, `template_condition`).

What refuses one pod (an admission policy, a LimitRange, PodSecurity, a missing PriorityClass) usually refuses its
siblings too, and lasts until an administrator changes it: minutes, not milliseconds. Each message is reported in one
event. A change of the job's spec or annotations resets the back-off, so that a user need not wait for the next retry.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from trainop.controllers.job_state import JobState, JobStates, RefusedWrites, RepeatedWrite
from trainop.engine.actions import Action, Ensure, Need, Plan, Wait
from trainop.engine.children import ChildEvents
from trainop.engine.kueue import WORKLOADS, SeenQueue
from trainop.engine.restart_history import RESTARTS
from trainop.engine.seen import Snapshot
from trainop.engine.waiting import CREATION_FAILED
from trainop.runtime import Clock, Metadata, Result
from trainop.runtime.lowlevel import exponential_delay

MIN_REQUEUE = 0.01
"""Minimum seconds before a requeue: a deadline that is just due must not become a hot loop."""

MAX_REFUSALS = 4
"""Consecutive refusals after which a pass creates no more pods or services of a begun job."""

FIRST_RETRY, MAX_RETRY = 60.0, 300.0
"""Seconds until refused objects are retried: the first delay, and the limit of the back-off."""

NEXT_BATCH_AFTER = 1.0
"""Seconds until the remaining objects are tried, after a pass that stopped at `MAX_REFUSALS`."""

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


@dataclass(slots=True)
class Outcome:
    """The results of some or all actions of a pass; `merge` combines groups that ran concurrently."""

    errors: list[Exception] = field(default_factory=list)
    """Failures that are retried with back-off."""
    refused: str | None = None
    """The API server's message, if its refusal fails the job."""
    refused_children: list[Refused] = field(default_factory=list)
    """Children that the API server refused while the job goes on."""
    consecutive_refusals: int = 0
    """Refusals since the last successful create."""
    blocked: bool = False
    """The namespace's quota is exhausted, or the operator's role lacks a permission."""
    requeue_after: float | None = None
    """Seconds until the next pass at the latest; None if nothing requires one."""
    pods_wait: bool = False
    """The PodGroup could not be created, so that no pod may be."""
    begun: bool = False
    """The job has had pods: no refusal fails it."""
    unfinished: bool = False
    """The pass reached its limit of writes, so more actions are probably left."""
    held_back: bool = False
    """Creates were left out, because the API server has refused them recently."""
    taken: set[tuple[str, str]] = field(default_factory=set)
    """Kinds and names of children that objects of other owners have."""
    halted: bool = False
    """An object that the job needs could not be written, or a patch failed: no later action is carried out."""
    obstacle: tuple[str, str] = ("", "")
    """Which child could not be written first, and why; both empty if none."""

    @property
    def should_stop(self) -> bool:
        """Whether no further action should be started."""
        return (
            bool(self.errors)
            or self.refused is not None
            or self.blocked
            or self.halted
            or self.consecutive_refusals >= MAX_REFUSALS
        )

    @property
    def undisturbed(self) -> bool:
        """Whether all actions that were started have succeeded."""
        return not (self.should_stop or self.refused_children or self.pods_wait)

    def hinder(self, kind: str, name: str, why: object, done: str = "created") -> None:
        """Records that a child could not be written."""
        if not self.obstacle[0]:
            self.obstacle = (f"{kind} {name} cannot be {done}", str(why))

    def wait(self, seconds: float) -> None:
        """Requeues the job after `seconds` at the latest."""
        self.requeue_after = seconds if self.requeue_after is None else min(self.requeue_after, seconds)

    def halt(self, need: Need) -> None:
        """No later action is carried out if the job needs the object that could not be written."""
        self.halted |= need is Need.JOB

    def refuse(self, refused: Refused) -> None:
        """Adds a child that the API server refused while the job goes on."""
        self.refused_children.append(refused)
        self.consecutive_refusals += 1
        if self.consecutive_refusals >= MAX_REFUSALS:
            self.wait(NEXT_BATCH_AFTER)

    def merge(self, other: Outcome) -> None:
        """Adds the results of another group of actions."""
        self.errors += other.errors
        self.refused_children += other.refused_children
        self.obstacle = self.obstacle if self.obstacle[0] else other.obstacle
        self.refused = self.refused or other.refused
        self.blocked |= other.blocked
        self.pods_wait |= other.pods_wait
        self.halted |= other.halted
        self.taken |= other.taken
        if other.requeue_after is not None:
            self.wait(other.requeue_after)


def earliest(*seconds: float | None) -> float | None:
    """The shortest of the given waits, None meaning no wait. A wait of 0 becomes `MIN_REQUEUE`."""
    waits = [max(each, MIN_REQUEUE) for each in seconds if each is not None]
    return min(waits, default=None)


class Passes:
    """What one pass of a job leaves to the next. One per controller; kept in `JobState`, and lost with the process."""

    def __init__(self, states: JobStates, rng: random.Random, *, shows_taken: bool = False) -> None:
        """`shows_taken`: plans show the names that objects of others have (`Kind.shows_taken`)."""
        self._states = states
        self._rng = rng
        self._shows_taken = shows_taken

    def show(self, seen: Snapshot) -> Snapshot:
        """Adds the obstacle of the last pass, the names that it found to be taken, and the fields that were dropped
        (`Reporter.dropped_fields`), and whether the API server keeps restart rules (`Consequences`)."""
        state = self._states.find(seen.job.metadata.uid)
        if state is None:
            return seen
        if state.serves_rules is not None:
            seen = replace(seen, serves_rules=state.serves_rules)
        if not (state.obstacle or state.taken or state.dropped_fields):
            return seen
        return replace(seen, obstacle=state.obstacle, taken=state.taken, dropped_fields=state.dropped_fields or {})

    def finish(self, seen: Snapshot, plan: Plan, outcome: Outcome) -> Result:
        """Records the outcome of a pass; returns when the job is requeued. Raises the errors of the actions."""
        uid = seen.job.metadata.uid
        state = self._states.ensure(uid)
        self._record_obstacle(state, seen, outcome)
        state.unfinished = outcome.unfinished
        if outcome.blocked:
            outcome.wait(exponential_delay(self._rng, state.blocked_passes, base=1.0, cap=60.0))
            state.blocked_passes += 1
        else:
            state.blocked_passes = 0
        if len(outcome.errors) == 1:
            raise outcome.errors[0]
        if outcome.errors:
            raise ExceptionGroup("actions failed", outcome.errors)
        if outcome.unfinished:
            return Result(requeue=True)
        expiry = self._states.expectations.expires_in(uid)  # a child that was never observed triggers no event
        return Result(requeue_after=earliest(plan.requeue_after, outcome.requeue_after, expiry))

    def _record_obstacle(self, state: JobState, seen: Snapshot, outcome: Outcome) -> None:
        """The obstacle lasts while refused creates are held back."""
        if state.taken != outcome.taken:
            state.taken = frozenset(outcome.taken)
            if self._shows_taken:
                outcome.wait(0.0)  # the next plan shows them
        what, why = outcome.obstacle
        if not what and outcome.errors:
            what, why = "The API server does not carry out what the job needs", str(outcome.errors[0])
        if what:
            since = (state.obstacle.since if state.obstacle else None) or seen.now
            state.obstacle = Wait(CREATION_FAILED, what, why, since)
            left = seen.options.waiting_after - (seen.now - since).total_seconds()
            if left > 0:  # the next attempt may be later than the moment at which the job has to say it
                outcome.wait(left)
        elif not outcome.held_back:
            state.obstacle = None


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
        """Adds why the job's PodGroup or Workload was refused, and when the write is repeated."""
        job, held = seen.job.metadata, self._held(seen.job.metadata)
        if held is not None and seen.queue is not None:
            seen = replace(seen, queue=self._show_queue(seen.queue, job, held))
        message = held.objects.get(("PodGroup", job.name)) if held else None
        if held is None or message is None:
            return seen
        retry_in = max(0.0, held.until - self._clock.monotonic())
        return replace(seen, gang=replace(seen.gang, refused=message.replace("*", job.name), retry_in=retry_in))

    def _show_queue(self, queue: SeenQueue, job: Metadata, held: RefusedWrites) -> SeenQueue:
        """The Workload of a gang has the name of the job, and that of a queue never has."""
        mine = (name for kind, name in held.objects if kind == WORKLOADS.kind and name != job.name)
        if (name := next(mine, None)) is None:
            return queue
        retry_in = max(0.0, held.until - self._clock.monotonic())
        message = held.objects[WORKLOADS.kind, name].replace("*", name)
        return replace(queue, refused=message, retry_in=retry_in)

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
