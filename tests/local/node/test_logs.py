"""Container logs: capture by line, and serving with the options of `kubectl logs`."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.patience import PATIENCE
from trainop.local.node.pods import logreader
from trainop.local.node.pods.context import LogStore
from trainop.local.node.pods.logreader import LogOptions, last_lines, read_log
from trainop.local.node.pods.logs import LogCollector, RunLog

START = datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=UTC)


class Ticks:
    """A clock that advances by a second at every reading."""

    def __init__(self) -> None:
        self.at = START

    def now(self) -> datetime:
        self.at += timedelta(seconds=1)
        return self.at

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class Writer:
    """A container that writes at the test's request."""

    def __init__(self, path: Path) -> None:
        self.log = RunLog(path)
        self.collector = LogCollector(self.log, Ticks())
        self.out, self.err = self.collector.open()

    async def write(self, text: bytes, *, error: bool = False) -> None:
        changed = asyncio.ensure_future(self.log.changed())
        await asyncio.sleep(0)
        os.write(self.err if error else self.out, text)
        await asyncio.wait_for(changed, PATIENCE)

    async def end(self) -> None:
        os.close(self.out)
        os.close(self.err)
        await asyncio.wait_for(self.collector.done, PATIENCE)


@pytest.fixture
async def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path / "pod" / "main" / "0.log")


async def read(log: RunLog, **options: object) -> bytes:
    return b"".join([chunk async for chunk in read_log(log, LogOptions(**options))])  # type: ignore[arg-type]  # by name


async def test_lines_are_kept_with_their_times(writer: Writer) -> None:
    await writer.write(b"one\ntwo\n")
    await writer.write(b"bad\n", error=True)
    await writer.end()
    assert writer.log.path.read_bytes() == b"one\ntwo\nbad\n", "the file contains exactly what the container wrote"
    assert (await read(writer.log, timestamps=True)).decode().splitlines() == [
        "2026-01-02T03:04:06.006000000Z one",
        "2026-01-02T03:04:06.006000000Z two",
        "2026-01-02T03:04:07.006000000Z bad",
    ]
    assert await read(writer.log) == b"one\ntwo\nbad\n"


async def test_a_line_that_comes_in_pieces_is_one_line(writer: Writer) -> None:
    os.write(writer.out, b"on")
    await asyncio.sleep(0.01)
    await writer.write(b"e\nrest without an end")
    await writer.end()
    assert await read(writer.log) == b"one\nrest without an end"


async def test_a_very_long_line_is_kept_in_parts_and_served_whole(writer: Writer) -> None:
    text = bytes(range(65, 91)) * 2000
    await writer.write(text)
    await writer.write(b"\n")
    await writer.end()
    assert await read(writer.log) == text + b"\n"
    stamped = await read(writer.log, timestamps=True)
    assert stamped == b"2026-01-02T03:04:06.006000000Z " + text + b"\n", "one line has one time"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, b"l0\nl1\nl2\nl3\n"),
        ({"tail": 2}, b"l2\nl3\n"),
        ({"tail": 0}, b""),
        ({"tail": 99}, b"l0\nl1\nl2\nl3\n"),
        ({"since": START + timedelta(seconds=3)}, b"l2\nl3\n"),
        ({"limit": 4}, b"l0\nl"),
        ({"tail": 1, "timestamps": True}, b"2026-01-02T03:04:09.006000000Z l3\n"),
    ],
)
async def test_options(writer: Writer, options: dict[str, object], expected: bytes) -> None:
    for number in range(4):
        await writer.write(f"l{number}\n".encode())
    await writer.end()
    assert await read(writer.log, **options) == expected


async def test_the_tail_of_a_log_of_many_blocks(writer: Writer) -> None:
    for start in range(0, 20000, 500):
        await writer.write(b"".join(b"line %d\n" % number for number in range(start, start + 500)))
    await writer.end()
    assert await read(writer.log, tail=3) == b"line 19997\nline 19998\nline 19999\n"
    assert len((await read(writer.log, tail=15000)).splitlines()) == 15000
    assert len((await read(writer.log)).splitlines()) == 20000


async def test_a_follower_gets_each_line_when_it_is_written_and_the_end(writer: Writer) -> None:
    await writer.write(b"before\n")
    chunks = read_log(writer.log, LogOptions(follow=True))
    assert await anext(chunks) == b"before\n"
    coming = asyncio.ensure_future(anext(chunks))
    await writer.write(b"after\n")
    assert await asyncio.wait_for(coming, PATIENCE) == b"after\n"
    ending = asyncio.ensure_future(anext(chunks, b"the end"))
    await writer.end()
    assert await asyncio.wait_for(ending, PATIENCE) == b"the end"


def follow(writer: Writer, **options: object) -> AsyncGenerator[bytes]:
    chunks = read_log(writer.log, LogOptions(follow=True, **options))  # type: ignore[arg-type]  # by name
    assert isinstance(chunks, AsyncGenerator)
    return chunks


async def begin(chunks: AsyncGenerator[bytes]) -> asyncio.Task[bytes]:
    """Waits for the next chunk; empty at the end."""

    async def following() -> bytes:
        return await anext(chunks, b"")

    task = asyncio.create_task(following())
    await asyncio.sleep(0)
    return task


async def test_lines_that_follow_at_once_are_one_chunk_and_the_end_is_not_late(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logreader, "TOGETHER", 3600.0)
    async with asyncio.timeout(PATIENCE):
        chunks = follow(writer, timestamps=True)
        first = await begin(chunks)
        await writer.write(b"one\n")
        assert await first == b"2026-01-02T03:04:06.006000000Z one\n", "a line after a silence comes at once"
        following = await begin(chunks)
        for text in (b"two\n", b"three\nfour\n"):
            await writer.write(text)
        assert not following.done()
        await writer.end()
        assert (await following).decode().splitlines() == [
            "2026-01-02T03:04:07.006000000Z two",
            "2026-01-02T03:04:08.006000000Z three",
            "2026-01-02T03:04:08.006000000Z four",
        ]
        assert await anext(chunks, b"the end") == b"the end"


async def test_a_line_after_a_silence_comes_at_once_again(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logreader, "TOGETHER", 0.001)
    async with asyncio.timeout(PATIENCE):
        chunks = follow(writer)
        await writer.write(b"one\n")
        assert await anext(chunks) == b"one\n"
        following = await begin(chunks)
        while not writer.log._waiters:  # noqa: ASYNC110  # the time in which lines are sent together
            await asyncio.sleep(0.001)
        monkeypatch.setattr(logreader, "TOGETHER", 3600.0)
        await writer.write(b"two\n")
        assert await following == b"two\n"


@pytest.mark.parametrize("timestamps", [False, True])
async def test_followers_get_each_byte_once_and_one_that_reads_nothing_holds_up_nobody(
    writer: Writer, monkeypatch: pytest.MonkeyPatch, timestamps: bool
) -> None:
    monkeypatch.setattr(logreader, "TOGETHER", 0.001)
    monkeypatch.setattr(logreader, "_CHUNK", 500)
    idle = follow(writer, timestamps=timestamps)
    await writer.write(b"line 0\n")
    await anext(idle)

    async def collect() -> list[bytes]:
        return [chunk async for chunk in follow(writer, timestamps=timestamps)]

    both = asyncio.gather(collect(), collect())
    expected, number = [b"line 0"], 0
    for count in range(200):
        lines = [b"line %d" % (number + n) for n in range(1, 2 + count % 60)]
        number += len(lines)
        expected += lines
        await writer.write(b"\n".join(lines) + b"\n")
        await asyncio.sleep(0.002 if count % 20 == 0 else 0)
    await writer.end()
    async with asyncio.timeout(PATIENCE):
        for chunks in await both:
            lines = b"".join(chunks).splitlines()
            assert [line.partition(b"Z ")[2] if timestamps else line for line in lines] == expected
            assert lines == sorted(lines, key=lambda line: line.partition(b"Z ")[0]) or not timestamps
            assert max(map(len, chunks)) <= 500 * 8, "at most so much is held, with a stamp for each line"
        await idle.aclose()


async def test_a_limit_ends_a_followed_log_without_a_wait(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logreader, "TOGETHER", 3600.0)
    await writer.write(b"one\ntwo\n")
    async with asyncio.timeout(PATIENCE):
        assert [chunk async for chunk in follow(writer, limit=5)] == [b"one\nt"]


async def test_each_line_has_the_time_of_its_own_record(writer: Writer) -> None:
    """Read on in one go, and from any place."""
    for number in range(300):
        await writer.write(b"".join(b"%d.%d\n" % (number, n) for n in range(1 + number % 4)))
    await writer.end()
    whole = (await read(writer.log, timestamps=True)).decode().splitlines()
    for line in whole:
        time_of, _, text = line.partition(" ")
        at = START + timedelta(seconds=1 + int(text.partition(".")[0]))
        assert time_of == at.strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
    assert len(whole) == 750
    for tail in (1, 2, 3, 100, 749):
        assert (await read(writer.log, timestamps=True, tail=tail)).decode().splitlines() == whole[-tail:]


async def test_a_log_that_another_process_holds_open_can_be_closed(writer: Writer) -> None:
    os.write(writer.out, b"last words")
    writer.collector.close()
    assert writer.log.complete
    assert await read(writer.log) == b"last words"
    os.close(writer.out)
    os.close(writer.err)


async def test_the_end_of_a_log_as_termination_message(writer: Writer) -> None:
    for number in range(100):
        await writer.write(f"line {number}\n".encode())
    await writer.end()
    assert last_lines(writer.log, 2, 2048) == "line 98\nline 99\n"
    assert last_lines(writer.log, 80, 8) == "line 99\n"
    assert last_lines(RunLog(Path("/nowhere")), 2, 2048) == ""


@pytest.fixture
def metadata() -> dict[str, str]:
    return {"namespace": "team", "name": "p", "uid": "u"}


def test_the_shelf_finds_the_latest_run_and_the_one_before(tmp_path: Path, metadata: dict[str, str]) -> None:
    store = LogStore(tmp_path)
    assert store.find(metadata, "main", previous=False) is None
    for run in (8, 9, 10):
        path = store.start_run(metadata, "main", run).path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert len(list(tmp_path.rglob("*.log"))) == 2, "older runs are not kept"
    latest, before = (store.find(metadata, "main", previous=previous) for previous in (False, True))
    assert latest is not None
    assert before is not None
    assert (latest.path.name, before.path.name) == ("10.log", "9.log")
    assert not latest.complete
    afresh = LogStore(tmp_path).find(metadata, "main", previous=False)
    assert afresh is not None
    assert afresh.complete, "logs of an earlier run of the node have no writer"
    store.forget(metadata)
    forgotten = store.find(metadata, "main", previous=False)
    assert forgotten is not None
    assert forgotten.complete
    store.remove_orphans({"u"})
    assert store.find(metadata, "main", previous=False) is not None
    store.remove_orphans({"another"})
    assert store.find(metadata, "main", previous=False) is None


async def test_a_flood_costs_the_loop_nothing_per_line(writer: Writer) -> None:
    """16 million lines; work per line would block this thread for many seconds."""
    block, count = b"1\n" * 500_000, 32

    def flood() -> None:
        for _ in range(count):
            rest = memoryview(block)
            while rest:
                rest = rest[os.write(writer.out, rest) :]

    before = time.thread_time()
    await asyncio.to_thread(flood)
    await writer.write(b"the error\n", error=True)
    await writer.end()
    spent = time.thread_time() - before
    assert writer.log.path.stat().st_size == len(block) * count + len(b"the error\n")
    assert last_lines(writer.log, 2, 2048) == "1\nthe error\n", "stderr does not overtake earlier stdout"
    assert spent < 2.0


async def test_bytes_lost_to_a_full_disk_are_counted_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    log = RunLog(tmp_path / "0.log")
    collector = LogCollector(log, Ticks(), said.append)
    out, err = collector.open()

    async def write(text: bytes) -> None:
        changed = asyncio.ensure_future(log.changed())
        await asyncio.sleep(0)
        os.write(out, text)
        await asyncio.wait_for(changed, PATIENCE)

    monkeypatch.setattr("trainop.local.node.pods.logs._RESERVE", 2**62)
    monkeypatch.setattr("trainop.local.node.pods.logs._RESERVED_FRACTION", 1)  # the reserve is the whole disk
    await write(b"12345\n")
    await write(b"67\n")
    monkeypatch.undo()
    await write(b"after\n")
    os.close(out)
    os.close(err)
    await asyncio.wait_for(collector.done, PATIENCE)
    assert log.path.read_text() == "[9 bytes of this log are missing: the disk was full]\nafter\n"
    assert len(said) == 1


async def test_the_last_words_on_a_full_disk_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = RunLog(tmp_path / "0.log")
    collector = LogCollector(log, Ticks())
    out, err = collector.open()
    monkeypatch.setattr("trainop.local.node.pods.logs._RESERVE", 2**62)
    monkeypatch.setattr("trainop.local.node.pods.logs._RESERVED_FRACTION", 1)
    os.write(out, b"1234567\n" * 1000)
    os.write(err, b"the error\n")
    os.close(out)
    os.close(err)
    await asyncio.wait_for(collector.done, 5)
    gap, *lines = log.path.read_text().splitlines()
    assert lines == ["1234567"] * (len(lines) - 1) + ["the error"]
    assert gap == f"[{8 * (1000 - len(lines) + 1)} bytes of this log are missing: the disk was full]"


async def test_a_log_is_for_its_owner_and_no_link_is_followed(tmp_path: Path) -> None:
    folder = tmp_path / "main"
    folder.mkdir(mode=0o755)
    (folder / "0.log").touch(0o644)
    collector = LogCollector(RunLog(folder / "0.log"), Ticks())
    collector.close()
    assert [path.stat().st_mode & 0o777 for path in (folder, folder / "0.log")] == [0o700, 0o600]
    (folder / "1.log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="is a symbolic link"):
        LogCollector(RunLog(folder / "1.log"), Ticks())
    assert not (tmp_path / "elsewhere").exists()
