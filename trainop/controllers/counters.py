"""The metrics of jobs and their children, in addition to those of `trainop.runtime`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import GaugeMetricFamily

from trainop.runtime.clock import Clock
from trainop.runtime.metrics.metrics import Metrics

Launchers: TypeAlias = Callable[[], Iterable[tuple[str, str]]]
"""Returns namespace and name of the Jobs of all launchers."""


def no_launchers() -> Iterable[tuple[str, str]]:
    return ()


class LauncherInfo(Gauge):
    """`mpi_operator_job_info`, computed from the cache when it is scraped, so that it has no series of deleted jobs."""

    def __init__(self, registry: CollectorRegistry) -> None:
        name, text = "mpi_operator_job_info", "The launcher's Job of each MPIJob with transport ssh"
        super().__init__(name, text, ["launcher", "namespace"], registry=registry)
        self.launchers: Launchers = no_launchers

    def collect(self) -> Iterable[GaugeMetricFamily]:
        family = GaugeMetricFamily(self._name, self._documentation, labels=self._labelnames)
        for namespace, launcher in self.launchers():
            family.add_metric((launcher, namespace), 1)
        yield family


class JobMetrics(Metrics):
    """Names and labels as in training-operator `pkg/common/metrics.go`, which registers the unlabelled ones but never
    serves them. `mpi_operator_is_leader` is from mpi-operator `cmd/mpi-operator/app/server.go`."""

    def __init__(self, clock: Clock | None = None, *, depth_by_priority: bool = False) -> None:
        super().__init__(clock, depth_by_priority=depth_by_priority, prefix="trainop")
        labels = ("job_namespace", "framework")
        prefix = "training_operator_jobs"
        self.jobs_created = self._counter(f"{prefix}_created_total", "Number of jobs created", *labels)
        self.jobs_deleted = self._counter(f"{prefix}_deleted_total", "Number of jobs deleted", *labels)
        self.jobs_successful = self._counter(f"{prefix}_successful_total", "Number of successful jobs", *labels)
        self.jobs_failed = self._counter(f"{prefix}_failed_total", "Number of failed jobs", *labels)
        self.jobs_restarted = self._counter(f"{prefix}_restarted_total", "Number of restarted jobs", *labels)
        self.pods_created = self._counter("created_pods_total", "The total number of created pods")
        self.pods_deleted = self._counter("deleted_pods_total", "The total number of deleted pods")
        self.pods_failed = self._counter("failed_pods_total", "The total number of failed pods")
        self.services_created = self._counter(
            "succeeded_service_creation_total", "The total number of created services"
        )
        self.services_failed = self._counter(
            "failed_service_creation_total", "The total number of services that could not be created"
        )
        self.pod_groups_created = self._counter("created_pod_groups_total", "The total number of created pod groups")
        self.pod_groups_deleted = self._counter("deleted_pod_groups_total", "The total number of deleted pod groups")
        self.disruptions = self._counter(
            "trainop_disruptions_total",
            "Restarts and fatal failures of replicas by eviction, preemption or loss of a node",
            *labels,
        )
        self.statuses_refused = self._counter(
            "trainop_statuses_refused_total", "Statuses that the API server refused: too large, or invalid", "framework"
        )
        leads = self._gauge("mpi_operator_is_leader", "1 while this process is the leader")
        leads.set_function(lambda: float(bool(self._held()) and all(self._held())))
        self.by_controller: dict[str, dict[str, Counter]] = {"mpi-operator": self._of_mpi_operator()}
        """Controller -> transition -> a counter in addition to that of all kinds."""
        self._info = LauncherInfo(self.registry)

    def _of_mpi_operator(self) -> dict[str, Counter]:
        """The counters of mpi-operator, which are without labels: MPIJobs with transport ssh."""
        texts = {"created": "created", "successful": "that succeeded", "failed": "that failed"}
        return {
            name: self._counter(f"mpi_operator_jobs_{name}_total", f"Number of MPIJobs {text}, with transport ssh")
            for name, text in texts.items()
        }

    def _held(self) -> list[float]:
        """1 for each lease that is held, 0 for each that is not; empty without leader election."""
        return [sample.value for family in self.leader.collect() for sample in family.samples]

    def show_launchers(self, launchers: Launchers) -> None:
        """Exports `mpi_operator_job_info` while this process may write: a standby would export each series twice."""
        self._info.launchers = lambda: launchers() if all(self._held()) else ()
