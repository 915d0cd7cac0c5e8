"""Ratios between operators that took turns, with confidence intervals.

Runs of the same repetition follow one another, so that they share the machine's conditions: they form a pair, and the
ratio is the median of the pairs' ratios. Its interval lies between two of these ratios and needs no assumption on their
distribution (the sign test): the smallest and the largest of five pairs enclose the true median with 94 % confidence,
of three pairs with 75 %.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

CONFIDENCE = 0.93
"""Of six and more pairs, the narrowest interval with this confidence is taken; of fewer, the whole range."""


class Ratio(NamedTuple):
    value: float
    low: float
    high: float
    pairs: int

    @property
    def interval(self) -> str:
        """Empty if it is unknown, because there is only one pair."""
        return f"{self.low:.2f} to {self.high:.2f}" if self.pairs > 1 else ""

    @property
    def is_difference(self) -> bool:
        """Whether the interval excludes 1. Of a single pair this is not known."""
        return self.pairs == 1 or not self.low <= 1 <= self.high

    def __str__(self) -> str:
        if not self.interval:
            return f"{self.value:.2f}"
        return f"{self.value:.2f} ({self.interval})" if self.is_difference else f"no difference ({self.interval})"


def compare(ours: Mapping[int, float], base: Mapping[int, float]) -> Ratio | None:
    """The ratio of figures by repetition; None if the base is 0 or there are no figures.

    Without common repetitions, it is that of the medians, in the range of all possible pairs.
    """
    if not ours or not base or not all(base.values()):
        return None
    if shared := sorted(ours.keys() & base.keys()):
        return median_of([ours[number] / base[number] for number in shared])
    value = statistics.median(ours.values()) / statistics.median(base.values())
    low, high = min(ours.values()) / max(base.values()), max(ours.values()) / min(base.values())
    return Ratio(value, low, high, min(len(ours), len(base)))


def median_of(ratios: Sequence[float]) -> Ratio:
    """The median of ratios, which are measured independently, and its interval."""
    ordered = sorted(ratios)
    skipped = _skipped(len(ordered))
    return Ratio(statistics.median(ordered), ordered[skipped], ordered[-1 - skipped], len(ordered))


def _skipped(pairs: int) -> int:
    """How many values at either end of `pairs` are outside of the interval: as many as `CONFIDENCE` permits."""
    skipped, outside = 0, 0.0
    while (outside := outside + 2 * math.comb(pairs, skipped) / 2**pairs) <= 1 - CONFIDENCE:
        skipped += 1
    return max(skipped - 1, 0)
