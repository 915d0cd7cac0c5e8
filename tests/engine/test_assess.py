"""`assess_job`: the evaluation of a job without any actions."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.builders import CREATED, RUNNING, make_job, make_pod, see, status_of
from trainop.engine.assess import Assessment, assess_job
from trainop.engine.children import claim
from trainop.engine.failures import Limit
from trainop.engine.parse import parse
from trainop.engine.seen import Pod
from trainop.engine.status import Status
from trainop.kinds.pytorch import PYTORCH
from trainop.runtime.objects.metadata import Json


def assess_pods(*pods: Pod, job: Json | None = None) -> Assessment:
    seen = see(job or make_job(status=status_of(CREATED, RUNNING)), pods)
    parsed = parse(PYTORCH, seen.job)
    status = Status(seen.job.raw.get("status"), seen.now)
    return assess_job(PYTORCH, parsed, claim(PYTORCH, parsed, seen), seen, status)


def test_pods_are_counted_by_role():
    found = assess_pods(make_pod("master"), make_pod(), make_pod(index=1, phase="Failed", exit_code=1))
    assert (found.tallies["Master"].active, found.tallies["Worker"].active) == (1, 1)
    assert found.progress.running
    assert not found.progress.succeeded
    assert [restart.pod.metadata.name for restart in found.findings.restarts] == ["j-worker-1"]
    assert found.new_restarts.failures == 1
    assert found.limit is None


@pytest.mark.parametrize(
    ("run", "limit"),
    [
        ({"backoffLimit": 0}, Limit.BACKOFF),
        ({"activeDeadlineSeconds": 1}, Limit.DEADLINE),
        ({"backoffLimit": 1, "activeDeadlineSeconds": 10**6}, None),
    ],
)
def test_the_limit_that_is_reached(run: Json, limit: Limit | None):
    job = make_job(run=run, status={**status_of(CREATED, RUNNING), "startTime": "2025-06-01T11:00:00Z"})
    assert assess_pods(make_pod(phase="Failed", exit_code=1), job=job).limit is limit


def test_nothing_that_a_job_contains_makes_it_raise():
    specs: list[Any] = [None, [], {"pytorchReplicaSpecs": "x"}, {"pytorchReplicaSpecs": {"Worker": []}}]
    for spec in specs:
        job = make_job()
        job["spec"] = spec
        assess_pods(make_pod(), job=job)
