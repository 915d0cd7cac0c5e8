"""The rate-limited priority work queue in virtual time."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.runtime.virtual_time import VirtualClock, virtual_time
from trainop.runtime.controller.ratelimit import ExponentialLimiter, RetryLimiter, TokenBucket
from trainop.runtime.controller.workqueue import LOW_PRIORITY, QueueShutDownError, WorkQueue
from trainop.runtime.metrics.metrics import Metrics
from trainop.runtime.objects.metadata import Key

A, B, C = Key("ns", "a"), Key("ns", "b"), Key("ns", "c")


def make_queue(metrics: Metrics | None = None) -> WorkQueue[Key]:
    clock = VirtualClock()
    limiter: RetryLimiter[Key] = RetryLimiter(clock, random.Random(1))
    return WorkQueue("test", clock, limiter, metrics.queue("test") if metrics else None)


async def take_all(queue: WorkQueue[Key]) -> list[Key]:
    taken = []
    while len(queue):
        key = await queue.get()
        queue.done(key)
        taken.append(key)
    return taken


@virtual_time
async def test_keys_come_in_the_order_of_adding_and_once_each():
    queue = make_queue()
    for key in (B, A, B, C, A):
        queue.add(key)
    assert await take_all(queue) == [B, A, C]


@virtual_time
async def test_higher_priority_comes_first_and_an_add_only_raises_it():
    queue = make_queue()
    queue.add(A, LOW_PRIORITY)
    queue.add(B)
    queue.add(C, LOW_PRIORITY)
    queue.add(B, LOW_PRIORITY)
    queue.add(C, 5)
    assert await take_all(queue) == [C, B, A]


@virtual_time
async def test_a_raised_key_goes_to_the_end_of_its_new_level():
    queue = make_queue()
    queue.add(A, LOW_PRIORITY)
    queue.add(B)
    queue.add(A)
    assert await take_all(queue) == [B, A]


@virtual_time
async def test_a_requeued_key_keeps_its_priority():
    """Otherwise nearly finished work would wait behind all new keys."""
    queue = make_queue()
    for key, priority in ((A, 10), (B, LOW_PRIORITY)):
        queue.add(key, priority)
        assert await queue.get() == key
        queue.add_again(key, 1)
        queue.done(key)
    await VirtualClock().sleep(2)
    queue.add(C, 5)
    assert queue.depths() == {10: 1, 0: 1, 5: 1}, "but never below the priority of new keys"
    assert await take_all(queue) == [A, C, B]


@pytest.mark.case("runtime-20", "abc")
@virtual_time
async def test_adds_while_a_key_is_processed_cause_exactly_one_more_run():
    queue = make_queue()
    clock = VirtualClock()
    running: list[Key] = []
    runs: list[tuple[Key, float]] = []
    most = 0

    async def worker() -> None:
        nonlocal most
        while True:
            key = await queue.get()
            assert key not in running
            running.append(key)
            most = max(most, len(running))
            runs.append((key, clock.monotonic()))
            await clock.sleep(10)
            running.remove(key)
            queue.done(key)

    async with asyncio.TaskGroup() as tasks:
        workers = [tasks.create_task(worker()) for _ in range(3)]
        queue.add(A)
        queue.add(B)
        queue.add(C)
        await clock.sleep(1)
        for _ in range(100):
            queue.add(A)
        await clock.sleep(100)
        for each in workers:
            each.cancel()
    assert runs == [(A, 0.0), (B, 0.0), (C, 0.0), (A, 10.0)]
    assert most == 3


@pytest.mark.case("runtime-22", "a")
@virtual_time
async def test_an_add_makes_a_delayed_key_ready_and_cancels_its_delay():
    queue = make_queue()
    queue.add_after(A, 60)
    assert (len(queue), queue.waiting) == (0, 1)
    queue.add(A)
    assert await take_all(queue) == [A]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1000):
            await queue.get()


@pytest.mark.case("runtime-22", "b")
@virtual_time
async def test_the_shorter_of_two_delays_wins_in_either_order():
    clock = VirtualClock()
    for first, second in ((60, 10), (10, 60)):
        queue = make_queue()
        start = clock.monotonic()
        queue.add_after(A, first)
        queue.add_after(A, second)
        assert await queue.get() == A
        assert clock.monotonic() - start == pytest.approx(10)
        queue.done(A)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1000):
                await queue.get()


@virtual_time
async def test_a_delayed_key_that_becomes_due_while_processed_waits_for_done():
    queue, clock = make_queue(), VirtualClock()
    queue.add(A)
    await queue.get()
    queue.add_after(A, 5)
    await clock.sleep(20)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await queue.get()
    queue.done(A)
    assert await queue.get() == A


@virtual_time
async def test_a_delay_for_a_ready_key_changes_nothing():
    queue = make_queue()
    queue.add(A)
    queue.add_after(A, 60)
    assert len(queue) == 1
    assert queue.waiting == 0


@pytest.mark.case("runtime-23", "ab")
@virtual_time
async def test_initial_items_are_not_starved_by_a_steady_stream():
    queue, clock = make_queue(), VirtualClock()
    initial = [Key("ns", f"initial-{i}") for i in range(600)]
    for key in initial:
        queue.add(key, LOW_PRIORITY)
    done: list[tuple[Key, float]] = []

    async def load() -> None:
        for i in range(100 * 120):
            queue.add(Key("ns", f"news-{i}"))
            await clock.sleep(0.01)

    async def work() -> None:
        while True:
            key = await queue.get()
            await clock.sleep(1 / 60)
            queue.done(key)
            done.append((key, clock.monotonic()))

    async with asyncio.TaskGroup() as tasks:
        loading, working = tasks.create_task(load()), tasks.create_task(work())
        await clock.sleep(115)
        loading.cancel()
        working.cancel()
    mine = [(key, at) for key, at in done if key.name.startswith("initial")]
    assert [key for key, _ in mine] == initial
    assert mine[-1][1] <= 110
    # The share of old items does not exceed one in ten.
    assert mine[-1][1] >= 99


@virtual_time
async def test_heaps_drop_stale_entries_and_lose_no_key():
    queue, clock = make_queue(), VirtualClock()
    low = [Key("ns", f"low-{i}") for i in range(50)]
    for key in low:
        queue.add(key, LOW_PRIORITY)
    for i in range(5_000):
        queue.add(low[i % 50], LOW_PRIORITY + i // 50)
        queue.add_after(A, 1000 - i / 100)
        queue.add_after(B, 970)
        queue.add(Key("ns", f"news-{i}"), 1000)
        if i % 10 != 8:  # every other get returns the key of highest priority
            queue.done(await queue.get())
    assert len(queue._ready) < 64 + 5 * len(queue._entries)
    assert len(queue._oldest) <= 10 * (len(queue._entries) + 1)
    assert len(queue._waiting) < 64 + 5 * len(queue._entries)
    left = await take_all(queue)
    assert len(left) == len(set(left))
    assert {key for key in left if key.name.startswith("low")} == set(low)
    assert queue.waiting == 2
    assert await queue.get() == A
    assert clock.monotonic() == pytest.approx(1000 - 49.99)
    assert await queue.get() == B
    assert clock.monotonic() == pytest.approx(970)


@virtual_time
async def test_one_of_ten_is_the_oldest_despite_stale_entries():
    queue = make_queue()
    for i in range(30):
        queue.add(Key("ns", f"low-{i}"), LOW_PRIORITY)
    taken = []
    for i in range(300):
        queue.add(Key("ns", f"high-{i}"))
        taken.append(await queue.get())
        queue.done(taken[-1])
    assert [i for i, key in enumerate(taken) if key.name.startswith("low")] == list(range(9, 300, 10))


@virtual_time
async def test_a_delay_of_zero_or_less_makes_a_key_due_at_once():
    queue = make_queue()
    queue.add_after(A, 0)
    queue.add_after(B, -5, priority=1)
    assert queue.waiting == 0
    assert await take_all(queue) == [B, A]


@virtual_time
async def test_a_delayed_add_of_a_due_key_can_raise_its_priority():
    queue = make_queue()
    queue.add(A)
    queue.add(B)
    queue.add_after(B, 60, priority=5)
    assert await take_all(queue) == [B, A]


@virtual_time
async def test_each_delayed_key_becomes_ready_at_its_time():
    queue, clock = make_queue(), VirtualClock()
    queue.add_after(C, 30)
    queue.add_after(A, 10)
    queue.add_after(B, 20)
    times = []
    for _ in range(3):
        key = await queue.get()
        times.append((key, clock.monotonic()))
        queue.done(key)
    assert [key for key, _ in times] == [A, B, C]
    assert [at for _, at in times] == pytest.approx([10, 20, 30])


@virtual_time
async def test_forget_resets_the_back_off():
    queue = make_queue()
    for _ in range(5):
        queue.add_rate_limited(A)
    assert queue.retries(A) == 5
    queue.forget(A)
    assert queue.retries(A) == 0
    assert queue.add_rate_limited(A) == pytest.approx(0.005, rel=0.1)


@pytest.mark.case("runtime-21", "ab")
@virtual_time
async def test_failures_double_the_delay_up_to_the_cap_and_success_forgets():
    limiter: ExponentialLimiter[Key] = ExponentialLimiter(VirtualClock(), random.Random(7))
    delays = [limiter.delay(A) for _ in range(20)]
    for n, delay in enumerate(delays, start=1):
        exact = min(1000.0, 0.005 * 2 ** (n - 1))
        assert 0.9 * exact <= delay <= 1.1 * exact
    assert delays[18] == pytest.approx(1000, rel=0.1)
    assert len({round(delay / 0.005 / 2**n, 6) for n, delay in enumerate(delays[:10])}) > 5, "the delay is jittered"
    assert limiter.retries(A) == 20
    limiter.forget(A)
    assert limiter.delay(A) == pytest.approx(0.005, rel=0.1)


@virtual_time
async def test_keys_not_seen_for_two_hours_are_forgotten():
    clock = VirtualClock()
    limiter: ExponentialLimiter[Key] = ExponentialLimiter(clock, random.Random(1))
    limiter.delay(A)
    limiter.delay(A)
    await clock.sleep(3600)
    limiter.delay(B)
    await clock.sleep(3700)
    limiter.delay(C)
    assert [limiter.retries(key) for key in (A, B, C)] == [0, 1, 1]


@virtual_time
async def test_many_failing_keys_share_ten_retries_a_second():
    clock = VirtualClock()
    limiter: RetryLimiter[Key] = RetryLimiter(clock, random.Random(1))
    delays = [limiter.delay(Key("ns", str(i))) for i in range(300)]
    assert max(delays[:100]) < 0.006
    assert delays[199] == pytest.approx(10.0)
    assert delays[299] == pytest.approx(20.0)
    await clock.sleep(30)
    assert limiter.delay(Key("ns", "late")) < 0.006


@virtual_time
async def test_acquire_waits_for_a_token():
    clock = VirtualClock()
    bucket = TokenBucket(clock, 20, 30)
    for _ in range(50):
        await bucket.acquire()
    assert clock.monotonic() == pytest.approx(1.0)


@virtual_time
async def test_rate_limited_adds_come_at_priority_zero():
    queue, clock = make_queue(), VirtualClock()
    queue.add(A, LOW_PRIORITY)
    await queue.get()
    assert queue.add_rate_limited(A) == pytest.approx(0.005, rel=0.1)
    assert queue.retries(A) == 1
    queue.done(A)
    await clock.sleep(1)
    queue.add(B, LOW_PRIORITY)
    queue.add(C, -1)
    assert await take_all(queue) == [A, C, B]


@virtual_time
async def test_shutdown_drops_all_keys_wakes_all_workers_and_is_idempotent():
    queue, clock = make_queue(), VirtualClock()
    queue.add(A)
    assert await queue.get() == A
    queue.add(A)
    queue.add_after(B, 1)

    async def expect_end() -> None:
        with pytest.raises(QueueShutDownError):
            await queue.get()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(expect_end())
        await clock.sleep(0)
        queue.shutdown()
        queue.shutdown()
    queue.add(C)
    queue.add_after(C, 1)
    queue.done(A)
    await clock.sleep(10)
    assert len(queue) == queue.waiting == 0
    await expect_end()


@virtual_time
async def test_the_wake_up_of_a_cancelled_worker_is_passed_on():
    queue = make_queue()
    async with asyncio.TaskGroup() as tasks:
        first, second = tasks.create_task(queue.get()), tasks.create_task(queue.get())
        await asyncio.sleep(0)
        queue.add(A)
        first.cancel()
        async with asyncio.timeout(1):
            assert await second == A


@virtual_time
async def test_metrics_of_the_queue():
    metrics = Metrics()
    queue, clock = make_queue(metrics), VirtualClock()
    read = metrics.registry.get_sample_value
    labels = {"name": "test", "controller": "test"}
    await clock.sleep(100)
    queue.add(A)
    queue.add(A)
    queue.add_after(B, 3)
    assert read("workqueue_depth", labels) == 1
    assert read("workqueue_adds_total", labels) == 1
    assert read("workqueue_retries_total", labels) == 1
    await clock.sleep(2)
    await queue.get()
    await clock.sleep(5)
    assert read("workqueue_depth", labels) == 1
    assert read("workqueue_adds_total", labels) == 2
    assert read("workqueue_queue_duration_seconds_sum", labels) == pytest.approx(2)
    assert read("workqueue_unfinished_work_seconds", labels) == pytest.approx(5)
    assert read("workqueue_longest_running_processor_seconds", labels) == pytest.approx(5)
    queue.done(A)
    assert read("workqueue_work_duration_seconds_sum", labels) == pytest.approx(5)
    assert read("workqueue_longest_running_processor_seconds", labels) == 0
    await queue.get()
    assert read("workqueue_queue_duration_seconds_sum", labels) == pytest.approx(2 + 4)


@virtual_time
async def test_depth_by_priority_when_asked_for():
    metrics = Metrics(depth_by_priority=True)
    queue: WorkQueue[str] = WorkQueue("q", VirtualClock(), metrics=metrics.queue("q"))
    queue.add("a")
    queue.add("b", LOW_PRIORITY)
    queue.add("c", LOW_PRIORITY)
    queue.add_after("d", 60)

    def depth(priority: object) -> float | None:
        labels = {"name": "q", "controller": "q", "priority": str(priority)}
        return metrics.registry.get_sample_value("workqueue_depth", labels)

    assert (depth(0), depth(LOW_PRIORITY), depth(7)) == (1, 2, None)
    assert await queue.get() == "a"
    assert (depth(0), depth(LOW_PRIORITY)) == (0, 2)
    for number in range(1, 31):
        queue.add(f"x{number}", number)
    assert (depth(30), depth(8), depth(7)) == (1, 1, None)
    assert depth("exceeded_cardinality_limit") == 7
    assert depth(LOW_PRIORITY) == 2, "an existing series is kept"
