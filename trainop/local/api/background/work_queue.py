"""The work queue of a background controller."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class WorkQueue(Generic[T]):
    """A FIFO queue that holds each item at most once; `add` never blocks, `get` waits."""

    def __init__(self) -> None:
        self._items: dict[T, None] = {}
        self._filled = asyncio.Event()

    def add(self, item: T) -> None:
        """Append an item, unless it is queued already."""
        self._items[item] = None
        self._filled.set()

    async def get(self) -> T:
        """Remove and return the oldest item; waits while the queue is empty."""
        while not self._items:
            self._filled.clear()
            await self._filled.wait()
        await asyncio.sleep(0)  # let the request that added the item respond before the next write
        item = next(iter(self._items))
        del self._items[item]
        return item
