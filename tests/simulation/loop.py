"""An event loop for several simulated processes in virtual time: time jumps to the next timer, processes can freeze.

Every callback runs in a context that names its simulated process. Callbacks and timers of a frozen process wait until
it is thawed, as after a SIGSTOP, a long garbage collection or a suspended laptop.
Nothing here depends on real time, on addresses in memory or on the hash seed, so that every run repeats itself exactly.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

R = TypeVar("R")

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)

MOST_TURNS = 20_000
"""Iterations of the loop without progress of time that count as a hot loop."""


class Call:
    """A callback that is due at a time, or at once: an asyncio handle without debugging support."""

    __slots__ = ("args", "at", "callback", "context", "dropped")

    def __init__(
        self, at: float, callback: Callable[..., object], args: Any, context: contextvars.Context | None
    ) -> None:
        self.at = at
        self.callback = callback
        self.args = args
        self.context = context
        """None outside of all processes."""
        self.dropped = False

    def cancel(self) -> None:
        self.dropped = True
        self.args = ()

    def cancelled(self) -> bool:
        return self.dropped

    def when(self) -> float:
        return self.at


class Process:
    """A simulated process, which can be frozen as a whole."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


_PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class _Task(asyncio.Task[Any]):
    """A task that hashes by number, so that sets of tasks have the same order in every run."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], number: int, **options: Any) -> None:
        self._number = number
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._number


class ProcessLoop(asyncio.BaseEventLoop):
    """An event loop whose time begins at 0, without files or sockets."""

    _ready: deque[Call]
    _stopping: bool

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._turns = 0
        self._tasks = 0
        self._parked: dict[Process | None, deque[Call]] = {}
        """What those who stand still have to do when they wake."""
        self._timers: list[tuple[float, int, Call]] = []
        self._number = itertools.count()
        """Timers of one time are called in the order in which they were set."""
        self.on_spin: Callable[[], None] | None = None
        """Called once when callbacks call callbacks and no time passes; it has to put an end to that."""
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        return self._now

    def freeze(self, process: Process) -> None:
        self._parked.setdefault(process, deque())

    def thaw(self, process: Process) -> None:
        self._ready.extend(self._parked.pop(process, ()))

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:  # type: ignore[override]  # runs it at once
        call = Call(self._now, callback, args, contextvars.copy_context() if context is None else context)
        self._ready.append(call)
        return call

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there are no threads

    def call_at(self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:  # type: ignore[override]
        return self._set(Call(when, callback, args, contextvars.copy_context() if context is None else context))

    def _set(self, call: Call) -> Call:
        heapq.heappush(self._timers, (call.at, next(self._number), call))
        return call

    def call_later(self, delay: float, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:  # type: ignore[override]
        return self.call_at(self._now + delay, callback, *args, context=context)

    def outside(self, delay: float, callback: Callable[..., object], *args: Any) -> Call:
        """Call after `delay` seconds outside of any process: the network and the cluster never freeze."""
        return self._set(Call(self._now + delay, callback, args, None))

    def spawn(self, process: Process, work: Coroutine[Any, Any, R], name: str) -> asyncio.Task[R]:
        """Start a task that belongs to `process`, as do all tasks that it starts."""
        context = contextvars.Context()
        context.run(_PROCESS.set, process)
        return self.create_task(work, name=name, context=context)

    def _make_task(self, _loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        self._tasks += 1
        return _Task(work, self._tasks, loop=self, **options)

    def _run_once(self) -> None:
        """Iterations of the loop like asyncio's, with jumps of the time instead of waits."""
        ready, timers = self._ready, self._timers
        while True:
            while timers and timers[0][2].dropped:
                heapq.heappop(timers)
            if not ready and not self._stopping:
                self._jump()
            while timers and timers[0][0] <= self._now:
                ready.append(heapq.heappop(timers)[2])
            self._turns += 1
            if self._turns > MOST_TURNS:
                self._stop_spinning()
            for _ in range(len(ready)):
                call = ready.popleft()
                if not call.dropped:
                    self._run(call)
            if self._stopping:
                return

    def _jump(self) -> None:
        if not self._timers:
            raise RuntimeError("nothing is ready and no timer is set")
        when = self._timers[0][0]
        if when > self._now:
            self._now = when
            self._turns = 0

    def _stop_spinning(self) -> None:
        self._turns = 0
        if self.on_spin is None:
            raise RuntimeError(f"no time passes any more at {self._now:.3f} s")
        stop, self.on_spin = self.on_spin, None
        stop()

    def _run(self, call: Call) -> None:
        context = call.context
        try:
            if context is None:
                call.callback(*call.args)
                return
            if self._parked and (parked := self._parked.get(context.get(_PROCESS))) is not None:
                parked.append(call)
            else:
                context.run(call.callback, *call.args)
        except Exception as error:  # noqa: BLE001  # as asyncio does; `run` raises it at the end
            self.call_exception_handler({"message": f"{call.callback} failed", "exception": error})

    def run_in_executor(self, executor: Any, func: Callable[..., R], *args: Any) -> asyncio.Future[R]:  # type: ignore[override]
        """At once, since there are no threads."""
        done: asyncio.Future[R] = self.create_future()
        done.set_result(func(*args))
        return done

    def _write_to_self(self) -> None:
        """No thread ever wakes this loop."""


def run(main: Callable[[ProcessLoop], Coroutine[Any, Any, R]]) -> R:
    """Run `main` to its end on a new loop. Raises exceptions of tasks that were never awaited."""
    loop = ProcessLoop()
    unseen: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: unseen.append(context))
    try:
        result = loop.run_until_complete(main(loop))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
    if unseen:
        raise RuntimeError(f"nobody saw this: {unseen}")
    return result


class Wall:
    """The clock of one process. Its wall clock may be wrong or set, without an effect on `monotonic`."""

    def __init__(self, loop: ProcessLoop, offset: float = 0.0) -> None:
        self._loop = loop
        self.offset = offset
        self.monotonic = loop.time

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.offset + self._loop.time())

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Pause:
    """Awaitable that completes after `seconds`, even if the process is frozen, which then continues when thawed."""

    def __init__(self, loop: ProcessLoop, seconds: float) -> None:
        self._loop = loop
        self._seconds = seconds

    def __await__(self) -> Generator[Any, None, None]:
        arrived = self._loop.create_future()
        timer = self._loop.outside(self._seconds, _arrive, arrived)
        try:
            yield from arrived
        finally:
            timer.cancel()


def _arrive(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
