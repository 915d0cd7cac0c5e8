"""Writes the status of a job; also where it has no room: etcd holds 1.5 MiB of an object, and users may fill them."""

from __future__ import annotations

import random

import structlog

from trainop.controllers.api_errors import is_too_large
from trainop.controllers.job_state import JobStates, RefusedStatus
from trainop.controllers.own_writes import OwnWrites
from trainop.controllers.report import Reporter
from trainop.engine.actions import Event, Notice
from trainop.runtime.clock import Clock
from trainop.runtime.controller.ratelimit import exponential_delay
from trainop.runtime.errors import ApiError, InvalidError
from trainop.runtime.objects.metadata import Json, Unstructured
from trainop.runtime.texts import cut

SOONEST, LATEST = 60.0, 900.0
"""Seconds until a refused status is tried again: at first, and at most. Sooner once the job has changed."""

SHORT = 128
"""Bytes of a condition's message in a status that did not fit."""

log = structlog.get_logger(__name__)


class StatusWriter:
    """Of one controller."""

    def __init__(
        self, writes: OwnWrites, report: Reporter, states: JobStates, clock: Clock, rng: random.Random
    ) -> None:
        self._writes = writes
        self._report = report
        self._states = states
        self._clock = clock
        self._rng = rng

    def seconds_held(self, uid: str) -> float | None:
        """Until the status that was refused may be tried again; None if none was."""
        state = self._states.find(uid)
        held = state.refused_status if state else None
        return None if held is None else max(0.0, held.until - self._clock.monotonic())

    async def write(self, job: Unstructured, status: Json, version: str) -> bool:
        """Whether it is written. If the API server refuses it, that is told once and tried again ever later. Raises
        other errors."""
        state = self._states.ensure(job.metadata.uid)
        held, now = state.refused_status, self._clock.monotonic()
        if held is not None and held.version == version and now < held.until:
            return False
        try:
            await self._write_what_fits(job, status, version)
        except ApiError as error:
            if not _is_refused(error):
                raise
            failures = held.failures if held else 0
            wait = exponential_delay(self._rng, failures, base=SOONEST, cap=LATEST)
            state.refused_status = RefusedStatus(version, self._clock.monotonic() + wait, failures + 1)
            self._tell(job, status, error)
            return False
        state.refused_status = None
        return True

    async def _write_what_fits(self, job: Unstructured, status: Json, version: str) -> None:
        try:
            await self._writes.write_status(job, status, version)
        except ApiError as error:
            if not is_too_large(error) or (short := _shorten(status)) == status:
                raise
            await self._writes.write_status(job, short, version)

    def _tell(self, job: Unstructured, status: Json, error: ApiError) -> None:
        kind = job.raw.get("kind")
        log.warning("status is refused", error=str(error))
        self._report.metrics.statuses_refused.labels(self._report.framework).inc()
        last = (status.get("conditions") or [{}])[-1]
        unsaid = f"it would say {last.get('type')}: {last.get('message')}"
        text = f"The API server refuses the status of {kind} {job.metadata.name}: {cut(str(error), 256)}; {unsaid}"
        self._report.notices(job, [Notice("status", Event("Warning", "FailedStatusUpdate", text))])


def _is_refused(error: ApiError) -> bool:
    """The same status would be refused again."""
    return isinstance(error, InvalidError) or is_too_large(error)


def _shorten(status: Json) -> Json:
    """The same with short messages."""
    conditions = status.get("conditions") or []
    return {**status, "conditions": [_shorten_condition(condition) for condition in conditions]}


def _shorten_condition(condition: Json) -> Json:
    return {name: cut(value, SHORT) if name == "message" else value for name, value in condition.items()}
