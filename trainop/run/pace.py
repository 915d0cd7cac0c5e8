"""The progress of one job as `trainop run` follows it: the last report, the pace, and when a line about it is due."""

from __future__ import annotations

from collections import deque

from rich.text import Text

from trainop.explain.why.reported import Reported, describe_reported

WINDOW = 12
"""Reports whose steps and times make the pace."""
LINE_INTERVAL = 30.0
"""Seconds after which a line is due although less than a tenth of the training was done since the last one."""
BAR = 24
"""Characters."""


class Pace:
    """Takes the reports of one job. Times are those of the monotonic clock, not of the pods."""

    def __init__(self) -> None:
        self.reported: Reported | None = None
        self._steps: deque[tuple[float, float]] = deque(maxlen=WINDOW)
        """Step and time of the last reports."""
        self._line: tuple[int, float] | None = None
        """The tenth of the training, and when a line about it was printed last."""

    def take(self, reported: Reported | None, now: float) -> bool:
        """Whether this report is a new one."""
        if reported is None or reported == self.reported:
            return False
        self.reported = reported
        if reported.step is not None:
            if self._steps and reported.step < self._steps[-1][0]:  # the training began again
                self._steps.clear()
            self._steps.append((reported.step, now))
        return True

    @property
    def rate(self) -> float | None:
        """Steps per second; None as long as it is not known."""
        if len(self._steps) < 2:
            return None
        (first, began), (last, ended) = self._steps[0], self._steps[-1]
        return (last - first) / (ended - began) if last > first and ended > began else None

    def is_line_due(self, now: float) -> bool:
        """Whether a line is to be printed: for the first report, for each tenth of the training, in either direction,
        and otherwise every `LINE_INTERVAL`. A line is then counted as printed."""
        if self.reported is None:
            return False
        tenth = (self.reported.percent or 0) // 10
        if self._line is not None and self._line[0] == tenth and now - self._line[1] < LINE_INTERVAL:
            return False
        self._line = (tenth, now)
        return True

    @property
    def text(self) -> str:
        """The last report in words; empty if there is none."""
        return describe_reported(self.reported, self.rate) if self.reported else ""

    def draw(self) -> Text | None:
        """The bar, if a percentage was reported, and the words; None before the first report."""
        if not self.text:
            return None
        percent = self.reported.percent if self.reported else None
        done = BAR * (percent or 0) // 100
        bar = () if percent is None else (("█" * done, "green"), ("░" * (BAR - done), "dim"), " ")
        return Text.assemble(*bar, self.text, no_wrap=True, overflow="ellipsis")
