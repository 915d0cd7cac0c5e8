"""Writes the status of a job, including jobs that are too large for it.

etcd limits an object to 1.5 MiB, which a user may fill with spec and annotations. Messages of conditions are then
cut. A status that is refused anyway is reported in one event and retried with back-off.
"""

from __future__ import annotations

import random

import structlog

from trainop.controllers.api_errors import is_too_large
from trainop.controllers.job_state import JobStates, RefusedStatus
from trainop.controllers.own_writes import OwnWrites
from trainop.controllers.report import Reporter
from trainop.engine.actions import Event, Notice
from trainop.engine.root_cause import LAST_FAILURE
from trainop.runtime import ApiError, Clock, InvalidError, Json, Unstructured
from trainop.runtime.lowlevel import cut, exponential_delay

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

    async def _write_or_shorten(self, job: Unstructured, status: Json, version: str) -> None:
        try:
            await self._writes.write_status(job, status, version)
        except ApiError as error:
            if not is_too_large(error) or (short := _shorten(status)) == status:
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
    return isinstance(error, InvalidError) or is_too_large(error)


def _shorten(status: Json) -> Json:
    """The same status with short messages, and with the last failure reduced to its facts."""
    conditions = status.get("conditions") or []
    short = {**status, "conditions": [_shorten_condition(condition) for condition in conditions]}
    if isinstance(failure := status.get(LAST_FAILURE), dict):
        short[LAST_FAILURE] = {name: value for name, value in failure.items() if name not in {"log", "message"}}
    return short


def _shorten_condition(condition: Json) -> Json:
    return {name: cut(value, SHORT_MESSAGE) if name == "message" else value for name, value in condition.items()}
