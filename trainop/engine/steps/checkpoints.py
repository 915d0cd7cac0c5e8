"""Suspension waits for the next checkpoint: a job that reports `checkpoint_step` and has a checkpoint-grace runs on
until it reports a later step, for at most that long. Then its pods are ended as in any suspension.

The step and the time at which the wait began are an annotation of the job, so that another operator continues the same
wait. It is removed when the job is suspended or resumed.
"""

from __future__ import annotations

import json
import math
from datetime import datetime
from typing import NamedTuple

from trainop.engine.extensions import ANNOTATION_PREFIX, read_checkpoint
from trainop.engine.progress import CHECKPOINT_STEP, TRAINER_STATUS, find_metric
from trainop.engine.status import RUNNING, SUSPENDED, format_time
from trainop.engine.steps.builder import PlanBuilder
from trainop.runtime.lowlevel import read_time

AWAITED = ANNOTATION_PREFIX + "checkpoint-awaited"


class _Wait(NamedTuple):
    step: float
    since: datetime


def may_await_checkpoint(builder: PlanBuilder) -> bool:
    """Whether a job that is to be suspended runs, and reports checkpoints."""
    status = builder.status
    if not read_checkpoint(builder.metadata.annotations).grace:
        return False
    return status.is_true(RUNNING) and not status.is_true(SUSPENDED) and _last_step(builder) is not None


def await_checkpoint(builder: PlanBuilder) -> bool:
    """Whether the suspension waits; begins the wait, with one event. Only after `may_await_checkpoint`."""
    grace, step = read_checkpoint(builder.metadata.annotations).grace, _last_step(builder) or 0.0
    wait, now = _read(builder), builder.seen.now
    if wait is None:
        found = {"job": builder.metadata.uid, "step": step, "since": format_time(now)}
        builder.annotations[AWAITED] = json.dumps(found, separators=(",", ":"))
        text = f"is to be suspended and runs on until it reports a checkpoint after step {step:.15g}, at most {grace} s"
        builder.event("CheckpointAwaited", builder.fill("{kind} {name} ") + text)
        wait = _Wait(step, now)
    left = grace - (now - wait.since).total_seconds()
    if step > wait.step or not 0 < left <= grace + 1:  # beyond that the clock was set back
        return False
    builder.requeue_after(left)
    return True


def _last_step(builder: PlanBuilder) -> float | None:
    """The step of the last report; None if it has none."""
    return _read_number(find_metric(builder.status.get(TRAINER_STATUS), CHECKPOINT_STEP))


def _read_number(value: object) -> float | None:
    try:
        number = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _read(builder: PlanBuilder) -> _Wait | None:
    """The wait that has begun; that of a copied manifest is not the job's."""
    try:
        found = json.loads(builder.metadata.annotations.get(AWAITED, ""))
    except (ValueError, RecursionError):
        return None
    match found:
        case {"job": job, "step": int() | float() as step, "since": str(text)} if job == builder.metadata.uid:
            since = read_time(text)
            return None if since is None else _Wait(step, since)
    return None
