"""The shell around the engine: look, plan, write, report. One for each kind, of which it knows no more than `Kind`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import replace

import structlog
from structlog.contextvars import bound_contextvars

from trainop.controllers.api_errors import is_too_large
from trainop.controllers.apply import Applier
from trainop.controllers.job_clock import JobClock
from trainop.controllers.job_state import JobStates
from trainop.controllers.observe import View, observe_live
from trainop.controllers.outcome import Outcome
from trainop.controllers.own_writes import OwnWrites
from trainop.controllers.owner_check import OwnerCheck
from trainop.controllers.refused_children import RefusedChildren
from trainop.controllers.report import Reporter
from trainop.controllers.statuses import StatusWriter
from trainop.engine.actions import Apply, CreatePod, CreateService, DeletePod, Event, Plan
from trainop.engine.seen import Options, Snapshot
from trainop.runtime.client.client import Client
from trainop.runtime.client.decoding import read_object
from trainop.runtime.clock import Clock
from trainop.runtime.controller.expectations import Expectations
from trainop.runtime.controller.ratelimit import exponential_delay
from trainop.runtime.controller.reconcile import DONE, Result
from trainop.runtime.errors import (
    ApiError,
    ConflictError,
    InvalidError,
    NotFoundError,
    ReconcileError,
    TooManyRequestsError,
    UnauthorizedError,
)
from trainop.runtime.objects.metadata import Key, Unstructured

SOONEST = 0.01
"""Seconds; a deadline that is just due must not become a loop."""

GONE_AGAIN_AFTER = 5.0
"""Seconds until the next look at a job that is gone, or has changed, although the cache does not show it. Its event
wakes the key before that; nothing depends on it."""

_OUTDATED = (ConflictError, NotFoundError, TooManyRequestsError, UnauthorizedError)
"""Errors of a write that say nothing about its content."""

_TOO_LONG = "Too long"
"""In the API server's words about annotations of more than 256 KiB."""

SHOWN_SOON = 0.02
"""Seconds that caches are given to show what an unfinished pass has written, before they are asked again."""

log = structlog.get_logger(__name__)


class JobReconciler:
    """Brings the children and the status of one job nearer to what its spec asks for.

    A pass that stops early always asks for another one: no event may be relied upon that a cache could have shown
    before, or that could be taken for the echo of an own write. Only a job that the cache does not hold is `DONE`.
    """

    def __init__(
        self,
        *,
        view: View,
        client: Client,
        expectations: Expectations,
        states: JobStates,
        writes: OwnWrites,
        owner_check: OwnerCheck,
        report: Reporter,
        applier: Applier,
        options: Options,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._view = view
        self._kind = view.kind
        self._client = client
        self._expectations = expectations
        self._states = states
        self._writes = writes
        self._owner_check = owner_check
        self._report = report
        self._applier = applier
        self._options = options
        self._clock = clock
        self._rng = rng
        self._time = JobClock(states, clock)
        self._uids: dict[Key, str] = {}
        self._refusals = RefusedChildren(states, clock, rng)
        self._statuses = StatusWriter(writes, report, states, clock, rng)

    async def reconcile(self, key: Key) -> Result:
        job = self._view.job(key)
        self._remember(key, job)
        if job is None:
            if error := self._view.unreadable(key):
                self._report.unreadable(key, error)
            return DONE
        wait = self._writes.seconds_until_live(job)
        if wait:
            return Result(requeue_after=wait)
        if wait is not None:
            job = await self._read_live(job)
            if job is None:
                return Result(requeue_after=GONE_AGAIN_AFTER)
        with bound_contextvars(job=f"{key.namespace}.{key.name}", uid=job.metadata.uid):
            try:
                return await self._pursue(job)
            except ConflictError:
                log.debug("job changed meanwhile")
                return Result(requeue=True)

    def seconds_to_due(self, key: Key) -> float | None:
        """Until a deadline or time to live of the job, as far as the cache shows it."""
        job = self._view.job(key)
        return None if job is None else self._kind.due(job, self._time.now(job))

    def _remember(self, key: Key, job: Unstructured | None) -> None:
        """Forget what was known of the job that had this name before."""
        uid = self._uids.get(key)
        if uid is not None and (job is None or job.metadata.uid != uid):
            self._states.forget(uid)
            del self._uids[key]
        if job is not None:
            self._uids[key] = job.metadata.uid
            self._states.ensure(job.metadata.uid)

    async def _read_live(self, cached: Unstructured) -> Unstructured | None:
        """The job as it is now; None if it is gone. One that has its name now is left until the cache shows it: known
        too early, it would be forgotten with all that is expected of it when the cache is looked at again."""
        key = cached.metadata.key
        log.warning("cache lags behind, reading the job itself")
        try:
            found = await self._client.get(self._kind.resource, key.name, key.namespace)
            job = read_object(self._kind.resource, found)
        except NotFoundError:
            return None
        if job.metadata.uid != cached.metadata.uid:
            return None
        self._writes.confirm(job)
        return job

    async def _pursue(self, job: Unstructured) -> Result:
        uid = job.metadata.uid
        now, wall = self._time.now(job), self._clock.now()
        if self._expectations.satisfied(uid, self._view.look):
            seen = self._view.snapshot(job, now, self._options, wall=wall)
        else:
            wait, due = self._expectations.expires_in(uid), self._kind.due(job, now)
            if wait is None or wait <= 0:
                log.warning("own writes never showed, listing children", missing=self._expectations.expire(uid))
            elif due is None or due > 0:
                wait = min(wait, SHOWN_SOON) if self._states.ensure(uid).unfinished else wait
                return Result(requeue_after=_earliest(wait, due))
            seen = await observe_live(self._client, self._kind, job, now, self._options, wall=wall)
        return await self._carry_out(seen, self._kind.plan(seen), job.metadata.resource_version)

    async def _carry_out(self, seen: Snapshot, plan: Plan, version: str) -> Result:
        """`version` is the job's latest resourceVersion known to this pass. Raises `ConflictError` if that is old."""
        job = seen.job
        if _can_wait(plan) and (wait := self._writes.progress_delay(job, unsettled=_is_unsettled(seen))):
            return Result(requeue_after=_earliest(wait, plan.requeue_after))
        if _creates(plan) and not await self._owner_check.confirm(job):
            return Result(requeue_after=_earliest(GONE_AGAIN_AFTER, plan.requeue_after))
        self._owner_check.expect_deleted(job, [action.uid for action in plan.actions if isinstance(action, DeletePod)])
        plan, held_for = self._hold_back(job, plan)
        try:
            refused, version = await self._annotate(job, plan, version)
            outcome = Outcome(refused=refused) if refused else await self._act_and_tell(job, plan, version)
            if outcome.refused is not None:
                return await self._carry_out(seen, self._kind.reject(seen, outcome.refused), version)
        except NotFoundError:  # only writes of the job itself raise it
            return Result(requeue_after=GONE_AGAIN_AFTER)
        self._report.notices(job, plan.notices)
        self._tell_refusals(job, outcome)
        for due in (held_for, self._statuses.seconds_to_retry(job.metadata.uid)):
            if due is not None:
                outcome.wait(due)
        return self._result(job, plan, outcome)

    def _hold_back(self, job: Unstructured, plan: Plan) -> tuple[Plan, float | None]:
        """The plan without what the API server refused a moment ago, and the seconds until that is tried again."""
        actions, wait = self._refusals.allow(job.metadata, plan.actions)
        return (plan, None) if actions is plan.actions else (replace(plan, actions=tuple(actions)), wait)

    def _tell_refusals(self, job: Unstructured, outcome: Outcome) -> None:
        """One event for each reason, however many children it keeps from being made and however often."""
        fresh, wait = self._refusals.record(job.metadata, outcome.refused_children)
        for each in fresh:
            text = f"Error creating: {each.message.replace('*', each.name)}"
            self._report.event(job, Event("Warning", f"FailedCreate{each.kind}", text))
        if wait is not None:
            outcome.wait(wait)

    async def _annotate(self, job: Unstructured, plan: Plan, version: str) -> tuple[str | None, str]:
        """Why the API server refuses the annotations, which takes no retry to find out again: restarts of more pods
        than it lets a job keep account of, or a job without room for any. And the job's new version."""
        if not plan.annotations:
            return None, version
        try:
            return None, await self._writes.annotate(job, plan.annotations, version)
        except ApiError as error:
            if not plan.annotations_required and 400 <= error.code < 500 and not isinstance(error, _OUTDATED):
                log.warning("annotations refused, the job ends without them", error=str(error))
                return None, version
            if not isinstance(error, InvalidError) and not is_too_large(error):
                raise
            if plan.begun and _TOO_LONG not in str(error) and not is_too_large(error):  # a policy, which may change
                raise ReconcileError(f"the API server refuses the job's annotations: {error}") from error
            return f"its restarts cannot be noted: {error}", version

    async def _act_and_tell(self, job: Unstructured, plan: Plan, version: str) -> Outcome:
        """Actions and status in the plan's order. While pods are deleted, the status is written: their successors wait
        for both."""
        if plan.status_first:
            if not await self._write_status(job, plan, version):
                return Outcome()  # what is not written must not be acted upon: the next pass would undo it
            return await self._applier.carry_out(job, plan.actions, begun=plan.begun)
        if plan.status is not None and _only_deletes(plan):
            async with asyncio.TaskGroup() as tasks:
                acting = tasks.create_task(self._applier.carry_out(job, plan.actions, begun=plan.begun))
                telling = tasks.create_task(_fault_of(self._write_status(job, plan, version)))
            if fault := telling.result():
                raise fault
            return acting.result()
        outcome = await self._applier.carry_out(job, plan.actions, begun=plan.begun)
        if outcome.refused is None:
            await self._write_status(job, plan, version)
        return outcome

    async def _write_status(self, job: Unstructured, plan: Plan, version: str) -> bool:
        """And tell of the transitions, which are so from then on. False if the API server refuses the status."""
        if plan.status is not None and not await self._statuses.write(job, plan.status, version):
            return False
        self._report.transitions(job, plan.transitions)
        return True

    def _result(self, job: Unstructured, plan: Plan, outcome: Outcome) -> Result:
        """Raises the errors of the actions."""
        state = self._states.ensure(job.metadata.uid)
        state.unfinished = outcome.unfinished
        if outcome.over_quota:
            outcome.wait(exponential_delay(self._rng, state.quota_failures, base=1.0, cap=60.0))
            state.quota_failures += 1
        else:
            state.quota_failures = 0
        if len(outcome.errors) == 1:
            raise outcome.errors[0]
        if outcome.errors:
            raise ExceptionGroup("actions failed", outcome.errors)
        if outcome.unfinished:
            return Result(requeue=True)
        unseen = self._expectations.expires_in(job.metadata.uid)  # what comes and goes unseen wakes nobody
        return Result(requeue_after=_earliest(plan.requeue_after, outcome.requeue_after, unseen))


def _only_deletes(plan: Plan) -> bool:
    return bool(plan.actions) and all(isinstance(action, DeletePod) for action in plan.actions)


async def _fault_of(write: Coroutine[None, None, object]) -> Exception | None:
    """What a write ends with, so that it does not end what goes on beside it."""
    try:
        await write
    except (ApiError, ConnectionError, TimeoutError, ReconcileError) as error:
        return error
    return None


def _creates(plan: Plan) -> bool:
    return any(isinstance(action, CreatePod | CreateService | Apply) for action in plan.actions)


def _can_wait(plan: Plan) -> bool:
    """Whether all that it does is to tell how far the job is."""
    return not (plan.status is None or plan.status_first or plan.actions or plan.annotations)


def _is_unsettled(seen: Snapshot) -> bool:
    """Whether pods are still to start, or some have ended well and others not yet."""
    phases = {pod.status.phase for pod in seen.pods}
    return "Pending" in phases or phases >= {"Running", "Succeeded"}


def _earliest(*seconds: float | None) -> float | None:
    """A wait of 0 is a wait, not none at all."""
    waits = [max(each, SOONEST) for each in seconds if each is not None]
    return min(waits, default=None)
