"""The metrics of reported progress. They exist only where the endpoint is served."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import GaugeMetricFamily

MAX_JOBS = 1000
"""Series of `trainop_job_progress_ratio`; the jobs beyond have none."""
LABELS = ("job_namespace", "framework", "job_name")

Ratios: TypeAlias = Callable[[], Iterator[tuple[tuple[str, str, str], float]]]
"""Returns the labels and the progress, from 0 to 1, of each unfinished job that reports."""


class JobProgress(Gauge):
    """`trainop_job_progress_ratio`, computed from the caches when it is scraped, so that ended jobs have no series."""

    def __init__(self, registry: CollectorRegistry, ratios: Ratios) -> None:
        text = f"Reported progress of unfinished jobs, from 0 to 1; of at most {MAX_JOBS} jobs"
        super().__init__("trainop_job_progress_ratio", text, LABELS, registry=registry)
        self._ratios = ratios

    def collect(self) -> Iterable[GaugeMetricFamily]:
        family = GaugeMetricFamily(self._name, self._documentation, labels=self._labelnames)
        for (labels, ratio), _ in zip(self._ratios(), range(MAX_JOBS), strict=False):
            family.add_metric(labels, ratio)
        yield family


class ProgressMetrics:
    """Counts reports by the status of their answer, and writes by their result."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._reports = Counter(
            "trainop_progress_reports_total", "Reports of progress, by HTTP status", ["code"], registry=registry
        )
        self._writes = Counter(
            "trainop_progress_writes_total", "Writes of status.trainerStatus", ["result"], registry=registry
        )
        self._pending = Gauge(
            "trainop_progress_pending", "Reports of progress that are still to be written", registry=registry
        )
        for result in ("written", "conflict", "failed"):
            self._writes.labels(result)

    def count_report(self, status: int) -> None:
        self._reports.labels(str(status)).inc()

    def count_write(self, result: str) -> None:
        """`written`, `conflict` or `failed`."""
        self._writes.labels(result).inc()

    def show_pending(self, pending: Callable[[], int]) -> None:
        self._pending.set_function(lambda: float(pending()))

    def show_jobs(self, ratios: Ratios) -> None:
        """Exports the progress of each job."""
        JobProgress(self._registry, ratios)
