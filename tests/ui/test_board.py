"""What is read for viewers ends with them, whatever happens at that moment."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from tests.patience import PATIENCE
from trainop.ui import board
from trainop.ui.board import JobBoard, Watched
from trainop.ui.source import JobId


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


class FailingSource:
    """A source whose only log cannot be read any more at the moment at which its reading is stopped."""

    has_ended = False
    run: Any = None

    def __init__(self) -> None:
        self.reading = asyncio.Event()
        self.reads = 0

    def plots(self, _wanted: Any) -> Any:
        return None

    async def job(self, _wanted: Any) -> Any:
        await asyncio.Event().wait()

    async def logs(self, _wanted: Any, _feed: Any, _positions: Any) -> None:
        self.reads += 1
        self.reading.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise ConnectionError("refused")


async def test_a_log_that_fails_while_its_job_is_stopped_is_not_read_again():
    """The group of tasks cancels it once, whatever comes later."""
    source: Any = FailingSource()
    with patch.object(board, "AGAIN", 0.01), patch.object(board, "INTERVAL", 0.0):
        followed = JobBoard(source, JobId("x", "PyTorchJob", "j"), 1024)
        followed.start()
        await source.reading.wait()
        async with asyncio.timeout(PATIENCE):
            await followed.stop()
    assert source.reads == 1


class EndingSource(FailingSource):
    """A run that ends while its log is read; the rest is in its folder."""

    run: Any = "train-1"
    ends = True

    async def logs(self, _wanted: Any, feed: Any, positions: Any) -> None:
        self.reads += 1
        if self.reads == 1:
            positions["pod", "c", 0] = "here"
            self.has_ended = self.ends
            raise ConnectionError("refused")
        feed.note(f"the rest from {positions['pod', 'c', 0]}")
        self.reading.set()


class AwaySource(EndingSource):
    """A run that goes on."""

    ends = False


class ClusterSource(AwaySource):
    run = None


NOTE = "the logs cannot be read: refused"


@pytest.mark.parametrize(("kind", "notes"), [(EndingSource, []), (AwaySource, [NOTE]), (ClusterSource, [NOTE])])
async def test_the_log_of_a_run_that_ends_goes_on_from_where_it_was(kind: Any, notes: list[str]):
    """Nobody is told of a server that has ended with its run."""
    source: Any = kind()
    followed = JobBoard(source, JobId("x", "PyTorchJob", "j"), 1024)
    said: list[str] = []
    with patch.object(board, "AGAIN", 0.01), patch.object(board, "INTERVAL", 0.0):
        with patch.object(followed.feed, "note", said.append):
            followed.start()
            async with asyncio.timeout(PATIENCE):
                await source.reading.wait()
        await followed.stop()
    assert said == [*notes, "the rest from here"]
