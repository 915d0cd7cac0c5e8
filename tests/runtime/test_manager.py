"""Start and stop order of the manager in virtual time; signals in a separate process."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.patience import PATIENCE
from tests.runtime.test_leader import Connection, Leases
from tests.runtime.virtual_time import VirtualClock, virtual_time
from trainop.runtime.controller.controller import Controller
from trainop.runtime.controller.reconcile import DONE, Result
from trainop.runtime.errors import NotLeaderError
from trainop.runtime.manager.leader import LeaderElector
from trainop.runtime.manager.manager import Manager
from trainop.runtime.objects.metadata import Key
from trainop.runtime.serving.server import BindError

A = Key("ns", "a")
History = list[tuple[str, float]]


class Part:
    """A runnable that runs until cancelled and records its start and stop in `history`."""

    synced = False

    def __init__(self, name: str, history: History) -> None:
        self.name = name
        self.history = history

    def note(self, what: str) -> None:
        self.history.append((f"{self.name} {what}", asyncio.get_running_loop().time()))

    async def bind(self) -> None:
        self.note("bound")

    async def run(self) -> None:
        self.note("runs")
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.note("ends")

    async def flush(self, within: float) -> None:
        assert within == 5
        self.note("flushed")
        await asyncio.sleep(1)


class Calls:
    """A reconciler that runs `work`, once."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self.work = work
        self.starts: list[float] = []

    async def reconcile(self, key: Key) -> Result:
        self.starts.append(asyncio.get_running_loop().time())
        await self.work()
        return DONE


class World:
    def __init__(
        self,
        work: Callable[[], Awaitable[None]] | None = None,
        *,
        elect: bool = False,
        leases: tuple[str, ...] = ("lease",),
    ) -> None:
        self.clock = VirtualClock()
        self.server = Leases()
        self.connection = Connection(self.server)
        self.elector: LeaderElector | None = None
        if elect:
            self.elector = LeaderElector(self.connection, "ns", leases, "me", clock=self.clock, rng=random.Random(1))
        self.aborted: list[tuple[int, float]] = []
        self.manager = Manager(clock=self.clock, elector=self.elector, signals=False, abort=self.abort)
        self.reconciler = Calls(work or self.nothing)
        self.controller = Controller("test", self.reconciler, clock=self.clock)
        self.manager.add_controller(self.controller)
        self.history: History = []

    async def nothing(self) -> None:
        pass

    def abort(self, code: int) -> None:
        self.aborted.append((code, asyncio.get_running_loop().time()))

    def part(self, name: str) -> Part:
        return Part(name, self.history)

    def start(self) -> asyncio.Task[int]:
        return asyncio.create_task(self.manager.run())


@virtual_time
async def test_parts_start_in_order_and_stop_in_order():
    world = World()
    manager = world.manager
    manager.add(world.part("other"), "other")
    manager.add_cache(world.part("cache"))
    manager.add_webhooks(world.part("webhooks"))
    manager.add_http(world.part("probes"))
    manager.add_recorder(world.part("recorder"))
    run = world.start()
    await asyncio.sleep(1)
    world.controller.queue.add(A)
    await asyncio.sleep(1)
    assert world.reconciler.starts == [1]
    started = [what for what, _ in world.history if what != "recorder runs"]
    assert started[:2] == ["probes bound", "webhooks bound"]
    assert started[2:] == ["probes runs", "webhooks runs", "cache runs", "other runs"]
    world.history.clear()
    manager.stop()
    assert await run == 0
    assert world.history == [
        ("other ends", 2),
        ("recorder flushed", 2),
        ("recorder ends", 3),
        ("cache ends", 3),
        ("webhooks ends", 3),
        ("probes ends", 3),
    ]


@virtual_time
async def test_what_is_added_while_the_manager_runs_is_started_and_stopped_in_order():
    world = World()
    manager, run = world.manager, world.start()
    await asyncio.sleep(1)
    late = Calls(world.nothing)
    controller = Controller("late", late, clock=world.clock)
    manager.add_controller(controller)
    manager.add_http(world.part("http"))
    manager.add_webhooks(world.part("webhooks"))
    manager.add_cache(world.part("cache"))
    manager.add(world.part("other"), "other")
    manager.add_recorder(world.part("recorder"))
    controller.queue.add(A)
    await asyncio.sleep(1)
    assert late.starts == [1]
    begun = ["http bound", "http runs", "webhooks bound", "webhooks runs", "cache runs", "other runs", "recorder runs"]
    assert sorted(world.history) == sorted((what, 1) for what in begun)
    world.history.clear()
    manager.stop()
    assert await run == 0
    assert [what for what, _ in world.history] == [
        "other ends",
        "recorder flushed",
        "recorder ends",
        "cache ends",
        "webhooks ends",
        "http ends",
    ]


@virtual_time
async def test_controllers_wait_for_what_must_come_before_them():
    world = World()
    world.manager.before_controllers(lambda: asyncio.sleep(7))
    run = world.start()
    late = Calls(world.nothing)
    controller = Controller("late", late, clock=world.clock)
    world.manager.add_controller(controller)
    controller.queue.add(A)
    await asyncio.sleep(6)
    assert late.starts == []
    await asyncio.sleep(2)
    assert len(late.starts) == 1
    world.manager.stop()
    assert await run == 0


@virtual_time
async def test_a_stop_does_not_wait_for_what_must_come_before_controllers():
    world = World()
    world.manager.before_controllers(lambda: asyncio.sleep(1000))
    run = world.start()
    await asyncio.sleep(1)
    world.manager.stop()
    assert await run == 0
    assert asyncio.get_running_loop().time() < 60


@virtual_time
async def test_a_controller_that_is_added_to_a_standby_waits_for_the_lease():
    world = World(elect=True)
    world.server.store("lease", {"holderIdentity": "other", "leaseDurationSeconds": 15})
    run = world.start()
    await asyncio.sleep(1)
    late = Calls(world.nothing)
    controller = Controller("late", late, clock=world.clock)
    world.manager.add_controller(controller)
    controller.queue.add(A)
    await asyncio.sleep(5)
    assert late.starts == []
    await asyncio.sleep(30)
    assert len(late.starts) == 1
    world.manager.stop()
    assert await run == 0


@virtual_time
async def test_nothing_is_added_to_a_manager_that_has_stopped():
    world = World()
    run = world.start()
    await asyncio.sleep(1)
    world.manager.stop()
    part = world.part("late")
    additions: list[Callable[[], None]] = [
        lambda: world.manager.add_controller(Controller("late", world.reconciler, clock=world.clock)),
        lambda: world.manager.add_http(part),
        lambda: world.manager.add_webhooks(part),
        lambda: world.manager.add_cache(part),
        lambda: world.manager.add(part, "late"),
        lambda: world.manager.add_recorder(part),
    ]
    for ended in (False, True):
        for add in additions:
            with pytest.raises(RuntimeError, match="cannot be added: the manager has been stopped"):
                add()
        if not ended:
            assert await run == 0
    assert world.history == []


@virtual_time
async def test_controllers_have_names_of_their_own():
    world = World()
    world.manager.add_controller(Controller("other", world.reconciler, clock=world.clock))
    with pytest.raises(ValueError, match="controller with name test already exists"):
        world.manager.add_controller(Controller("test", world.reconciler, clock=world.clock))


@virtual_time
async def test_readiness_waits_for_the_caches_and_liveness_does_not():
    world = World()
    cache = world.part("cache")
    world.manager.add_cache(cache)
    run = world.start()
    await asyncio.sleep(1)
    assert (await world.manager.ready.all())[0] == 500
    assert await world.manager.ready.one("cache") == (500, "internal server error: cache is not synced\n")
    assert await world.manager.health.all() == (200, "ok")
    cache.synced = True
    assert await world.manager.ready.all() == (200, "ok")
    world.manager.stop()
    assert await run == 0


@virtual_time
async def test_liveness_fails_when_the_event_loop_has_stalled():
    world = World()
    run = world.start()
    await asyncio.sleep(100)
    assert await world.manager.health.all() == (200, "ok")
    world.clock.stall(31)
    status, _ = await world.manager.health.all()
    assert status == 500
    await asyncio.sleep(2)
    assert await world.manager.health.all() == (200, "ok")
    world.manager.stop()
    assert await run == 0


@pytest.mark.case("runtime-32", "a")
@virtual_time
async def test_a_short_reconcile_completes_before_the_lease_is_released():
    finished: list[tuple[float, str | None]] = []

    async def five_seconds() -> None:
        for _ in range(5):
            await asyncio.sleep(1)
            assert world.elector is not None
            world.elector.gate()  # it may still write while the lease is held
        finished.append((asyncio.get_running_loop().time(), world.server.holder()))

    world = World(five_seconds, elect=True)
    run = world.start()
    await asyncio.sleep(1)
    world.controller.queue.add(A)
    await asyncio.sleep(1)
    world.manager.stop()
    assert await run == 0
    assert finished == [(6, "me")]
    assert world.server.holder() == ""
    assert world.aborted == []


@pytest.mark.case("runtime-32", "b")
@virtual_time
async def test_a_long_reconcile_is_cancelled_at_25_seconds_and_the_lease_released():
    cancelled: list[tuple[float, str | None]] = []

    async def a_minute() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append((asyncio.get_running_loop().time(), world.server.holder()))
            raise

    world = World(a_minute, elect=True)
    run = world.start()
    await asyncio.sleep(1)
    world.controller.queue.add(A)
    await asyncio.sleep(1)
    world.manager.stop()
    assert await run == 0
    assert cancelled == [(27, "me")]
    assert world.server.holder() == ""
    assert asyncio.get_running_loop().time() < 28


async def stubborn() -> None:
    """Work of a minute that ignores cancellation."""
    for _ in range(60):
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            continue


@pytest.mark.case("runtime-32", "c")
@virtual_time
async def test_a_reconcile_that_swallows_cancellation_ends_the_process_without_release():
    world = World(stubborn, elect=True)
    run = world.start()
    await asyncio.sleep(1)
    world.controller.queue.add(A)
    await asyncio.sleep(1)
    world.manager.stop()
    await asyncio.sleep(30.5)
    assert world.aborted == [(1, 32)]
    assert world.server.holder() == "me"
    assert await run == 1


@virtual_time
async def test_controllers_start_with_the_lease_and_caches_before():
    world = World(elect=True)
    cache = world.part("cache")
    world.manager.add_cache(cache)
    world.server.store("lease", {"holderIdentity": "another", "leaseDurationSeconds": 15})
    run = world.start()
    world.controller.queue.add(A)
    await asyncio.sleep(14)
    assert world.history == [("cache runs", 0)]
    assert world.reconciler.starts == []
    cache.synced = True
    assert await world.manager.ready.all() == (200, "ok"), "a standby reports ready"
    await asyncio.sleep(10)
    assert [at >= 15 for at in world.reconciler.starts] == [True]
    world.manager.stop()
    assert await run == 0
    assert world.server.holder() == ""


@pytest.mark.case("runtime-28", "bc")
@virtual_time
async def test_a_lost_lease_cancels_the_reconciles_and_exits_with_1():
    cancelled: list[float] = []

    async def a_minute() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.append(asyncio.get_running_loop().time())

    world = World(a_minute, elect=True)
    run = world.start()
    await asyncio.sleep(1)
    world.controller.queue.add(A)
    await asyncio.sleep(5)
    stolen = world.server.store("lease", {**world.server.leases["lease"]["spec"], "holderIdentity": "thief"})
    with capture_logs() as logs:
        assert await run == 1
    assert len(cancelled) == 1
    assert cancelled[0] < 9
    assert world.server.leases["lease"] == stolen
    failed = [line for line in logs if line["event"] == "operator failed"]
    assert len(failed) == 1
    assert "leader election lost: lease ns/lease: thief holds it" in failed[0]["error"]
    assert not failed[0]["exc_info"]
    assert world.aborted == []


@virtual_time
async def test_after_a_lost_lease_work_that_ignores_cancellation_is_not_awaited():
    world = World(stubborn, elect=True)
    run = world.start()
    await asyncio.sleep(1)
    world.controller.queue.add(A)
    await asyncio.sleep(1)
    world.server.store("lease", {**world.server.leases["lease"]["spec"], "holderIdentity": "thief"})
    await asyncio.sleep(5)
    ((code, at),) = world.aborted
    assert code == 1
    assert at <= 2 + 2.1 + 2
    assert await run == 1


@virtual_time
async def test_after_a_lost_lease_work_that_ends_in_time_is_not_cut_short_later():
    world = World(elect=True)
    run = world.start()
    await asyncio.sleep(1)
    world.server.store("lease", {**world.server.leases["lease"]["spec"], "holderIdentity": "thief"})
    assert await run == 1
    await asyncio.sleep(10)
    assert world.aborted == []


@virtual_time
async def test_liveness_includes_the_elector():
    world = World(elect=True)
    run = world.start()
    await asyncio.sleep(1)
    status, text = await world.manager.health.all(verbose=True)
    assert status == 200
    assert "[+]leader-election ok" in text
    world.manager.stop()
    assert await run == 0


async def test_signal_handlers_are_restored_when_the_manager_has_ended():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    manager = Manager()
    run = asyncio.create_task(manager.run())
    await asyncio.sleep(0)
    assert signal.getsignal(signal.SIGTERM) != before[0]
    manager.stop()
    assert await run == 0
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


@pytest.mark.case("runtime-29", "ab")
@virtual_time
async def test_a_leader_that_cannot_renew_writes_nothing_after_ten_seconds_and_exits_with_1():
    writes: list[float] = []

    async def write_every_second() -> None:
        assert world.elector is not None
        while True:
            world.elector.gate()
            writes.append(asyncio.get_running_loop().time())
            await asyncio.sleep(0.5)

    world = World(write_every_second, elect=True)
    run = world.start()
    await asyncio.sleep(1)
    world.controller.queue.add(A)
    await asyncio.sleep(4)
    renewed = world.server.writes[-1][0]
    world.connection.cut = True
    assert await run == 1
    ended = asyncio.get_running_loop().time()
    assert renewed + 9.4 <= writes[-1] <= renewed + 10
    assert renewed + 9.9 <= ended <= renewed + 12
    assert world.server.holder() == "me", "the lease is not released and expires"


@pytest.mark.case("runtime-31", "ab")
@virtual_time
async def test_after_a_stall_the_first_write_is_refused_and_the_process_exits_with_1():
    refused: list[str] = []

    async def stall_then_write() -> None:
        assert world.elector is not None
        world.elector.gate()
        world.clock.stall(20)
        try:
            world.elector.gate()
        except NotLeaderError as error:
            refused.append(str(error))
            raise

    world = World(stall_then_write, elect=True)
    run = world.start()
    await asyncio.sleep(1)
    world.controller.queue.add(A)
    with capture_logs() as logs:
        assert await run == 1
    assert refused[0] == "the lease was not renewed in time"
    assert [line["exc_info"] for line in logs if line["event"] == "reconcile raised"] == []


@pytest.mark.case("runtime-33", "b")
@virtual_time
async def test_losing_one_of_several_leases_ends_all_work_and_releases_the_others():
    cancelled: list[list[str | None]] = []

    async def a_minute() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.append([world.server.holder(name) for name in ("one", "three", "two")])

    world = World(a_minute, elect=True, leases=("one", "two", "three"))
    run = world.start()
    await asyncio.sleep(1)
    world.controller.queue.add(A)
    await asyncio.sleep(1)
    world.server.store("two", {**world.server.leases["two"]["spec"], "holderIdentity": "thief"})
    assert await run == 1
    assert cancelled == [["me", "me", "thief"]], "no lease was released while work continued"
    assert [world.server.holder(name) for name in ("one", "three", "two")] == ["", "", "thief"]


@pytest.mark.parametrize(
    ("ending", "said", "traceback"),
    [
        (None, "UnexpectedEndError: helper ended unexpectedly", False),
        (KeyError("bug"), "KeyError: 'bug'", True),
    ],
)
def test_a_part_that_ends_unexpectedly_ends_the_process(ending: Exception | None, said: str, traceback: bool):
    @virtual_time
    async def scenario() -> None:
        class Ending:
            async def run(self) -> None:
                await asyncio.sleep(5)
                if ending:
                    raise ending

        world = World()
        world.manager.add(Ending(), "helper")
        world.manager.add_cache(world.part("cache"))
        with capture_logs() as logs:
            assert await world.manager.run() == 1
        assert world.history == [("cache runs", 0), ("cache ends", 5)]
        failed = [line for line in logs if line["event"] == "operator failed"]
        assert [(line["error"], bool(line["exc_info"])) for line in failed] == [(said, traceback)]

    scenario()


@virtual_time
async def test_a_port_in_use_is_one_line_and_exit_code_1():
    class Taken(Part):
        async def bind(self) -> None:
            raise BindError("cannot listen on :8080 for metrics: address already in use")

    world = World()
    world.manager.add_http(Taken("metrics", world.history))
    with capture_logs() as logs:
        assert await world.manager.run() == 1
    assert [(line["log_level"], line["error"], line["exc_info"]) for line in logs] == [
        ("error", "BindError: cannot listen on :8080 for metrics: address already in use", None)
    ]


@virtual_time
async def test_the_lease_is_released_before_the_last_events_are_written():
    class Recorder(Part):
        async def flush(self, within: float) -> None:
            assert world.server.holder() == ""
            await super().flush(within)

    world = World(elect=True)
    recorder = Recorder("recorder", world.history)
    world.manager.add_recorder(recorder)
    run = world.start()
    await asyncio.sleep(1)
    assert world.server.holder() == "me"
    world.manager.stop()
    assert await run == 0
    assert [what for what, _ in world.history] == ["recorder runs", "recorder flushed", "recorder ends"]


@virtual_time
async def test_a_stop_before_leading_touches_no_lease():
    world = World(elect=True)
    theirs = world.server.store("lease", {"holderIdentity": "another", "leaseDurationSeconds": 15})
    run = world.start()
    await asyncio.sleep(5)
    world.manager.stop()
    assert await run == 0
    assert world.server.leases["lease"] == theirs
    assert asyncio.get_running_loop().time() == 5


@virtual_time
async def test_cancelling_the_manager_cancels_everything():
    world = World()
    world.manager.add_cache(world.part("cache"))
    run = world.start()
    await asyncio.sleep(1)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert world.history == [("cache runs", 0), ("cache ends", 1)]


PROGRAM = """
    import asyncio, sys
    from trainop.runtime.controller.controller import Controller
    from trainop.runtime.manager.manager import Manager
    from trainop.runtime.objects.metadata import Key
    from trainop.runtime.controller.reconcile import DONE

    class Slow:
        async def reconcile(self, key):
            print("begun", flush=True)
            await asyncio.sleep(float(sys.argv[1]))
            print("finished", flush=True)
            return DONE

    async def main():
        controller = Controller("test", Slow())
        manager = Manager()
        manager.add_controller(controller)
        controller.queue.add(Key("ns", "a"))
        return await manager.run()

    sys.exit(asyncio.run(main()))
"""


def spawn(seconds: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), seconds]
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, **options)


def wait_for_line(process: subprocess.Popen[str], text: str) -> str:
    """Read the lines up to the one that contains `text`."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return "".join(lines)
    raise AssertionError(f"{text!r} was not printed: {''.join(lines)}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_running_reconcile_finish(number: signal.Signals):
    with spawn("0.2") as process:
        wait_for_line(process, "begun")
        process.send_signal(number)
        output, _ = process.communicate(timeout=PATIENCE)
    assert "finished" in output
    assert process.returncode == 0


@pytest.mark.case("runtime-32", "d")
def test_a_second_signal_ends_the_process_at_once():
    with spawn("600") as process:
        wait_for_line(process, "begun")
        process.send_signal(signal.SIGTERM)
        wait_for_line(process, "signal received")
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=PATIENCE)
    assert "second signal" in output
    assert "finished" not in output
    assert process.returncode == 1
