"""Alert rules for Prometheus, and the objects with which the Prometheus operator scrapes and evaluates them.

One set of rules is for every program and for any number of installations: all expressions select the `job` of the
programs, as the monitors below set it, and group by `namespace` and `job`. A second installation thus hides nothing of
the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from trainop.manifests.names import NAME
from trainop.manifests.secure_metrics import endpoints
from trainop.runtime import Json

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


PROGRAMS = (NAME, "mpi-operator", "di-operator", "di-server", "di-webhook")
_JOB = f'job=~"{"|".join(PROGRAMS)}"'
_S = f"{{{_JOB}}}"
_BUSY = f"sum by (namespace, job, instance, name) (workqueue_depth{_S}) > 0"
_IDLE = f"sum by (namespace, job, instance, name) (rate(workqueue_work_duration_seconds_count{_S}[10m])) == 0"
_STANDBY = f"leader_election_master_status{_S} == 0"
"""Its queues are filled for the takeover, and nobody works on them."""
_LONGEST = f"workqueue_longest_running_processor_seconds{_S}"
_BLOCKED = f"max by (namespace, job, instance, name) ({_LONGEST}) > {STUCK_AFTER}"
_FAILURES = f"sum by (namespace, job, controller) (rate(controller_runtime_reconcile_errors_total{_S}[10m]))"
_RECONCILES = f"sum by (namespace, job, controller) (rate(controller_runtime_reconcile_total{_S}[10m]))"
_ERRORS = f'rest_client_requests_total{{{_JOB},code=~"5..|<error>"}}'
_UNANSWERED = f"sum by (namespace, job) (rate({_ERRORS}[10m]))"
_REQUESTS = f"sum by (namespace, job) (rate(rest_client_requests_total{_S}[10m]))"
_KNOWN = f"group by (namespace, job) (last_over_time(up{_S}[1d]))"
_ANSWERING = f"group by (namespace, job) (up{_S} == 1)"
_NONE = f"absent(last_over_time(up{_S}[1d]))"
_NOBODY = (
    f'label_replace(label_replace({_NONE}, "job", "every program", "", ""), "namespace", "every namespace", "", "")'
)
_DENIALS = f"trainop_permissions_denied_total{_S}"
_OF_DENIAL = "sum by (namespace, job, verb, group, resource)"
_MORE_DENIALS = f"{_OF_DENIAL} (increase({_DENIALS}[30m])) > 0"
_FIRST_DENIAL = f"{_OF_DENIAL} ({_DENIALS}) unless {_OF_DENIAL} ({_DENIALS} offset 30m)"
"""A series begins with the first denial, at 1, which is no increase to Prometheus."""

ALERTS = (
    Alert(
        "TrainingOperatorDown",
        f"({_KNOWN} unless {_ANSWERING}) or {_NOBODY}",
        "5m",
        "critical",
        "{{ $labels.job }} in {{ $labels.namespace }} does not answer.",
        "Prometheus scrapes no replica of it, or none at all. Running pods continue; new jobs do not start, and failed "
        "replicas are not restarted.",
    ),
    Alert(
        "TrainingOperatorWithoutLeader",
        f"max by (namespace, job, name) (leader_election_master_status{_S}) == 0",
        "5m",
        "critical",
        "No replica of {{ $labels.job }} in {{ $labels.namespace }} leads.",
        "Replicas run and none holds the lease {{ $labels.name }}, so that no job is reconciled.",
    ),
    Alert(
        "TrainingOperatorWatchStale",
        f"max by (namespace, job, instance, resource) (trainop_informer_last_event_age_seconds{_S}) > {STALE_AFTER}",
        "5m",
        "warning",
        "The watch of {{ $labels.job }} on {{ $labels.resource }} is stale.",
        "{{ $labels.instance }} has received neither an event nor a bookmark for {{ $value | humanizeDuration }}, and "
        "acts on old objects.",
    ),
    Alert(
        "TrainingOperatorQueueStuck",
        f"({_BUSY} and {_IDLE} unless on (namespace, job, instance) {_STANDBY}) or {_BLOCKED}",
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
        "Reconciles of {{ $labels.controller }} in {{ $labels.namespace }} fail.",
        "{{ $value | humanizePercentage }} of the reconciles fail.",
    ),
    Alert(
        "TrainingOperatorApiErrors",
        f"{_UNANSWERED} / {_REQUESTS} > 0.1",
        "10m",
        "warning",
        "The API server does not answer {{ $labels.job }} in {{ $labels.namespace }}.",
        "{{ $value | humanizePercentage }} of the requests end with a server error or without an answer.",
    ),
    Alert(
        "TrainingOperatorPermissionDenied",
        f"({_MORE_DENIALS}) or ({_FIRST_DENIAL})",
        "5m",
        "warning",
        "{{ $labels.job }} in {{ $labels.namespace }} may not {{ $labels.verb }} {{ $labels.resource }}.",
        "The API server denies the request, because no role of the program grants it.",
    ),
    Alert(
        "TrainingOperatorCertificateExpiring",
        f"min by (namespace, job, source) (trainop_certificate_expiry_timestamp_seconds{_S}) - time()"
        f" < {EXPIRES_WITHIN}",
        "1h",
        "warning",
        "The serving certificate in {{ $labels.source }} expires.",
        "It is valid for another {{ $value | humanizeDuration }} and has not been renewed.",
    ),
    Alert(
        "TrainingOperatorWebhookBundleReset",
        f"sum by (namespace, job, configuration) (increase(trainop_webhook_bundle_resets_total{_S}[30m])) > 3",
        "5m",
        "warning",
        "Another writer resets the CA of {{ $labels.configuration }}.",
        "Until the operator has written it again, with growing pauses, the API server cannot call these webhooks.",
    ),
    Alert(
        "TrainingJobsDisrupted",
        f"sum by (namespace, job_namespace, framework) (increase(trainop_disruptions_total{_S}[1h]))"
        f" > {DISRUPTIONS_PER_HOUR}",
        "0m",
        "warning",
        "Infrastructure disrupts {{ $labels.framework }} jobs in {{ $labels.job_namespace }}.",
        "{{ $value | humanize }} restarts or failures within an hour because of eviction, preemption or lost nodes.",
    ),
    Alert(
        "TrainingJobsWaiting",
        f"sum by (namespace, job_namespace, framework, reason) (trainop_jobs_waiting{_S}) > 0",
        "30m",
        "warning",
        "{{ $labels.framework }} jobs in {{ $labels.job_namespace }} do not move: {{ $labels.reason }}.",
        "{{ $value }} unfinished jobs wait, and their condition Waiting says what for.",
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
        "spec": {"selector": {"matchLabels": {"app": NAME}}, "endpoints": endpoints()},
    }


def pod_monitor(name: str, labels: Mapping[str, str], port: str) -> Json:
    """Scrapes the pods of a program that has no Service for its metrics, under the `job` that the rules select."""
    job = {"targetLabel": "job", "replacement": name}
    return {
        "apiVersion": PROMETHEUS,
        "kind": "PodMonitor",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "selector": {"matchLabels": dict(labels)},
            "podMetricsEndpoints": [{"port": port, "path": "/metrics", "interval": "30s", "relabelings": [job]}],
        },
    }
