"""A small benchmark on a separate kube-apiserver: counts are compared with limits; durations are only recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec
import pytest

from e2e.bench.operators import HERE
from e2e.bench.runs import Plan, append_record, run_one
from e2e.bench.targets import COUNT_PREFIX, JOB, LEADER, OURS
from trainop.controllers.live_job import READ_LIVE_AFTER, UNSETTLED_INTERVAL
from trainop.runtime.objects.metadata import Json

JOBS, PODS = 10, 8
RECORD = HERE / "report" / "results" / "small" / "record.jsonl"
"""The file with a line for each run, not in Git."""
REPORTED = ("all_running", "running_p50", "running_p99", "end_to_succeeded", "operator_ms_per_job", "rss_peak")
MOST_RECONCILES = 12
"""Reconciles of one job from its creation to its success. Measured: 5 to 7."""
EVENTS = 5 * PODS
"""The most on a busy machine, where each event of a pod or service may cause one, since few arrive together."""


def requests(result: Json) -> Counter[str]:
    """Requests for all jobs by verb and resource, from the audit log."""
    counted: Counter[str] = Counter()
    for phase in result["requests"]:
        assert phase["refused"] == {}
        counted.update({what: round(each * JOBS) for what, each in phase["requests"].items()})
    return counted


def total(result: Json, series: str) -> float:
    """The sum of all series of the operator with this prefix."""
    return float(sum(value for name, value in result["counts"].items() if name.startswith(series)))


@pytest.mark.parametrize(("operator", "services"), [(OURS, PODS), (LEADER, 1), (JOB, 1)])
async def test_a_burst_of_jobs_costs_no_more_requests_passes_and_objects(
    built: None, record_property: Callable[[str, object], None], operator: str, services: int
):
    """Each job costs its pods and services, one event, and two to four status writes: two if its pods start within a
    second, three if they start later, and four if they start apart. On a
    machine so busy that it takes seconds, counts of running pods are written meanwhile, and a job that the watch does
    not return is read."""
    record = await run_one(Plan((operator,), COUNT_PREFIX + "s1", sizes={"jobs": JOBS, "workers": PODS - 1}), operator)
    result = record["result"]
    append_record(record, RECORD)
    shown = {name: round(result[name], 3) for name in REPORTED} | {
        "cpu": result["cpu"],
        "requests": result["requests"],
    }
    record_property("benchmark", f"{operator}: {msgspec.json.encode(shown).decode()}")

    spent = requests(result)
    assert spent.pop("create pods") == JOBS * PODS
    assert spent.pop("create services") == JOBS * services
    assert spent.pop("create events") <= JOBS
    waited = result["all_counted"] + result["end_to_succeeded"]
    assert 2 * JOBS <= spent.pop("update pytorchjobs/status") <= (4 + waited // UNSETTLED_INTERVAL) * JOBS
    assert spent.pop("get pytorchjobs", 0) <= waited // READ_LIVE_AFTER * JOBS
    assert not spent, "everything else is read from the caches"
    slices = sum(phase["cluster"].get("create endpointslices", 0) for phase in result["requests"])
    assert slices == services, "the cluster publishes the addresses of a Service in one EndpointSlice"
    warm_up = 1
    passes = total(result, 'controller_runtime_reconcile_total{controller="pytorchjob-controller"')
    most = min(EVENTS, MOST_RECONCILES * max(1.0, waited / UNSETTLED_INTERVAL))
    assert passes <= most * (JOBS + warm_up)
    assert total(result, 'trainop_informer_objects{resource="pods"') == JOBS * PODS
    assert total(result, 'trainop_informer_objects{resource="pytorchjobs') == JOBS
