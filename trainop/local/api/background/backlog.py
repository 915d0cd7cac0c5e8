"""Work that background tasks still have to look at."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Backlog(Generic[T]):
    """Items in the order in which they were added, each at most once."""

    def __init__(self) -> None:
        self._items: dict[T, None] = {}
        self._filled = asyncio.Event()

    def add(self, item: T) -> None:
        self._items[item] = None
        self._filled.set()

    async def take(self) -> T:
        """The oldest item, as soon as there is one."""
        while not self._items:
            self._filled.clear()
            await self._filled.wait()
        await asyncio.sleep(0)  # whoever wrote gets to answer before the next write
        item = next(iter(self._items))
        del self._items[item]
        return item
