"""The requests that change pods and are in progress. They outlive their client, and end before the server stops."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class StoppingError(Exception):
    """The server accepts no more requests."""


class Inflight:
    """Runs requests as tasks of the manager. Added to it as a controller: after `shutdown` no request is accepted, and
    `run` returns when those in progress have ended."""

    name = "requests"

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Waits for `shutdown` and then for the requests in progress. If cancelled, cancels them."""
        try:
            await self._stopping.wait()
            if self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            self._stopping.set()
            left = list(self._tasks)
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left)

    def shutdown(self) -> None:
        self._stopping.set()

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    @property
    def count(self) -> int:
        """Requests in progress."""
        return len(self._tasks)

    async def run_request(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which goes on if this call is cancelled. Raises `StoppingError`."""
        if self._stopping.is_set():
            work.close()
            raise StoppingError
        task = asyncio.create_task(work, name="request")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)
