"""The shell around the engine: observes a job, calls `plan`, carries out the actions, writes the status, reports.

One reconciler per kind, of which it knows only what `trainop.engine.kind.Kind` has. All decisions are in the plan; all
input and output is here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import structlog
from structlog.contextvars import bound_contextvars

from trainop.controllers.apply import Applier
from trainop.controllers.job_state import HeldStatus, JobStates
from trainop.controllers.live_job import OwnWrites
from trainop.controllers.observe import Observer
from trainop.controllers.outcome import MIN_REQUEUE, Outcome, Passes, earliest
from trainop.controllers.report import Reporter
from trainop.controllers.statuses import FirstStatuses, StatusWriter
from trainop.engine.actions import Action, Answer, Plan, Remove, is_creation
from trainop.engine.seen import Snapshot
from trainop.runtime import (
    DONE,
    PODS,
    ApiError,
    ConflictError,
    InvalidError,
    Key,
    Metadata,
    NotFoundError,
    ReconcileError,
    Result,
    TooManyRequestsError,
    UnauthorizedError,
    Unstructured,
)

STALE_CACHE_RETRY = 5.0
"""Seconds until the next pass if a live read shows that the job was deleted or changed, and the cache does not yet. The
watch event usually triggers an earlier pass."""

FORBIDDEN_RETRY = 600.0
"""Seconds until the next pass of a job whose children may not be listed. The return of the permission triggers one."""

_INDEPENDENT_OF_CONTENT = (ConflictError, NotFoundError, TooManyRequestsError, UnauthorizedError)
"""The 4xx responses of the API server that do not reject what is written: the job was changed (409) or deleted (404)
meanwhile, the server is busy (429), or the operator's token has expired (401). The same write may succeed later."""

_TOO_LONG = "Too long"
"""Part of the API server's message if the annotations exceed 256 KiB."""

log = structlog.get_logger(__name__)


class JobReconciler:
    """Brings the children and the status of one job closer to its spec, in one pass per call of `reconcile`.

    A pass that stops early always requeues the job, because the event that it waits for may have been processed
    already, or may be filtered as the operator's own write. Only a job that the cache does not hold is `DONE`.
    """

    def __init__(
        self,
        *,
        observer: Observer,
        states: JobStates,
        writes: OwnWrites,
        first_statuses: FirstStatuses,
        statuses: StatusWriter,
        applier: Applier,
        passes: Passes,
        report: Reporter,
    ) -> None:
        self._observer = observer
        self._view = observer.view
        self._kind = observer.view.kind
        self._states = states
        self._writes = writes
        self._first_statuses = first_statuses
        self._statuses = statuses
        self._applier = applier
        self._passes = passes
        self._report = report

    async def reconcile(self, key: Key) -> Result:
        """Runs one pass. Raises errors of the API server, which the controller retries with back-off."""
        job = self._view.job(key)
        self._states.follow(key, job.metadata.uid if job else None)
        if job is None:
            error = self._view.unreadable(key)
            if error is not None:
                self._report.unreadable(key, error)
            return await self._release_companions(key, exists=error is not None)
        if forbidden := self._view.forbidden_in(key.namespace):
            self._report.forbidden(job, forbidden)
            return Result(requeue_after=FORBIDDEN_RETRY)
        with bound_contextvars(job=f"{key.namespace}.{key.name}", uid=job.metadata.uid):
            try:
                result = await self._reconcile_current(job)
            except ConflictError:
                log.debug("conflict, reconciling again")
                return Result(requeue=True)
        held_for = self._first_statuses.seconds_to_due(job)
        if result.requeue or held_for is None:
            return result
        return Result(requeue_after=earliest(result.requeue_after, held_for))

    async def _reconcile_current(self, cached: Unstructured) -> Result:
        """Reconciles the job as it is after the operator's last write to it."""
        if self._first_statuses.seconds_to_due(cached) == 0:
            self._first_statuses.forget_outdated(cached)
        if (held := self._first_statuses.due_status(cached)) is not None:
            return await self._write_held(cached, held)
        wait = self._writes.seconds_until_live(cached)
        if wait:
            return Result(requeue_after=wait)
        job = cached if wait is None else await self._writes.read_live(cached)
        if job is None:
            return Result(requeue_after=STALE_CACHE_RETRY)
        self._first_statuses.forget_outdated(job)
        return await self._reconcile_job(self._first_statuses.show(job))

    async def _write_held(self, job: Unstructured, held: HeldStatus) -> Result:
        """Writes the first status, which has waited long enough; the caches need not be current for that. The next pass
        starts from what the caches show by then."""
        try:
            await self._write_status(job, Plan(status=held.status, transitions=held.transitions), held.version)
        except NotFoundError:
            return Result(requeue_after=STALE_CACHE_RETRY)
        finally:
            self._first_statuses.drop(job)  # after a conflict, the next pass plans it anew
        return Result(requeue_after=MIN_REQUEUE)

    async def _release_companions(self, key: Key, *, exists: bool) -> Result:
        """Removes the operator's finalizers from the companions of a deleted job. Of a job that `exists` and cannot be
        read, only companions that are being deleted are released."""
        found = [each for each in self._view.labelled_companions(key) if each.metadata.terminating or not exists]
        patches = [patch for each in found if (patch := self._kind.release(each)) is not None]
        if not patches:
            return DONE
        nameless = Unstructured({}, Metadata(name=key.name, namespace=key.namespace))
        outcome = await self._applier.carry_out(nameless, patches)
        if outcome.errors:
            raise outcome.errors[0]
        return Result(requeue_after=outcome.requeue_after) if outcome.requeue_after is not None else DONE

    def seconds_to_due(self, key: Key) -> float | None:
        """Seconds until the cached job reaches a deadline or its time to live, or its first status is due; None if it
        has none of these."""
        job = self._view.job(key)
        if job is None:
            return None
        job = self._first_statuses.show(job)
        due = self._kind.seconds_to_due(job, self._observer.now(job))
        return earliest(due, self._first_statuses.seconds_to_due(job))

    async def _reconcile_job(self, job: Unstructured) -> Result:
        seen = await self._observer.observe(job)
        if not isinstance(seen, Snapshot):
            return Result(requeue_after=earliest(seen))
        plan = self._kind.decide(seen)
        with self._applier.right_of_way.take(plan.actions):
            return await self._carry_out(seen, plan, job.metadata.resource_version)

    async def _carry_out(self, seen: Snapshot, plan: Plan, version: str) -> Result:
        """Carries out the plan. `version` is the latest resourceVersion of the job that this pass knows. Raises
        `ConflictError` if it is outdated."""
        job, plan = seen.job, self._first_statuses.complete(seen.job, plan)
        if (wait := self._progress_delay(seen, plan)) > 0:
            return Result(requeue_after=earliest(wait, plan.requeue_after))
        if not await self._applier.prepare(job, plan.actions):
            return Result(requeue_after=earliest(STALE_CACHE_RETRY, plan.requeue_after))
        try:
            refused, version = await self._annotate(job, plan, version)
            outcome = Outcome(refused=refused) if refused else await self._act_and_write_status(seen, plan, version)
            if outcome.refused is not None:
                return await self._carry_out(seen, self._kind.refuse(seen, outcome.refused), version)
            suspend = plan.suspend
            if suspend is not None and (wait := await self._statuses.suspend(job, version, suspend)) > 0:
                outcome.wait(wait)
        except NotFoundError:  # raised only by writes of the job itself
            return Result(requeue_after=STALE_CACHE_RETRY)
        self._report.notices(job, plan.notices)
        if (due := self._statuses.seconds_to_retry(job.metadata.uid)) is not None:
            outcome.wait(due)
        return self._passes.finish(seen, plan, outcome)

    async def _annotate(self, job: Unstructured, plan: Plan, version: str) -> tuple[str | None, str]:
        """Writes the annotations of the plan. Returns why the API server refuses them for good (the restart history
        exceeds the size limit of annotations, or the job that of objects) or None, and the job's new version. Refused
        annotations that the plan does not require are dropped."""
        if not plan.annotations:
            return None, version
        try:
            return None, await self._writes.annotate(job, plan.annotations, version)
        except ApiError as error:
            if not plan.annotations_required and _rejects_content(error):
                log.warning("annotations refused, the job ends without them", error=str(error))
                return None, version
            if not isinstance(error, InvalidError) and not error.too_large:
                raise
            if plan.begun and _TOO_LONG not in str(error) and not error.too_large:
                # An admission policy refuses them, which may change.
                raise ReconcileError(f"the API server refuses the job's annotations: {error}") from error
            return f"its restarts cannot be noted: {error}", version

    def _progress_delay(self, seen: Snapshot, plan: Plan) -> float:
        """Seconds by which the status is delayed since it has nothing but progress. The first status is not."""
        if not _is_progress_only(plan) or self._first_statuses.is_pending(seen.job):
            return 0.0
        return self._writes.progress_delay(seen.job, unsettled=_is_unsettled(seen))

    async def _act_and_write_status(self, seen: Snapshot, plan: Plan, version: str) -> Outcome:
        """Carries out actions and writes the status, in the plan's order. Deletions of pods and the status write run
        concurrently, because the replacements wait for both."""
        job, unsettled = seen.job, _creates(plan) or _is_unsettled(seen)
        spare = self._first_statuses.seconds_to_spare(job, plan, unsettled=unsettled)
        if spare and plan.suspend is None:  # a write of the job makes the version of a held status outdated
            return await self._act_and_hold_status(job, plan, version, spare)
        if plan.status_first:
            if not await self._write_status(job, plan, version):
                return Outcome()  # an action without its status would be undone by the next pass
            return await self._applier.carry_out(job, plan.actions, begun=plan.begun)
        if plan.status is not None and _only_deletes(plan):
            async with asyncio.TaskGroup() as tasks:
                acting = tasks.create_task(self._applier.carry_out(job, plan.actions, begun=plan.begun))
                writing = tasks.create_task(_error_of(self._write_status(job, plan, version)))
            if error := writing.result():
                raise error
            return acting.result()
        outcome = await self._applier.carry_out(job, plan.actions, begun=plan.begun)
        if outcome.refused is None:
            await self._write_status(job, plan, version)
        return outcome

    async def _act_and_hold_status(self, job: Unstructured, plan: Plan, version: str, spare: float) -> Outcome:
        """Carries out the actions of a new job and holds its status back. If they take longer than it may wait, which
        is `spare` seconds at first, or something is in their way, the status is written."""
        error = None
        async with asyncio.TaskGroup() as tasks:
            acting = tasks.create_task(self._applier.carry_out(job, plan.actions, begun=plan.begun))
            while not acting.done() and spare > 0:
                await asyncio.wait((acting,), timeout=spare)
                spare = self._first_statuses.seconds_to_spare(job, plan, unsettled=True)
            done = acting.done()
            if not done:
                error = await _error_of(self._write_status(job, plan, version))
        if error:
            raise error
        outcome = acting.result()
        if done and outcome.undisturbed:
            self._first_statuses.hold(job, plan, version)
        elif done and outcome.refused is None:
            await self._write_status(job, plan, version)
        return outcome

    async def _write_status(self, job: Unstructured, plan: Plan, version: str) -> bool:
        """Writes the status and then reports its transitions. False if the API server refuses the status."""
        if plan.status is not None:
            stored = self._first_statuses.stored(job)
            if not await self._statuses.write(stored, plan.status, version):
                return False
            self._first_statuses.written(job)
            self._report.phases(stored, plan.status)
        self._report.transitions(job, plan.transitions)
        return True


def _only_deletes(plan: Plan) -> bool:
    return bool(plan.actions) and all(isinstance(each, Answer) or _deletes_pod(each) for each in plan.actions)


def _deletes_pod(action: Action) -> bool:
    return isinstance(action, Remove) and action.resource == PODS


async def _error_of(write: Coroutine[None, None, object]) -> Exception | None:
    """Returns the error of a write instead of raising it, so that it does not cancel the concurrent deletions."""
    try:
        await write
    except (ApiError, ConnectionError, TimeoutError, ReconcileError) as error:
        return error
    return None


def _rejects_content(error: ApiError) -> bool:
    """Whether the API server rejects what was to be written, rather than a write at this time."""
    return 400 <= error.code < 500 and not isinstance(error, _INDEPENDENT_OF_CONTENT)


def _creates(plan: Plan) -> bool:
    return any(map(is_creation, plan.actions))


def _is_progress_only(plan: Plan) -> bool:
    """Whether the plan only updates progress in the status, which may be delayed."""
    return not (plan.status is None or plan.status_first or plan.actions or plan.annotations)


def _is_unsettled(seen: Snapshot) -> bool:
    """Whether pods are still pending, or some have succeeded and others still run."""
    phases = {pod.status.phase for pod in seen.pods}
    return "Pending" in phases or phases >= {"Running", "Succeeded"}
