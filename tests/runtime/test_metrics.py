"""The names, labels, buckets and first values that dashboards rely on."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import generate_latest

from tests.runtime.virtual_time import VirtualClock, virtual_time
from trainop.runtime.cache.informer import InformerMetrics
from trainop.runtime.client.client import RequestMetrics
from trainop.runtime.metrics.metrics import Metrics

CONTRACT = {
    "controller_runtime_reconcile": ("counter", {"controller", "result"}),
    "controller_runtime_reconcile_errors": ("counter", {"controller"}),
    "controller_runtime_terminal_reconcile_errors": ("counter", {"controller"}),
    "controller_runtime_reconcile_panics": ("counter", {"controller"}),
    "controller_runtime_reconcile_timeouts": ("counter", {"controller"}),
    "controller_runtime_reconcile_time_seconds": ("histogram", {"controller"}),
    "controller_runtime_max_concurrent_reconciles": ("gauge", {"controller"}),
    "controller_runtime_active_workers": ("gauge", {"controller"}),
    "workqueue_depth": ("gauge", {"name", "controller"}),
    "workqueue_adds": ("counter", {"name", "controller"}),
    "workqueue_retries": ("counter", {"name", "controller"}),
    "workqueue_queue_duration_seconds": ("histogram", {"name", "controller"}),
    "workqueue_work_duration_seconds": ("histogram", {"name", "controller"}),
    "workqueue_unfinished_work_seconds": ("gauge", {"name", "controller"}),
    "workqueue_longest_running_processor_seconds": ("gauge", {"name", "controller"}),
    "rest_client_requests": ("counter", {"code", "method", "host"}),
    "rest_client_request_duration_seconds": ("histogram", {"verb", "host"}),
    "rest_client_rate_limiter_duration_seconds": ("histogram", {"verb", "host"}),
    "rest_client_dns_resolution_duration_seconds": ("histogram", {"host"}),
    "rest_client_request_size_bytes": ("histogram", {"verb", "host"}),
    "rest_client_response_size_bytes": ("histogram", {"verb", "host"}),
    "rest_client_request_retries": ("counter", {"code", "verb", "host"}),
    "leader_election_master_status": ("gauge", {"name"}),
    "leader_election_slowpath": ("counter", {"name"}),
    "controller_runtime_webhook_requests": ("counter", {"webhook", "code"}),
    "controller_runtime_webhook_latency_seconds": ("histogram", {"webhook"}),
    "controller_runtime_webhook_requests_in_flight": ("gauge", {"webhook"}),
    "controller_runtime_webhook_panics": ("counter", set()),
    "controller_runtime_conversion_webhook_panics": ("counter", set()),
    "certwatcher_read_certificate": ("counter", set()),
    "certwatcher_read_certificate_errors": ("counter", set()),
}
"""Metric family (counters without `_total`) -> type and labels."""


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def fill(metrics: Metrics) -> None:
    """Create a series in every family with labels."""
    metrics.controller("c")
    metrics.queue("q")
    for name, (_, labels) in CONTRACT.items():
        for family in vars(metrics).values():
            if getattr(family, "_name", None) == name and labels:
                family.labels(**dict.fromkeys(labels, "x"))


def test_families_have_their_types_and_labels(metrics: Metrics):
    fill(metrics)
    families = {family.name: family for family in metrics.registry.collect()}
    for name, (kind, labels) in CONTRACT.items():
        family = families[name]
        assert family.type == kind, name
        assert family.samples, name
        assert {label for sample in family.samples for label in sample.labels} - {"le"} == labels, name


def test_no_created_series_and_no_unknown_names_without_our_prefix(metrics: Metrics):
    fill(metrics)
    text = generate_latest(metrics.registry).decode()
    assert "_created{" not in text
    assert "_created " not in text
    others = {family.name for family in metrics.registry.collect()} - set(CONTRACT)
    assert {name for name in others if not name.startswith(("runtime_", "process_"))} == set()
    assert any(name.startswith("process_") for name in others)
    assert 'controller_runtime_reconcile_total{controller="c",result="success"} 0.0\n' in text


def test_series_that_upstream_presets_exist_from_the_start(metrics: Metrics):
    metrics.controller("c")
    read = metrics.registry.get_sample_value
    for result in ("success", "error", "requeue", "requeue_after"):
        assert read("controller_runtime_reconcile_total", {"controller": "c", "result": result}) == 0
    for name in ("reconcile_errors", "terminal_reconcile_errors", "reconcile_panics", "reconcile_timeouts"):
        assert read(f"controller_runtime_{name}_total", {"controller": "c"}) == 0
    for name in ("certwatcher_read_certificate_total", "certwatcher_read_certificate_errors_total"):
        assert read(name) == 0


@pytest.mark.parametrize(
    ("family", "count", "first", "last"),
    [
        ("controller_runtime_reconcile_time_seconds", 40, "0.005", "60.0"),
        ("workqueue_queue_duration_seconds", 12, "1e-08", "1000.0"),
        ("workqueue_work_duration_seconds", 12, "1e-08", "1000.0"),
        ("rest_client_request_duration_seconds", 12, "0.005", "60.0"),
        ("rest_client_request_size_bytes", 11, "64.0", "1.6777216e+07"),
        ("controller_runtime_webhook_latency_seconds", 12, "1e-08", "1000.0"),
    ],
)
def test_buckets_are_upstreams(metrics: Metrics, family: str, count: int, first: str, last: str):
    fill(metrics)
    found = next(each for each in metrics.registry.collect() if each.name == family)
    bounds = list(dict.fromkeys(sample.labels["le"] for sample in found.samples if "le" in sample.labels))
    assert (len(bounds), bounds[0], bounds[-2], bounds[-1]) == (count + 1, first, last, "+Inf")


def test_two_operators_in_one_process_count_apart():
    one, other = Metrics(), Metrics()
    one.events_written.inc()
    assert one.registry.get_sample_value("runtime_events_written_total") == 1
    assert other.registry.get_sample_value("runtime_events_written_total") == 0


def test_metrics_implement_the_protocols_of_clients_and_informers(metrics: Metrics):
    client: RequestMetrics = metrics
    informer: InformerMetrics = metrics
    client.requested("GET", "200", "host:443", 0.2, sent=0, received=1000)
    client.requested("GET", "<error>", "host:443", 1, sent=0, received=0)
    client.retried("GET", "503", "host:443")
    client.limited("GET", "host:443", 0.5)
    client.decoded(0.002)
    metrics.resolved("host", 0.1)
    informer.stored("pods", 9)
    informer.stored("pods", -2)
    informer.relisted("pods", "expired")
    informer.rewatched("pods", "closed")
    informer.listed("pods", 0.3)
    informer.received("pods", 12, 0.01)
    informer.dropped("pods", "stale")
    informer.handler_failed("pods")
    read = metrics.registry.get_sample_value
    assert read("rest_client_requests_total", {"code": "<error>", "method": "GET", "host": "host:443"}) == 1
    assert read("rest_client_request_duration_seconds_count", {"verb": "GET", "host": "host:443"}) == 2
    api = {"verb": "GET", "host": "host:443"}
    assert read("rest_client_request_size_bytes_count", api) == 2
    assert read("rest_client_response_size_bytes_sum", api) == 1000
    assert read("rest_client_request_retries_total", {"code": "503", **api}) == 1
    assert read("rest_client_rate_limiter_duration_seconds_sum", api) == 0.5
    assert read("rest_client_dns_resolution_duration_seconds_sum", {"host": "host"}) == 0.1
    assert read("runtime_client_decode_seconds_sum") == 0.002
    assert read("runtime_informer_objects", {"resource": "pods"}) == 7
    assert read("runtime_informer_relists_total", {"resource": "pods", "reason": "expired"}) == 1
    assert read("runtime_informer_watch_restarts_total", {"resource": "pods", "reason": "closed"}) == 1
    assert read("runtime_informer_list_duration_seconds_sum", {"resource": "pods"}) == 0.3
    assert read("runtime_informer_events_total", {"resource": "pods"}) == 12
    assert read("runtime_informer_lag_seconds_count", {"resource": "pods"}) == 1
    assert read("runtime_informer_dropped_total", {"resource": "pods", "reason": "stale"}) == 1
    assert read("runtime_informer_handler_errors_total", {"resource": "pods"}) == 1


@virtual_time
async def test_the_age_of_the_last_event_grows():
    metrics = Metrics(VirtualClock())
    for _ in range(2):
        metrics.received("pods", 1, 0.0)
        await asyncio.sleep(7)
    assert metrics.registry.get_sample_value("runtime_informer_last_event_age_seconds", {"resource": "pods"}) == 7


def test_a_webhook_has_its_series_before_its_first_request(metrics: Metrics):
    metrics.webhook("/x")
    for code in ("200", "500"):
        labels = {"webhook": "/x", "code": code}
        assert metrics.registry.get_sample_value("controller_runtime_webhook_requests_total", labels) == 0
