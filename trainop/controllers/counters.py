"""The metrics of jobs and their children, in addition to those of `trainop.runtime`."""

from __future__ import annotations

from trainop.runtime.clock import Clock
from trainop.runtime.metrics.metrics import Metrics


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
        leads.set_function(self._leads)

    def _leads(self) -> float:
        held = [sample.value for family in self.leader.collect() for sample in family.samples]
        return float(bool(held) and all(held))
