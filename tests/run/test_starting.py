"""Messages while jobs do not start: their content, intervals, and the time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.run.leaping import Leaping
from trainop.run.screen import JobView
from trainop.run.starting import StartWatch, describe_waiting


def waiting(name: str = "a", *, detail: str = "CreateContainerError: no command", count: int = 1) -> JobView:
    job = JobView(name, "PyTorchJob")
    for number in range(count):
        job.replica(f"worker-{number}").detail = detail
    return job


async def watch(jobs: list[JobView], *, limit: float, end: float) -> tuple[list[str], list[str]]:
    """The messages until `end`, each with its second, and the jobs that were given up."""
    clock = Leaping(end)
    said: list[str] = []
    ended: list[str] = []

    def give_up(job: JobView, why: str) -> None:
        jobs.remove(job)
        ended.append(f"{clock.at:g}: {why}")

    def unfinished() -> Sequence[JobView]:
        return list(jobs)

    with pytest.raises(asyncio.CancelledError):
        await StartWatch(clock, limit, lambda line: said.append(f"{clock.at:g}: {line}")).run(unfinished, give_up)
    return said, ended


async def test_the_reason_is_repeated_less_and_less_often():
    said, ended = await watch([waiting()], limit=0, end=300)
    assert [int(line.partition(":")[0]) for line in said] == [10, 20, 30, 45, 75, 135, 195, 255]
    assert said[0] == "10: worker-0 waits: CreateContainerError: no command (10 s)"
    assert ended == []


async def test_a_job_that_does_not_start_is_given_up_and_the_others_are_not():
    begun = waiting("b")
    begun.started = True
    said, ended = await watch([waiting(), begun], limit=25, end=40)
    why = "PyTorchJob a has not started within 25 s: worker-0 waits: CreateContainerError: no command"
    assert ended == [f"25: {why}"]
    assert [line for line in said if line.startswith(("10:", "25:"))] == [
        "10: worker-0 waits: CreateContainerError: no command (10 s)",
        "10: worker-0 waits: CreateContainerError: no command (10 s)",
        "25: worker-0 waits: CreateContainerError: no command (25 s)",
    ]


def test_replicas_that_wait_for_the_same_share_a_sentence():
    assert list(describe_waiting(waiting(count=1000))) == [
        "worker-0 and 999 more wait: CreateContainerError: no command"
    ]
    job = waiting()
    job.replicas["worker-0"].warning = 'FailedMount: configmap "c" not found'
    assert list(describe_waiting(job)) == ['worker-0 waits: FailedMount: configmap "c" not found']
    job.replicas["worker-0"].phase = "Running"
    assert list(describe_waiting(job)) == []
    assert list(describe_waiting(JobView("a", "TFJob"))) == ["TFJob a has no pod yet"]
    suspended = JobView("a", "TFJob", ["Created", "Suspended"])
    assert list(describe_waiting(suspended)) == ["TFJob a is suspended (spec.runPolicy.suspend)"]
