"""Writes the status of a job, and holds back the first one of a new job.

A status write costs the API server as much as two pods, and most jobs have all their pods running soon after they were
created. So `FirstStatuses` delays the first status, by `MIN_WAIT` after the first reconcile of the job, or up to
`MAX_WAIT` while writes are slow, and Created and Running usually share one write. Any other transition, such as an end,
a suspension or a restart, writes it at once, together with its own. While it waits, the job is planned as if the status
had been written: times, events and counters are those of the plan that made them, and all are reported after the write.
An operator that starts in between plans anew from the same objects, and holds the status as long.

`StatusWriter` also serves jobs that are too large for their status: etcd limits an object to 1.5 MiB, which a user may
fill with spec and annotations. Messages of conditions are then cut. A status that is refused anyway is reported in one
event and retried with back-off.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import structlog

from trainop.controllers.job_state import FirstStatus, HeldStatus, JobStates, RefusedStatus, RepeatedWrite
from trainop.controllers.live_job import OwnWrites
from trainop.controllers.outcome import CALM, FIRST_REPEAT, MAX_REPEAT
from trainop.controllers.report import Reporter
from trainop.engine.actions import Event, Notice, Plan
from trainop.engine.fields import as_object
from trainop.engine.phases import ACCOUNT
from trainop.engine.root_cause import LAST_FAILURE
from trainop.engine.status import CREATED, RUNNING, TEMPLATE_VALID
from trainop.runtime import ApiError, Clock, ForbiddenError, InvalidError, Json, Unstructured
from trainop.runtime.lowlevel import cut, exponential_delay, is_older

FIRST_RETRY, MAX_RETRY = 60.0, 900.0
"""Seconds until a refused status is retried: the first delay, and the limit of the back-off. A new version of the job
is tried at once."""

SHORT_MESSAGE = 128
"""Limit of a condition's message, in bytes, if the status does not fit otherwise."""

log = structlog.get_logger(__name__)


class StatusWriter:
    """One per controller. Refusals are kept in `JobState.refused_status`."""

    def __init__(
        self, writes: OwnWrites, report: Reporter, states: JobStates, clock: Clock, rng: random.Random
    ) -> None:
        self._writes = writes
        self._report = report
        self._states = states
        self._clock = clock
        self._rng = rng

    def seconds_to_retry(self, uid: str) -> float | None:
        """Seconds until the refused status is retried; None if none was refused."""
        state = self._states.find(uid)
        held = state.refused_status if state else None
        return None if held is None else max(0.0, held.until - self._clock.monotonic())

    async def write(self, job: Unstructured, status: Json, version: str) -> bool:
        """Writes `status` to the job at resourceVersion `version`; returns whether it was written. A refusal by the API
        server is reported and retried later. Raises other errors, `ConflictError` among them."""
        state = self._states.ensure(job.metadata.uid)
        held, now = state.refused_status, self._clock.monotonic()
        if held is not None and held.version == version and now < held.until:
            return False
        try:
            await self._write_or_shorten(job, status, version)
        except ApiError as error:
            if not _is_refused(error):
                raise
            failures = held.failures if held else 0
            wait = exponential_delay(self._rng, failures, base=FIRST_RETRY, cap=MAX_RETRY)
            state.refused_status = RefusedStatus(version, self._clock.monotonic() + wait, failures + 1)
            self._report_refusal(job, status, error)
            return False
        state.refused_status = None
        return True

    async def suspend(self, job: Unstructured, version: str, value: bool) -> float:
        """Sets `spec.runPolicy.suspend` after the status has said why. Returns 0 if that is written, else the seconds
        for which it has to wait, because another client has just undone it. A refusal is reported and raised."""
        state, now = self._states.ensure(job.metadata.uid), self._clock.monotonic()
        last = state.suspended if state.suspended and state.suspended.edition == value else None
        if last is not None and now < last.until:
            return last.until - now
        try:
            await self._writes.suspend(job, version, value)
        except (ForbiddenError, InvalidError) as error:
            self._report.event(job, Event("Warning", "FailedSuspend", f"Error suspending: {error}"))
            raise
        repeats = last.repeats + 1 if last is not None and now - last.until < CALM else 0
        wait = exponential_delay(self._rng, repeats, base=FIRST_REPEAT, cap=MAX_REPEAT)
        state.suspended = RepeatedWrite(int(value), now + wait, repeats)
        return 0.0

    async def _write_or_shorten(self, job: Unstructured, status: Json, version: str) -> None:
        try:
            await self._writes.write_status(job, status, version)
        except ApiError as error:
            if not error.too_large or (short := _shorten(status)) == status:
                raise
            await self._writes.write_status(job, short, version)

    def _report_refusal(self, job: Unstructured, status: Json, error: ApiError) -> None:
        kind = job.raw.get("kind")
        log.warning("status refused", error=str(error))
        self._report.metrics.statuses_refused.labels(self._report.framework).inc()
        last = (status.get("conditions") or [{}])[-1]
        lost = f"it would say {last.get('type')}: {last.get('message')}"
        text = f"The API server refuses the status of {kind} {job.metadata.name}: {cut(str(error), 256)}; {lost}"
        self._report.notices(job, [Notice("status", Event("Warning", "FailedStatusUpdate", text))])


def _is_refused(error: ApiError) -> bool:
    """Whether the same status would be refused again."""
    return isinstance(error, InvalidError) or error.too_large


def _shorten(status: Json) -> Json:
    """The same status with short messages, without the account, and with the last failure reduced to its facts."""
    conditions = status.get("conditions") or []
    short = {**status, "conditions": [_shorten_condition(condition) for condition in conditions]}
    short.pop(ACCOUNT, None)
    if isinstance(failure := status.get(LAST_FAILURE), dict):
        short[LAST_FAILURE] = {name: value for name, value in failure.items() if name not in {"log", "message"}}
    return short


def _shorten_condition(condition: Json) -> Json:
    return {name: cut(value, SHORT_MESSAGE) if name == "message" else value for name, value in condition.items()}


MIN_WAIT, MAX_WAIT = 1.0, 3.0
"""Seconds by which the first status is delayed: as long as `WRITES` writes take at the moment, within these limits."""

WRITES = 20
"""In a burst, the pods of a job wait for those of others before they are created, and again before they start."""


class FirstStatuses:
    """One per controller. Keeps each status in `JobState.first_status` until it is written."""

    def __init__(self, states: JobStates, clock: Clock, seconds_per_write: Callable[[], float]) -> None:
        self._states = states
        self._clock = clock
        self._seconds_per_write = seconds_per_write
        self._max_wait = MAX_WAIT

    def show(self, job: Unstructured) -> Unstructured:
        """The job with the status that is held back for it, or the job itself if none is."""
        held = self._find(job)
        return job if held is None or _is_outdated(held, job) else _with_status(job, held.status)

    def forget_outdated(self, job: Unstructured) -> None:
        """Forgets the status that is held back if the spec or the status of the job has changed since it was planned,
        or the job is being deleted. To be called before a pass plans the job."""
        held = self._find(job)
        if held is not None and _is_outdated(held, job):
            self.drop(job)

    def stored(self, job: Unstructured) -> Unstructured:
        """The job from `show` as the API server has it."""
        held = self._find(job)
        return job if held is None else _with_status(job, held.base)

    def complete(self, job: Unstructured, plan: Plan) -> Plan:
        """The plan of a job from `show`, with the status and the transitions that are still to be written."""
        held = self._find(job)
        if held is None:
            return plan
        return replace(plan, status=plan.status or held.status, transitions=(*held.transitions, *plan.transitions))

    def is_pending(self, job: Unstructured) -> bool:
        """Whether the job from `show` has no conditions yet, but those that are held back."""
        return not as_object(self.stored(job).raw.get("status")).get("conditions")

    def seconds_to_spare(self, job: Unstructured, plan: Plan, *, unsettled: bool) -> float:
        """Seconds for which the status of the completed plan may wait; 0 if it is written now. `unsettled`: pods are
        still starting."""
        if not self.is_pending(job) or not _may_wait(plan, unsettled=unsettled):
            return 0.0
        state = self._states.ensure(job.metadata.uid)
        if state.first_status is None:
            state.first_status = FirstStatus(self._clock.monotonic())
        return self._seconds_left(state.first_status)

    def hold(self, job: Unstructured, plan: Plan, version: str) -> None:
        """Keeps the status and the transitions of the completed plan. `version` is the job's resourceVersion."""
        first = self._states.ensure(job.metadata.uid).first_status
        if first is not None and plan.status is not None:
            base, generation = as_object(self.stored(job).raw.get("status")), job.metadata.generation
            first.held = HeldStatus(base, generation, plan.status, plan.transitions, version)

    def seconds_to_due(self, job: Unstructured) -> float | None:
        """Seconds until the status that is held back must be written; None if none is."""
        state = self._states.find(job.metadata.uid)
        if state is None or state.first_status is None or state.first_status.held is None:
            return None
        return self._seconds_left(state.first_status)

    def _seconds_left(self, first: FirstStatus) -> float:
        wait = min(max(MIN_WAIT, WRITES * self._seconds_per_write()), self._max_wait)
        return max(0.0, first.since + wait - self._clock.monotonic())

    def due_status(self, job: Unstructured) -> HeldStatus | None:
        """The status that must be written to the cached `job` now, with the newest resourceVersion that is known; None
        if it may still wait, or none is held back for the job as it is."""
        held = self._find(job)
        if held is None or _is_outdated(held, job) or self.seconds_to_due(job) != 0.0:
            return None
        version = job.metadata.resource_version
        return held if is_older(version, held.version) else replace(held, version=version)

    def drop(self, job: Unstructured) -> None:
        """Forgets the status that is held back; the next one waits no longer for it."""
        state = self._states.find(job.metadata.uid)
        if state is not None and state.first_status is not None:
            state.first_status.held = None

    def written(self, job: Unstructured) -> None:
        """Call after a status of the job was written."""
        self._states.ensure(job.metadata.uid).first_status = None

    def _find(self, job: Unstructured) -> HeldStatus | None:
        state = self._states.find(job.metadata.uid)
        return state.first_status.held if state is not None and state.first_status is not None else None


def _is_outdated(held: HeldStatus, job: Unstructured) -> bool:
    """Whether the status was planned from another spec or status, or for a job that is being deleted now."""
    changed = job.metadata.generation != held.generation or as_object(job.raw.get("status")) != held.base
    return changed or job.metadata.terminating


def _may_wait(plan: Plan, *, unsettled: bool) -> bool:
    """Whether the plan only says that the job was created, or that some of its pods run already."""
    if plan.status is None or plan.status_first:
        return False
    types = [condition.get("type") for condition in plan.status.get("conditions") or ()]
    types = types[1:] if types[:1] == [TEMPLATE_VALID] else types
    return types == [CREATED] or (types == [CREATED, RUNNING] and unsettled)


def _with_status(job: Unstructured, status: Json) -> Unstructured:
    return Unstructured({**job.raw, "status": status}, job.metadata, job.fault, reduced=job.reduced)
