"""Brings reports from the endpoint to the controllers, which watch for jobs that do not report any more."""

from __future__ import annotations

from collections.abc import Callable

from trainop.controllers.progress.writer import INTERVAL, MAX_RATE
from trainop.runtime import Unstructured

LATENCY = 5.0
"""Seconds that a write and its watch event may take."""

Hear = Callable[[Unstructured, str], None]
"""Takes a job, as the cache has it, and the name of the pod that sent a report."""


class ReportFeed:
    """One per process."""

    def __init__(self) -> None:
        self._listeners: list[Hear] = []
        self._counts: list[Callable[[], int]] = []

    def listen(self, hear: Hear, count: Callable[[], int]) -> None:
        """`hear` is called for each report; `count` returns how many unfinished jobs of a kind report."""
        self._listeners.append(hear)
        self._counts.append(count)

    def tell(self, job: Unstructured, pod: str) -> None:
        """The endpoint of this process has taken a report."""
        for hear in self._listeners:
            hear(job, pod)

    @property
    def delay(self) -> float:
        """Seconds after which a report that any replica takes is in the caches of all, at the latest: writes are rare,
        and rarer the more jobs report (`ProgressWriter`)."""
        return max(INTERVAL, sum(count() for count in self._counts) / MAX_RATE) + LATENCY
