"""The order of what `trainop run` prints about jobs and of their logs."""

from __future__ import annotations

import asyncio

import pytest

from trainop.run import speaker
from trainop.run.speaker import Speaker


async def test_a_line_waits_for_the_logs_of_what_ended_before_it():
    said: list[str] = []
    release = asyncio.Event()

    async def print_log() -> None:
        await release.wait()
        said.append("log")

    log = asyncio.create_task(print_log())
    printer = Speaker(lambda: [log])
    printer.say(lambda: said.append("Failed"))
    printer.say(lambda: said.append("then"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert said == []
    release.set()
    await printer.finish()
    assert said == ["log", "Failed", "then"]


async def test_a_line_waits_until_its_cause_is_known():
    known: list[str] = []
    said: list[str] = []
    printer = Speaker(list)
    printer.say(lambda: said.append("Failed"), lambda: bool(known))
    printer.say(lambda: said.append("then"))
    await asyncio.sleep(0)
    printer.notify()
    await asyncio.sleep(0)
    assert said == []
    known.append("the end of the pod")
    printer.notify()
    await printer.finish()
    assert said == ["Failed", "then"]


async def test_nothing_holds_a_line_back_for_long(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(speaker, "GRACE", 0.01)
    said: list[str] = []
    stuck = asyncio.create_task(asyncio.sleep(3600))
    printer = Speaker(lambda: [stuck])
    printer.say(lambda: said.append("Failed"), lambda: False)
    printer.say(lambda: said.append("then"))
    await printer.finish()
    assert said == ["Failed", "then"]
    assert not stuck.done()
    stuck.cancel()
