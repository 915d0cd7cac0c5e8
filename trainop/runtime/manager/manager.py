"""The manager: starts all runnables in a fixed order and shuts them down gracefully.

Start order: HTTP servers, webhooks, caches, other runnables, controllers. With an elector, controllers start after
leadership is acquired; everything else runs on every replica, so that a standby has synced caches and filled queues.
Shutdown waits for running reconciles, releases the leases, flushes events, and then stops caches and servers. Modelled
on controller-runtime `pkg/manager/internal.go`, which in contrast cancels running reconciles.
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
from trainop.runtime.errors import LeadershipLostError, UnhealthyError, describe
from trainop.runtime.serving.server import BindError, Checks

CANCEL_BEFORE_END = 5.0
"""Reconciles that are still running this many seconds before the end of the grace period are cancelled."""

FLUSH_TIMEOUT = 5.0
"""Seconds for writing pending events at shutdown."""

LOST_LEASE_EXIT_TIMEOUT = 2.0
"""Seconds for cancelled work to end after leadership is lost; then the process exits, because another may lead."""

LOOP_STALL_LIMIT = 30.0
"""Liveness fails if the event loop has not run for this many seconds."""

log = structlog.get_logger(__name__)


class Group(enum.IntEnum):
    """Groups of runnables, in start order (controller-runtime `pkg/manager/runnable_group.go`)."""

    RECORDERS = -1
    HTTP = 0
    WEBHOOKS = 1
    CACHES = 2
    OTHERS = 3
    CONTROLLERS = 4


LISTENING = (Group.HTTP, Group.WEBHOOKS)
"""Groups whose servers are bound before anything else is started."""

STOP_ORDER = (Group.OTHERS, Group.CONTROLLERS, Group.CACHES, Group.WEBHOOKS, Group.HTTP)


class Runnable(Protocol):
    """A long-running component. If `run` returns or raises before it is cancelled, the process ends."""

    async def run(self) -> None: ...


class Bindable(Runnable, Protocol):
    """A server, which listens once bound."""

    async def bind(self) -> None:
        """Starts listening. Raises `BindError`."""
        ...


class Synced(Runnable, Protocol):
    """A cache; `synced` becomes true after its initial lists."""

    @property
    def synced(self) -> bool: ...


class Stoppable(Runnable, Protocol):
    """A controller. Its name must be unique."""

    @property
    def name(self) -> str: ...

    def shutdown(self) -> None:
        """Starts no more reconciles; `run` returns when the running ones have ended."""
        ...


class Flushable(Runnable, Protocol):
    """An event recorder."""

    async def flush(self, within: float) -> None:
        """Returns when all pending events are written, or after `within` seconds."""
        ...


class Elector(Protocol):
    """Leader election. `run` renews the leases until cancelled and raises `LeadershipLostError` if one is lost."""

    async def run(self) -> None: ...
    async def wait_leading(self) -> None: ...
    async def release(self) -> None: ...
    def check(self) -> None:
        """Raises `UnhealthyError` if this leader has not renewed for too long."""
        ...


class UnexpectedEndError(Exception):
    """A runnable ended while the manager was running."""


class Manager:
    """Runs all components of a process. `run` returns the exit code: 0 after a graceful shutdown, else 1.

    `grace` is the grace period for running reconciles in seconds. With `signals`, SIGTERM and SIGINT start the
    shutdown, and a second signal exits at once. `abort` ends the process immediately with an exit code.
    """

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
        self._prerequisites: list[Callable[[], Awaitable[None]]] = []
        self._running: asyncio.TaskGroup | None = None
        self._started: set[Group] = set()
        self._ended = False
        self._stop_requested = asyncio.Event()
        self._forced_exit: asyncio.TimerHandle | None = None
        self._last_heartbeat = self._clock.monotonic()
        self.health.add("event-loop", self._check_loop)
        if elector is not None:
            self.health.add("leader-election", elector.check)

    # Runnables --------------------------------------------------------------------------------------------------------
    # May also be added while the manager runs. `RuntimeError` is raised once the manager has been stopped.

    def add_http(self, server: Bindable, name: str = "http") -> None:
        """Adds a server for probes or metrics. It is bound before anything else starts."""
        self._add(Group.HTTP, name, server)

    def add_webhooks(self, server: Bindable, name: str = "webhooks") -> None:
        """Adds a webhook server. It is started after the HTTP servers and before caches."""
        self._add(Group.WEBHOOKS, name, server)

    def add_cache(self, cache: Synced, name: str = "cache") -> None:
        """Adds a cache and a readiness check that passes once it is synced."""
        self._add(Group.CACHES, name, cache)
        self.ready.add(name, lambda: _check_synced(name, cache))

    def add(self, runnable: Runnable, name: str) -> None:
        """Adds a runnable that runs on every replica, leader or not."""
        self._add(Group.OTHERS, name, runnable)

    def add_controller(self, controller: Stoppable) -> None:
        """Adds a controller, which runs only on the leader.

        Raises `ValueError` if the name is in use, because metrics are labelled with it.
        """
        if any(controller.name == other.name for other in self._controllers):
            raise ValueError(f"controller with name {controller.name} already exists")
        self._add(Group.CONTROLLERS, controller.name, controller)
        self._controllers.append(controller)

    def before_controllers(self, wait: Callable[[], Awaitable[None]]) -> None:
        """Adds something that controllers wait for at the start, each for a limited time of its own."""
        self._prerequisites.append(wait)

    def add_recorder(self, recorder: Flushable) -> None:
        """Adds an event recorder. It is flushed after the controllers have ended."""
        self._add(Group.RECORDERS, "recorder", recorder)
        self._recorders.append(recorder)

    def _add(self, group: Group, name: str, runnable: Runnable) -> None:
        """Registers a runnable, and starts it at once if its group has been started already."""
        if self._ended or self.stopping:
            raise RuntimeError(f"{name} cannot be added: the manager has been stopped")
        self._runnables[group].append((name, runnable))
        if group in self._started and self._running is not None:
            self._launch(self._running, group, name, _bind_and_run(runnable) if group in LISTENING else runnable.run())

    # Start and shutdown -----------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Starts the graceful shutdown, as SIGTERM does."""
        self._stop_requested.set()

    @property
    def stopping(self) -> bool:
        return self._stop_requested.is_set()

    async def run(self) -> int:
        """Runs until stopped or until a component fails; returns the exit code."""
        try:
            with self._catching_signals():
                return await self._run()
        except BaseExceptionGroup as group:
            self._log_failure(group)
            if self._elector is not None:
                await self._elector.release()  # safe now, because all work has ended
            return 1
        finally:
            if self._forced_exit is not None:
                self._forced_exit.cancel()

    async def _run(self) -> int:
        async with asyncio.TaskGroup() as tasks:
            self._running = tasks
            monitoring = [tasks.create_task(self._beat(), name="event-loop")]
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
            await _cancel(monitoring)
        log.info("stopped")
        return 0

    async def _start(self, tasks: asyncio.TaskGroup) -> None:
        for group in LISTENING:
            for _, server in self._runnables[group]:
                await server.bind()  # type: ignore[attr-defined]  # these groups contain only `Bindable`
            self._spawn_group(tasks, group)
        self._spawn_group(tasks, Group.CACHES)
        self._spawn_group(tasks, Group.OTHERS)
        if self._elector is not None:
            await self._elector.wait_leading()
        for wait in self._prerequisites:
            await wait()
        self._spawn_group(tasks, Group.CONTROLLERS)

    async def _stop(self, electing: list[asyncio.Task[None]]) -> None:
        for group in STOP_ORDER:
            if group is Group.CONTROLLERS:
                await self._stop_controllers()
                await self._release_leases(electing)
                for recorder in self._recorders:
                    await recorder.flush(FLUSH_TIMEOUT)
                await _cancel(self._tasks[Group.RECORDERS])
            else:
                await _cancel(self._tasks[group])

    async def _stop_controllers(self) -> None:
        for controller in self._controllers:
            controller.shutdown()
        running = self._tasks[Group.CONTROLLERS]
        if not running:
            return
        _, late = await asyncio.wait(running, timeout=max(0.0, self._grace - CANCEL_BEFORE_END))
        if not late:
            return
        log.warning("cancelling reconciles at the end of the grace period", controllers=_names(late))
        for task in late:
            task.cancel()
        _, stuck = await asyncio.wait(late, timeout=min(self._grace, CANCEL_BEFORE_END))
        if stuck:
            # The lease is not released: no other replica may lead while this work may still write.
            log.error("reconciles did not end within the grace period", controllers=_names(stuck))
            self._abort(1)
            raise UnexpectedEndError("reconciles did not end within the grace period")

    async def _release_leases(self, electing: list[asyncio.Task[None]]) -> None:
        await _cancel(electing)
        if self._elector is not None:
            await self._elector.release()

    async def _elect(self) -> None:
        assert self._elector is not None  # noqa: S101  # only spawned if there is one
        try:
            await self._elector.run()
        except LeadershipLostError:
            # The task group now cancels everything. Work that ignores the cancellation must not continue.
            self._forced_exit = asyncio.get_running_loop().call_later(LOST_LEASE_EXIT_TIMEOUT, self._abort, 1)
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
            raise UnexpectedEndError(f"{name} ended unexpectedly")

    async def _beat(self) -> None:
        while True:
            self._last_heartbeat = self._clock.monotonic()
            await self._clock.sleep(1.0)

    def _check_loop(self) -> None:
        elapsed = self._clock.monotonic() - self._last_heartbeat
        if elapsed > LOOP_STALL_LIMIT:
            raise UnhealthyError(f"the event loop has not run for {elapsed:.0f} s")

    # Signals and errors -----------------------------------------------------------------------------------------------

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
            log.error("second signal, exiting immediately", signal=number.name)
            self._abort(1)
            return
        log.info("signal received", signal=number.name)
        self.stop()

    def _log_failure(self, group: BaseExceptionGroup[BaseException]) -> None:
        """Logs one line, with a traceback only if the error is not one of the expected kinds."""
        unexpected = group.split((BindError, LeadershipLostError, UnexpectedEndError))[1]
        log.error("operator failed", error=describe(group), exc_info=unexpected)


async def _bind_and_run(server: Runnable) -> None:
    await server.bind()  # type: ignore[attr-defined]  # these groups contain only `Bindable`
    await server.run()


def _check_synced(name: str, cache: Synced) -> None:
    if not cache.synced:
        raise UnhealthyError(f"{name} is not synced")


async def _cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancels the tasks and waits for them. Their errors are raised by the task group."""
    cancelled = [task for task in tasks if task.cancel()]
    if cancelled:
        await asyncio.wait(cancelled)


def _names(tasks: Iterable[asyncio.Task[None]]) -> list[str]:
    return sorted(task.get_name() for task in tasks)
