"""The client's timeout behaves as `asyncio.timeout`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from trainop.runtime.client.timeout import Timeout


class Reference:
    """Stands for `asyncio.timeout`."""


async def within(how: type, seconds: float | None, work: Callable[[], Awaitable[object]]) -> object:
    if how is Reference:
        async with asyncio.timeout(seconds):
            return await work()
    with Timeout(seconds):
        return await work()


async def forever() -> None:
    await asyncio.Event().wait()


async def outcome(work: Awaitable[object]) -> object:
    try:
        return await work
    except (TimeoutError, asyncio.CancelledError, ValueError) as error:
        return type(error)


both = pytest.mark.parametrize("how", [Timeout, Reference])


@both
async def test_a_block_that_takes_longer_times_out(how: type):
    assert await outcome(within(how, 0.01, forever)) is TimeoutError
    task = asyncio.current_task()
    assert task
    assert task.cancelling() == 0  # the task can go on
    await asyncio.sleep(0)


@both
@pytest.mark.parametrize("seconds", [None, 60.0])
async def test_a_block_in_time_returns_and_leaves_no_timer(how: type, seconds: float | None):
    async def work() -> int:
        await asyncio.sleep(0)
        return 1

    assert await within(how, seconds, work) == 1


@both
async def test_errors_pass_unchanged(how: type):
    async def work() -> None:
        raise ValueError

    assert await outcome(within(how, 60.0, work)) is ValueError


@both
async def test_a_cancellation_from_outside_stays_one(how: type):
    task = asyncio.create_task(outcome(within(how, 60.0, forever)))
    await asyncio.sleep(0)
    task.cancel()
    assert await task is asyncio.CancelledError


@both
async def test_cancelled_from_outside_and_timed_out_at_once_is_cancelled(how: type):
    task = asyncio.create_task(outcome(within(how, 0.0, forever)))
    asyncio.get_running_loop().call_later(0.0, task.cancel)
    assert await task is asyncio.CancelledError


@both
async def test_the_outer_of_two_timeouts_wins_if_it_is_shorter(how: type):
    async def inner() -> object:
        return await within(how, 60.0, forever)

    assert await outcome(within(how, 0.01, inner)) is TimeoutError


@both
async def test_an_expired_timeout_in_a_block_that_swallows_the_cancellation_leaves_the_task_usable(how: type):
    async def work() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await forever()
        return "swallowed"

    assert await outcome(within(how, 0.01, work)) == "swallowed"
    task = asyncio.current_task()
    assert task
    assert task.cancelling() == 0
