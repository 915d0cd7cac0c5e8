"""What the page shows of a job: complete, printable and bounded, whatever the cluster contains."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from trainop.explain.story import tell
from trainop.explain.why import Cause, ContainerFacts, Diagnosis, Evidence, PodFacts, State
from trainop.explain.why.evidence import EventFacts
from trainop.ui.model import MAX_EVENTS, MAX_POINTS, MAX_REPLICAS, MAX_SERIES, MAX_TEXT, Plots, job_view, why_view

NOW = datetime(2026, 11, 27, 10, 5, tzinfo=UTC)
EVIL = "\x1b[31m<script>alert(1)</script>\u202e\x00"
CLEAN = "<script>alert(1)</script>"


def job(**status: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "train",
            "namespace": "team",
            "uid": "u",
            "creationTimestamp": "2026-11-27T10:00:00Z",
        },
        "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 2}}},
        "status": {
            "conditions": [
                {"type": "Created", "status": "True", "lastTransitionTime": "2026-11-27T10:00:00Z", "message": EVIL},
                {"type": "Running", "status": "True", "lastTransitionTime": "2026-11-27T10:01:00Z"},
            ],
            **status,
        },
    }


def worker(index: int, **more: Any) -> PodFacts:
    return PodFacts(name=f"train-worker-{index}", role="worker", index=index, phase="Running", **more)


def seen(**more: Any) -> Evidence:
    return replace(Evidence(kind="PyTorchJob", job=job(), now=NOW), **more)


def view(evidence: Evidence) -> dict[str, Any]:
    found = job_view(evidence, tell(evidence))
    json.dumps(found)
    return found


def failed(at: int) -> ContainerFacts:
    return ContainerFacts("main", state="terminated", exit_code=1, finished=datetime(2026, 11, 27, 10, at, tzinfo=UTC))


def test_a_job_has_state_timeline_replicas_and_conditions():
    found = view(
        seen(pods=(worker(10), worker(2, node="n1"), worker(1, containers=(ContainerFacts("m", restarts=3),))))
    )
    assert (found["kind"], found["namespace"], found["name"]) == ("PyTorchJob", "team", "train")
    assert [each["name"] for each in found["replicas"]] == ["worker-1", "worker-2", "worker-10"]
    assert [each["restarts"] for each in found["replicas"]] == [3, 0, 0]
    assert found["replicas"][1]["node"] == "n1"
    assert [each["type"] for each in found["conditions"]] == ["Created", "Running"]
    assert found["conditions"][0]["message"] == CLEAN
    assert found["steps"][0]["name"] == "created"
    assert (found["progress"], found["percent"]) == ("", None)


@pytest.mark.parametrize(
    ("status", "pods", "first"),
    [
        ({}, (), ""),
        ({}, (worker(0, containers=(failed(3),)), worker(1, containers=(failed(2),))), "worker-1"),
        (
            {"lastFailure": {"pod": "train-worker-0"}},
            (worker(0, containers=(failed(3),)), worker(1, containers=(failed(2),))),
            "worker-0",
        ),
        ({"lastFailure": "nonsense"}, (worker(0, containers=(failed(3),)),), "worker-0"),
    ],
)
def test_the_replica_that_failed_first_is_named(status: dict[str, Any], pods: tuple[PodFacts, ...], first: str):
    assert view(seen(job=job(**status), pods=pods))["first"] == first


def test_everything_is_bounded():
    events = tuple(EventFacts("Warning", EVIL, "x" * 10_000, "Pod", EVIL) for _ in range(MAX_EVENTS + 5))
    found = view(seen(pods=tuple(map(worker, range(MAX_REPLICAS + 7))), events=events))
    assert (len(found["replicas"]), found["left"]) == (MAX_REPLICAS, 7)
    assert len(found["events"]) == MAX_EVENTS
    assert len(found["events"][0]["message"].encode()) <= MAX_TEXT
    assert found["events"][0]["reason"] == CLEAN


@pytest.mark.parametrize(
    "reported",
    [None, "x", 7, [], {"metrics": 3}, {"metrics": [3, {"name": 1, "value": {}}]}, {"progressPercentage": "50"}],
)
def test_a_malformed_report_is_no_progress(reported: Any):
    assert view(seen(job=job(trainerStatus=reported)))["percent"] is None
    plots = Plots()
    plots.take({"trainerStatus": reported}, 1.0)
    assert plots.as_json() == []


def report(step: int, **metrics: str) -> dict[str, Any]:
    named = [{"name": name, "value": value} for name, value in {"current_step": str(step), **metrics}.items()]
    return {"trainerStatus": {"progressPercentage": step % 101, "metrics": named}}


def test_reports_become_series():
    plots = Plots()
    for at, step in ((1.0, 10), (2.0, 10), (3.0, 20)):
        plots.take(report(step, loss=f"{1 / step}", name="none", bad="nan"), at)
    assert plots.as_json() == [
        {"name": "progress %", "points": [[1.0, 10.0], [3.0, 20.0]]},
        {"name": "current_step", "points": [[1.0, 10.0], [3.0, 20.0]]},
        {"name": "loss", "points": [[1.0, 0.1], [3.0, 0.05]]},
    ]


def test_a_long_training_and_many_metrics_stay_small():
    plots = Plots()
    many = {f"m{n}": str(n) for n in range(40)}
    for step in range(5_000):
        plots.take(report(step, **many), float(step))
    found = plots.as_json()
    assert len(found) == MAX_SERIES
    assert all(len(each["points"]) <= MAX_POINTS for each in found)
    assert found[1]["points"][0] == [0.0, 0.0]
    assert found[1]["points"][-1] == [4_999.0, 4_999.0]


def test_an_explanation_is_clean():
    found = why_view(Diagnosis(State.FAILED, (Cause("X", EVIL, EVIL, (EVIL,)),), (EVIL,)))
    assert found == {
        "state": "Failed",
        "causes": [{"text": CLEAN, "next": CLEAN, "evidence": [CLEAN]}],
        "unread": [CLEAN],
    }
