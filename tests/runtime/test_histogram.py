"""The histogram exports what that of prometheus_client does."""

from __future__ import annotations

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from trainop.runtime.metrics.histogram import Histogram

OBSERVED = (0, 0.004, 0.005, 0.0051, 0.1, 3, 10, 10.5, 1e9)
BUCKETS = (0.005, 0.1, 1, 10)
PLAIN = "text/plain"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


def export(collector: Collector, accept: str) -> bytes:
    registry = CollectorRegistry()
    registry.register(collector)
    text: bytes = choose_encoder(accept)[0](registry)
    return text


@pytest.mark.parametrize("accept", [PLAIN, OPEN_METRICS])
def test_the_export_is_that_of_prometheus_client(accept: str):
    prometheus_client.disable_created_metrics()
    names = ("verb", "host")
    theirs = prometheus_client.Histogram("a_seconds", "A time.", names, registry=None, buckets=BUCKETS)
    ours = Histogram("a_seconds", "A time.", names, BUCKETS)
    for value in OBSERVED:
        theirs.labels("GET", 'a"b').observe(value)
        ours.labels("GET", 'a"b').observe(value)
    theirs.labels(verb="PUT", host="")
    ours.labels(verb="PUT", host="")
    assert export(ours, accept) == export(theirs, accept)


def test_a_histogram_without_labels_is_exported_before_the_first_observation():
    theirs = prometheus_client.Histogram("b_seconds", "B.", registry=None, buckets=BUCKETS)
    ours = Histogram("b_seconds", "B.", (), BUCKETS)
    ours.labels()
    assert export(ours, PLAIN) == export(theirs, PLAIN)


def test_wrong_labels_are_refused():
    with pytest.raises(ValueError, match="has the labels"):
        Histogram("c_seconds", "C.", ("verb",), BUCKETS).labels("GET", "host")


def test_two_metrics_of_one_name_are_refused():
    registry = CollectorRegistry()
    registry.register(Histogram("d_seconds", "D.", (), BUCKETS))
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(Histogram("d_seconds", "D.", (), BUCKETS))
    assert b"d_seconds" in generate_latest(registry)
