"""The series that dashboards of the replaced operators read."""

from __future__ import annotations

from trainop.controllers.counters import JobMetrics

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
