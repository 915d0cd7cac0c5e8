"""An event loop with virtual time: a test of ten minutes takes milliseconds and is deterministic.

When no task is ready, the loop's time jumps to the next timer. The loop waits for calls in its executor, however long
they take in real time, but not for real sockets or other threads.
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
    """Raised when no task is ready and no timer is set, so that the loop could never continue."""


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that advances the time to the next timer instead of waiting for it."""

    now = 0.0
    threads = 0
    """Number of calls that run in the executor."""

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
    """An event loop whose `time()` begins at 0 and jumps from timer to timer."""

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
        """Advance the time without running any task, as if the process had stalled."""
        self._jumping.now += seconds


class VirtualClock:
    """The clock of a `VirtualTimeLoop`. The wall clock can be set independently of `monotonic`."""

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
        """Set the wall clock forward or back."""
        self._offset += timedelta(seconds=seconds)

    def stall(self, seconds: float) -> None:
        """Stall the event loop for `seconds`."""
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
