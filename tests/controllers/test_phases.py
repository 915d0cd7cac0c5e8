"""The phases of jobs of every kind, as their statuses show them and as the histogram counts them."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.controllers.dijob import SETTINGS, DiStage
from tests.controllers.kinds import KINDS, last, leaders, make
from tests.controllers.mpi import mpi_job, operated
from tests.controllers.shell import pytorch_job
from tests.controllers.test_shell_operator import QUIET, Stage, running, stage
from tests.engine.builders import NOW, condition, stamp
from tests.engine.world import World
from tests.runtime.virtual_time import virtual_time
from trainop.controllers.counters import JobMetrics
from trainop.engine.actions import Plan
from trainop.engine.phases import Phase, ended_phases, read_marks
from trainop.kinds.dijob.crd import dijob_crd
from trainop.programs.schemes import FRAMEWORKS
from trainop.runtime.objects.metadata import CUSTOM_RESOURCE_DEFINITIONS, Json

Seconds = tuple[str, float]


def cond(type_: str, since: float, status: str = "True", reason: str = "R") -> Json:
    return condition(type_, status, reason=reason) | {"lastTransitionTime": stamp(since)}


CREATED = cond("Created", 0)
EMPTY: Json = {}
STARTED: Json = {"conditions": [CREATED], "startTime": stamp(3)}
RUNNING: Json = {"conditions": [CREATED, cond("Running", 10)], "startTime": stamp(3)}
RESTARTING: Json = {"conditions": [CREATED, cond("Restarting", 60)], "startTime": stamp(3)}
SUSPENDED: Json = {
    "conditions": [CREATED, cond("Running", 30, "False", "JobSuspended"), cond("Suspended", 30)],
    "startTime": stamp(3),
}
RESUMED: Json = {"conditions": [CREATED, cond("Running", 30, "False", "JobSuspended"), cond("Suspended", 90, "False")]}
SUCCEEDED: Json = {
    "conditions": [CREATED, cond("Running", 10, "False"), cond("Succeeded", 70)],
    "startTime": stamp(3),
    "completionTime": stamp(70),
}
NEVER_RAN: Json = {
    "conditions": [CREATED, cond("Running", 20, "False"), cond("Failed", 20)],
    "startTime": stamp(3),
    "completionTime": stamp(20),
}
FAILED_AFTER_RESUMPTION: Json = RESUMED | {
    "conditions": [*RESUMED["conditions"], cond("Failed", 100)],
    "startTime": stamp(95),
    "completionTime": stamp(100),
}

TABLE: dict[str, tuple[Any, Any, list[Seconds]]] = {
    "created": (EMPTY, {"conditions": [CREATED]}, []),
    "started": (EMPTY, STARTED, [("pending", 3)]),
    "created, started and running in one write": (EMPTY, RUNNING, [("pending", 3), ("starting", 7)]),
    "everything in one write": (EMPTY, SUCCEEDED, [("pending", 3), ("starting", 7), ("running", 60)]),
    "invalid": (EMPTY, {"conditions": [cond("Failed", 1)], "completionTime": stamp(1)}, [("pending", 1)]),
    "created suspended": (EMPTY, {"conditions": [CREATED, cond("Suspended", 1)]}, []),
    "suspended before it began": (
        {"conditions": [CREATED]},
        {"conditions": [CREATED, cond("Suspended", 5)]},
        [("pending", 5)],
    ),
    "running": (STARTED, RUNNING, [("starting", 7)]),
    "restarting": (RUNNING, RESTARTING, [("running", 50)]),
    "runs again": (RESTARTING, RUNNING | {"conditions": [CREATED, cond("Running", 80)]}, [("restarting", 20)]),
    "fails while it restarts": (
        RESTARTING,
        {**STARTED, "conditions": [CREATED, cond("Failed", 90)]},
        [("restarting", 30)],
    ),
    "suspended": (RUNNING, SUSPENDED, [("running", 20)]),
    "resumed": (SUSPENDED, RESUMED, [("suspended", 60)]),
    "resumed with a time of the start that is that of the resumption, as MPIJobs": (
        SUSPENDED,
        RESUMED | {"startTime": stamp(90)},
        [("suspended", 60), ("pending", 0)],
    ),
    "resumed by the former operator, which keeps the start": (
        SUSPENDED,
        RESUMED | {"startTime": stamp(3)},
        [("suspended", 60)],
    ),
    "started after a resumption by the former operator": (
        RESUMED | {"startTime": stamp(3)},
        RESUMED | {"startTime": stamp(95)},
        [("pending", 5)],
    ),
    "started after the resumption": (RESUMED, RESUMED | {"startTime": stamp(95)}, [("pending", 5)]),
    "failed after the resumption": (RESUMED | {"startTime": stamp(95)}, FAILED_AFTER_RESUMPTION, [("starting", 5)]),
    "succeeded": (RUNNING, SUCCEEDED, [("running", 60)]),
    "ended before it was seen to run": (STARTED, NEVER_RAN, [("starting", 17)]),
    "without completionTime, as DIJobs": (
        {"conditions": [CREATED, cond("Running", 10)]},
        {"conditions": [CREATED, cond("Running", 50, "False"), cond("Succeeded", 50)], "phase": "Succeeded"},
        [("running", 40)],
    ),
    "progress": (RUNNING, RUNNING | {"replicaStatuses": {"Worker": {"active": 3}}}, []),
    "finished already": (SUCCEEDED, SUCCEEDED | {"replicaStatuses": {}}, []),
    "a clock that was set back": (
        RUNNING,
        RESTARTING | {"conditions": [CREATED, cond("Restarting", 2)]},
        [("running", 0)],
    ),
    "resumed within the second of its creation": (
        {"conditions": [CREATED, cond("Suspended", 0)]},
        {"conditions": [CREATED, cond("Suspended", 0, "False")]},
        [("suspended", 0)],
    ),
    "a condition without a time": (RUNNING, {"conditions": [{"type": "Restarting", "status": "True"}]}, []),
    "no objects": ([], 3, []),
}


@pytest.mark.parametrize("name", TABLE)
def test_a_status_ends_phases(name: str):
    before, after, expected = TABLE[name]
    assert [(phase.value, seconds) for phase, seconds in ended_phases(before, after, NOW)] == expected
    assert ended_phases(after, after, NOW) == []


def test_a_job_without_the_time_of_its_creation_is_counted_from_its_start():
    assert ended_phases(EMPTY, RUNNING, None) == []
    assert ended_phases(RUNNING, RESTARTING, None) == [(Phase.RUNNING, 50)]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["True", "False", stamp(5)]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["conditions", "type", "status", "lastTransitionTime", "startTime"]), inner)
    ),
    max_leaves=10,
)


@given(JSON, JSON)
def test_statuses_of_any_shape_are_read(before: Any, after: Any):
    assert all(seconds >= 0 for _, seconds in ended_phases(before, after, NOW))


# Every kind -----------------------------------------------------------------------------------------------------------


class Watched(World):
    """Collects what each written status ends."""

    def __init__(self, kind: str, **run: Any) -> None:
        job = make(kind, policy="OnFailure", run=run)
        job["metadata"]["creationTimestamp"] = stamp()
        super().__init__(job, framework=FRAMEWORKS[kind])
        self.ended: list[Seconds] = []

    def carry_out(self, made: Plan) -> None:
        before = self.status
        super().carry_out(made)
        self.ended += [(phase.value, seconds) for phase, seconds in ended_phases(before, self.status, NOW)]

    def passes(self, seconds: float) -> None:
        self.settle()
        self.pass_time(seconds)


@pytest.mark.parametrize("kind", KINDS)
def test_the_phases_of_a_job_that_was_suspended_and_restarted_are_its_whole_life(kind: str):
    world = Watched(kind, suspend=True)
    world.passes(10)
    world.spec["runPolicy"]["suspend"] = False
    world.passes(5)
    world.run()
    world.passes(100)
    world.end(last(kind), 1)
    world.passes(2)
    world.reap()
    world.passes(4)
    world.run()
    world.passes(200)
    for name in leaders(kind):
        world.end(name, 0)
    world.settle()
    assert world.is_true("Succeeded")
    assert world.ended == [
        ("suspended", 10), ("pending", 0), ("starting", 5), ("running", 100), ("restarting", 2), ("running", 204),
    ]  # fmt: skip
    assert sum(seconds for _, seconds in world.ended) == (world.now - NOW).total_seconds()
    assert [mark.phase for mark in read_marks(world.status, NOW)][-1] is Phase.FINISHED


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_is_suspended_while_it_runs(kind: str):
    world = Watched(kind)
    world.passes(3)
    world.run()
    world.passes(50)
    world.spec["runPolicy"] = {"suspend": True}
    world.settle()
    world.reap()
    world.passes(20)
    world.spec["runPolicy"] = {"suspend": False}
    world.passes(3)
    world.run()
    world.settle()
    assert world.ended == [
        ("pending", 0), ("starting", 3), ("running", 50), ("suspended", 20), ("pending", 0), ("starting", 3),
    ]  # fmt: skip


# The histogram --------------------------------------------------------------------------------------------------------


def counted(metrics: JobMetrics) -> dict[str, Counter[str]]:
    """Kind -> phase -> number of observations; phases that none ended are left out."""
    found: dict[str, Counter[str]] = {}
    family = next(each for each in metrics.registry.collect() if each.name == "trainop_job_phase_seconds")
    for sample in family.samples:
        if sample.name.endswith("_count") and sample.value:
            found.setdefault(sample.labels["kind"], Counter())[sample.labels["phase"]] = int(sample.value)
    return found


PODS = ("j-master-0", "j-worker-0", "j-worker-1")


async def run_pods(here: Stage) -> None:
    for name in PODS:
        await here.set_status(name, {"phase": "Running"})
    await asyncio.sleep(3)


async def succeed(here: Stage) -> None:
    ended = {"name": "pytorch", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
    await here.set_status("j-master-0", {"phase": "Succeeded", "containerStatuses": [ended]})
    await asyncio.sleep(3)


@virtual_time
async def test_the_series_of_a_kind_exist_from_its_first_job_on():
    async with stage(run=False) as here:
        metrics = JobMetrics()
        async with running(here.operator(QUIET, metrics)):
            await here.submit(pytorch_job())
            await asyncio.sleep(3)
            names = {"kind": "PyTorchJob", "phase": "restarting"}
            assert metrics.registry.get_sample_value("trainop_job_phase_seconds_count", names) == 0
            assert (
                metrics.registry.get_sample_value("trainop_job_phase_seconds_count", {**names, "kind": "TFJob"}) is None
            )


@virtual_time
async def test_each_phase_is_counted_once_also_by_operators_that_follow_each_other():
    async with stage(run=False) as here:
        total: Counter[str] = Counter()

        async def operate(*steps: Any) -> None:
            metrics = JobMetrics()
            async with running(here.operator(QUIET, metrics)):
                await asyncio.sleep(3)
                for step in steps:
                    await step
                await asyncio.sleep(3)
            total.update(counted(metrics).get("PyTorchJob", {}))

        await here.submit(pytorch_job())
        await operate()
        await operate(run_pods(here))
        await operate()
        await operate(succeed(here))
        await operate()
        assert total == {"pending": 1, "starting": 1, "running": 1}


@virtual_time
async def test_a_first_status_that_was_held_back_ends_all_phases_that_it_shows():
    async with stage(run=False) as here:
        metrics = JobMetrics()
        async with running(here.operator(QUIET, metrics)):
            await asyncio.sleep(3)
            await here.submit(pytorch_job())
            await asyncio.sleep(0.3)
            await run_pods(here)
            assert [each for each in here.transport.writes if each.endswith("pytorchjobs/j/status")] == [
                "PUT /apis/kubeflow.org/v1/namespaces/ns/pytorchjobs/j/status"
            ]
            assert counted(metrics) == {"PyTorchJob": {"pending": 1, "starting": 1}}


@virtual_time
async def test_a_write_that_fails_counts_nothing_until_it_is_repeated():
    async with stage(run=False) as here:
        metrics = JobMetrics()
        async with running(here.operator(QUIET, metrics)):
            await here.submit(pytorch_job())
            await asyncio.sleep(3)
            here.transport.unavailable = "pytorchjobs/j/status"
            await run_pods(here)
            assert counted(metrics) == {"PyTorchJob": {"pending": 1}}
            here.transport.unavailable = "nothing"
            await asyncio.sleep(120)
            assert counted(metrics) == {"PyTorchJob": {"pending": 1, "starting": 1}}


@virtual_time
async def test_mpijobs_of_both_transports_are_counted_as_one_kind():
    async with operated() as here:
        await here.submit(mpi_job(1))
        await here.launch()
        await here.run("foo-worker-0")
        await here.settle(3)
        await here.end_launcher()
        await here.settle(3)
        assert counted(here.metrics) == {"MPIJob": {"pending": 1, "starting": 1, "running": 1}}


@virtual_time
async def test_dijobs_are_counted():
    async with stage(crds=False, run=False) as here:
        await here.client.create(CUSTOM_RESOURCE_DEFINITIONS, dijob_crd())
        metrics = JobMetrics()
        async with running(here.operator(SETTINGS, metrics)):
            di = DiStage(here)
            await di.settle()
            await di.submit()
            (coordinator,) = await di.pods()
            await di.set_phase(coordinator, "Running")
            await di.set_phase(coordinator, "Succeeded")
        assert counted(metrics) == {"DIJob": {"pending": 1, "running": 1}}


def test_the_page_on_monitoring_has_each_phase_that_is_counted():
    text = (Path(__file__).parents[2] / "docs" / "monitoring.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|", text.partition("## Phases of jobs")[2], re.MULTILINE)
    assert sorted(rows) == sorted(phase.value for phase in Phase if phase is not Phase.FINISHED)
