"""The metrics of jobs and their children, in addition to those of `trainop.runtime`."""

from __future__ import annotations

from collections import Counter as TallyOf
from collections.abc import Callable, Iterable
from typing import TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import GaugeMetricFamily

from trainop.engine.phases import PARTS, Account, Phase
from trainop.runtime import Clock, Metrics

Launchers: TypeAlias = Callable[[], Iterable[tuple[str, str]]]
"""Returns namespace and name of the Jobs of all launchers."""


Waiting: TypeAlias = Callable[[], Iterable[tuple[str, str, str]]]
"""Returns namespace, framework and reason of each job that waits."""

Stalled: TypeAlias = Callable[[], Iterable[tuple[str, str]]]
"""Returns namespace and framework of each job that has stalled."""

MAX_SERIES = 2000
"""Pairs of namespace and framework whose counters exist before they count anything."""

PHASE_BUCKETS = (1.0, 5.0, 15.0, 60.0, 180.0, 600.0, 1800.0, 3600.0, 14400.0, 43200.0, 86400.0, 259200.0, 604800.0)
"""Seconds, from one to a week: a phase may be the start of a pod, a wait for GPUs, or a training."""


GOODPUT_BUCKETS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)


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


class CountedJobs(Gauge):
    """A number of jobs, computed from the caches when it is scraped. Only labels that occur have a series; besides
    namespace and framework they are of short lists, so that there are few."""

    def __init__(self, registry: CollectorRegistry, name: str, text: str, *labels: str) -> None:
        super().__init__(name, text, ["job_namespace", "framework", *labels], registry=registry)
        self.sources: list[Callable[[], Iterable[tuple[str, ...]]]] = []
        self.is_shown: Callable[[], bool] = lambda: True

    def collect(self) -> Iterable[GaugeMetricFamily]:
        family = GaugeMetricFamily(self._name, self._documentation, labels=self._labelnames)
        found = (labels for source in self.sources for labels in source()) if self.is_shown() else ()
        for labels, count in sorted(TallyOf(found).items()):
            family.add_metric(labels, count)
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
        self.pods_failed = self._counter("failed_pods_total", "The total number of failed pods")
        self.of_children = self._of_children()
        """Kind of object, and what happened to it -> counter."""
        self.disruptions = self._counter(
            "trainop_disruptions_total",
            "Restarts and fatal failures of replicas by eviction, preemption or loss of a node",
            *labels,
        )
        self.stalls = self._counter(
            "trainop_stalls_total", "Jobs that have stopped reporting their progress while they ran", *labels
        )
        self.statuses_refused = self._counter(
            "trainop_statuses_refused_total", "Statuses that the API server refused: too large, or invalid", "framework"
        )
        self._make_times()
        leads = self._gauge("mpi_operator_is_leader", "1 while this process is the leader")
        leads.set_function(lambda: float(bool(self._held()) and all(self._held())))
        self.by_controller: dict[str, dict[str, Counter]] = {"mpi-operator": self._of_mpi_operator()}
        """Controller -> transition -> a counter in addition to that of all kinds."""
        self._info = LauncherInfo(self.registry)
        self._waiting = self._count_jobs("waiting", "Unfinished jobs that do not move", "reason")
        self._stalled = self._count_jobs("stalled", "Running jobs that do not report their progress any more")
        self._known: set[tuple[str, str]] = set()

    def _make_times(self) -> None:
        """The histograms of what the time of jobs is spent on."""
        self.job_phases = self._histogram(
            "trainop_job_phase_seconds",
            "Time that jobs spent in a phase, each time they left it",
            PHASE_BUCKETS,
            "phase",
            "kind",
        )
        self.job_account = self._histogram(
            "trainop_job_account_seconds",
            "What the time of jobs was spent on, once per job that has ended",
            PHASE_BUCKETS,
            "part",
            "kind",
        )
        self.job_goodput = self._histogram(
            "trainop_job_goodput_ratio",
            "The part of the time of a job in which it trained, without what was lost, once per job that has ended",
            GOODPUT_BUCKETS,
            "kind",
        )

    def _count_jobs(self, state: str, text: str, *labels: str) -> CountedJobs:
        """The gauge of the jobs in a state, on the leader."""
        made = CountedJobs(self.registry, f"trainop_jobs_{state}", text, *labels)
        made.is_shown = lambda: self.leads
        return made

    def _of_children(self) -> dict[tuple[str, str], Counter]:
        names = {
            ("Pod", "created"): ("created_pods_total", "The total number of created pods"),
            ("Pod", "deleted"): ("deleted_pods_total", "The total number of deleted pods"),
            ("Service", "created"): ("succeeded_service_creation_total", "The total number of created services"),
            ("Service", "failed"): (
                "failed_service_creation_total",
                "The total number of services that could not be created",
            ),
            ("PodGroup", "created"): ("created_pod_groups_total", "The total number of created pod groups"),
            ("PodGroup", "deleted"): ("deleted_pod_groups_total", "The total number of deleted pod groups"),
        }
        return {what: self._counter(*texts) for what, texts in names.items()}

    def _of_mpi_operator(self) -> dict[str, Counter]:
        """The counters of mpi-operator, which are without labels: MPIJobs with transport ssh."""
        texts = {"created": "created", "successful": "that succeeded", "failed": "that failed"}
        return {
            name: self._counter(f"mpi_operator_jobs_{name}_total", f"Number of MPIJobs {text}, with transport ssh")
            for name, text in texts.items()
        }

    @property
    def leads(self) -> bool:
        """Whether this process may write: of several replicas, one exports the series of jobs."""
        return all(self._held())

    def _held(self) -> list[float]:
        """1 for each lease that is held, 0 for each that is not; empty without leader election."""
        return [sample.value for family in self.leader.collect() for sample in family.samples]

    def of_jobs(self) -> dict[str, Counter]:
        """The counters with the labels of a job, by transition."""
        return {
            "created": self.jobs_created,
            "deleted": self.jobs_deleted,
            "successful": self.jobs_successful,
            "failed": self.jobs_failed,
            "restarted": self.jobs_restarted,
            "disrupted": self.disruptions,
            "stalled": self.stalls,
        }

    def expect(self, namespace: str, framework: str, kind: str = "") -> None:
        """Makes the counters of jobs that exist, at 0: to Prometheus, a series that begins at 1 has not increased. That
        would hide the first failure after a failover. With `kind`, such as PyTorchJob, also its phases and accounts."""
        labels = (namespace, framework)
        if labels not in self._known and len(self._known) < MAX_SERIES:
            self._known.add(labels)
            for each in self.of_jobs().values():
                each.labels(*labels)
            if kind:
                self._expect_times(kind)

    def _expect_times(self, kind: str) -> None:
        for phase in Phase:
            if phase is not Phase.FINISHED:
                self.job_phases.labels(phase.value, kind)
        for part in PARTS:
            self.job_account.labels(part, kind)
        self.job_goodput.labels(kind)

    def account(self, kind: str, account: Account) -> None:
        """Counts the account of a job of this kind, such as PyTorchJob, that has ended."""
        for part, seconds in account.parts.items():
            self.job_account.labels(part, kind).observe(seconds)
        if account.goodput is not None:
            self.job_goodput.labels(kind).observe(account.goodput)

    def show_waiting(self, source: Waiting) -> None:
        """Exports `trainop_jobs_waiting` while this process may write, as `show_launchers`."""
        self._waiting.sources.append(source)

    def show_stalled(self, source: Stalled) -> None:
        """Exports `trainop_jobs_stalled` likewise."""
        self._stalled.sources.append(source)

    def show_launchers(self, launchers: Launchers) -> None:
        """Exports `mpi_operator_job_info` while this process may write: a standby would export each series twice."""
        self._info.launchers = lambda: launchers() if self.leads else ()
