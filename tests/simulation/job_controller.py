"""The embedded cluster's controller of batch Jobs, as a process of its own: it may be slow, or away for a while."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from tests.simulation.loop import Pause, Process, Wall
from tests.simulation.replica import metrics
from tests.simulation.wire import at_once
from trainop.local.job_controller import job_controller
from trainop.runtime.client.transport import Request, Response, Stream
from trainop.runtime.manager.manager import Group, Manager

if TYPE_CHECKING:
    from tests.simulation.world import World

NAME = "job-ctl"
FAR = 300.0
"""Seconds within which something that is due keeps a cluster from being at rest: longer than any back-off of a Job."""


class _Line:
    """The way of one incarnation to the API server. Requests that were sent arrive, also after its death."""

    def __init__(self, controller: JobController) -> None:
        self._controller = controller
        self._inner = controller.world.server.transport()

    async def send(self, request: Request) -> Response:
        answer: Response = await self._exchange(request)
        return answer

    async def open(self, request: Request) -> Stream:
        await Pause(self._controller.world.loop, self._controller.latency())
        return await self._inner.open(request)

    async def close(self) -> None:
        """Nothing is held."""

    async def _exchange(self, request: Request) -> Any:
        loop, answer = self._controller.world.loop, asyncio.get_running_loop().create_future()
        loop.outside(self._controller.latency(), self._arrive, request, answer)
        return await answer

    def _arrive(self, request: Request, answer: asyncio.Future[Any]) -> None:
        world = self._controller.world
        if request.method != "GET":
            world.note(NAME, f"{request.method} {request.path}")
        result = at_once(self._inner.send(request))
        world.loop.outside(self._controller.latency(), _resolve, answer, result)


def _resolve(answer: asyncio.Future[Any], result: Any) -> None:
    if not answer.done():
        answer.set_result(result)


class JobController:
    """One replica, which never loses a request: not it is under test."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._rng = random.Random(f"{world.script.seed}/jobs")
        self._usual = self._rng.choice((0.01, 0.01, 0.3, 1.0))
        self._slow_until = self._away_until = 0.0
        self._over = False
        self._manager: Manager | None = None
        self._task: asyncio.Task[int] | None = None

    def latency(self) -> float:
        """Seconds of one way."""
        slow = self.world.loop.time() < self._slow_until
        return self._rng.uniform(0.3, 3.0) if slow else self._rng.uniform(0.1, 1.0) * self._usual

    def start(self) -> None:
        if self._over or self._runs or self.world.loop.time() < self._away_until:
            return
        options: dict[str, Any] = {"clock": Wall(self.world.loop), "rng": self._rng, "metrics": metrics()}
        self._manager = job_controller().build(_Line(self), signals=False, serve=False, **options)
        for recorder in self._manager._recorders:
            recorder.event = lambda *_: None  # type: ignore[attr-defined]  # a `Recorder`
        self._task = self.world.loop.spawn(Process(NAME), self._manager.run(), NAME)

    def leave(self, seconds: float) -> None:
        """Killed, and back after a while."""
        self._away_until = self.world.loop.time() + seconds
        self._kill()
        self.world.loop.outside(seconds + 0.01, self.start)

    def slow_down(self, seconds: float) -> None:
        self._slow_until = self.world.loop.time() + seconds

    def recover(self) -> None:
        """The faults are over."""
        self._slow_until = self._away_until = 0.0
        self.start()

    def end(self) -> None:
        self._over = True
        self._kill()

    def _kill(self) -> None:
        if self._task is not None:
            self._task.cancel()

    @property
    def _runs(self) -> bool:
        return self._task is not None and not self._task.done()

    @property
    def rests(self) -> bool:
        """It runs, its watches stand, and it has nothing to do."""
        if not self._runs or self._manager is None:
            return False
        soon = self.world.loop.time() + FAR
        controllers: Any = self._manager._controllers
        for queue in (controller.queue for controller in controllers):
            if queue._working or any((entry.ready_at or 0.0) <= soon for entry in queue._entries.values()):
                return False
        informers = [each for _, cache in self._manager._runnables[Group.CACHES] for each in cache._informers.values()]  # type: ignore[attr-defined]
        return all(reflector._connection is not None for each in informers for reflector in each._reflectors)
