"""Jobs of `batch/v1` on a local cluster: a table of next steps, and Jobs that really run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE
from trainop.local.cluster import ClusterOptions, LocalCluster
from trainop.local.job_controller import JOBS, next_step
from trainop.runtime.clock import timestamp
from trainop.runtime.errors import NotFoundError
from trainop.runtime.objects.metadata import PODS, Json

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def at(seconds: float) -> str:
    return timestamp(NOW + timedelta(seconds=seconds))


def pod(phase: str = "Running", *, restarts: int = 0, ended: float = 0, deleted: bool = False) -> Json:
    state = {"terminated": {"finishedAt": at(ended)}} if phase in {"Failed", "Succeeded"} else {"running": {}}
    metadata = {"name": "p", "creationTimestamp": at(-100), **({"deletionTimestamp": at(0)} if deleted else {})}
    statuses = [{"name": "c", "restartCount": restarts, "state": state}]
    return {"metadata": metadata, "status": {"phase": phase, "containerStatuses": statuses}}


def job(status: Json | None = None, policy: str = "Never", **spec: Any) -> Json:
    template = {"spec": {"restartPolicy": policy}}
    own = {"parallelism": 1, "completions": 1, "backoffLimit": 6, "template": template}
    return {"spec": {**own, **spec}, "status": {"startTime": at(-60), **(status or {})}}


def condition(kind: str, since: float = 0) -> Json:
    return {"type": kind, "status": "True", "lastTransitionTime": at(since), "reason": "r", "message": "m"}


def outcome(status: Json) -> list[str]:
    return [f"{one['type']}={one['status']} {one['reason']}" for one in status["conditions"]]


@pytest.mark.parametrize(
    ("given", "pods", "create", "delete", "conditions"),
    [
        (job(), [], 1, 0, []),
        (job(), [pod("Pending")], 0, 0, []),
        (job(completions=5, parallelism=3), [pod("Succeeded")] * 3 + [pod()], 1, 0, []),
        (job(completions=5, parallelism=3), [pod("Succeeded")] * 4, 1, 0, []),
        (
            job(),
            [pod("Succeeded")],
            0,
            0,
            ["SuccessCriteriaMet=True CompletionsReached", "Complete=True CompletionsReached"],
        ),
        (job(completions=None, parallelism=2), [pod(), pod("Succeeded")], 0, 0, []),
        (job(), [pod(deleted=True)], 1, 0, []),
        (job(podReplacementPolicy="Failed"), [pod(deleted=True)], 0, 0, []),
        (job(), [pod("Failed", ended=-11)], 1, 0, []),
        (job(), [pod("Failed", ended=-9)], 0, 0, []),
        (job(), [pod("Failed", ended=-19)] * 2, 0, 0, []),
        (job(), [pod("Failed", ended=-21)] * 2, 1, 0, []),
        (
            job(backoffLimit=0),
            [pod("Failed")],
            0,
            0,
            ["FailureTarget=True BackoffLimitExceeded", "Failed=True BackoffLimitExceeded"],
        ),
        (job(backoffLimit=0, parallelism=2), [pod("Failed"), pod()], 0, 1, ["FailureTarget=True BackoffLimitExceeded"]),
        (job(policy="OnFailure", backoffLimit=3), [pod(restarts=2)], 0, 0, []),
        (job(policy="OnFailure", backoffLimit=3), [pod(restarts=3)], 0, 1, ["FailureTarget=True BackoffLimitExceeded"]),
        (job(backoffLimit=3), [pod(restarts=3)], 0, 0, []),
        (job(activeDeadlineSeconds=60), [pod()], 0, 1, ["FailureTarget=True DeadlineExceeded"]),
        (job(activeDeadlineSeconds=61), [pod()], 0, 0, []),
        (job({"conditions": [condition("FailureTarget")]}), [], 0, 0, ["FailureTarget=True r", "Failed=True r"]),
        (job({"conditions": [condition("Failed")]}), [], 0, 0, ["Failed=True r"]),
        (job(suspend=True), [pod()], 0, 1, ["Suspended=True JobSuspended"]),
        (job({"conditions": [condition("Suspended")]}), [], 1, 0, ["Suspended=False JobResumed"]),
    ],
)
def test_next_step(given: Json, pods: list[Json], create: int, delete: int, conditions: list[str]):
    step = next_step(given, pods, NOW)
    assert (step.create, len(step.delete), outcome(step.status)) == (create, delete, conditions)


def test_counts_and_times():
    step = next_step(job(completions=4, parallelism=3), [pod("Succeeded"), pod("Failed", ended=-4), pod()], NOW)
    counted = {"active": 1, "ready": 0, "terminating": 0, "succeeded": 1, "failed": 1}
    assert step.status == {**counted, "startTime": at(-60), "conditions": []}
    assert step.again_in == 6
    assert next_step(job(activeDeadlineSeconds=90), [pod()], NOW).again_in == 30
    assert next_step(job(), [pod("Succeeded")], NOW).status["completionTime"] == at(0)
    # what was counted stays, although the pod is gone
    assert next_step(job({"failed": 2}), [], NOW).status["failed"] == 2


def test_time_to_live():
    ended = {"conditions": [condition("Complete", since=-10)]}
    assert next_step(job(ended), [], NOW).again_in is None
    assert next_step(job(ended, ttlSecondsAfterFinished=30), [], NOW).again_in == 20
    assert next_step(job(ended, ttlSecondsAfterFinished=10), [], NOW).expired


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(ClusterOptions(tmp_path / "cluster")) as found:
        yield found


async def create(cluster: LocalCluster, name: str, script: str, **spec: Any) -> None:
    container = {"name": "main", "image": "none", "command": ["sh", "-c", script]}
    pods = {"restartPolicy": "Never", "containers": [container], "terminationGracePeriodSeconds": 0}
    body = {"metadata": {"name": name, "namespace": "default"}, "spec": {"template": {"spec": pods}, **spec}}
    await cluster.client.create(JOBS, body)


async def ended(cluster: LocalCluster, name: str) -> Json:
    async with asyncio.timeout(PATIENCE):
        while True:
            found = await cluster.client.get(JOBS, name, "default")
            status: Json = found.get("status") or {}
            if any(one["type"] in {"Complete", "Failed"} for one in status.get("conditions") or ()):
                return status
            await asyncio.sleep(0.05)


async def test_jobs_run_to_their_end(cluster: LocalCluster):
    await create(cluster, "good", "exit 0", completions=3, parallelism=2)
    await create(cluster, "bad", "exit 1", backoffLimit=0)
    await create(cluster, "brief", "exit 0", ttlSecondsAfterFinished=0)
    status = await ended(cluster, "good")
    assert (status["succeeded"], outcome(status)[-1]) == (3, "Complete=True CompletionsReached")
    assert "active" not in status  # as 0 is left out
    status = await ended(cluster, "bad")
    assert (status["failed"], outcome(status)[-1]) == (1, "Failed=True BackoffLimitExceeded")
    pods = (await cluster.client.list(PODS, "default", label_selector="job-name=good")).items
    assert len(pods) == 3
    assert {one["metadata"]["ownerReferences"][0]["kind"] for one in pods} == {"Job"}
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await cluster.client.get(JOBS, "brief", "default")
            except NotFoundError:
                break
            await asyncio.sleep(0.05)
