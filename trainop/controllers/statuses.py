"""Writes the status of a job; also where it has no room: etcd holds 1.5 MiB of an object, and users may fill them."""

from __future__ import annotations

import random
from dataclasses import dataclass

import structlog

from trainop.controllers.api_errors import is_too_large
from trainop.controllers.own_writes import OwnWrites
from trainop.controllers.report import Reporter
from trainop.engine.actions import Event, Notice
from trainop.runtime.clock import Clock
from trainop.runtime.controller.ratelimit import ExponentialLimiter
from trainop.runtime.errors import ApiError, InvalidError
from trainop.runtime.objects.metadata import Json, Unstructured
from trainop.runtime.texts import cut

SOONEST, LATEST = 60.0, 900.0
"""Seconds until a refused status is tried again: at first, and at most. Sooner once the job has changed."""

SHORT = 128
"""Bytes of a condition's message in a status that did not fit."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Held:
    version: str
    """The job's resourceVersion: in any other there may be room."""
    until: float


class StatusWriter:
    """Of one controller, by the job's UID."""

    def __init__(self, writes: OwnWrites, report: Reporter, clock: Clock, rng: random.Random) -> None:
        self._writes = writes
        self._report = report
        self._clock = clock
        self._held: dict[str, _Held] = {}
        self._delays: ExponentialLimiter[str] = ExponentialLimiter(clock, rng, base=SOONEST, cap=LATEST)

    def seconds_held(self, uid: str) -> float | None:
        """Until the status that was refused may be tried again; None if none was."""
        held = self._held.get(uid)
        return None if held is None else max(0.0, held.until - self._clock.monotonic())

    async def write(self, job: Unstructured, status: Json, version: str) -> bool:
        """Whether it is written. If the API server refuses it, that is told once and tried again ever later. Raises
        other errors."""
        uid = job.metadata.uid
        held = self._held.get(uid)
        if held is not None and held.version == version and self._clock.monotonic() < held.until:
            return False
        try:
            await self._write_what_fits(job, status, version)
        except ApiError as error:
            if not _is_refused(error):
                raise
            self._held[uid] = _Held(version, self._clock.monotonic() + self._delays.delay(uid))
            self._tell(job, status, error)
            return False
        self.forget(uid)
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

    def forget(self, uid: str) -> None:
        self._held.pop(uid, None)
        self._delays.forget(uid)


def _is_refused(error: ApiError) -> bool:
    """The same status would be refused again."""
    return isinstance(error, InvalidError) or is_too_large(error)


def _shorten(status: Json) -> Json:
    """The same with short messages."""
    conditions = status.get("conditions") or []
    return {**status, "conditions": [_shorten_condition(condition) for condition in conditions]}


def _shorten_condition(condition: Json) -> Json:
    return {name: cut(value, SHORT) if name == "message" else value for name, value in condition.items()}
