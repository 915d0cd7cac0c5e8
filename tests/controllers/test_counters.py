"""The series that dashboards of the replaced operators read."""

from __future__ import annotations

from trainop.controllers.counters import MAX_SERIES, JobMetrics

CONTRACT: dict[str, tuple[str, set[str]]] = {
    "mpi_operator_is_leader": ("gauge", set()),
    "mpi_operator_jobs_created": ("counter", set()),
    "mpi_operator_jobs_successful": ("counter", set()),
    "mpi_operator_jobs_failed": ("counter", set()),
    "training_operator_jobs_created": ("counter", {"job_namespace", "framework"}),
    "training_operator_jobs_deleted": ("counter", {"job_namespace", "framework"}),
    "training_operator_jobs_successful": ("counter", {"job_namespace", "framework"}),
    "training_operator_jobs_failed": ("counter", {"job_namespace", "framework"}),
    "training_operator_jobs_restarted": ("counter", {"job_namespace", "framework"}),
    "created_pods": ("counter", set()),
    "deleted_pods": ("counter", set()),
    "failed_pods": ("counter", set()),
    "succeeded_service_creation": ("counter", set()),
    "failed_service_creation": ("counter", set()),
    "created_pod_groups": ("counter", set()),
    "deleted_pod_groups": ("counter", set()),
}
"""Metric family (counters without `_total`) -> type and labels."""


def test_families_have_their_types_and_labels():
    metrics = JobMetrics()
    for name, (_, labels) in CONTRACT.items():
        for family in vars(metrics).values():
            if getattr(family, "_name", None) == name and labels:
                family.labels(**dict.fromkeys(labels, "x"))
    families = {family.name: family for family in metrics.registry.collect()}
    for name, (kind, labels) in CONTRACT.items():
        assert families[name].type == kind, name
        assert {label for sample in families[name].samples for label in sample.labels} == labels, name
        assert [sample.value for sample in families[name].samples] == [0], name


def test_the_holder_of_all_leases_leads():
    metrics = JobMetrics()
    seen = []
    for first, second in ((0, 0), (1, 0), (1, 1), (0, 1)):
        metrics.leader.labels("a").set(first)
        metrics.leader.labels("b").set(second)
        seen.append(metrics.registry.get_sample_value("mpi_operator_is_leader"))
    assert seen == [0, 0, 1, 0]


def test_the_counters_of_existing_jobs_begin_at_zero():
    """After a failover the first failure is an increase."""
    metrics = JobMetrics()
    metrics.expect("a", "pytorch")
    labels = {"job_namespace": "a", "framework": "pytorch"}
    for name in ("created", "deleted", "successful", "failed", "restarted"):
        assert metrics.registry.get_sample_value(f"training_operator_jobs_{name}_total", labels) == 0, name
    assert metrics.registry.get_sample_value("trainop_disruptions_total", labels) == 0
    metrics.jobs_failed.labels("a", "pytorch").inc()
    metrics.expect("a", "pytorch")
    assert metrics.registry.get_sample_value("training_operator_jobs_failed_total", labels) == 1


def test_the_series_of_very_many_namespaces_are_bounded():
    metrics = JobMetrics()
    for number in range(MAX_SERIES + 10):
        metrics.expect(f"n{number}", "pytorch")
    family = next(each for each in metrics.registry.collect() if each.name == "trainop_disruptions")
    assert len(family.samples) == MAX_SERIES


def test_waiting_jobs_are_exported_by_the_leader_only():
    metrics = JobMetrics()
    waiting = [("a", "pytorch", "PodsPending")] * 2 + [("b", "mpi", "InvalidSpec")]
    metrics.show_waiting(lambda: waiting[:2])
    metrics.show_waiting(lambda: waiting[2:])

    def count(*labels: str) -> float | None:
        names = dict(zip(("job_namespace", "framework", "reason"), labels, strict=True))
        return metrics.registry.get_sample_value("trainop_jobs_waiting", names)

    assert count("a", "pytorch", "PodsPending") == 2
    assert count("b", "mpi", "InvalidSpec") == 1
    metrics.leader.labels("l").set(0)
    assert count("a", "pytorch", "PodsPending") is None
    metrics.leader.labels("l").set(1)
    waiting.clear()
    assert count("a", "pytorch", "PodsPending") is None


def test_launchers_are_exported_by_the_leader_only():
    metrics = JobMetrics()
    labels = {"launcher": "foo-launcher", "namespace": "bar"}
    launchers = [("bar", "foo-launcher")]

    def info() -> float | None:
        return metrics.registry.get_sample_value("mpi_operator_job_info", labels)

    assert info() is None
    metrics.show_launchers(lambda: launchers)
    assert info() == 1  # without leader election
    metrics.leader.labels("a").set(0)
    assert info() is None
    metrics.leader.labels("a").set(1)
    assert info() == 1
    launchers.clear()
    assert info() is None
