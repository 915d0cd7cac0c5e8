"""Carries out the actions of a plan, in groups and within limits; `children.py` knows how each one is written.

Batches start slowly, as in the controllers of kubernetes, so that an error which concerns all children is met once and
not for each of them. A large pass lets small ones go first (`RightOfWay`).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from trainop.controllers.children import ChildWriter
from trainop.controllers.live_job import AdoptionError, OwnerCheck
from trainop.controllers.outcome import Outcome, Refusals
from trainop.controllers.report import Reporter
from trainop.engine.actions import Action, Adopt, Ensure, How, Patch, Remove, is_creation
from trainop.engine.kind import Kind
from trainop.runtime import PODS, SERVICES, Unstructured

MAX_WRITES_PER_PASS = 500
"""Limit of writes per pass. The next pass continues, so that a large job does not block a worker."""

MAX_CONCURRENT = 4
"""Limit of requests in flight for the pods of one job, and the same again for its services. These eight saturate an
API server with two processors. With twice as many, a large job completes no sooner and a small one beside it waits
twice as long; with half as many, the large one takes a third longer (docs/performance.md)."""

MAX_AT_ONCE = 16
"""The same for deletions of pods that are to end at once (`Remove.at_once`): 64 take less than a second, also if each
request takes 200 ms."""

SMALL_PASS = 32
"""Limit of the actions of a pass that goes before larger ones."""

MAX_GIVE_WAY = 0.2
"""Seconds that a request of a large pass waits for small passes at most, and for which a small pass is waited for."""

_REPLICAS = "pods and services"


def _group_key(action: Action) -> object:
    """Adjacent actions with the same key are carried out concurrently. Companions are written one by one, in the order
    of the plan: they are few, and an obstacle to one ends the pass."""
    if is_creation(action, PODS, SERVICES) and isinstance(action, Ensure) and action.how is How.POST:
        return _REPLICAS
    if isinstance(action, Ensure | Patch):
        return id(action)
    return type(action), getattr(action, "resource", None)


def _makes_pods(action: Action) -> bool:
    return isinstance(action, Ensure | Patch) and (action.makes_pods or is_creation(action, PODS))


def _is_at_once(group: Sequence[Action]) -> bool:
    return all(isinstance(action, Remove) and action.at_once for action in group)


class RightOfWay:
    """Lets small passes go before the requests of large ones, which would otherwise keep the API server busy until all
    pods of a large job exist. One per process, shared by all controllers.

    A large job never starves: each of its requests waits for at most `MAX_GIVE_WAY`, however many small passes follow
    one another. A small pass whose requests hang, for example in a webhook of its namespace, is waited for as long,
    and not once for each request of the others."""

    def __init__(self) -> None:
        self._small: dict[object, float] = {}
        """When each small pass that runs has begun, in loop time; the last to begin comes last."""
        self._clear = asyncio.Event()

    @contextmanager
    def take(self, actions: Sequence[Action]) -> Iterator[None]:
        """To be held while the pass with these actions runs. A pass without any, which at most writes a status, is not
        waited for."""
        if not 0 < len(actions) <= SMALL_PASS:
            yield
            return
        this = object()
        self._small[this] = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            del self._small[this]
            if not self._small:
                self._clear.set()

    async def give(self) -> None:
        """To be called before each request of a large pass. Waits until no small pass runs that has begun within the
        last `MAX_GIVE_WAY` seconds, and for at most as long."""
        loop = asyncio.get_running_loop()
        called = loop.time()
        while self._small:
            newest = next(reversed(self._small.values()))
            until = min(called, newest) + MAX_GIVE_WAY
            if loop.time() >= until:
                return
            self._clear.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._clear.wait()


class _Pass(NamedTuple):
    """What holds for all actions of one pass."""

    job: Unstructured
    begun: bool
    gives_way: bool


class Applier:
    """One per kind. Carries out at most `MAX_WRITES_PER_PASS` actions per pass."""

    def __init__(
        self,
        kind: Kind,
        children: ChildWriter,
        refusals: Refusals,
        owner_check: OwnerCheck,
        report: Reporter,
        *,
        right_of_way: RightOfWay,
    ) -> None:
        self._kind = kind
        self._children = children
        self._refusals = refusals
        self._owner_check = owner_check
        self._report = report
        self.right_of_way = right_of_way
        self._max_writes = MAX_WRITES_PER_PASS

    async def prepare(self, job: Unstructured, actions: Sequence[Action]) -> bool:
        """Call before `carry_out` and before all writes of the job that count on it. False if the job may be gone, so
        that nothing may be created for it. Raises API errors."""
        if any(map(is_creation, actions)) and not await self._owner_check.confirm(job):
            return False
        removals = (action for action in actions if isinstance(action, Remove))
        self._owner_check.expect_deleted(job, [each.uid for each in removals if each.resource == PODS or each.then])
        return True

    async def carry_out(self, job: Unstructured, actions: Sequence[Action], *, begun: bool = False) -> Outcome:
        """Carries out the actions in groups. Adjacent actions of one class and resource form a group and run
        concurrently, and so do adjacent creates of pods and services; groups run one after another. A failure does not
        stop the following groups, except for a refused template of a job that has not `begun` and for an object that
        the job needs. What was refused recently is left out, and each refusal is reported once per message."""
        actions, wait = self._refusals.allow(job.metadata, actions)
        outcome = await self._carry_out_groups(_Pass(job, begun, len(actions) > SMALL_PASS), actions)
        fresh, retry = self._refusals.record(job.metadata, outcome.refused_children)
        for each in fresh:
            error = each.message.replace("*", each.name)
            self._report.event(job, self._kind.child_events.event(each.texts, each.kind, each.name, error))
        outcome.held_back = wait is not None
        for seconds in (wait, retry):
            if seconds is not None:
                outcome.wait(seconds)
        return outcome

    async def _carry_out_groups(self, this: _Pass, actions: Sequence[Action]) -> Outcome:
        outcome = Outcome(begun=this.begun, unfinished=len(actions) >= self._max_writes)
        for kind, neighbours in itertools.groupby(actions[: self._max_writes], _group_key):
            group = list(neighbours)
            if isinstance(group[0], Adopt) and (reason := await self._owner_check.find_obstacle(this.job)):
                outcome.errors += [AdoptionError(this.job, each, reason) for each in group if isinstance(each, Adopt)]
                continue
            if outcome.pods_wait:
                group = [action for action in group if not _makes_pods(action)]
            if kind is _REPLICAS:
                outcome.merge(await self._create_replicas(this, group))
            elif _is_at_once(group):  # these have a promise of their own
                outcome.merge(await self._carry_out_together(this._replace(gives_way=False), group, MAX_AT_ONCE))
            else:
                outcome.merge(await self._carry_out_together(this, group, MAX_CONCURRENT))
            if outcome.refused is not None or outcome.halted:
                break
        return outcome

    async def _create_replicas(self, this: _Pass, actions: Sequence[Action]) -> Outcome:
        """Creates pods and services side by side: a pod needs its service only once it runs."""
        outcome = Outcome()
        async with asyncio.TaskGroup() as tasks:
            made = [
                tasks.create_task(self._carry_out_together(this, group, 1))
                for resource in (SERVICES, PODS)
                if (group := [action for action in actions if is_creation(action, resource)])
            ]
        for task in made:
            outcome.merge(task.result())
        return outcome

    async def _carry_out_together(self, this: _Pass, actions: Sequence[Action], width: int) -> Outcome:
        """Slow start: runs `width` actions concurrently at first, and one more after each success, because what fails
        for one child usually fails for all. Starts no more once `Outcome.should_stop` holds."""
        outcome = Outcome(begun=this.begun)
        todo = iter(actions)

        async def work() -> None:
            nonlocal width
            for action in todo:
                if this.gives_way:
                    await self.right_of_way.give()
                if outcome.should_stop:
                    return
                await self._children.carry_out(this.job, action, outcome)
                if width < MAX_CONCURRENT and not outcome.should_stop:
                    width += 1
                    tasks.create_task(work())

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(width, len(actions))):
                tasks.create_task(work())
        return outcome
