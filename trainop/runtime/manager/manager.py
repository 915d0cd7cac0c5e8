"""Starts everything in order, and stops it in order: HTTP servers, webhooks, caches, others, controllers.

Controllers wait for the lease if there is an elector; all else runs on every replica, so that a standby has warm caches
and full queues. A clean stop lets running reconciles finish, gives the lease back, writes the last events, and only
then takes the caches and servers down (controller-runtime `pkg/manager/internal.go`, which cuts reconciles off).
"""

from __future__ import annotations

import asyncio
import enum
import os
import signal
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

import structlog

from trainop.runtime.clock import Clock, SystemClock
from trainop.runtime.controller.controller import describe
from trainop.runtime.errors import LeadershipLostError, UnhealthyError
from trainop.runtime.serving.server import BindError, Checks

LAST_MOMENTS = 5.0
"""Seconds before the end of the grace period at which reconciles that still run are cancelled."""

FLUSH_WITHIN = 5.0
"""Seconds for the events that are not written yet."""

LOST_LEASE_EXIT_WITHIN = 2.0
"""Seconds after which the process ends itself if cancelled work does not, once another may lead."""

LOOP_SILENCE = 30.0
"""Seconds without a turn of the event loop after which the process is not alive."""

log = structlog.get_logger(__name__)


class Group(enum.IntEnum):
    """In the order of start."""

    RECORDERS = -1
    HTTP = 0
    WEBHOOKS = 1
    CACHES = 2
    OTHERS = 3
    CONTROLLERS = 4


BOUND = (Group.HTTP, Group.WEBHOOKS)
"""What listens before anything else is started."""

STOP_ORDER = (Group.OTHERS, Group.CONTROLLERS, Group.CACHES, Group.WEBHOOKS, Group.HTTP)


class Runnable(Protocol):
    """Runs until cancelled; one that returns or raises earlier ends the process."""

    async def run(self) -> None: ...


class Bindable(Runnable, Protocol):
    """Listens once bound."""

    async def bind(self) -> None:
        """Raises `BindError`."""
        ...


class Synced(Runnable, Protocol):
    @property
    def synced(self) -> bool: ...


class Stoppable(Runnable, Protocol):
    @property
    def name(self) -> str: ...

    def shutdown(self) -> None:
        """Begins nothing new; `run` returns when what was begun has ended."""
        ...


class Flushable(Runnable, Protocol):
    async def flush(self, within: float) -> None: ...


class Elector(Protocol):
    """Holds the leases. `run` keeps them until cancelled and raises `LeadershipLostError` when one is lost."""

    async def run(self) -> None: ...
    async def wait_leading(self) -> None: ...
    async def release(self) -> None: ...
    def check(self) -> None:
        """Raises `UnhealthyError` if this process leads without having renewed for too long."""
        ...


class UnexpectedEndError(Exception):
    """Something that runs as long as the process has ended."""


class Manager:
    """`run` returns the exit code: 0 after a clean stop, else 1. `abort` ends the process on the spot."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        grace: float = 30.0,
        elector: Elector | None = None,
        signals: bool = True,
        abort: Callable[[int], None] = os._exit,
    ) -> None:
        self.health = Checks("healthz")
        self.ready = Checks("readyz")
        self._clock = clock or SystemClock()
        self._grace = grace
        self._elector = elector
        self._signals = signals
        self._abort = abort
        self._runnables: dict[Group, list[tuple[str, Runnable]]] = {group: [] for group in Group}
        self._controllers: list[Stoppable] = []
        self._recorders: list[Flushable] = []
        self._tasks: dict[Group, list[asyncio.Task[None]]] = {group: [] for group in Group}
        self._running: asyncio.TaskGroup | None = None
        self._started: set[Group] = set()
        self._ended = False
        self._stop_requested = asyncio.Event()
        self._last_resort: asyncio.TimerHandle | None = None
        self._last_turn = self._clock.monotonic()
        self.health.add("event-loop", self._check_loop)
        if elector is not None:
            self.health.add("leader-election", elector.check)

    # What there is to run ---------------------------------------------------------------------------------------------
    # Added while the manager runs, it is started in its turn. Raises `RuntimeError` once the manager is stopped.

    def add_http(self, server: Bindable, name: str = "http") -> None:
        """A server of the operator's own: probes, metrics."""
        self._add(Group.HTTP, name, server)

    def add_webhooks(self, server: Bindable, name: str = "webhooks") -> None:
        self._add(Group.WEBHOOKS, name, server)

    def add_cache(self, cache: Synced, name: str = "cache") -> None:
        """Readiness waits until it is synced."""
        self._add(Group.CACHES, name, cache)
        self.ready.add(name, lambda: _check_synced(name, cache))

    def add(self, runnable: Runnable, name: str) -> None:
        """Runs on every replica, leader or not."""
        self._add(Group.OTHERS, name, runnable)

    def add_controller(self, controller: Stoppable) -> None:
        """Runs on the leader only. Raises `ValueError` if there is one of that name: their metrics would be one."""
        if any(controller.name == other.name for other in self._controllers):
            raise ValueError(f"controller with name {controller.name} already exists")
        self._add(Group.CONTROLLERS, controller.name, controller)
        self._controllers.append(controller)

    def add_recorder(self, recorder: Flushable) -> None:
        """Its last events are written after the controllers have ended."""
        self._add(Group.RECORDERS, "recorder", recorder)
        self._recorders.append(recorder)

    def _add(self, group: Group, name: str, runnable: Runnable) -> None:
        """Starts it, too, if its group has been started (controller-runtime `pkg/manager/runnable_group.go`)."""
        if self._ended or self.stopping:
            raise RuntimeError(f"{name} cannot be added: the manager has been stopped")
        self._runnables[group].append((name, runnable))
        if group in self._started and self._running is not None:
            self._launch(self._running, group, name, _bind_and_run(runnable) if group in BOUND else runnable.run())

    # The life of the process ------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Begins the clean stop, as SIGTERM does."""
        self._stop_requested.set()

    @property
    def stopping(self) -> bool:
        return self._stop_requested.is_set()

    async def run(self) -> int:
        try:
            with self._catching_signals():
                return await self._run()
        except BaseExceptionGroup as group:
            self._report(group)
            if self._elector is not None:
                await self._elector.release()  # the leases that are left, now that all work has ended
            return 1
        finally:
            if self._last_resort is not None:
                self._last_resort.cancel()

    async def _run(self) -> int:
        async with asyncio.TaskGroup() as tasks:
            self._running = tasks
            standing = [tasks.create_task(self._count_turns(), name="event-loop")]
            self._spawn_group(tasks, Group.RECORDERS)
            electing = [self._spawn(tasks, "leader-election", self._elect())] if self._elector is not None else []
            starting = tasks.create_task(self._start(tasks), name="start")
            try:
                await self._stop_requested.wait()
            finally:
                self._ended = True
            log.info("stopping", grace=self._grace)
            await _cancel([starting])
            await self._stop(electing)
            await _cancel(standing)
        log.info("stopped")
        return 0

    async def _start(self, tasks: asyncio.TaskGroup) -> None:
        for group in BOUND:
            for _, server in self._runnables[group]:
                await server.bind()  # type: ignore[attr-defined]  # only `Bindable` comes into these groups
            self._spawn_group(tasks, group)
        self._spawn_group(tasks, Group.CACHES)
        self._spawn_group(tasks, Group.OTHERS)
        if self._elector is not None:
            await self._elector.wait_leading()
        self._spawn_group(tasks, Group.CONTROLLERS)

    async def _stop(self, electing: list[asyncio.Task[None]]) -> None:
        for group in STOP_ORDER:
            if group is Group.CONTROLLERS:
                await self._stop_controllers()
                await self._step_down(electing)
                for recorder in self._recorders:
                    await recorder.flush(FLUSH_WITHIN)
                await _cancel(self._tasks[Group.RECORDERS])
            else:
                await _cancel(self._tasks[group])

    async def _stop_controllers(self) -> None:
        for controller in self._controllers:
            controller.shutdown()
        running = self._tasks[Group.CONTROLLERS]
        if not running:
            return
        _, late = await asyncio.wait(running, timeout=max(0.0, self._grace - LAST_MOMENTS))
        if not late:
            return
        log.warning("cancelling reconciles at the end of the grace period", controllers=_names(late))
        for task in late:
            task.cancel()
        _, stuck = await asyncio.wait(late, timeout=min(self._grace, LAST_MOMENTS))
        if stuck:
            # The lease stays: as long as that work may still write, nobody else must lead.
            log.error("failed waiting for all runnables to end within the grace period", controllers=_names(stuck))
            self._abort(1)
            raise UnexpectedEndError("reconciles outlived the grace period")

    async def _step_down(self, electing: list[asyncio.Task[None]]) -> None:
        await _cancel(electing)
        if self._elector is not None:
            await self._elector.release()

    async def _elect(self) -> None:
        assert self._elector is not None  # noqa: S101  # only spawned if there is one
        try:
            await self._elector.run()
        except LeadershipLostError:
            # Everything is cancelled now; work that does not obey must not outlive the leadership.
            self._last_resort = asyncio.get_running_loop().call_later(LOST_LEASE_EXIT_WITHIN, self._abort, 1)
            raise

    # Tasks ------------------------------------------------------------------------------------------------------------

    def _spawn_group(self, tasks: asyncio.TaskGroup, group: Group) -> None:
        self._started.add(group)
        for name, runnable in self._runnables[group]:
            self._launch(tasks, group, name, runnable.run())

    def _launch(self, tasks: asyncio.TaskGroup, group: Group, name: str, work: Awaitable[None]) -> None:
        self._tasks[group].append(self._spawn(tasks, name, work))

    def _spawn(self, tasks: asyncio.TaskGroup, name: str, work: Awaitable[None]) -> asyncio.Task[None]:
        return tasks.create_task(self._keep_running(name, work), name=name)

    async def _keep_running(self, name: str, work: Awaitable[None]) -> None:
        await work
        if not self.stopping:
            raise UnexpectedEndError(f"{name} ended although nobody asked it to")

    async def _count_turns(self) -> None:
        while True:
            self._last_turn = self._clock.monotonic()
            await self._clock.sleep(1.0)

    def _check_loop(self) -> None:
        silence = self._clock.monotonic() - self._last_turn
        if silence > LOOP_SILENCE:
            raise UnhealthyError(f"the event loop has not turned for {silence:.0f} s")

    # Signals and the last word ----------------------------------------------------------------------------------------

    @contextmanager
    def _catching_signals(self) -> Iterator[None]:
        if not self._signals:
            yield
            return
        loop = asyncio.get_running_loop()
        caught = (signal.SIGTERM, signal.SIGINT)
        for number in caught:
            loop.add_signal_handler(number, self._receive, number)
        try:
            yield
        finally:
            for number in caught:
                loop.remove_signal_handler(number)

    def _receive(self, number: signal.Signals) -> None:
        if self.stopping:
            log.error("second signal, leaving at once", signal=number.name)
            self._abort(1)
            return
        log.info("signal received", signal=number.name)
        self.stop()

    def _report(self, group: BaseExceptionGroup[BaseException]) -> None:
        """One line; a traceback only for what nobody expects."""
        surprise = group.split((BindError, LeadershipLostError, UnexpectedEndError))[1]
        log.error("operator failed", error=describe(group), exc_info=surprise)


async def _bind_and_run(server: Runnable) -> None:
    await server.bind()  # type: ignore[attr-defined]  # only `Bindable` comes into these groups
    await server.run()


def _check_synced(name: str, cache: Synced) -> None:
    if not cache.synced:
        raise UnhealthyError(f"{name} is not synced")


async def _cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancels and waits; an error of a task is its task group's affair."""
    cancelled = [task for task in tasks if task.cancel()]
    if cancelled:
        await asyncio.wait(cancelled)


def _names(tasks: Iterable[asyncio.Task[None]]) -> list[str]:
    return sorted(task.get_name() for task in tasks)
