"""Stalls of the event loop are logged while they last."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import MutableMapping
from typing import Any

from structlog.testing import capture_logs

from tests.patience import PATIENCE
from trainop.runtime.manager.stalls import StallWatch


async def test_a_blocking_call_is_logged_with_its_task_and_location():
    with capture_logs() as logs:

        def lines_about(task: str) -> list[MutableMapping[str, Any]]:
            return [line for line in logs if line["task"] == task]

        watching = asyncio.create_task(StallWatch(0.05).run())
        await asyncio.sleep(0.02)

        async def block_the_loop() -> None:
            deadline = time.monotonic() + PATIENCE
            while not lines_about("culprit") and time.monotonic() < deadline:
                time.sleep(0.01)  # noqa: ASYNC251  # the point of the test

        await asyncio.create_task(block_the_loop(), name="culprit")
        watching.cancel()
        await asyncio.wait([watching])
    (line,) = lines_about("culprit")
    assert line["event"] == "event loop stalled"
    assert line["seconds"] > 0
    assert 0 <= line["processor_seconds"] <= line["seconds"]
    assert line["at"].endswith("block_the_loop")
    assert __file__ in line["at"]


async def test_waiting_and_computing_differ_in_processor_time():
    """A busy machine may leave a short stall without a measurable share of a processor, but not one after another."""
    end = time.monotonic() + PATIENCE
    with capture_logs() as logs:
        watching = asyncio.create_task(StallWatch(0.05).run())
        await asyncio.sleep(0.02)

        def found() -> list[float]:
            return [line["processor_seconds"] for line in logs if line["task"] == "computing"]

        async def compute() -> None:
            before = len(found())
            while len(found()) == before and time.monotonic() < end:
                pass

        while not any(found()) and time.monotonic() < end:
            await asyncio.create_task(compute(), name="computing")
            await asyncio.sleep(0.02)
        watching.cancel()
        await asyncio.wait([watching])
    assert max(found()) > 0


async def test_the_watching_thread_ends_with_its_task():
    watching = asyncio.create_task(StallWatch(0.05).run())
    await asyncio.sleep(0)
    thread = next(each for each in threading.enumerate() if each.name == "stall-watch")
    watching.cancel()
    await asyncio.wait([watching])
    thread.join(PATIENCE)
    assert not thread.is_alive()
