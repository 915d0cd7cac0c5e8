"""How silence is measured: by the clock of the process that leads, whatever happens to it and to other clocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from tests.controllers.shell import JOBS, Shell, pytorch_job
from tests.engine.builders import NOW
from tests.runtime.virtual_time import VirtualClock, virtual_time
from trainop.controllers.job_state import JobStates
from trainop.controllers.observe import by_reporting
from trainop.controllers.progress.feed import LATENCY, ReportFeed
from trainop.controllers.progress.writer import INTERVAL
from trainop.controllers.routing import hear_reports
from trainop.controllers.silence import Silences
from trainop.engine.progress import ProgressEndpoint
from trainop.engine.seen import Options, Silence, Snapshot
from trainop.runtime.controller.expectations import Expectations
from trainop.runtime.controller.reconcile import Result
from trainop.runtime.objects.metadata import PODS, Json, Unstructured

AFTER, DELAY = 600.0, 15.0
ANNOTATIONS = {"trainop.kubeflow.org/stalled-after": "10m"}


class Clock(VirtualClock):
    """A monotonic clock that the test moves."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 1000.0

    def monotonic(self) -> float:
        return self.at


def job(
    *, run: str | None = "2026-01-01T00:00:00Z", annotations: dict[str, str] = ANNOTATIONS, **status: Any
) -> Unstructured:
    conditions = [{"type": "Running", "status": "True", "lastTransitionTime": run}] if run else []
    metadata = {"name": "j", "namespace": "ns", "uid": "u", "annotations": annotations}
    return Unstructured({"metadata": metadata, "status": {"conditions": conditions, **status}})


class Process:
    """One process of the operator, which looks at one job."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.states = JobStates(Expectations(self.clock))
        self.silences = Silences(self.states, self.clock, lambda: DELAY)

    def look(self, seen: Unstructured | None = None) -> Silence | None:
        """One pass, for which the controller has made the state of the job."""
        self.states.ensure("u")
        return self.silences.show(Snapshot(seen or job(), (), (), NOW)).silence

    def wait(self, seconds: float) -> Silence:
        self.clock.at += seconds
        found = self.look()
        assert found is not None
        return found


def test_silence_begins_when_the_process_first_sees_that_the_job_runs():
    here = Process()
    assert here.look() == Silence(0.0, None, look_in=AFTER)
    assert here.wait(60) == Silence(60.0, None, look_in=AFTER - 60)


def test_a_job_that_does_not_run_or_is_not_watched_is_left_out():
    here = Process()
    assert here.look(job(run=None)) is None
    assert here.look(job(annotations={})) is None
    here.look()
    here.look(job(annotations={}))
    assert here.states.ensure("u").listening is None


def test_a_report_ends_the_silence():
    here = Process()
    here.look()
    here.clock.at += 100
    here.silences.hear(job(), "j-master-0")
    assert here.wait(40) == Silence(40.0, 40.0, "j-master-0", look_in=AFTER - 40)
    here.silences.hear(job())
    assert here.wait(1) == Silence(1.0, 1.0, "j-master-0", look_in=AFTER - 1)


def test_a_late_report_of_the_run_before_is_none_of_this_run():
    here = Process()
    here.look()
    here.clock.at += DELAY - 1
    here.silences.hear(job())
    assert here.wait(0) == Silence(0.0, None, look_in=AFTER)
    here.clock.at += 1
    here.silences.hear(job())
    assert here.wait(0) == Silence(0.0, 0.0, look_in=AFTER)


def test_a_new_run_begins_anew():
    here = Process()
    here.look()
    here.silences.hear(job(), "j-master-0")
    here.clock.at += 500
    assert here.look(job(run="2026-01-01T00:10:00Z")) == Silence(0.0, None, look_in=AFTER)
    here.silences.hear(job(), "j-master-0")
    here.look(job(run=None))
    assert here.look(job(run="2026-01-01T00:10:00Z")) == Silence(0.0, None, look_in=AFTER)


def test_silence_counts_after_a_report_may_have_been_on_its_way():
    here = Process()
    here.look()
    assert here.wait(AFTER - 1).look_in == 1
    found = here.wait(1)
    assert (found.overdue, found.look_in) == (False, DELAY)
    found = here.wait(DELAY - 1)
    assert (found.overdue, found.look_in) == (False, 1)
    assert here.wait(1).overdue


def test_a_report_in_the_last_moment_ends_the_silence():
    here = Process()
    here.look()
    here.wait(AFTER)
    here.clock.at += DELAY - 1
    here.silences.hear(job())
    found = here.wait(1)
    assert (found.overdue, found.look_in) == (False, AFTER - 1)
    here.wait(AFTER - 1)
    assert not here.wait(DELAY - 1).overdue
    assert here.wait(1).overdue


def test_a_process_that_was_frozen_listens_first():
    here = Process()
    here.look()
    found = here.wait(10 * AFTER)
    assert (found.overdue, found.look_in) == (False, DELAY)
    found = here.wait(10 * AFTER)  # frozen again
    assert (found.overdue, found.look_in) == (False, DELAY)
    assert here.wait(DELAY).overdue


def test_jobs_that_this_process_does_not_reconcile_are_not_remembered():
    here = Process()
    here.silences.hear(job(), "j-master-0")
    assert here.states.find("u") is None
    here.states.ensure("u")
    here.silences.hear(job(annotations={}), "j-master-0")
    assert here.states.ensure("u").listening is None


def test_a_report_is_heard_before_the_first_pass_that_sees_the_job_run():
    here = Process()
    here.states.ensure("u")
    here.silences.hear(job(), "j-master-0")
    assert here.wait(5) == Silence(5.0, 5.0, "j-master-0", look_in=AFTER - 5)


def test_a_report_before_the_status_says_that_the_job_runs_is_one_of_its_first_run():
    """A job that reports once at its start, while its first status is held back, and then hangs, has stalled."""
    here = Process()
    here.look(job(run=None))
    here.silences.hear(job(run=None), "j-master-0")
    here.clock.at += 3
    assert here.look() == Silence(0.0, 3.0, "j-master-0", look_in=AFTER)
    assert here.wait(50) == Silence(50.0, 53.0, "j-master-0", look_in=AFTER - 50)
    assert here.look(job(run="2026-01-01T00:10:00Z")) == Silence(0.0, None, look_in=AFTER), "the next run is another"


@pytest.mark.parametrize("type_", ["Running", "Restarting"])
def test_a_report_between_two_runs_may_be_of_the_run_before(type_: str):
    here = Process()
    before = job(run=None)
    before.raw["status"]["conditions"] = [
        {"type": type_, "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    ]
    here.look(before)
    here.silences.hear(before, "j-master-0")
    assert here.look() == Silence(0.0, None, look_in=AFTER)


def test_the_first_report_of_a_run_counts_although_no_pass_has_seen_that_it_runs():
    """Nothing else is to be done for a job once its status says that it runs, so that its next pass may be late."""
    here = Process()
    handler = hear_reports(here.silences)
    here.look(job(run=None))
    handler.update(job(run=None), job())
    here.clock.at += DELAY
    handler.update(job(), job(trainerStatus={"progressPercentage": 1}))
    assert here.wait(5) == Silence(5.0, 5.0, look_in=AFTER - 5)


def test_reports_of_other_replicas_are_heard_in_the_cache():
    here = Process()
    handler = hear_reports(here.silences)
    handler.add(job(trainerStatus={"progressPercentage": 1}), initial=True)
    here.look()
    here.clock.at += 60
    handler.update(job(), job(startTime="2026-01-01T00:00:00Z"))
    assert here.wait(0).seconds == 60
    handler.update(job(), job(trainerStatus={"progressPercentage": 1}))
    assert here.wait(0).seconds == 0
    handler.delete(None, job().metadata.key, final_state_unknown=True)


def test_a_step_of_the_wall_clock_is_no_silence():
    here = Process()
    here.look()
    seen = replace(Snapshot(job(), (), (), NOW), now=NOW.replace(year=2030), wall=NOW.replace(year=2030))
    found = here.silences.show(seen).silence
    assert found is not None
    assert found.seconds == 0


# How long a report may take -------------------------------------------------------------------------------------------


def test_the_delay_grows_with_the_jobs_that_report():
    feed, heard = ReportFeed(), list[tuple[Unstructured, str]]()
    assert feed.delay == INTERVAL + LATENCY
    feed.listen(lambda of, pod: heard.append((of, pod)), lambda: 700)
    feed.listen(lambda of, pod: heard.append((of, pod)), lambda: 300)
    assert feed.delay == 50 + LATENCY
    reporting = job()
    feed.tell(reporting, "p")
    assert heard == [(reporting, "p")] * 2


def test_jobs_that_have_ended_do_not_report():
    ended = [{"type": "Succeeded", "status": "True"}], [{"type": "Failed", "status": "True"}]
    reported: Json = {"trainerStatus": {}}
    assert by_reporting(job(**reported)) == ("trainerStatus",)
    assert [by_reporting(job(conditions=each, **reported)) for each in ended] == [(), ()]
    assert by_reporting(job()) == ()
    assert by_reporting(Unstructured({})) == ()


# With the controller --------------------------------------------------------------------------------------------------


def watched(shell: Shell, **annotations: str) -> None:
    made = pytorch_job()
    made["metadata"]["annotations"] = {f"trainop.kubeflow.org/{name}": value for name, value in annotations.items()}
    shell.client.put(JOBS, made)


async def write(shell: Shell) -> Result:
    """Reconciles until nothing changes, also what may wait for a moment because it is in the status alone."""
    await shell.settle()
    await shell.clock.sleep(0.5)
    return await shell.settle()


async def run(shell: Shell) -> None:
    await shell.settle()
    for name in shell.pods():
        shell.set_phase(name, "Running")
    await write(shell)
    assert ("Running", "True") in shell.conditions()
    while await shell.woken():
        pass


def report(shell: Shell, percent: int) -> None:
    """A report that another replica has taken is written."""
    stored = shell.job()
    shell.client.put(JOBS, stored | {"status": {**stored["status"], "trainerStatus": {"progressPercentage": percent}}})
    shell.show(JOBS)


def make_shell() -> Shell:
    return Shell(Options(waiting_after=0, progress=ProgressEndpoint("https://x", everywhere=True)))


def condition(shell: Shell) -> str | None:
    return dict(shell.conditions()).get("Stalled")


@virtual_time
async def test_only_the_first_report_and_the_one_after_a_stall_wake_the_controller():
    shell = make_shell()
    watched(shell, **{"stalled-after": "10m"})
    await run(shell)
    report(shell, 1)
    assert await shell.woken()
    await write(shell)
    assert condition(shell) == "False"
    while await shell.woken():
        pass
    report(shell, 2)
    assert not await shell.woken()
    result = await write(shell)
    assert result.requeue_after == pytest.approx(AFTER, abs=1)
    await shell.clock.sleep(AFTER)
    result = await write(shell)
    assert condition(shell) == "False"
    assert result.requeue_after == pytest.approx(DELAY, abs=1)
    await shell.clock.sleep(DELAY)
    await write(shell)
    assert condition(shell) == "True"
    assert len(shell.events.of("Stalled")) == 1
    labels = {"job_namespace": "ns", "framework": "pytorch"}
    assert shell.counted("trainop_stalls_total", **labels) == 1
    assert shell.counted("trainop_jobs_stalled", **labels) == 1
    while await shell.woken():
        pass
    report(shell, 3)
    assert await shell.woken()
    await write(shell)
    assert condition(shell) == "False"
    assert shell.counted("trainop_jobs_stalled", **labels) == 0


@virtual_time
async def test_a_job_that_reports_before_its_status_says_that_it_runs_and_then_hangs_has_stalled():
    """No event comes after that of the operator's own write: the controller has to look by itself."""
    shell = make_shell()
    watched(shell, **{"stalled-after": "10m"})
    await write(shell)
    report(shell, 1)
    for name in shell.pods():
        shell.set_phase(name, "Running")
    began = shell.clock.monotonic()
    while condition(shell) != "True":
        shell.show()
        due = (await shell.look()).requeue_after
        assert due is not None or condition(shell) == "True", shell.conditions()
        await shell.clock.sleep(due or 0)
    assert shell.clock.monotonic() - began == pytest.approx(AFTER + DELAY, abs=5)


@virtual_time
async def test_a_new_leader_begins_to_count():
    shell = make_shell()
    watched(shell, **{"stalled-after": "10m", "on-stall": "restart"})
    await run(shell)
    report(shell, 1)
    await write(shell)
    await shell.clock.sleep(AFTER - 1)
    await write(shell)
    reconciler = cast("Any", shell.reconciler)
    reconciler._states.forget(shell.job()["metadata"]["uid"])
    await shell.clock.sleep(AFTER - 2)
    await write(shell)
    assert condition(shell) == "False"
    await shell.clock.sleep(AFTER)
    names = shell.pods()
    assert len(names) == 3
    await write(shell)
    await shell.clock.sleep(DELAY)
    await shell.look()
    assert shell.client.names("delete", PODS) == names
    assert "the job was last heard before 20" in shell.events.of("Stalled")[0]


@virtual_time
async def test_without_the_annotation_no_pass_is_made_and_nothing_is_remembered():
    shell = make_shell()
    watched(shell)
    await run(shell)
    report(shell, 1)
    assert not await shell.woken()
    result = await write(shell)
    assert result.requeue_after is None
    state = cast("Any", shell.reconciler)._states.find(shell.job()["metadata"]["uid"])
    assert state.listening is None
