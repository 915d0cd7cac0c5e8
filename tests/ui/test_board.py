"""What is read for viewers ends with them, whatever happens at that moment."""

from __future__ import annotations

import asyncio

from tests.patience import PATIENCE
from trainop.ui.board import Watched


async def test_a_read_that_fails_while_it_is_stopped_does_not_go_on():
    """A cancelled group of tasks raises the error of a task, and not that it was cancelled; whoever tries again after
    errors would go on for ever, as the reader of logs did whose token was refused at the same moment."""
    begun, attempts = asyncio.Event(), 0

    async def fail_at_the_end() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise ConnectionError("refused")

    async def work() -> None:
        nonlocal attempts
        while True:
            attempts += 1
            try:
                async with asyncio.TaskGroup() as tasks:
                    if attempts == 1:
                        tasks.create_task(fail_at_the_end())
                    await asyncio.Event().wait()
            except ExceptionGroup:
                continue

    watched = Watched(work)
    watched.start()
    await begun.wait()
    async with asyncio.timeout(PATIENCE):
        await watched.stop()
    assert attempts <= 2
