"""Carries out the actions of a plan, in groups and within limits; `children.py` knows how each one is written.

Batches start slowly, as in the controllers of kubernetes, so that an error which concerns all children is met once and
not for each of them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

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
    return isinstance(action, Ensure) and (action.resource == PODS or action.makes_pods)


def _is_at_once(group: Sequence[Action]) -> bool:
    return all(isinstance(action, Remove) and action.at_once for action in group)


class Applier:
    """One per kind. Carries out at most `MAX_WRITES_PER_PASS` actions per pass."""

    def __init__(
        self,
        kind: Kind,
        children: ChildWriter,
        refusals: Refusals,
        owner_check: OwnerCheck,
        report: Reporter,
    ) -> None:
        self._kind = kind
        self._children = children
        self._refusals = refusals
        self._owner_check = owner_check
        self._report = report
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
        outcome = await self._carry_out_groups(job, actions, begun)
        fresh, retry = self._refusals.record(job.metadata, outcome.refused_children)
        for each in fresh:
            error = each.message.replace("*", each.name)
            self._report.event(job, self._kind.child_events.event(each.texts, each.kind, each.name, error))
        outcome.held_back = wait is not None
        for seconds in (wait, retry):
            if seconds is not None:
                outcome.wait(seconds)
        return outcome

    async def _carry_out_groups(self, job: Unstructured, actions: Sequence[Action], begun: bool) -> Outcome:
        outcome = Outcome(begun=begun, unfinished=len(actions) >= self._max_writes)
        for kind, neighbours in itertools.groupby(actions[: self._max_writes], _group_key):
            group = list(neighbours)
            if isinstance(group[0], Adopt) and (reason := await self._owner_check.find_obstacle(job)):
                outcome.errors += [AdoptionError(job, each, reason) for each in group if isinstance(each, Adopt)]
                continue
            if outcome.pods_wait:
                group = [action for action in group if not _makes_pods(action)]
            if kind is _REPLICAS:
                outcome.merge(await self._create_replicas(job, group, begun))
            else:
                width = MAX_AT_ONCE if _is_at_once(group) else MAX_CONCURRENT
                outcome.merge(await self._carry_out_together(job, group, width, begun))
            if outcome.refused is not None or outcome.halted:
                break
        return outcome

    async def _create_replicas(self, job: Unstructured, actions: Sequence[Action], begun: bool) -> Outcome:
        """Creates pods and services side by side: a pod needs its service only once it runs."""
        outcome = Outcome()
        async with asyncio.TaskGroup() as tasks:
            made = [
                tasks.create_task(self._carry_out_together(job, group, 1, begun))
                for resource in (SERVICES, PODS)
                if (group := [action for action in actions if is_creation(action, resource)])
            ]
        for task in made:
            outcome.merge(task.result())
        return outcome

    async def _carry_out_together(
        self, job: Unstructured, actions: Sequence[Action], width: int, begun: bool
    ) -> Outcome:
        """Slow start: runs `width` actions concurrently at first, and one more after each success, because what fails
        for one child usually fails for all. Starts no more once `Outcome.should_stop` holds."""
        outcome = Outcome(begun=begun)
        todo = iter(actions)

        async def work() -> None:
            nonlocal width
            for action in todo:
                if outcome.should_stop:
                    return
                await self._children.carry_out(job, action, outcome)
                if width < MAX_CONCURRENT and not outcome.should_stop:
                    width += 1
                    tasks.create_task(work())

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(width, len(actions))):
                tasks.create_task(work())
        return outcome
