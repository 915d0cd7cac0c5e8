"""The body of a report: read, checked and made into what `status.trainerStatus` becomes."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated

import msgspec

from trainop.engine.progress import CHECKPOINT_STEP, CHECKPOINT_TIME, find_metric
from trainop.runtime import Json
from trainop.runtime.lowlevel import UNREADABLE, cut, read_time, timestamp

MAX_BODY = 64 * 1024
"""Bytes of a body."""
MAX_METRICS = 256
_INT32 = 2**31 - 1

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


class _Metric(msgspec.Struct, frozen=True, omit_defaults=True):
    name: _Text
    value: _Text


class TrainerStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """What one report says. Fields that are None were not given."""

    progress_percentage: Annotated[int, msgspec.Meta(ge=0, le=100)] | None = None
    estimated_remaining_seconds: Annotated[int, msgspec.Meta(ge=0, le=_INT32)] | None = None
    metrics: Annotated[tuple[_Metric, ...], msgspec.Meta(max_length=MAX_METRICS)] | None = None
    last_updated_time: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    """By the clock of the client, so that nothing is decided by it."""

    def as_json(self) -> Json:
        """The value of `status.trainerStatus`. Times have whole seconds, as all times of Kubernetes."""
        found: Json = msgspec.to_builtins(self)
        if self.metrics is not None:
            found["metrics"] = list(found["metrics"])  # equal to what the cache shows of it
        if self.last_updated_time is not None:
            utc = self.last_updated_time.astimezone(UTC)
            found["lastUpdatedTime"] = utc.strftime("%Y-%m-%dT%H:%M:%SZ")
        return found

    def find_metric(self, name: str) -> str | None:
        return next((each.value for each in self.metrics or () if each.name == name), None)

    def date_checkpoint(self, now: datetime, known: Iterable[object]) -> TrainerStatus:
        """The report, which says when its checkpoint was first heard of: now, unless one of the `known` values of
        `trainerStatus` has the same step. A report without a step is left as it is, and so is one with as many metrics
        as are possible."""
        step = self.find_metric(CHECKPOINT_STEP)
        others = tuple(each for each in self.metrics or () if each.name != CHECKPOINT_TIME)
        if step is None or len(others) >= MAX_METRICS:
            return self
        times = [find_metric(each, CHECKPOINT_TIME) for each in known if find_metric(each, CHECKPOINT_STEP) == step]
        heard = min((at for each in times if (at := read_time(each)) is not None), default=now)
        dated = _Metric(name=CHECKPOINT_TIME, value=timestamp(min(heard, now)))
        return msgspec.structs.replace(self, metrics=(*others, dated))


class _Report(msgspec.Struct, frozen=True, rename="camel"):
    trainer_status: TrainerStatus | None = None


class InvalidReportError(Exception):
    """The body is no report; the message names the field and what is wrong."""


_decode = msgspec.json.Decoder(_Report).decode


def read_report(body: bytes) -> TrainerStatus | None:
    """The report in the body; None if it has none. Raises `InvalidReportError`."""
    try:
        return _decode(body).trainer_status
    except UNREADABLE as error:
        raise InvalidReportError(cut(str(error), 512)) from None
