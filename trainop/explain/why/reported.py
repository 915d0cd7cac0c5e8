"""What a job has reported about its progress: values, and the words for them, for every program that shows it.

`status.trainerStatus` may have been written by anybody who may write the status, so that any field may have any type.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from trainop.engine.progress import TRAINER_STATUS
from trainop.explain.why.words import span
from trainop.runtime import Json
from trainop.runtime.lowlevel import printable

STEP, TOTAL = "current_step", "total_steps"
"""Metrics of transformers' callback and of `trainop.progress` that say how far the training is."""
LOSSES = ("loss", "train_loss", "training_loss")
MAX_METRICS = 256


@dataclass(frozen=True, slots=True)
class Reported:
    """The last report. What it does not say is None."""

    percent: int | None = None
    """From 0 to 100."""
    left: int | None = None
    """Seconds until the end, as the training estimates them."""
    at: str = ""
    """By the clock of the pod."""
    metrics: dict[str, str] = field(default_factory=dict)

    @property
    def step(self) -> float | None:
        return _number(self.metrics.get(STEP))

    @property
    def total(self) -> float | None:
        return _number(self.metrics.get(TOTAL))

    @property
    def loss(self) -> str:
        """With four digits, or as it was reported if it is no finite number; empty if it was not."""
        text = next((self.metrics[name] for name in LOSSES if name in self.metrics), "")
        number = _number(text.lstrip("-"))
        return printable(text)[:12].strip() if number is None else f"{'-' * text.startswith('-')}{number:.4g}"


def read_reported(status: Json) -> Reported | None:
    """The last report in the status of a job; None if there is none."""
    given = status.get(TRAINER_STATUS)
    if not isinstance(given, dict):
        return None
    at, named = given.get("lastUpdatedTime"), given.get("metrics")
    pairs = [
        (each.get("name"), each.get("value"))
        for each in (named if isinstance(named, list) else [])[:MAX_METRICS]
        if isinstance(each, dict)
    ]
    return Reported(
        percent=_read_whole(given.get("progressPercentage"), 100),
        left=_read_whole(given.get("estimatedRemainingSeconds"), 2**31 - 1),
        at=at if isinstance(at, str) else "",
        metrics={name: value for name, value in pairs if isinstance(name, str) and isinstance(value, str)},
    )


def describe_reported(reported: Reported, rate: float | None = None) -> str:
    """`37 %, step 370 of 1,000, 4.2 steps/s, 21 min left, loss 0.31`; `rate` in steps per second. What is not known is
    left out; empty if nothing is."""
    return ", ".join(_parts(reported, rate))


def _parts(reported: Reported, rate: float | None) -> Iterator[str]:
    if reported.percent is not None:
        yield f"{reported.percent} %"
    if reported.step is not None:
        of = f" of {_count(reported.total)}" if reported.total is not None else ""
        yield f"step {_count(reported.step)}{of}"
    if rate is not None:
        yield _pace(rate)
    if reported.left is not None and reported.percent != 100:
        yield f"{span(reported.left)} left"
    if reported.loss:
        yield f"loss {reported.loss}"


def _pace(rate: float) -> str:
    """Slow trainings in seconds per step."""
    each, unit = (rate, "steps/s") if rate >= 1 else (1 / max(rate, 1e-9), "s/step")
    return f"{each:,.0f} {unit}" if each >= 100 else f"{each:.3g} {unit}"


def _count(number: float) -> str:
    return f"{number:,.0f}" if number == int(number) else f"{number:,.4g}"


def _number(text: str | None) -> float | None:
    try:
        found = float(text or "")
    except ValueError:
        return None
    return found if math.isfinite(found) and 0 <= found < 1e15 else None


def _read_whole(value: object, most: int) -> int | None:
    return max(0, min(most, value)) if isinstance(value, int) and not isinstance(value, bool) else None
