"""Frozen processes of the simulation do nothing, and the network and the cluster continue."""

from __future__ import annotations

import asyncio

from tests.simulation.loop import Pause, Process, ProcessLoop, run


def test_a_frozen_process_does_nothing_but_its_sent_requests_arrive():
    happened: list[tuple[float, str]] = []

    async def work(loop: ProcessLoop, process: Process) -> None:
        loop.outside(1.0, lambda: happened.append((loop.time(), "arrives")))
        loop.outside(5.0, loop.thaw, process)
        loop.freeze(process)
        await asyncio.sleep(2.0)
        happened.append((loop.time(), "wakes"))

    async def main(loop: ProcessLoop) -> None:
        process = Process("one")
        task = loop.spawn(process, work(loop, process), "work")
        await Pause(loop, 10.0)
        assert task.done()

    run(main)
    assert happened == [(1.0, "arrives"), (5.0, "wakes")]


def test_timers_of_the_same_time_fire_in_the_order_of_their_creation():
    happened: list[int] = []

    async def main(loop: ProcessLoop) -> None:
        for number in range(20):
            loop.outside(1.0, happened.append, number)
        await Pause(loop, 2.0)

    run(main)
    assert happened == list(range(20))
