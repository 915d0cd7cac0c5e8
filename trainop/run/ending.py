"""Waits for the last replicas of a job that has succeeded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress


async def wait_for_all(
    unfinished: Callable[[], str], moved: asyncio.Event, note: Callable[[str], None], patience: float
) -> None:
    """Returns once `unfinished` names nobody, which it is asked whenever `moved` is set. Whoever takes longer than
    `patience` seconds is named."""

    async def wait() -> None:
        while unfinished():
            moved.clear()
            await moved.wait()

    with suppress(TimeoutError):
        await asyncio.wait_for(wait(), patience)
    if names := unfinished():
        note(f"waiting for {names} to end, too; Ctrl-C stops them")
    await wait()
