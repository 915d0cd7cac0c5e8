"""A Grafana dashboard over the metrics of the operator, in a ConfigMap that Grafana's sidecar loads."""

from __future__ import annotations

import json
from typing import NamedTuple

from trainop.manifests.names import NAME
from trainop.runtime import Json

UID = "training-operator"
SCHEMA_VERSION = 38
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH, _HEIGHT = 8, 7
"""Size of a panel in units of the grid, which has 24 columns."""

_S = '{job="$job"}'
_FAILED = '{job="$job",code=~"4..|5..|<error>"}'
_JOBS = '{job="$job",job_namespace=~"$namespace"}'


class Panel(NamedTuple):
    """A graph: title, unit, and expressions with their legends."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]


def _rate(metric: str, by: str = "", selector: str = _S) -> str:
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} (rate({metric}{selector}[$__rate_interval]))"


def _quantile(metric: str, by: str, quantile: float = 0.99) -> str:
    return f"histogram_quantile({quantile}, {_rate(f'{metric}_bucket', f'le, {by}')})"


def _jobs(metric: str, by: str = "framework") -> str:
    return f"sum by ({by}) (increase({metric}{_JOBS}[$__rate_interval]))"


ROWS: dict[str, tuple[Panel, ...]] = {
    "Jobs": (
        Panel(
            "Jobs by outcome",
            "short",
            tuple(
                (f"sum(increase(training_operator_jobs_{outcome}_total{_JOBS}[$__rate_interval]))", outcome)
                for outcome in ("created", "successful", "failed", "restarted", "deleted")
            ),
        ),
        Panel("Failed jobs", "short", ((_jobs("training_operator_jobs_failed_total"), "{{framework}}"),)),
        Panel(
            "Disruptions: eviction, preemption, lost nodes",
            "short",
            ((_jobs("trainop_disruptions_total", "job_namespace, framework"), "{{job_namespace}} {{framework}}"),),
        ),
        Panel(
            "Phases of jobs: median",
            "s",
            ((_quantile("trainop_job_phase_seconds", "phase, kind", 0.5), "{{phase}} {{kind}}"),),
        ),
        Panel(
            "Goodput of jobs that ended: median",
            "percentunit",
            ((_quantile("trainop_job_goodput_ratio", "kind", 0.5), "{{kind}}"),),
        ),
        Panel("Time of jobs that ended", "s", ((_jobs("trainop_job_account_seconds_sum", "part"), "{{part}}"),)),
        Panel(
            "Objects in the cache", "short", ((f"max by (resource) (trainop_informer_objects{_S})", "{{resource}}"),)
        ),
        Panel(
            "Pods",
            "ops",
            tuple((_rate(f"{change}_pods_total"), change) for change in ("created", "deleted", "failed")),
        ),
        Panel(
            "Refused statuses and dropped events",
            "ops",
            (
                (f"{_rate('trainop_statuses_refused_total')} or vector(0)", "statuses refused"),
                (_rate("trainop_events_dropped_total", "reason"), "events dropped: {{reason}}"),
            ),
        ),
    ),
    "Reconciling": (
        Panel("Reconciles by result", "ops", ((_rate("controller_runtime_reconcile_total", "result"), "{{result}}"),)),
        Panel(
            "Duration of reconciles",
            "s",
            (
                (_quantile("controller_runtime_reconcile_time_seconds", "controller", 0.5), "{{controller}} median"),
                (_quantile("controller_runtime_reconcile_time_seconds", "controller"), "{{controller}} 99 %"),
            ),
        ),
        Panel(
            "Failures",
            "ops",
            (
                (_rate("controller_runtime_reconcile_errors_total", "controller"), "{{controller}} errors"),
                (_rate("controller_runtime_reconcile_panics_total", "controller"), "{{controller}} panics"),
                (_rate("trainop_expectations_expired_total", "controller"), "{{controller}} expectations expired"),
            ),
        ),
        Panel("Queue depth", "short", ((f"sum by (name) (workqueue_depth{_S})", "{{name}}"),)),
        Panel("Time in the queue, 99 %", "s", ((_quantile("workqueue_queue_duration_seconds", "name"), "{{name}}"),)),
        Panel(
            "Active workers and the longest reconcile",
            "short",
            (
                (f"sum by (controller) (controller_runtime_active_workers{_S})", "{{controller}} workers"),
                (f"max by (name) (workqueue_longest_running_processor_seconds{_S})", "{{name}} seconds"),
            ),
        ),
    ),
    "API server": (
        Panel("Requests by code", "reqps", ((_rate("rest_client_requests_total", "code"), "{{code}}"),)),
        Panel("Requests by method", "reqps", ((_rate("rest_client_requests_total", "method"), "{{method}}"),)),
        Panel("Latency, 99 %", "s", ((_quantile("rest_client_request_duration_seconds", "verb"), "{{verb}}"),)),
        Panel(
            "Errors and retries",
            "reqps",
            (
                (f"{_rate('rest_client_requests_total', selector=_FAILED)} or vector(0)", "errors"),
                (f"{_rate('rest_client_request_retries_total')} or vector(0)", "retries"),
            ),
        ),
        Panel(
            "Age of the last event or bookmark",
            "s",
            ((f"max by (resource) (trainop_informer_last_event_age_seconds{_S})", "{{resource}}"),),
        ),
        Panel(
            "Watch events",
            "ops",
            (
                (_rate("trainop_informer_events_total", "resource"), "{{resource}}"),
                (f"{_rate('trainop_informer_watch_restarts_total')} or vector(0)", "watches restarted"),
                (f"{_rate('trainop_informer_relists_total')} or vector(0)", "lists repeated"),
            ),
        ),
    ),
    "Webhooks": (
        Panel(
            "Requests",
            "reqps",
            (
                (
                    _rate("controller_runtime_webhook_requests_total", "webhook, code"),
                    "{{webhook}} {{code}}",
                ),
            ),
        ),
        Panel(
            "Latency, 99 %",
            "s",
            ((_quantile("controller_runtime_webhook_latency_seconds", "webhook"), "{{webhook}}"),),
        ),
        Panel(
            "Certificates: validity left",
            "s",
            (
                (
                    f"min by (source) (trainop_certificate_expiry_timestamp_seconds{_S}) - time()",
                    "{{source}}",
                ),
            ),
        ),
    ),
    "Process": (
        Panel("Memory", "bytes", ((f"process_resident_memory_bytes{_S}", "{{instance}}"),)),
        Panel("CPU", "short", ((f"rate(process_cpu_seconds_total{_S}[$__rate_interval])", "{{instance}}"),)),
        Panel(
            "Replicas: up and leading",
            "short",
            (
                (f"sum(up{_S})", "up"),
                (f"sum(leader_election_master_status{_S}) or vector(0)", "leading, with leader election"),
            ),
        ),
    ),
}


def dashboard() -> Json:
    """The dashboard in Grafana's JSON model."""
    panels: list[Json] = []
    top = 0
    for title, row in ROWS.items():
        panels.append(_row(len(panels) + 1, title, top))
        top += 1
        for index, panel in enumerate(row):
            place = {"x": index % 3 * _WIDTH, "y": top + index // 3 * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
            panels.append(_graph(len(panels) + 1, panel, place))
        top += (len(row) + 2) // 3 * _HEIGHT
    return {
        "uid": UID,
        "title": "Training operator",
        "tags": ["kubernetes", "training"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "templating": {"list": _variables()},
        "panels": panels,
    }


def _variables() -> list[Json]:
    jobs = "label_values(controller_runtime_max_concurrent_reconciles, job)"
    namespaces = 'label_values(training_operator_jobs_created_total{job="$job"}, job_namespace)'
    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        {
            **_query_variable("job", "Job", jobs),
            "current": {"text": NAME, "value": NAME},
        },
        {
            **_query_variable("namespace", "Namespace", namespaces),
            "includeAll": True,
            "multi": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        },
    ]


def _query_variable(name: str, label: str, query: str) -> Json:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
    }


def _row(identity: int, title: str, top: int) -> Json:
    place = {"x": 0, "y": top, "w": 24, "h": 1}
    return {"id": identity, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _graph(identity: int, panel: Panel, place: Json) -> Json:
    targets = [
        {"refId": chr(ord("A") + index), "expr": expression, "legendFormat": legend, "datasource": _SOURCE}
        for index, (expression, legend) in enumerate(panel.queries)
    ]
    return {
        "id": identity,
        "type": "timeseries",
        "title": panel.title,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": targets,
    }


def dashboard_config_map() -> Json:
    """The label is the one that the sidecar of Grafana's Helm chart looks for."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{NAME}-dashboard", "labels": {"app": NAME, "grafana_dashboard": "1"}},
        "data": {f"{UID}.json": json.dumps(dashboard(), indent=1) + "\n"},
    }
