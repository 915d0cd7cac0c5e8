"""An event loop whose time jumps: a test of ten minutes takes milliseconds, and always the same way.

Whenever nothing is ready to run, the loop's time jumps to the next timer. It waits for what runs in the loop's
executor, however long that really takes, but not for real sockets and other threads.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from datetime import UTC, datetime, timedelta
from typing import Any, ParamSpec, TypeVar

from tests.patience import PATIENCE

P = ParamSpec("P")
R = TypeVar("R")

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class DeadlockError(RuntimeError):
    """Nothing is ready, no timer is set: nothing can ever happen again."""


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting for a timer it moves the time there."""

    now = 0.0
    threads = 0
    """Calls that run in the executor."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if events or timeout == 0:
            return events
        if timeout is None or self.threads:
            events = super().select(PATIENCE)
            if not events:
                raise DeadlockError("nothing is ready, no timer is set, and no thread ends")
            return events
        self.now += timeout
        return events


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Begins at time 0."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def run_in_executor(  # type: ignore[override]  # typed with generics of its own
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = super().run_in_executor(executor, func, *args)
        self._jumping.threads += 1
        future.add_done_callback(self._count_end)
        return future

    def _count_end(self, _: asyncio.Future[Any]) -> None:
        self._jumping.threads -= 1

    def advance(self, seconds: float) -> None:
        """Lets time pass without a turn of the loop: the process stalls."""
        self._jumping.now += seconds


class VirtualClock:
    """The clock of a `VirtualTimeLoop`; the wall clock can be set at will and tells nothing about `monotonic`."""

    def __init__(self, start: datetime = EPOCH) -> None:
        self._start = start
        self._offset = timedelta()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def now(self) -> datetime:
        return self._start + self._offset + timedelta(seconds=self.monotonic())

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def jump(self, seconds: float) -> None:
        """Somebody sets the wall clock."""
        self._offset += timedelta(seconds=seconds)

    def stall(self, seconds: float) -> None:
        """The event loop stands still for so long."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        loop.advance(seconds)


def run_virtual(main: Coroutine[Any, Any, R]) -> R:
    """`asyncio.run` in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def virtual_time(test: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, R]:
    """Decorates an async test to run in virtual time."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return run_virtual(test(*args, **kwargs))

    return run
