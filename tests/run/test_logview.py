"""Display of logs: complete for a file or pipe, limited to a readable rate on a terminal."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable

import pytest
from rich.console import Console

from tests.patience import PATIENCE
from trainop.run.logview import LogView
from trainop.run.output import Output
from trainop.run.screen import Replica, Screen


class Stopped:
    """A clock that only the test advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


async def view(chunks: AsyncIterator[bytes], *, terminal: bool, clock: Stopped | None = None) -> tuple[str, Replica]:
    """What is printed of a log, and the replica with its last lines."""
    out = io.StringIO()
    replica = Replica("worker-0")
    console = Console(file=out, force_terminal=terminal, color_system=None, width=100)
    async with Output(console) as output:
        log = LogView(Screen(output, []), replica, "", "/data/0.log", clock or Stopped())
        async with asyncio.timeout(PATIENCE):
            await log.run(chunks)
    return out.getvalue(), replica


async def pieces(data: bytes, size: int = 256 * 1024) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def numbers(count: int) -> bytes:
    return b"".join(b"%d\n" % number for number in range(1, count + 1))


@pytest.mark.parametrize("size", [1, 7, 4096])
async def test_a_pipe_gets_every_line_however_the_chunks_are_cut(size: int):
    shown, replica = await view(pieces(b"one\n\ntwo\n\xff\0x\nno end", size), terminal=False)
    assert shown.split("\n") == [
        *("worker-0   one", "worker-0   ", "worker-0   two", "worker-0   \ufffd\0x", "worker-0   no end", "")
    ]
    assert list(replica.tail) == ["one", "", "two", "\ufffd\0x", "no end"]


async def test_a_pipe_gets_a_flood_whole():
    shown, replica = await view(pieces(numbers(500_000) + b"the error\n"), terminal=False)
    assert shown.count("\n") == 500_001
    assert list(replica.tail)[-2:] == ["500000", "the error"]


async def test_a_terminal_gets_the_end_of_a_flood_and_how_much_was_left_out():
    shown, replica = await view(pieces(numbers(500_000) + b"the error\n"), terminal=True)
    lines = shown.splitlines()
    assert lines[0] == "worker-0: 499,991 lines skipped; the complete log is /data/0.log"
    assert lines[1:] == [*(f"worker-0   {number}" for number in range(499_992, 500_001)), "worker-0   the error"]
    assert list(replica.tail)[-1] == "the error"


async def test_a_terminal_shows_slow_output_completely():
    shown, _ = await view(pieces(numbers(3000)), terminal=True)
    assert len(shown.splitlines()) == 3000


async def test_a_flood_that_pauses_shows_where_it_stands():
    """Its last lines are shown although it has not ended."""
    seen = asyncio.Event()

    async def flood() -> AsyncIterator[bytes]:
        yield numbers(300_000)
        await seen.wait()

    out = Watched(lambda text: "300000" in text, seen)
    async with Output(Console(file=out, force_terminal=True, color_system=None, width=100)) as output:
        log = LogView(Screen(output, []), Replica("worker-0"), "", "/data/0.log", Stopped())
        async with asyncio.timeout(PATIENCE):
            await log.run(flood())
    assert out.getvalue().splitlines()[-1] == "worker-0   300000"


class Watched(io.StringIO):
    """A text stream that sets an event once its content satisfies a condition."""

    def __init__(self, condition: Callable[[str], bool], event: asyncio.Event) -> None:
        super().__init__()
        self._condition = condition
        self._event = event
        self._loop = asyncio.get_running_loop()

    def write(self, text: str) -> int:
        written = super().write(text)
        if self._condition(self.getvalue()):
            self._loop.call_soon_threadsafe(self._event.set)
        return written


async def test_a_line_of_ten_megabytes_is_one_of_the_last_lines_and_no_more():
    data = b"x" * 10_000_000 + b"\nthe error\n"
    shown, replica = await view(pieces(data), terminal=True)
    assert [line[:14] for line in replica.tail] == ["xxxxxxxxxxxxxx", "the error"]
    assert len(shown) < 10_000
    assert shown.endswith("worker-0   the error\n")
    shown, _ = await view(pieces(data), terminal=False)
    assert shown.count("x") == 10_000_000


async def test_a_terminal_keeps_colours_and_no_other_control():
    shown, _ = await view(pieces(b"\x1b[31mred\x1b[0m\x1b[2J 10%\r 20%\n"), terminal=True)
    assert "\x1b[2J" not in shown
    assert shown == "worker-0    20%\n"


async def test_a_slow_reader_delays_the_log_and_not_the_event_loop():
    reading = asyncio.Event()
    loop = asyncio.get_running_loop()

    class Stuck(io.StringIO):
        def write(self, text: str) -> int:
            loop.call_soon_threadsafe(started.set)
            asyncio.run_coroutine_threadsafe(reading.wait(), loop).result(30)
            return super().write(text)

    started = asyncio.Event()
    out = Stuck()
    async with Output(Console(file=out)) as output:
        log = LogView(Screen(output, []), Replica("worker-0"), "", "", Stopped())
        running = asyncio.create_task(log.run(pieces(numbers(1000), 100)))
        await started.wait()
        for _ in range(100):
            await asyncio.sleep(0)  # the event loop is not blocked
        assert not running.done()
        reading.set()
        async with asyncio.timeout(PATIENCE):
            await running
    assert out.getvalue().count("\n") == 1000


@pytest.mark.parametrize("size", [3, 4096])
async def test_a_progress_bar_is_the_last_line_of_its_replica(size: int):
    """Also before its line ends, and without what has been overwritten."""
    _, replica = await view(pieces(b"begin\n10%\r20%\r30%", size), terminal=True)
    assert replica.last_line == "30%"
    _, replica = await view(pieces(b"10%\r20%\r", size), terminal=True)
    assert replica.last_line == "20%"
    _, replica = await view(pieces(b"10%\r100%\r\ndone\n", size), terminal=True)
    assert replica.last_line == "done"
