"""Alert rules for Prometheus, and the objects with which the Prometheus operator scrapes and evaluates them.

All expressions select `job="training-operator"`, the name that the Prometheus operator derives from the Service.
"""

from __future__ import annotations

from typing import NamedTuple

from trainop.manifests.names import NAME
from trainop.runtime.objects.metadata import Json

PROMETHEUS = "monitoring.coreos.com/v1"
STALE_AFTER = 300
"""Seconds without any event or bookmark; the API server sends a bookmark per minute."""
EXPIRES_WITHIN = 7 * 24 * 3600
"""Seconds; the operator and cert-manager renew months or weeks earlier."""
STUCK_AFTER = 600
DISRUPTIONS_PER_HOUR = 5


class Alert(NamedTuple):
    """One alert rule. `pending` is how long the expression must hold. docs/monitoring.md says what to do."""

    name: str
    expression: str
    pending: str
    severity: str
    summary: str
    description: str


_S = f'{{job="{NAME}"}}'
_BUSY = f"sum by (instance, name) (workqueue_depth{_S}) > 0"
_IDLE = f"sum by (instance, name) (rate(workqueue_work_duration_seconds_count{_S}[10m])) == 0"
_STANDBY = f"leader_election_master_status{_S} == 0"
"""Its queues are filled for the takeover, and nobody works on them."""
_BLOCKED = f"max by (instance, name) (workqueue_longest_running_processor_seconds{_S}) > {STUCK_AFTER}"
_FAILURES = f"sum by (controller) (rate(controller_runtime_reconcile_errors_total{_S}[10m]))"
_RECONCILES = f"sum by (controller) (rate(controller_runtime_reconcile_total{_S}[10m]))"
_UNANSWERED = f'sum(rate(rest_client_requests_total{{job="{NAME}",code=~"5..|<error>"}}[10m]))'
_REQUESTS = f"sum(rate(rest_client_requests_total{_S}[10m]))"

ALERTS = (
    Alert(
        "TrainingOperatorDown",
        f"absent(up{_S} == 1)",
        "5m",
        "critical",
        "No training operator answers.",
        "Prometheus scrapes no replica of the operator. Running pods continue; new jobs do not start, and failed "
        "replicas are not restarted.",
    ),
    Alert(
        "TrainingOperatorWithoutLeader",
        f"max(leader_election_master_status{_S}) == 0",
        "5m",
        "critical",
        "No replica of the training operator leads.",
        "Replicas run and none holds the lease, so that no job is reconciled.",
    ),
    Alert(
        "TrainingOperatorWatchStale",
        f"max by (instance, resource) (trainop_informer_last_event_age_seconds{_S}) > {STALE_AFTER}",
        "5m",
        "warning",
        "The watch on {{ $labels.resource }} is stale.",
        "{{ $labels.instance }} has received neither an event nor a bookmark for {{ $value | humanizeDuration }}, and "
        "acts on old objects.",
    ),
    Alert(
        "TrainingOperatorQueueStuck",
        f"({_BUSY} and {_IDLE} unless on (instance) {_STANDBY}) or {_BLOCKED}",
        "10m",
        "warning",
        "The queue of {{ $labels.name }} is stuck.",
        "Keys wait in the queue on {{ $labels.instance }} and none is finished, or one reconcile does not end.",
    ),
    Alert(
        "TrainingOperatorReconcileErrors",
        f"{_FAILURES} / {_RECONCILES} > 0.1",
        "15m",
        "warning",
        "Reconciles of {{ $labels.controller }} fail.",
        "{{ $value | humanizePercentage }} of the reconciles fail.",
    ),
    Alert(
        "TrainingOperatorApiErrors",
        f"{_UNANSWERED} / {_REQUESTS} > 0.1",
        "10m",
        "warning",
        "The API server does not answer the training operator.",
        "{{ $value | humanizePercentage }} of the requests end with a server error or without an answer.",
    ),
    Alert(
        "TrainingOperatorPermissionDenied",
        f"sum by (verb, group, resource) (increase(trainop_permissions_denied_total{_S}[30m])) > 0",
        "5m",
        "warning",
        "The training operator may not {{ $labels.verb }} {{ $labels.resource }}.",
        "The API server denies the request, because no role of the operator grants it.",
    ),
    Alert(
        "TrainingOperatorCertificateExpiring",
        f"min by (source) (trainop_certificate_expiry_timestamp_seconds{_S}) - time() < {EXPIRES_WITHIN}",
        "1h",
        "warning",
        "The serving certificate in {{ $labels.source }} expires.",
        "It is valid for another {{ $value | humanizeDuration }} and has not been renewed.",
    ),
    Alert(
        "TrainingJobsDisrupted",
        f"sum by (job_namespace, framework) (increase(trainop_disruptions_total{_S}[1h])) > {DISRUPTIONS_PER_HOUR}",
        "0m",
        "warning",
        "Infrastructure disrupts {{ $labels.framework }} jobs in {{ $labels.job_namespace }}.",
        "{{ $value | humanize }} restarts or failures within an hour because of eviction, preemption or lost nodes.",
    ),
)


def rule_groups() -> Json:
    """The rules as a rule file of Prometheus, which is also the `spec` of a PrometheusRule."""
    rules = [
        {
            "alert": alert.name,
            "expr": alert.expression,
            "for": alert.pending,
            "labels": {"severity": alert.severity},
            "annotations": {"summary": alert.summary, "description": alert.description},
        }
        for alert in ALERTS
    ]
    return {"groups": [{"name": NAME, "rules": rules}]}


def prometheus_rule() -> Json:
    metadata = {"name": NAME, "labels": {"app": NAME}}
    return {"apiVersion": PROMETHEUS, "kind": "PrometheusRule", "metadata": metadata, "spec": rule_groups()}


def service_monitor() -> Json:
    """Scrapes every ready replica through the Service."""
    return {
        "apiVersion": PROMETHEUS,
        "kind": "ServiceMonitor",
        "metadata": {"name": NAME, "labels": {"app": NAME}},
        "spec": {
            "selector": {"matchLabels": {"app": NAME}},
            "endpoints": [{"port": "monitoring-port", "path": "/metrics", "interval": "30s"}],
        },
    }
