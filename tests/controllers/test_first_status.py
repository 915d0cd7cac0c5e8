"""The first status of a job, which waits for a second, or three while writes are slow, for the next transition."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import nullcontext

import pytest

from tests.controllers.shell import JOBS, KEY, Shell, api_error, pytorch_job
from tests.controllers.test_shell_operator import stage
from tests.controllers.test_shell_reconciler import restart_operator
from tests.runtime.virtual_time import VirtualClock, virtual_time
from trainop.controllers.job_state import JobStates
from trainop.controllers.statuses import MAX_WAIT, MIN_WAIT, WRITES, FirstStatuses
from trainop.engine.actions import Event, Plan
from trainop.runtime.controller.expectations import Expectations
from trainop.runtime.errors import ApiError
from trainop.runtime.objects.metadata import PODS, SERVICES, Json, Key, Unstructured

PODS_OF_JOB = ("j-master-0", "j-worker-0", "j-worker-1")
WRITE, CREATE = "put status", "create"


def new_job(job: Json | None = None) -> Shell:
    """A job that has not been reconciled yet."""
    shell = Shell(first_status=MAX_WAIT)
    shell.client.put(JOBS, job or pytorch_job())
    shell.show()
    return shell


def written(shell: Shell) -> int:
    return len(shell.client.names(WRITE, JOBS))


def created(shell: Shell) -> float:
    return shell.counted("training_operator_jobs_created_total", job_namespace="ns", framework="pytorch")


def times(shell: Shell) -> dict[str, str]:
    """Type of a condition -> its transition, and `start` -> startTime."""
    status = shell.job()["status"]
    found = {each["type"]: each["lastTransitionTime"] for each in status["conditions"]}
    return found | {"start": status["startTime"]}


async def run_pods(shell: Shell, *names: str) -> None:
    for name in names or PODS_OF_JOB:
        shell.set_phase(name, "Running")
    shell.show()
    await shell.look()


@virtual_time
async def test_created_and_running_are_one_write_with_times_of_their_own() -> None:
    shell = new_job()
    result = await shell.look()
    assert (shell.pods(), written(shell), created(shell)) == (sorted(PODS_OF_JOB), 0, 0)
    assert result.requeue_after == pytest.approx(MIN_WAIT)
    shell.clock.jump(5)  # the times have whole seconds
    await shell.clock.sleep(0.9)
    await run_pods(shell)
    assert (written(shell), created(shell)) == (1, 1)
    assert shell.conditions() == [("Created", "True"), ("Running", "True")]
    found = times(shell)
    assert found["Created"] == found["start"] == "2026-01-01T00:00:00Z"
    assert found["Running"] >= found["start"]
    assert (await shell.settle()).requeue_after is None, "nothing is left to be written"
    await shell.clock.sleep(5)
    await shell.settle()
    assert (written(shell), created(shell)) == (1, 1)


@virtual_time
async def test_created_is_written_after_a_second() -> None:
    shell = new_job()
    await shell.look()
    shell.show()
    for _ in range(3):
        assert (await shell.look()).requeue_after == pytest.approx(MIN_WAIT - shell.clock.monotonic())
        await shell.clock.sleep(0.3)
    assert written(shell) == 0
    await shell.clock.sleep(0.2)
    await shell.look()
    assert shell.conditions() == [("Created", "True")]
    assert (written(shell), created(shell)) == (1, 1)
    await shell.settle()
    await run_pods(shell)
    await shell.clock.sleep(5)
    await shell.settle()
    assert (written(shell), created(shell)) == (2, 1)


@pytest.mark.parametrize(("seconds", "wait"), [(0.01, MIN_WAIT), (0.1, WRITES * 0.1), (0.5, MAX_WAIT), (30, MAX_WAIT)])
@virtual_time
async def test_the_status_waits_longer_while_writes_are_slow(seconds: float, wait: float) -> None:
    shell = new_job()
    shell.client.slow = seconds
    assert (await shell.look()).requeue_after == pytest.approx(wait)
    shell.show()
    await shell.clock.sleep(wait - 0.01)
    await shell.look()
    assert written(shell) == 0
    await shell.clock.sleep(0.01)
    await shell.look()
    assert (written(shell), shell.conditions()) == (1, [("Created", "True")])


@virtual_time
async def test_a_burst_that_begins_after_the_first_pass_counts() -> None:
    """The first passes of a burst begin while writes are still quick."""
    shell = new_job()
    shell.client.slow = 0.01
    await shell.look()
    shell.client.slow = 0.1
    shell.show()
    await shell.clock.sleep(MIN_WAIT)
    assert (await shell.look()).requeue_after == pytest.approx(WRITES * 0.1 - MIN_WAIT)
    assert written(shell) == 0
    await run_pods(shell)
    assert (written(shell), shell.conditions()) == (1, [("Created", "True"), ("Running", "True")])


@virtual_time
async def test_it_is_written_at_once_when_writes_are_quick_again() -> None:
    shell = new_job()
    shell.client.slow = 0.1
    await shell.look()
    shell.show()
    await shell.clock.sleep(MIN_WAIT)
    shell.client.slow = 0.01
    await shell.look()
    assert written(shell) == 1


@pytest.mark.parametrize("lags", [(JOBS, PODS, SERVICES), (PODS,)])
@virtual_time
async def test_created_is_written_although_the_caches_lag(lags: tuple[object, ...]) -> None:
    shell = new_job()
    await shell.look()
    shell.show(*(each for each in (JOBS, SERVICES, PODS) if each not in lags))
    await shell.clock.sleep(MIN_WAIT)
    await shell.look()
    assert shell.conditions() == [("Created", "True")]
    assert created(shell) == 1


@virtual_time
async def test_pods_that_run_while_one_does_not_are_counted_in_the_first_status() -> None:
    shell = new_job()
    await shell.look()
    shell.show()
    await shell.clock.sleep(0.3)
    await run_pods(shell, "j-master-0", "j-worker-0")
    assert written(shell) == 0, "the third may follow"
    await shell.clock.sleep(0.7)
    await shell.look()
    assert shell.conditions() == [("Created", "True"), ("Running", "True")]
    assert shell.job()["status"]["replicaStatuses"]["Worker"]["active"] == 1
    assert (written(shell), created(shell)) == (1, 1)


@pytest.mark.parametrize(
    ("phase", "last"), [("Succeeded", "Succeeded"), ("Failed", "Restarting")], ids=["succeeds", "restarts"]
)
@virtual_time
async def test_another_transition_is_not_delayed_and_reported_once(phase: str, last: str) -> None:
    shell = new_job()
    await shell.look()
    await shell.clock.sleep(0.2)
    shell.set_phase("j-master-0", phase)
    shell.show()
    await shell.look()
    assert shell.conditions()[0] == ("Created", "True")
    assert shell.conditions()[-1] == (last, "True")
    for _ in range(3):
        await shell.clock.sleep(MIN_WAIT)
        await shell.settle()
    assert created(shell) == 1
    counter = "successful" if phase == "Succeeded" else "restarted"
    name = f"training_operator_jobs_{counter}_total"
    assert shell.counted(name, job_namespace="ns", framework="pytorch") == 1


@pytest.mark.parametrize("policy", [{"suspend": True}, {"cleanPodPolicy": "nonsense"}], ids=["suspended", "invalid"])
@virtual_time
async def test_a_job_that_gets_no_pods_says_so_at_once(policy: Json) -> None:
    shell = new_job(pytorch_job(runPolicy=policy))
    await shell.look()
    assert [type_ for type_, _ in shell.conditions()] in (["Created", "Suspended"], ["Created", "Failed"])
    assert (written(shell), created(shell)) == (1, 1)


@pytest.mark.parametrize("code", [403, 422, 500])
@virtual_time
async def test_a_job_whose_pods_cannot_be_created_says_so_at_once(code: int) -> None:
    shell = new_job()
    reason, message = {403: ("Forbidden", "exceeded quota"), 422: ("Invalid", ""), 500: ("InternalError", "")}[code]
    shell.client.fail(CREATE, PODS, api_error(code, reason, message), times=9)
    with pytest.raises(ApiError) if code == 500 else nullcontext():
        await shell.look()
    assert [type_ for type_, _ in shell.conditions()] == (["Created", "Failed"] if code == 422 else ["Created"])
    assert created(shell) == 1


@virtual_time
async def test_a_job_of_many_pods_is_created_within_a_second_too() -> None:
    """A pass creates up to 500 pods, which may take seconds."""
    shell = new_job(pytorch_job(workers=200))
    create, seen = shell.client.create, []

    async def slowly(*args: object, **kwargs: object) -> Json:
        await asyncio.sleep(0.05)
        seen.append((shell.clock.monotonic(), written(shell)))
        return await create(*args, **kwargs)  # type: ignore[arg-type]  # passed on

    shell.client.create = slowly  # type: ignore[method-assign]  # spies
    await shell.look()
    assert seen[-1][0] > 2
    assert {count for at, count in seen if at < MIN_WAIT} == {0}
    assert {count for at, count in seen if at > MIN_WAIT} == {1}
    assert (shell.conditions(), created(shell)) == ([("Created", "True")], 1)


@virtual_time
async def test_a_killed_operator_delays_created_by_no_more_than_another_second() -> None:
    shell = new_job()
    await shell.look()
    await shell.clock.sleep(0.9)
    fresh = restart_operator(shell)
    fresh.reconciler._first_statuses._max_wait = MAX_WAIT
    assert (await fresh.look()).requeue_after == pytest.approx(MIN_WAIT)
    await shell.clock.sleep(MIN_WAIT)
    await fresh.look()
    assert fresh.conditions() == [("Created", "True")]
    assert (created(fresh), len(fresh.client.names(CREATE, PODS))) == (1, 0)


@virtual_time
async def test_a_status_that_another_client_writes_meanwhile_is_kept() -> None:
    shell = new_job()
    await shell.look()
    shell.client.put(JOBS, shell.job() | {"status": {"extra": 1}})
    shell.show()
    await run_pods(shell)
    assert shell.job()["status"]["extra"] == 1
    assert shell.conditions() == [("Created", "True"), ("Running", "True")]
    assert created(shell) == 1


@pytest.mark.parametrize("shown", [False, True])
@virtual_time
async def test_a_change_of_the_job_delays_nothing(shown: bool) -> None:
    """The write at the end of the wait may conflict with a change that the cache does not show yet."""
    shell = new_job()
    await shell.look()
    shell.show()
    job = shell.job()
    shell.client.put(JOBS, job | {"metadata": job["metadata"] | {"labels": {"a": "b"}}})
    if shown:
        shell.show()
    await shell.clock.sleep(MIN_WAIT)
    await shell.look()
    assert written(shell) == 1
    if not shown:
        assert "status" not in shell.job()
        shell.show()
        await shell.look()
    assert shell.conditions() == [("Created", "True")]
    assert created(shell) == 1


@virtual_time
async def test_a_job_that_is_being_deleted_gets_no_status() -> None:
    shell = new_job()
    await shell.look()
    shell.client.mark_deleted(JOBS, "j")
    shell.show()
    await shell.clock.sleep(MIN_WAIT)
    assert (await shell.look()).requeue_after is None
    assert written(shell) == 0


@virtual_time
async def test_a_successor_waits_anew() -> None:
    shell = new_job()
    await shell.look()
    await shell.clock.sleep(0.9)
    for resource, key in list(shell.client.objects):
        del shell.client.objects[resource, key]
    shell.client.put(JOBS, pytorch_job(uid="second"))
    shell.show()
    await shell.look()
    await shell.clock.sleep(0.9)
    assert (await shell.look()).requeue_after == pytest.approx(0.1)
    assert written(shell) == 0
    assert "status" not in shell.client.objects[JOBS, KEY]


@pytest.mark.parametrize(
    "error", [api_error(409, "Conflict"), api_error(500, "InternalError"), ConnectionError("gone")]
)
@virtual_time
async def test_a_failed_write_is_repeated_and_counted_once(error: Exception) -> None:
    shell = new_job()
    await shell.look()
    shell.client.fail(WRITE, JOBS, error)
    shell.show()
    await shell.clock.sleep(MIN_WAIT)
    for _ in range(4):
        shell.client.put(JOBS, shell.job())  # a newer version, as after a conflict
        shell.show()
        try:
            await shell.look()
        except (ConnectionError, type(error)):
            assert created(shell) == 0
    assert (shell.conditions(), created(shell)) == ([("Created", "True")], 1)


@virtual_time
async def test_after_a_conflict_nothing_is_written_before_the_cache_shows_the_change() -> None:
    """The same write would conflict again, as often as it is repeated."""
    shell = new_job()
    await shell.look()
    shell.show()
    shell.client.put(JOBS, shell.job())  # by another client
    await shell.clock.sleep(MIN_WAIT)
    assert (await shell.look()).requeue
    for _ in range(3):
        result = await shell.look()
        assert not result.requeue
        assert result.requeue_after
    assert (written(shell), created(shell)) == (1, 0)
    shell.show()
    await shell.look()
    assert (written(shell), created(shell), shell.conditions()) == (2, 1, [("Created", "True")])


@virtual_time
async def test_what_happened_before_a_failed_write_is_in_its_repetition() -> None:
    shell = new_job()
    await shell.look()
    shell.client.fail(WRITE, JOBS, ConnectionError("gone"))
    for name in PODS_OF_JOB:
        shell.set_phase(name, "Running")
    shell.show()
    await shell.clock.sleep(MIN_WAIT)
    with pytest.raises(ConnectionError):
        await shell.look()
    await shell.look()
    assert shell.conditions() == [("Created", "True"), ("Running", "True")]
    assert (written(shell), created(shell)) == (2, 1)


@virtual_time
async def test_a_job_whose_pods_start_at_once_costs_nine_requests() -> None:
    """One for each of its three pods and services, two statuses, and one event."""
    async with stage() as here:
        await here.submit(pytorch_job())
        await asyncio.sleep(0.2)
        for phase in ("Running", "Succeeded"):
            for name in PODS_OF_JOB:
                await here.set_status(name, {"phase": phase})
            await asyncio.sleep(5)
        writes = Counter(write.split("?")[0].split("/namespaces/ns/")[-1] for write in here.transport.writes)
        assert writes == {"pods": 3, "services": 3, "pytorchjobs/j/status": 2, "events": 1}


@virtual_time
async def test_pods_are_recognized_while_nothing_is_written() -> None:
    """What was counted and restarted meanwhile is known to the next operator by annotations and pods."""
    shell = new_job()
    await shell.look()
    shell.set_phase("j-worker-0", "Failed")
    shell.show()
    shell.client.fail(WRITE, JOBS, ConnectionError("gone"))
    with pytest.raises(ConnectionError):
        await shell.look()
    fresh = restart_operator(shell)
    fresh.reconciler._first_statuses._max_wait = MAX_WAIT
    for _ in range(4):
        await fresh.settle()
        await shell.clock.sleep(MIN_WAIT)
    assert (created(fresh), sorted(PODS_OF_JOB)) == (1, fresh.pods())
    assert Key("ns", "j-worker-0") in {key for resource, key in fresh.client.objects if resource == PODS}


# What is held ---------------------------------------------------------------------------------------------------------


@virtual_time
async def test_a_spec_that_changes_at_the_last_moment_is_not_answered_with_the_old_status() -> None:
    """The cache shows the suspension with the pass in which the status is due."""
    shell = new_job()
    await shell.look()
    shell.show()
    await shell.clock.sleep(MIN_WAIT)
    job = shell.job()
    suspended = job["spec"] | {"runPolicy": {"suspend": True}}
    shell.client.put(JOBS, job | {"spec": suspended, "metadata": job["metadata"] | {"generation": 2}})
    shell.show()
    await shell.look()
    assert [type_ for type_, _ in shell.conditions()] == ["Created", "Suspended"]
    assert "startTime" not in shell.job()["status"]
    assert (written(shell), created(shell)) == (1, 1)


def condition(type_: str) -> Json:
    return {"type": type_, "status": "True"}


CREATED_ONLY: Json = {"conditions": [condition("Created")]}
BOTH: Json = {"conditions": [condition("Created"), condition("Running")]}


def job_of(version: str = "5", status: Json | None = None, generation: int = 1) -> Unstructured:
    metadata = {"name": "j", "namespace": "ns", "uid": "u", "resourceVersion": version, "generation": generation}
    return Unstructured({"metadata": metadata, **({"status": status} if status is not None else {})})


def holding(status: Json = CREATED_ONLY, *transitions: Event, version: str = "5") -> tuple[FirstStatuses, VirtualClock]:
    """A status of `job_of()` is held back."""
    clock = VirtualClock()
    first = FirstStatuses(JobStates(Expectations(clock)), clock, lambda: 0.0)
    plan = Plan(status=status, transitions=transitions)
    assert first.seconds_to_spare(job_of(), plan, unsettled=True) == MIN_WAIT
    first.hold(job_of(), plan, version)
    return first, clock


@virtual_time
async def test_transitions_are_reported_in_the_order_of_their_plans() -> None:
    one, two = Event("Normal", "One", ""), Event("Normal", "Two", "")
    first, _ = holding(CREATED_ONLY, one)
    assert first.complete(first.show(job_of()), Plan(status=BOTH, transitions=(two,))).transitions == (one, two)


@virtual_time
async def test_a_status_that_goes_before_actions_is_never_held() -> None:
    first, _ = holding()
    plan = Plan(status=CREATED_ONLY, status_first=True)
    assert first.seconds_to_spare(first.show(job_of()), plan, unsettled=True) == 0


@pytest.mark.parametrize("unsettled", [True, False])
@virtual_time
async def test_created_and_running_wait_for_pods_that_start(unsettled: bool) -> None:
    first, _ = holding()
    spare = first.seconds_to_spare(first.show(job_of()), Plan(status=BOTH), unsettled=unsettled)
    assert spare == (MIN_WAIT if unsettled else 0)


@pytest.mark.parametrize(("cached", "held", "sent"), [("3", "5", "5"), ("5", "5", "5"), ("7", "5", "7")])
@virtual_time
async def test_it_is_written_at_the_newest_version_that_is_known(cached: str, held: str, sent: str) -> None:
    first, clock = holding(version=held)
    assert first.due_status(job_of(cached)) is None
    await clock.sleep(MIN_WAIT)
    found = first.due_status(job_of(cached))
    assert found is not None
    assert (found.version, found.status) == (sent, CREATED_ONLY)


@virtual_time
async def test_a_job_whose_status_is_held_again_has_still_none() -> None:
    first, _ = holding()
    first.hold(first.show(job_of()), Plan(status=BOTH), "6")
    shown = first.show(job_of())
    assert (shown.raw["status"], first.is_pending(shown)) == (BOTH, True)
    assert first.stored(shown).raw["status"] == {}


@virtual_time
async def test_after_the_write_nothing_is_held() -> None:
    first, clock = holding()
    first.written(job_of())
    assert first.seconds_to_due(job_of()) is None
    await clock.sleep(MIN_WAIT)
    assert first.due_status(job_of()) is None


@pytest.mark.parametrize("changed", [job_of(generation=2), job_of(status={"extra": 1})], ids=["spec", "status"])
@virtual_time
async def test_what_was_made_from_another_job_is_dropped(changed: Unstructured) -> None:
    first, clock = holding()
    assert first.show(changed) is changed
    assert first.due_status(changed) is None
    assert first.show(job_of()).raw["status"] == CREATED_ONLY, "a question must not change what is held"
    first.forget_outdated(job_of())
    assert first.show(job_of()).raw["status"] == CREATED_ONLY
    first.forget_outdated(changed)
    assert first.show(job_of()).raw.get("status") is None
    await clock.sleep(MIN_WAIT)
    assert first.due_status(changed) is None
