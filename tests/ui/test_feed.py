"""The merged log of a job: its order, its numbers, and what a slow viewer finds."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.patience import PATIENCE
from trainop.commands.loglines import Line
from trainop.commands.logsink import Source
from trainop.commands.target import Replica
from trainop.ui.feed import MAX_TEXT, Feed

POD: dict[str, Any] = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}


def source(label: str) -> Source:
    return Source(Replica(POD, "worker", 0, None), "c", label, 0)


def made(max_bytes: int = 2**20) -> Feed:
    return Feed(lambda: None, max_bytes=max_bytes)


def say(feed: Feed, second: int, text: bytes, label: str = "worker-0") -> None:
    feed.lines(source(label), [Line(f"2026-11-27T10:00:{second:02}.000000000Z", text)])


def read(feed: Feed, position: int = 0) -> tuple[list[list[str]], int]:
    """All lines from a position, and how many are gone."""
    found: list[list[str]] = []
    gone = 0
    while True:
        skipped, block = feed.after(position)
        if block is None:
            return found, gone
        gone += skipped
        event = block.event.decode().rstrip("\n").split("\n")
        assert event[0] == f"id: {feed.identity}-{block.end}"
        found += json.loads(event[2].removeprefix("data: "))["lines"]
        position = block.end


def test_lines_of_all_replicas_are_in_the_order_of_time():
    feed = made()
    say(feed, 3, b"c")
    say(feed, 1, b"a", "worker-1")
    say(feed, 2, b"b", "worker-1")
    feed.flush()
    assert [line[1:] for line in read(feed)[0]] == [["worker-1", "a"], ["worker-1", "b"], ["worker-0", "c"]]


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        (b"\x1b[31mred\x1b[0m", "red"),
        (b"<img src=x onerror=alert(1)>", "<img src=x onerror=alert(1)>"),  # the page makes text of it
        (b"\xff\x00binary\x07", "\ufffdbinary"),
        ("\u202egnp.exe".encode(), "gnp.exe"),
        (b" 10%\r 20%\r 30%", " 30%"),
        (b"dos\r", "dos"),
        (b"]0;title", "]0;title"),
    ],
)
def test_a_hostile_line_is_plain_text(sent: bytes, shown: str):
    feed = made()
    say(feed, 1, sent)
    feed.flush()
    assert read(feed)[0][0][2] == shown


def test_a_line_without_end_is_cut():
    feed = made()
    say(feed, 1, b"x" * 60_000)
    feed.flush()
    text = read(feed)[0][0][2]
    assert text == f"{'x' * MAX_TEXT}... ({60_000 - MAX_TEXT:,} characters left out)"


def test_what_is_kept_is_bounded_and_a_slow_viewer_learns_what_it_missed():
    feed = made(max_bytes=200_000)
    for number in range(20_000):
        say(feed, number % 60, b"line %d" % number)
        if number % 100 == 99:
            feed.flush()
    assert feed._size <= 200_000
    lines, gone = read(feed)
    assert gone + len(lines) == 20_000 == feed.end
    assert gone > 15_000
    assert lines[-1][2].startswith("line 199")
    assert read(feed, feed.end) == ([], 0)


def test_a_viewer_that_comes_back_gets_each_line_once():
    feed = made()
    say(feed, 1, b"a")
    feed.flush()
    _, block = feed.after(0)
    assert block is not None
    say(feed, 2, b"b")
    feed.flush()
    position = feed.position(f"{feed.identity}-{block.end}")
    assert [line[2] for line in read(feed, position)[0]] == ["b"]


@pytest.mark.parametrize("last", ["", "-", "other-1", "{}-x", "{}--1", "{}-99999999999999999999"])
def test_an_id_of_another_log_begins_anew(last: str):
    feed = made()
    say(feed, 1, b"a")
    feed.flush()
    assert feed.position(last.format(feed.identity)) == 0


def test_a_note_is_shown_once():
    feed = made()
    for _ in range(3):
        feed.note("worker-1: refused")
    feed.flush()
    assert [line[1:] for line in read(feed)[0]] == [["", "--- worker-1: refused"]]


async def test_the_beginning_is_sorted_as_a_whole():
    """Replica after replica is read."""
    news = asyncio.Event()
    feed = Feed(news.set)
    running = asyncio.create_task(feed.run())
    say(feed, 9, b"late")
    await asyncio.sleep(0.2)
    say(feed, 1, b"early", "worker-1")
    async with asyncio.timeout(PATIENCE):
        await news.wait()
    assert [line[2] for line in read(feed)[0]] == ["early", "late"]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
