"""All metrics of the runtime. Names, labels and buckets are a contract with existing dashboards and alerts.

They are those of controller-runtime and client-go; metrics without an upstream counterpart start with a configurable
prefix. `workqueue_depth` has the label `priority` only on request, because older dashboards do not expect it.
`_created` series are disabled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.process_collector import ProcessCollector

from trainop.runtime.clock import Clock, SystemClock
from trainop.runtime.metrics.histogram import Histogram, Series
from trainop.runtime.metrics.queue_depth import DepthCollector

# This setting of prometheus_client is process-wide, but only omits the `_created` series.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # the library leaves it untyped

RECONCILE_RESULTS = ("success", "error", "requeue", "requeue_after")

# fmt: off
_RECONCILE_BUCKETS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.25, 1.5, 1.75,
    2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9, 10, 15, 20, 25, 30, 40, 50, 60,
)
_QUEUE_BUCKETS = (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1, 10, 100, 1000)
_REST_BUCKETS = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60)
_DECODE_BUCKETS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_SIZE_BUCKETS = (64, 256, 512, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216)
# fmt: on


class ObservedQueue(Protocol):
    """The part of `WorkQueue` that gauges read when they are scraped."""

    def depths(self) -> Mapping[int, int]:
        """The number of keys that are due, by priority."""
        ...

    def running_seconds(self) -> list[float]:
        """For each key being processed, the seconds since processing began."""
        ...


class QueueMetrics:
    """The metrics of one work queue. Gauges are computed when scraped."""

    def __init__(self, metrics: Metrics, name: str) -> None:
        labels = {"name": name, "controller": name}
        self._name = name
        self._depth = metrics.queue_depth
        self._depth.declare(name)
        self._unfinished = metrics.queue_unfinished_work.labels(**labels)
        self._longest = metrics.queue_longest_running.labels(**labels)
        self.adds = metrics.queue_adds.labels(**labels)
        self.retries = metrics.queue_retries.labels(**labels)
        self.queue_duration = metrics.queue_duration.labels(**labels)
        self.work_duration = metrics.queue_work_duration.labels(**labels)

    def observe(self, queue: ObservedQueue) -> None:
        """Computes the gauges from `queue`, replacing a previous queue."""
        self._depth.observe(self._name, queue)
        self._unfinished.set_function(lambda: sum(queue.running_seconds()))
        self._longest.set_function(lambda: max(queue.running_seconds(), default=0.0))


class ControllerMetrics:
    """The metrics of one controller, initialized to zero so that all series are exported from the start."""

    def __init__(self, metrics: Metrics, name: str) -> None:
        self.results = {result: metrics.reconciles.labels(name, result) for result in RECONCILE_RESULTS}
        self.errors = metrics.reconcile_errors.labels(name)
        self.terminal_errors = metrics.terminal_reconcile_errors.labels(name)
        self.panics = metrics.reconcile_panics.labels(name)
        self.timeouts = metrics.reconcile_timeouts.labels(name)
        self.time = metrics.reconcile_time.labels(name)
        self.max_concurrent = metrics.max_concurrent_reconciles.labels(name)
        self.active_workers = metrics.active_workers.labels(name)
        self.expectations_expired = metrics.expectations_expired.labels(name)


class WebhookMetrics:
    """The metrics of one webhook, labelled with its path. The HTTP status of an admission webhook is always 200."""

    def __init__(self, metrics: Metrics, path: str) -> None:
        self.succeeded = metrics.webhook_requests.labels(path, "200")
        metrics.webhook_requests.labels(path, "500")
        self.latency = metrics.webhook_latency.labels(path)
        self.in_flight = metrics.webhook_in_flight.labels(path)
        self.panics = metrics.webhook_panics


class _RequestSeries(NamedTuple):
    """The metrics of API requests with one method, status code and host."""

    total: Counter
    duration: Series
    sent: Series
    received: Series


class Metrics:
    """A registry with all metrics of the runtime.

    Not global, because a process may contain several managers, for example in tests. It implements `RequestMetrics` of
    the client and `InformerMetrics` of the cache.
    """

    def __init__(self, clock: Clock | None = None, *, depth_by_priority: bool = False, prefix: str = "runtime") -> None:
        """`depth_by_priority` adds the label `priority` to `workqueue_depth`. `prefix` starts the names of metrics
        without an upstream counterpart."""
        self._prefix = prefix
        self._clock = clock or SystemClock()
        self.queue_depth = DepthCollector(by_priority=depth_by_priority)
        self._received_at: dict[str, float] = {}
        self._request_series: dict[tuple[str, str, str], _RequestSeries] = {}
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._declare_controllers()
        self._declare_queues()
        self._declare_client()
        self._declare_informers()
        self._declare_election_and_webhooks()
        self._declare_events()

    def controller(self, name: str) -> ControllerMetrics:
        return ControllerMetrics(self, name)

    def queue(self, name: str) -> QueueMetrics:
        return QueueMetrics(self, name)

    def webhook(self, path: str) -> WebhookMetrics:
        return WebhookMetrics(self, path)

    # `RequestMetrics` of the client -----------------------------------------------------------------------------------

    def requested(self, method: str, code: str, host: str, seconds: float, *, sent: int, received: int) -> None:
        series = self._request_series.get((method, code, host))
        if series is None:  # cached, because a lookup by labels is slower than the increment
            series = self._request_series[method, code, host] = _RequestSeries(
                self.requests.labels(code, method, host),
                self.request_duration.labels(method, host),
                self.request_size.labels(method, host),
                self.response_size.labels(method, host),
            )
        series.total.inc()
        series.duration.observe(seconds)
        series.sent.observe(sent)
        series.received.observe(received)

    def retried(self, method: str, code: str, host: str) -> None:
        self.request_retries.labels(code, method, host).inc()

    def limited(self, method: str, host: str, seconds: float) -> None:
        self.rate_limiter_duration.labels(method, host).observe(seconds)

    def decoded(self, seconds: float) -> None:
        self.decode_duration.observe(seconds)

    def permission_denied(self, verb: str, group: str, resource: str) -> None:
        self.permissions_denied.labels(verb, group, resource).inc()

    def resolved(self, host: str, seconds: float) -> None:
        """A host name was resolved, in `seconds`."""
        self.dns_resolution_duration.labels(host).observe(seconds)

    # `InformerMetrics` of the cache -----------------------------------------------------------------------------------

    def stored(self, resource: str, change: int) -> None:
        self.informer_objects.labels(resource).inc(change)

    def relisted(self, resource: str, reason: str) -> None:
        self.informer_relists.labels(resource, reason).inc()

    def rewatched(self, resource: str, reason: str) -> None:
        self.informer_watch_restarts.labels(resource, reason).inc()

    def listed(self, resource: str, seconds: float) -> None:
        self.informer_list_duration.labels(resource).observe(seconds)

    def received(self, resource: str, events: int, lag: float) -> None:
        if resource not in self._received_at:
            self._export_event_age(resource)
        self.informer_events.labels(resource).inc(events)
        self.informer_lag.labels(resource).observe(lag)
        self._received_at[resource] = self._clock.monotonic()

    def _export_event_age(self, resource: str) -> None:
        """The age of the last event is computed when scraped."""
        age = self.informer_event_age.labels(resource)
        age.set_function(lambda: self._clock.monotonic() - self._received_at[resource])

    def dropped(self, resource: str, reason: str) -> None:
        self.informer_dropped.labels(resource, reason).inc()

    def handler_failed(self, resource: str) -> None:
        self.informer_handler_errors.labels(resource).inc()

    def certificate_loaded(self, source: str, expires: float) -> None:
        """A serving certificate was loaded from a folder or Secret; it `expires` at this Unix time."""
        self.certificate_reads.inc()
        self.certificate_expiry.labels(source).set(expires)

    # Declarations -----------------------------------------------------------------------------------------------------

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        made = Histogram(name, text, labels, buckets)
        self.registry.register(made)
        return made

    def _declare_controllers(self) -> None:
        prefix = "controller_runtime"
        self.reconciles = self._counter(
            f"{prefix}_reconcile_total", "Reconciliations per controller and result", "controller", "result"
        )
        self.reconcile_errors = self._counter(
            f"{prefix}_reconcile_errors_total", "Reconciliations that failed", "controller"
        )
        self.terminal_reconcile_errors = self._counter(
            f"{prefix}_terminal_reconcile_errors_total",
            "Reconciliations that failed with a terminal error",
            "controller",
        )
        self.reconcile_panics = self._counter(
            f"{prefix}_reconcile_panics_total", "Reconciliations that raised an unexpected exception", "controller"
        )
        self.reconcile_timeouts = self._counter(
            f"{prefix}_reconcile_timeouts_total", "Reconciliations that timed out", "controller"
        )
        self.reconcile_time = self._histogram(
            f"{prefix}_reconcile_time_seconds", "Duration of reconciliations", _RECONCILE_BUCKETS, "controller"
        )
        self.max_concurrent_reconciles = self._gauge(
            f"{prefix}_max_concurrent_reconciles", "Workers per controller", "controller"
        )
        self.active_workers = self._gauge(f"{prefix}_active_workers", "Workers that are reconciling", "controller")
        self.expectations_expired = self._counter(
            f"{self._prefix}_expectations_expired_total",
            "Expectations that expired before the write was observed",
            "controller",
        )

    def _declare_queues(self) -> None:
        labels = ("name", "controller")
        self.registry.register(self.queue_depth)
        self.queue_adds = self._counter("workqueue_adds_total", "Keys added to the queue", *labels)
        self.queue_retries = self._counter("workqueue_retries_total", "Retries (keys added with a delay)", *labels)
        self.queue_duration = self._histogram(
            "workqueue_queue_duration_seconds",
            "Time from a key becoming due to the start of its processing",
            _QUEUE_BUCKETS,
            *labels,
        )
        self.queue_work_duration = self._histogram(
            "workqueue_work_duration_seconds", "Processing time of a key", _QUEUE_BUCKETS, *labels
        )
        self.queue_unfinished_work = self._gauge(
            "workqueue_unfinished_work_seconds", "Sum of the durations of processing in progress", *labels
        )
        self.queue_longest_running = self._gauge(
            "workqueue_longest_running_processor_seconds", "Duration of the longest processing in progress", *labels
        )

    def _declare_client(self) -> None:
        self.requests = self._counter(
            "rest_client_requests_total", "API requests, counting each attempt", "code", "method", "host"
        )
        self.request_duration = self._histogram(
            "rest_client_request_duration_seconds", "Time until the response", _REST_BUCKETS, "verb", "host"
        )
        self.rate_limiter_duration = self._histogram(
            "rest_client_rate_limiter_duration_seconds",
            "Time spent waiting for the client-side rate limiter",
            _REST_BUCKETS,
            "verb",
            "host",
        )
        self.dns_resolution_duration = self._histogram(
            "rest_client_dns_resolution_duration_seconds", "Time to resolve the server's name", _REST_BUCKETS, "host"
        )
        self.decode_duration = self._histogram(
            f"{self._prefix}_client_decode_seconds",
            "Time to decode a response body, on the event loop",
            _DECODE_BUCKETS,
        ).labels()
        self.request_size = self._histogram(
            "rest_client_request_size_bytes", "Size of request bodies", _SIZE_BUCKETS, "verb", "host"
        )
        self.response_size = self._histogram(
            "rest_client_response_size_bytes", "Size of response bodies", _SIZE_BUCKETS, "verb", "host"
        )
        self.request_retries = self._counter(
            "rest_client_request_retries_total", "Retried API requests", "code", "verb", "host"
        )
        self.permissions_denied = self._counter(
            f"{self._prefix}_permissions_denied_total",
            "Requests that the API server denied because a role lacks the permission",
            "verb",
            "group",
            "resource",
        )

    def _declare_informers(self) -> None:
        self.informer_objects = self._gauge(f"{self._prefix}_informer_objects", "Objects in the cache", "resource")
        self.informer_relists = self._counter(
            f"{self._prefix}_informer_relists_total", "Full lists after the first, by reason", "resource", "reason"
        )
        self.informer_watch_restarts = self._counter(
            f"{self._prefix}_informer_watch_restarts_total", "Watches restarted, by reason", "resource", "reason"
        )
        self.informer_list_duration = self._histogram(
            f"{self._prefix}_informer_list_duration_seconds",
            "Duration of full lists, all pages",
            _REST_BUCKETS,
            "resource",
        )
        self.informer_events = self._counter(f"{self._prefix}_informer_events_total", "Events received", "resource")
        self.informer_lag = self._histogram(
            f"{self._prefix}_informer_lag_seconds",
            "Time from receiving an event to delivering it to handlers",
            _REST_BUCKETS,
            "resource",
        )
        self.informer_event_age = self._gauge(
            f"{self._prefix}_informer_last_event_age_seconds", "Time since the last event or bookmark", "resource"
        )
        self.informer_dropped = self._counter(
            f"{self._prefix}_informer_dropped_total", "Events dropped before delivery, by reason", "resource", "reason"
        )
        self.informer_handler_errors = self._counter(
            f"{self._prefix}_informer_handler_errors_total", "Exceptions in event handlers", "resource"
        )

    def _declare_election_and_webhooks(self) -> None:
        self.leader = self._gauge("leader_election_master_status", "1 if this process holds the lease, else 0", "name")
        self.leader_slow_path = self._counter(
            "leader_election_slowpath_total", "Renewals that had to read the lease first", "name"
        )
        self.webhook_requests = self._counter(
            "controller_runtime_webhook_requests_total", "Webhook requests by code", "webhook", "code"
        )
        self.webhook_latency = self._histogram(
            "controller_runtime_webhook_latency_seconds", "Latency of webhook requests", _QUEUE_BUCKETS, "webhook"
        )
        self.webhook_in_flight = self._gauge(
            "controller_runtime_webhook_requests_in_flight", "Webhook requests being served", "webhook"
        )
        self.webhook_panics = self._counter(
            "controller_runtime_webhook_panics_total", "Webhook handlers that raised an unexpected exception"
        )
        self.conversion_webhook_panics = self._counter(
            "controller_runtime_conversion_webhook_panics_total",
            "Conversion webhooks that raised an unexpected exception",
        )
        self.certificate_reads = self._counter("certwatcher_read_certificate_total", "Certificates loaded")
        self.certificate_read_errors = self._counter(
            "certwatcher_read_certificate_errors_total", "Certificates that failed to load"
        )
        self.bundle_resets = self._counter(
            f"{self._prefix}_webhook_bundle_resets_total", "Resets of a caBundle by another writer", "configuration"
        )
        self.certificate_expiry = self._gauge(
            f"{self._prefix}_certificate_expiry_timestamp_seconds",
            "End of validity of the serving certificate in use, as Unix time",
            "source",
        )

    def _declare_events(self) -> None:
        self.events_written = self._counter(f"{self._prefix}_events_written_total", "Events written to the API server")
        self.events_dropped = self._counter(
            f"{self._prefix}_events_dropped_total", "Events not written, by reason", "reason"
        )
        for reason in ("overflow", "spam", "refused", "expired"):
            self.events_dropped.labels(reason)
