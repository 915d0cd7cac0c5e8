"""The logs of kept runs: what a container wrote comes back byte by byte, and sizes are bounded."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from trainop.kept.logfile import LogFile, read_text

NOON = int(datetime(2026, 1, 2, 12, tzinfo=UTC).timestamp() * 1_000_000)
LARGE = 1 << 30


def write(path: Path, *blocks: bytes, limit: int = LARGE) -> LogFile:
    """One block a second."""
    file = LogFile(path)
    for number, block in enumerate(blocks):
        file.append(block, NOON + number * 1_000_000, limit)
    return file


def read(path: Path, **options: object) -> bytes:
    async def collect() -> bytes:
        return b"".join([chunk async for chunk in read_text(path, **options)])  # type: ignore[arg-type]

    return asyncio.run(collect())


@pytest.mark.parametrize(
    "blocks",
    [
        (b"one\n", b"two\nthree\n"),
        (b"begun ", b"and ended\nnext\n"),
        (b"\n\n", b"\n"),
        (bytes(range(256)), b"\n"),
        (b"x" * 300_000, b"y" * 300_000, b"\n"),
        (b"no end",),
        (b"\r 10 %\r 20 %", b"\r 30 %\n"),
        (b"2026-01-02T12:00:00.000000Z F not a stamp\n",),
        (),
    ],
)
def test_the_output_comes_back_as_it_was(tmp_path: Path, blocks: tuple[bytes, ...]):
    write(tmp_path / "logs/ns/pod/c.1.log", *blocks)
    assert read(tmp_path / "logs/ns/pod/c.1.log") == b"".join(blocks)


def test_lines_have_times_and_can_be_chosen(tmp_path: Path):
    path = tmp_path / "logs/ns/pod/c.1.log"
    write(path, b"a\n", b"b\n", b"c1 ", b"c2\nd\n")
    assert path.read_text().splitlines()[0] == "2026-01-02T12:00:00.000000Z F a"
    assert read(path, timestamps=True).decode().splitlines() == [
        "2026-01-02T12:00:00.000000000Z a",
        "2026-01-02T12:00:01.000000000Z b",
        "2026-01-02T12:00:02.000000000Z c1 c2",
        "2026-01-02T12:00:03.000000000Z d",
    ]
    assert read(path, tail=2) == b"c1 c2\nd\n"
    assert read(path, tail=0) == b""
    assert read(path, since=datetime(2026, 1, 2, 12, 0, 3, tzinfo=UTC)) == b"d\n"


def test_a_long_log_keeps_its_beginning_and_its_end(tmp_path: Path):
    path = tmp_path / "logs/ns/pod/c.1.log"
    lines = [b"line %06d\n" % number for number in range(20_000)]
    file = write(path, *lines, limit=64 << 10)
    assert path.stat().st_size == file.size <= 64 << 10
    shown = read(path)
    kept = [line for line in shown.splitlines(keepends=True) if line.startswith(b"line")]
    assert (kept[0], kept[-1]) == (lines[0], lines[-1])
    (said,) = re.findall(rb"\[(\d+) bytes of this log are not kept: it was longer than 64 KiB\]\n", shown)
    per_line = len(b"2026-01-02T12:00:00.000000Z F line 000000\n")
    assert int(said) == per_line * (len(lines) - len(kept))
    file.cut(16 << 10)
    assert file.size <= 16 << 10
    assert read(path).splitlines()[-1] + b"\n" == lines[-1]


def test_output_without_newlines_is_bounded(tmp_path: Path):
    path = tmp_path / "logs/ns/pod/c.1.log"
    file = write(path, *[b"x" * 16_384] * 100, limit=256 << 10)
    assert file.size <= 256 << 10
    assert b"bytes of this log are not kept" in read(path)


def test_one_block_above_the_limit(tmp_path: Path):
    path = tmp_path / "logs/ns/pod/c.1.log"
    assert write(path, b"y" * 1_000_000, limit=64 << 10).size <= 64 << 10
    assert b"not kept" in read(path)


def test_a_line_that_was_not_written_completely_is_shown(tmp_path: Path):
    path = tmp_path / "logs/ns/pod/c.1.log"
    write(path, b"a\nb\n")
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0")
    assert read(path).startswith(b"a\n")
