"""Holds back the first status of a new job for a moment, so that Created and Running usually share one write.

A status write costs the API server as much as two pods, and most jobs have all their pods running soon after they were
created. The first status waits for at most `MAX_WAIT` after the first reconcile of the job. Any other transition, such
as an end, a suspension or a restart, writes it at once, together with its own.

While it waits, the job is planned as if the status had been written: times, events and counters are those of the plan
that made them, and all are reported after the write. An operator that starts in between plans anew from the same
objects, and holds the status as long.
"""

from __future__ import annotations

from dataclasses import replace

from trainop.controllers.job_state import FirstStatus, HeldStatus, JobStates
from trainop.engine.actions import Plan
from trainop.engine.status import CREATED, RUNNING, TEMPLATE_VALID
from trainop.runtime import Clock, Json, Unstructured
from trainop.runtime.lowlevel import is_older

MAX_WAIT = 1.0
"""Seconds by which the first status is delayed at most."""


class FirstStatuses:
    """One per controller. Keeps each status in `JobState.first_status` until it is written."""

    def __init__(self, states: JobStates, clock: Clock, max_wait: float = MAX_WAIT) -> None:
        self._states = states
        self._clock = clock
        self._max_wait = max_wait

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
        return not _status_of(self.stored(job)).get("conditions")

    def seconds_to_spare(self, job: Unstructured, plan: Plan, *, unsettled: bool) -> float:
        """Seconds for which the status of the completed plan may wait; 0 if it is written now. `unsettled`: pods are
        still starting."""
        if not self.is_pending(job) or not _may_wait(plan, unsettled=unsettled):
            return 0.0
        state, now = self._states.ensure(job.metadata.uid), self._clock.monotonic()
        if state.first_status is None:
            state.first_status = FirstStatus(now + self._max_wait)
        return max(0.0, state.first_status.due - now)

    def hold(self, job: Unstructured, plan: Plan, version: str) -> None:
        """Keeps the status and the transitions of the completed plan. `version` is the job's resourceVersion."""
        first = self._states.ensure(job.metadata.uid).first_status
        if first is not None and plan.status is not None:
            base, generation = _status_of(self.stored(job)), job.metadata.generation
            first.held = HeldStatus(base, generation, plan.status, plan.transitions, version)

    def seconds_to_due(self, job: Unstructured) -> float | None:
        """Seconds until the status that is held back must be written; None if none is."""
        state = self._states.find(job.metadata.uid)
        if state is None or state.first_status is None or state.first_status.held is None:
            return None
        return max(0.0, state.first_status.due - self._clock.monotonic())

    def due_status(self, job: Unstructured) -> HeldStatus | None:
        """The status that must be written to the cached `job` now, with the newest resourceVersion that is known; None
        if it may still wait, or none is held back for the job as it is."""
        held = self._find(job)
        if held is None or _is_outdated(held, job) or self.seconds_to_due(job) != 0.0:
            return None
        version = job.metadata.resource_version
        return held if is_older(version, held.version) else replace(held, version=version)

    def drop(self, job: Unstructured) -> None:
        """Forgets the status that is held back; the next one is written at the same time at the latest."""
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
    changed = job.metadata.generation != held.generation or _status_of(job) != held.base
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


def _status_of(job: Unstructured) -> Json:
    status = job.raw.get("status")
    return status if isinstance(status, dict) else {}
