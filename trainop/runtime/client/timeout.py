"""A timeout around one exchange, as `asyncio.timeout` at a third of its cost: every request has one."""

from __future__ import annotations

import asyncio
from types import TracebackType


class Timeout:
    """Cancels the current task's block after `seconds` (None: never) and raises `TimeoutError` instead.

    Not async, not reschedulable, and for one block only. A cancellation from outside stays a cancellation.
    """

    __slots__ = ("_cancelling", "_expired", "_seconds", "_task", "_timer")

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._expired = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a timeout needs a task")
        self._task = task
        self._cancelling = task.cancelling()
        self._timer = None if self._seconds is None else task.get_loop().call_later(self._seconds, self._expire)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # As in `asyncio.timeout`: a task that others have cancelled, too, is cancelled.
        if self._expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def _expire(self) -> None:
        self._expired = True
        self._task.cancel()
