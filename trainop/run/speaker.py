"""Prints what happens to jobs in the order of events, although logs, jobs and pods arrive on different connections."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

GRACE = 2.0
"""Seconds that a line waits at most for what happened before it."""


class Speaker:
    """Prints lines one after the other, each after the logs of all container runs that have ended."""

    def __init__(self, ended_logs: Callable[[], Iterable[asyncio.Task[None]]]) -> None:
        """`ended_logs` returns the tasks that print logs of ended runs."""
        self._ended_logs = ended_logs
        self._queue: deque[tuple[Callable[[], None], Callable[[], bool]]] = deque()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def say(self, print_it: Callable[[], None], ready: Callable[[], bool] = lambda: True) -> None:
        """Queues a line. It is printed once `ready`, which is asked again at each `notify`, or after `GRACE`."""
        self._queue.append((print_it, ready))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def notify(self) -> None:
        """Something has become known."""
        self._changed.set()

    async def finish(self) -> None:
        """Returns when all lines are printed."""
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        while self._queue:
            print_it, ready = self._queue[0]
            with suppress(TimeoutError):
                async with asyncio.timeout(GRACE):
                    while not ready():
                        self._changed.clear()
                        await self._changed.wait()
                    if logs := [task for task in self._ended_logs() if not task.done()]:
                        await asyncio.wait(logs)
            self._queue.popleft()
            print_it()
        self._task = None
