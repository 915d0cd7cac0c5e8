"""One replica of the operator: started, killed, stopped, frozen, restarted."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.simulation.loop import Process, Wall
from tests.simulation.wire import Wire
from trainop.controllers.counters import JobMetrics
from trainop.programs.operator import build
from trainop.runtime.controller.expectations import Expectations
from trainop.runtime.manager.manager import Group, Manager
from trainop.runtime.metrics.metrics import ControllerMetrics

if TYPE_CHECKING:
    from tests.simulation.world import World


class Uncounted:
    """A metric that discards its values."""

    def inc(self) -> None: ...
    def observe(self, _: float) -> None: ...


class UnseenQueue:
    """Queue metrics that discard their values. Real ones would keep a reference to the last queue and its whole run."""

    adds = retries = queue_duration = work_duration = Uncounted()

    def observe(self, _: object) -> None: ...


class Differences(JobMetrics):
    """The metrics that the simulation reads as differences. Those of requests, watches and queues are discarded,
    because they would dominate the run time."""

    @functools.cache  # noqa: B019  # one of a process
    def controller(self, name: str) -> ControllerMetrics:
        return super().controller(name)

    def queue(self, _: str) -> Any:
        return UnseenQueue()

    # A source would keep the caches of each operator, and with them all that happened to it, until the process ends.
    def show_waiting(self, _: object) -> None: ...
    def show_stalled(self, _: object) -> None: ...
    def show_launchers(self, _: object) -> None: ...

    def requested(self, *_: object, **__: object) -> None: ...
    def decoded(self, *_: object) -> None: ...
    def listed(self, *_: object) -> None: ...
    def relisted(self, *_: object) -> None: ...
    def rewatched(self, *_: object) -> None: ...
    def received(self, *_: object) -> None: ...
    def stored(self, *_: object) -> None: ...


@functools.cache
def metrics() -> JobMetrics:
    """One registry for all runs."""
    return Differences()


def _say_nothing(*_: object) -> None: ...


class Replica:
    """A pod that runs the operator and restarts it whenever it ends."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self._world = world
        self._lives = 0
        self.started_at = 0.0
        self._over = False
        self.process = Process(name)
        self.wire: Wire
        self.clock = Wall(world.loop)
        self.manager: Manager
        self.task: asyncio.Task[int] | None = None

    def start(self) -> None:
        if self._over or self.runs:
            return
        world = self._world
        self._lives += 1
        self.started_at = world.loop.time()
        life = f"{self.name}.{self._lives}"
        self.process = Process(life)
        self.wire = Wire(world, life, random.Random(f"{world.script.seed}/wire/{life}"))
        self.wire.freeze = self.freeze
        self.wire.on_write = functools.partial(world.on_write, self)
        rng = random.Random(f"{world.script.seed}/operator/{life}")
        world.note(life, "starts")
        self.manager = build(
            world.settings(life), self.wire, clock=self.clock, rng=rng, signals=False, metrics=metrics()
        )
        self.manager._abort = self._abort
        if world.reports is not None:
            world.reports.attach(self)
        if not world.script.events:
            for recorder in self.manager._recorders:
                recorder.event = _say_nothing  # type: ignore[attr-defined]  # a `Recorder`
        self.task = world.loop.spawn(self.process, self.manager.run(), life)
        self.task.add_done_callback(self._ended)

    def kill(self, requeue_after: float | None = None) -> None:
        """End at once, as by SIGKILL: requests in flight still arrive, and no more are sent."""
        if self.task is None or self.task.done():
            return
        self._world.note(self.process.name, "killed")
        self.wire.dead = True
        self._world.loop.thaw(self.process)
        self.task.cancel()
        if requeue_after is not None:
            self._world.loop.outside(requeue_after, self.start)

    def end(self) -> None:
        """Killed, and stays dead."""
        self._over = True
        self.kill()

    def freeze(self, seconds: float) -> None:
        """Freeze the process: its timers and responses wait for `seconds`."""
        loop, process = self._world.loop, self.process
        loop.freeze(process)
        loop.outside(seconds, loop.thaw, process)

    def stop(self) -> None:
        """SIGTERM."""
        self._world.note(self.process.name, "stops")
        self.manager.stop()

    def _abort(self, _code: int) -> None:
        self.kill(requeue_after=2.0)

    def _ended(self, task: asyncio.Task[int]) -> None:
        world = self._world
        if task.cancelled():
            return
        if task.exception() is not None:
            world.judge.flag("no crash", f"{self.process.name} ended with {task.exception()!r}")
        else:
            world.note(self.process.name, f"exits with {task.result()}")
            if task.result() != 0 and not world.elects:
                world.judge.flag("no crash", f"{self.process.name} exited with {task.result()}")
        world.loop.outside(1.5, self.start)

    @property
    def runs(self) -> bool:
        return self.task is not None and not self.task.done()

    @property
    def _controllers(self) -> list[Any]:
        return self.manager._controllers if self.runs else []

    @property
    def stands(self) -> bool:
        """Whether it runs, all its watches are healthy, and all its writes were answered and observed."""
        busy = self.waits or self.wire.mute or self.wire.outstanding or self.manager.stopping
        return bool(self._controllers) and not busy and all(self._watching())

    @property
    def waits(self) -> bool:
        """Whether it waits to observe its own writes; up to five minutes if a child was deleted before it was
        observed."""
        owners = (controller._reconciler._states.expectations._owners.values() for controller in self._controllers)
        return any(left.creates or left.deletes for each in owners for left in each)

    @property
    def is_current(self) -> bool:
        """Whether no cache has still to be confirmed after an outage."""
        return all(source.current for controller in self._controllers for source in controller._sources)

    def has_due(self, within: float) -> bool:
        """Whether a key is being processed, or is due within so many seconds. A standby has no work."""
        soon = self._world.loop.time() + within
        for queue in (controller.queue for controller in self._controllers if self.is_master):
            if queue._working or any((entry.ready_at or 0.0) <= soon for entry in queue._entries.values()):
                return True
        return False

    @property
    def oversees(self) -> bool:
        """Whether it still waits for writes that its caches have shown."""
        for reconciler in (controller._reconciler for controller in self._controllers if self.waits):
            copy = Expectations(self.clock)
            left = reconciler._states.expectations._owners.items()
            copy._owners = {uid: replace(of, creates={**of.creates}, deletes={**of.deletes}) for uid, of in left}
            if any(copy.satisfied(owner, reconciler._view.look) for owner in list(copy._owners)):
                return True
        return False

    @property
    def is_master(self) -> bool:
        elector: Any = self.manager._elector
        return elector is None or elector.leading

    def _watching(self) -> Iterator[bool]:
        for _, cache in self.manager._runnables[Group.CACHES]:
            yield cache.synced  # type: ignore[attr-defined]  # a `Cache`
            for informer in cache._informers.values():  # type: ignore[attr-defined]
                for reflector in informer._reflectors:
                    yield reflector._connection is not None
