"""Controllers in virtual time: the effect of each reconcile result, workers, timeouts, shutdown and outages."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from tests.runtime.virtual_time import VirtualClock, virtual_time
from trainop.runtime.cache.informer import Handler
from trainop.runtime.client.sender import Recovery
from trainop.runtime.controller.controller import Controller
from trainop.runtime.controller.enqueue import EnqueueObject
from trainop.runtime.controller.reconcile import DONE, Result
from trainop.runtime.errors import ApiError, TerminalError
from trainop.runtime.metrics.metrics import Metrics
from trainop.runtime.objects.metadata import Key, Metadata, PartialObject

A, B = Key("ns", "a"), Key("ns", "b")


class Scripted:
    """A reconciler that returns or raises the outcomes of a key in order, and repeats the last one."""

    def __init__(self, **outcomes: list[Result | Exception | Callable[[], Awaitable[Result]]]) -> None:
        self.outcomes = outcomes
        self.calls: list[tuple[str, float]] = []

    async def reconcile(self, key: Key) -> Result:
        self.calls.append((key.name, asyncio.get_running_loop().time()))
        outcomes = self.outcomes.get(key.name, [DONE])
        outcome = outcomes.pop(0) if len(outcomes) > 1 else outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome if isinstance(outcome, Result) else await outcome()

    def times(self, name: str) -> list[float]:
        return [at for called, at in self.calls if called == name]


class Running:
    """A controller that runs for the duration of the `async with`."""

    def __init__(self, reconciler: Scripted, **options: Any) -> None:
        self.metrics = Metrics()
        self.controller = Controller(
            "test", reconciler, clock=VirtualClock(), rng=random.Random(3), metrics=self.metrics, **options
        )

    async def __aenter__(self) -> Controller:
        self.task = asyncio.create_task(self.controller.run())
        return self.controller

    async def __aexit__(self, *_: object) -> None:
        self.controller.shutdown()
        await self.task

    def read(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"controller_runtime_{name}", {"controller": "test", **labels})

    def results(self) -> dict[str, float | None]:
        names = ("success", "error", "requeue", "requeue_after")
        return {name: self.read("reconcile_total", result=name) for name in names}


@pytest.mark.case("runtime-24", "abcd")
@virtual_time
async def test_each_result_has_its_label_and_its_consequence():
    reconciler = Scripted(
        raises=[OSError("disk"), DONE],
        terminal=[TerminalError("never"), DONE],
        later=[Result(requeue_after=5), DONE],
        nothing=[DONE],
        negative=[Result(requeue_after=-1)],
    )
    running = Running(reconciler)
    assert running.results() == {"success": 0, "error": 0, "requeue": 0, "requeue_after": 0}
    counters = [f"{name}_total" for name in ("errors", "panics", "timeouts")]
    assert [running.read(f"reconcile_{name}") for name in counters] == [0, 0, 0]
    assert running.read("terminal_reconcile_errors_total") == 0
    assert running.read("max_concurrent_reconciles") == 1
    assert running.read("active_workers") == 0
    assert running.read("reconcile_time_seconds_count") == 0
    async with running as controller:
        for name in reconciler.outcomes:
            controller.queue.add(Key("ns", name))
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        assert running.results() == {"success": 2, "error": 2, "requeue": 0, "requeue_after": 1}
        assert running.read("reconcile_errors_total") == 2
        assert running.read("terminal_reconcile_errors_total") == 1
        await asyncio.sleep(4.9)
        assert reconciler.times("raises") == [0, pytest.approx(0.005, rel=0.1)]
        assert reconciler.times("later") == [0]
        await asyncio.sleep(1000)
    assert reconciler.times("later") == [0, pytest.approx(5)]
    assert (
        len(reconciler.times("terminal")) == len(reconciler.times("nothing")) == len(reconciler.times("negative")) == 1
    )
    assert running.results() == {"success": 4, "error": 2, "requeue": 0, "requeue_after": 1}


@virtual_time
async def test_success_forgets_the_failures():
    reconciler = Scripted(a=[OSError("1"), OSError("2"), OSError("3"), Result(requeue_after=100), OSError("4"), DONE])
    async with Running(reconciler) as controller:
        controller.queue.add(A)
        await asyncio.sleep(1000)
    times = reconciler.times("a")
    gaps = [after - before for before, after in pairwise(times)]
    assert gaps == [pytest.approx(gap, rel=0.1) for gap in (0.005, 0.01, 0.02, 100, 0.005)]


@pytest.mark.parametrize("again", [Result(requeue_after=1), Result(requeue=True)])
@virtual_time
async def test_a_requeued_key_is_reconciled_before_new_keys(again: Result):
    async def long() -> Result:
        await asyncio.sleep(2)
        return DONE

    reconciler = Scripted(a=[again, DONE], long=[long])
    async with Running(reconciler) as controller:
        controller.queue.add(A, 10)
        for name in ("long", "new"):
            controller.queue.add(Key("ns", name))
        await asyncio.sleep(5)
    assert [name for name, _ in reconciler.calls] == ["a", "long", "a", "new"]


@virtual_time
async def test_a_requeue_is_fast_and_does_not_log_or_spin():
    reconciler = Scripted(a=[Result(requeue=True)])
    running = Running(reconciler)
    with capture_logs() as logs:
        async with running as controller:
            controller.queue.add(A)
            await asyncio.sleep(10)
    times = reconciler.times("a")
    assert times[1] < 0.006
    assert 30 < len(times) < 60
    assert running.read("reconcile_errors_total") == 0
    assert running.results()["requeue"] == len(times)
    assert [line["event"] for line in logs] == ["controller started"]


@virtual_time
async def test_api_errors_are_logged_in_one_line_and_bugs_with_a_traceback():
    refused = ApiError(500, "InternalError", "etcd is away", {})
    group = ExceptionGroup("two", [ConnectionResetError("reset"), refused])
    reconciler = Scripted(a=[refused, group, KeyError("bug"), ExceptionGroup("mixed", [refused, ValueError()]), DONE])
    running = Running(reconciler)
    with capture_logs() as logs:
        async with running as controller:
            controller.queue.add(A)
            await asyncio.sleep(10)
    lines = [(line["log_level"], line["event"], line["error"], "exc_info" in line) for line in logs[1:]]
    assert lines == [
        ("warning", "reconcile failed", "ApiError: etcd is away", False),
        ("warning", "reconcile failed", "ConnectionResetError: reset; ApiError: etcd is away", False),
        ("error", "reconcile raised", "KeyError: 'bug'", True),
        ("error", "reconcile raised", "ApiError: etcd is away; ValueError", True),
    ]
    assert running.read("reconcile_panics_total") == 2
    assert running.read("reconcile_errors_total") == 4


@pytest.mark.case("runtime-25", "a")
@virtual_time
async def test_a_reconcile_that_takes_too_long_is_cancelled_and_retried():
    ended: list[float] = []
    await asyncio.sleep(7)

    async def slow() -> Result:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append(asyncio.get_running_loop().time())
        return DONE

    reconciler = Scripted(a=[slow, DONE])
    running = Running(reconciler)
    async with running as controller:
        controller.queue.add(A)
        await asyncio.sleep(1)
        assert running.read("active_workers") == 1
        await asyncio.sleep(200)
    assert ended == [pytest.approx(127)]
    assert reconciler.times("a") == [7, pytest.approx(127.005, abs=0.001)]
    assert running.read("reconcile_timeouts_total") == 1
    assert running.read("reconcile_time_seconds_sum") == pytest.approx(120)
    assert running.read("reconcile_panics_total") == 0
    assert running.results() == {"success": 1, "error": 1, "requeue": 0, "requeue_after": 0}


@pytest.mark.case("runtime-25", "b")
@virtual_time
async def test_a_reconcile_that_swallows_its_cancellation_keeps_the_key_and_is_reported():
    async def stubborn() -> Result:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            await asyncio.sleep(30)
        return DONE

    reconciler = Scripted(a=[stubborn, DONE])
    running = Running(reconciler, workers=2)
    with capture_logs() as logs:
        async with running as controller:
            controller.queue.add(A)
            await asyncio.sleep(125)
            assert "reconcile is stuck" not in [line["event"] for line in logs]
            controller.queue.add(A)
            controller.queue.add(B)
            await asyncio.sleep(100)
    assert reconciler.times("b") == [125]
    assert reconciler.times("a") == [0, pytest.approx(150, abs=0.1)]
    assert running.read("reconcile_timeouts_total") == 1
    assert running.results()["error"] == 1
    stuck = [line for line in logs if line["event"] == "reconcile is stuck"]
    assert [(line["controller"], line["namespace"], line["name"]) for line in stuck] == [("test", "ns", "a")]


@virtual_time
async def test_a_timeout_error_of_the_reconciler_is_no_reconcile_timeout():
    reconciler = Scripted(a=[TimeoutError("the API server did not answer"), DONE])
    running = Running(reconciler)
    async with running as controller:
        controller.queue.add(A)
        await asyncio.sleep(1)
    assert running.read("reconcile_timeouts_total") == 0
    assert running.read("reconcile_errors_total") == 1


@virtual_time
async def test_a_failing_task_group_does_not_cost_a_worker():
    async def fail() -> Result:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.sleep(1))
            tasks.create_task(asyncio.wait_for(asyncio.sleep(9), 0.1))
        return DONE

    reconciler = Scripted(a=[fail, fail, fail, DONE])
    running = Running(reconciler)
    async with running as controller:
        controller.queue.add(A)
        await asyncio.sleep(5)
    assert len(reconciler.calls) == 4
    assert running.results()["error"] == 3


@virtual_time
async def test_a_cancelled_inner_task_after_a_failed_group_does_not_cost_a_worker_either():
    async def fail() -> Result:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(asyncio.sleep(1))
                tasks.create_task(asyncio.wait_for(asyncio.sleep(9), 0.1))
        except ExceptionGroup:
            inner = asyncio.ensure_future(asyncio.sleep(10))
            inner.cancel()
            await inner
        return DONE

    reconciler = Scripted(a=[fail, DONE])
    running = Running(reconciler)
    async with running as controller:
        controller.queue.add(A)
        await asyncio.sleep(5)
    assert len(reconciler.calls) == 2
    assert running.read("reconcile_panics_total") == 1


@virtual_time
async def test_a_cancelled_inner_task_does_not_cost_a_worker():
    async def awaits_cancelled() -> Result:
        inner = asyncio.ensure_future(asyncio.sleep(10))
        inner.cancel()
        await inner
        return DONE

    reconciler = Scripted(a=[awaits_cancelled, DONE])
    running = Running(reconciler)
    async with running as controller:
        controller.queue.add(A)
        await asyncio.sleep(1)
        controller.queue.add(B)
        await asyncio.sleep(1)
    assert len(reconciler.times("a")) == 2
    assert len(reconciler.times("b")) == 1
    assert running.read("reconcile_panics_total") == 1


@pytest.mark.case("runtime-20", "bc")
@virtual_time
async def test_workers_run_in_parallel_but_never_on_one_key():
    now = most = 0
    busy: set[str] = set()

    class Reconciler:
        async def reconcile(self, key: Key) -> Result:
            nonlocal now, most
            assert key.name not in busy
            busy.add(key.name)
            most = max(most, len(busy))
            await asyncio.sleep(1)
            busy.remove(key.name)
            return DONE

    controller = Controller("test", Reconciler(), workers=4, clock=VirtualClock())
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(controller.run())
        for i in range(8):
            controller.queue.add(Key("ns", str(i)))
        for _ in range(20):
            controller.queue.add(A)
            await asyncio.sleep(0.1)
        await asyncio.sleep(10)
        controller.shutdown()
    assert most == 4


@virtual_time
async def test_shutdown_finishes_running_reconciles_and_starts_none():
    finished: list[bool] = []
    running: Running

    async def slow() -> Result:
        await asyncio.sleep(5)
        finished.append(running.controller.shutting_down.is_set())
        return Result(requeue_after=1)

    reconciler = Scripted(a=[slow])
    running = Running(reconciler)
    async with running as controller:
        controller.queue.add(A)
        controller.queue.add(B)
        await asyncio.sleep(1)
    assert finished == [True]
    assert reconciler.calls == [("a", 0)]
    assert asyncio.get_running_loop().time() == pytest.approx(5)
    assert running.results()["error"] == 0


@virtual_time
async def test_cancelling_cancels_the_reconciles_and_counts_no_error():
    async def slow() -> Result:
        await asyncio.sleep(50)
        return DONE

    running = Running(Scripted(a=[slow]))
    task = asyncio.create_task(running.controller.run())
    running.controller.queue.add(A)
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.get_running_loop().time() == pytest.approx(1)
    assert running.results() == {"success": 0, "error": 0, "requeue": 0, "requeue_after": 0}
    assert running.controller.queue.working == {}


class FakeInformer:
    def __init__(self) -> None:
        self.handlers: list[Handler[PartialObject]] = []
        self.ready = asyncio.Event()
        self.current = True

    def add_handler(self, handler: Handler[PartialObject]) -> None:
        self.handlers.append(handler)

    async def wait_synced(self) -> None:
        await self.ready.wait()


@virtual_time
async def test_workers_wait_for_the_sources_while_the_queue_fills():
    informer, other = FakeInformer(), FakeInformer()
    other.ready.set()
    reconciler = Scripted()
    async with Running(reconciler) as controller:
        controller.watch(informer, EnqueueObject())
        controller.watch(other, EnqueueObject())
        informer.handlers[0].add(PartialObject(Metadata(name="a", namespace="ns")), True)
        await asyncio.sleep(500)
        assert reconciler.calls == []
        assert len(controller.queue) == 1
        informer.ready.set()
        await asyncio.sleep(1)
        assert reconciler.calls == [("a", 500)]


@virtual_time
async def test_after_an_outage_reconciles_wait_until_all_sources_are_current():
    informer, other = FakeInformer(), FakeInformer()
    informer.ready.set()
    other.ready.set()
    reconciler = Scripted()
    async with Running(reconciler) as controller:
        controller.watch(informer, EnqueueObject())
        controller.watch(other, EnqueueObject())
        informer.current = other.current = False
        controller.queue.add(Key("ns", "a"))
        await asyncio.sleep(10)
        informer.current = True
        await asyncio.sleep(10)
        assert reconciler.calls == []
        other.current = True
        await asyncio.sleep(1)
        assert [name for name, _ in reconciler.calls] == ["a"]
        other.current = False
        controller.queue.add(Key("ns", "b"))
        await asyncio.sleep(59)
        assert len(reconciler.calls) == 1
        await asyncio.sleep(2)
        assert len(reconciler.calls) == 2, "an optional kind may be missing"


@virtual_time
async def test_a_kind_that_stays_unavailable_is_waited_for_once_and_not_by_each_reconcile():
    informer, other = FakeInformer(), FakeInformer()
    informer.ready.set()
    other.ready.set()
    reconciler = Scripted()
    async with Running(reconciler, recovery=Recovery()) as controller:
        controller.watch(informer, EnqueueObject())
        controller.watch(other, EnqueueObject())
        other.current = False
        for name in ("a", "b", "c"):
            controller.queue.add(Key("ns", name))
        await asyncio.sleep(61)
        assert len(reconciler.calls) == 3
        informer.current = False
        controller.queue.add(Key("ns", "d"))
        await asyncio.sleep(59)
        assert len(reconciler.calls) == 3, "another kind is waited for as long"
        await asyncio.sleep(2)
        assert len(reconciler.calls) == 4
        informer.current = other.current = True
        controller.queue.add(Key("ns", "e"))
        await asyncio.sleep(1)
        other.current = False
        controller.queue.add(Key("ns", "f"))
        await asyncio.sleep(59)
        assert len(reconciler.calls) == 5, "it was current in between"


@virtual_time
async def test_after_a_long_outage_reconciles_still_wait_for_the_caches():
    informer, reconciler, recovery = FakeInformer(), Scripted(), Recovery()
    informer.ready.set()
    async with Running(reconciler, recovery=recovery) as controller:
        controller.watch(informer, EnqueueObject())
        informer.current = False
        recovery.failed()
        for name in ("a", "b"):
            controller.queue.add(Key("ns", name))
        await asyncio.sleep(200)
        done = len(reconciler.calls)
        controller.queue.add(Key("ns", "c"))
        recovery.succeeded()
        await asyncio.sleep(59)
        assert len(reconciler.calls) == done
        informer.current = True
        await asyncio.sleep(1)
        assert len(reconciler.calls) == done + 1


@virtual_time
async def test_during_an_outage_a_controller_stops_at_once_and_starts_no_reconcile():
    informer, reconciler = FakeInformer(), Scripted()
    informer.ready.set()
    running = Running(reconciler)
    running.controller.watch(informer, EnqueueObject())
    async with running as controller:
        informer.current = False
        controller.queue.add(A)
        await asyncio.sleep(10)
        controller.shutdown()
        await running.task
        assert asyncio.get_running_loop().time() < 10.2
    assert reconciler.calls == []
    assert controller.queue.working == {}


@virtual_time
async def test_a_terminal_error_forgets_the_failures():
    reconciler = Scripted(a=[OSError("1"), OSError("2"), OSError("3"), TerminalError("no"), OSError("4"), DONE])
    async with Running(reconciler) as controller:
        controller.queue.add(A)
        await asyncio.sleep(1)
        assert len(reconciler.calls) == 4
        controller.queue.add(A)
        await asyncio.sleep(1)
    times = reconciler.times("a")
    assert times[5] - times[4] == pytest.approx(0.005, rel=0.1)


@virtual_time
async def test_conflicts_are_forgotten_with_the_first_success():
    again = Result(requeue=True)
    reconciler = Scripted(a=[again, again, again, again, DONE, again, DONE])
    async with Running(reconciler) as controller:
        controller.queue.add(A)
        await asyncio.sleep(1)
        controller.queue.add(A)
        await asyncio.sleep(1)
    gaps = [after - before for before, after in pairwise(reconciler.times("a"))]
    assert gaps[3] > 4 * gaps[0]
    assert gaps[5] == pytest.approx(gaps[0], rel=0.3)


@virtual_time
async def test_a_process_that_was_frozen_cancels_its_reconciles_before_it_calls_them_stuck():
    """A laptop sleeps, or a container is paused: both limits have passed when it goes on."""
    reconciler = Scripted(a=[lambda: asyncio.sleep(1000, DONE), DONE])
    with capture_logs() as logs:
        async with Running(reconciler) as controller:
            controller.queue.add(A)
            await asyncio.sleep(1)
            VirtualClock().stall(3600)
            await asyncio.sleep(60)
    assert len(reconciler.times("a")) == 2
    assert "reconcile is stuck" not in [line["event"] for line in logs]


@virtual_time
async def test_only_stuck_reconciles_are_reported_as_stuck():
    async def slow() -> Result:
        await asyncio.sleep(100)
        return DONE

    with capture_logs() as logs:
        async with Running(Scripted(a=[slow], b=[OSError("no"), DONE])) as controller:
            controller.queue.add(A)
            controller.queue.add(B)
            await asyncio.sleep(500)
    assert "reconcile is stuck" not in [line["event"] for line in logs]


@virtual_time
async def test_a_controller_whose_kind_is_never_served_can_be_shut_down():
    informer = FakeInformer()
    running = Running(Scripted())
    running.controller.watch(informer, EnqueueObject())
    async with running:
        await asyncio.sleep(100)


@virtual_time
async def test_log_lines_of_a_reconcile_carry_its_keys():
    seen: list[dict[str, Any]] = []

    async def logs() -> Result:
        seen.append(dict(structlog.contextvars.get_contextvars()))
        return DONE

    async with Running(Scripted(a=[logs])) as controller:
        controller.queue.add(A)
        await asyncio.sleep(1)
        controller.queue.add(A)
        await asyncio.sleep(1)
    assert [{**keys, "reconcile_id": ""} for keys in seen] == [
        {"controller": "test", "namespace": "ns", "name": "a", "reconcile_id": ""}
    ] * 2
    assert seen[0]["reconcile_id"] != seen[1]["reconcile_id"]


def test_zero_workers_are_refused():
    with pytest.raises(ValueError, match="at least one worker"):
        Controller("test", Scripted(), workers=0)
