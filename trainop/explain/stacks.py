"""Python stacks of the processes of a job, grouped: where most of them stand, and who stands elsewhere. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from trainop.runtime.lowlevel import cut, printable

MAX_FRAMES = 30
"""Frames of a stack that are shown, from the innermost."""

_DUMPED = re.compile(r'^\s+File "(?P<file>[^"\n]*)", line (?P<line>\d+) in (?P<name>.*)$')
_HEAD = re.compile(r"^(?P<current>Current t|T)hread 0x[0-9a-fA-F]+.*\(most recent call first\):")


class Frame(NamedTuple):
    """A call."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} {self.file.rpartition('/')[2]}:{self.line}"


@dataclass(frozen=True, slots=True)
class Process:
    """A Python process of a replica."""

    name: str
    """`rank 2`, or the name of the replica."""
    frames: tuple[Frame, ...] = ()
    """Of its main thread, the innermost first; empty if unknown."""
    problem: str = ""
    """Why the stack is unknown."""
    order: tuple[int, str] = (0, "")
    signalled: bool = False
    """Whether it was sent the signal on which faulthandler writes to its log."""


def read_py_spy(text: str) -> tuple[Frame, ...]:
    """The frames of the main thread in the output of `py-spy dump --json`. Raises `ValueError` if it is none."""
    threads = json.loads(text)
    if not isinstance(threads, list) or not all(isinstance(each, dict) for each in threads):
        raise ValueError("not the output of py-spy")
    ordered = sorted(threads, key=lambda each: (each.get("thread_name") != "MainThread", not each.get("active")))
    return tuple(_frames(ordered[0].get("frames"))) if ordered else ()


def _frames(found: Any) -> Iterator[Frame]:
    for each in found if isinstance(found, list) else ():
        if isinstance(each, dict):
            file, line = each.get("short_filename") or each.get("filename"), each.get("line")
            yield Frame(str(each.get("name")), str(file), line if isinstance(line, int) else 0)


def read_faulthandler(log: str) -> tuple[Frame, ...]:
    """The frames of the current thread in the last dump of `faulthandler` in a log; of the last thread without one."""
    best: list[Frame] = []
    frames: list[Frame] | None = None
    for text in log.splitlines():
        if head := _HEAD.match(text):
            frames = []
            if head["current"] == "Current t" or not best:
                best = frames
        elif frames is not None and (frame := _DUMPED.match(text)):
            frames.append(Frame(frame["name"], frame["file"], int(frame["line"])))
        else:
            frames = None
    return tuple(best)


class Group(NamedTuple):
    """Processes that stand at the same place."""

    processes: list[Process]
    frames: tuple[Frame, ...]


def group(processes: Iterable[Process]) -> list[Group]:
    """The smallest group first: who stands elsewhere than all others. Processes without a stack come last."""
    groups: dict[tuple[Frame, ...], list[Process]] = {}
    for process in processes:
        groups.setdefault(process.frames, []).append(process)
    found = [Group(sorted(members, key=lambda each: each.order), frames) for frames, members in groups.items()]
    return sorted(found, key=lambda each: (not each.frames, len(each.processes), each.processes[0].order))


def render(processes: Sequence[Process]) -> Iterator[str]:
    """One line with all places, and then each group with its stack."""
    groups = group(processes)
    known = [each for each in groups if each.frames]
    if known:
        yield "; ".join(f"{_names(each.processes)}: {_clean(str(each.frames[0]))}" for each in known[:8])
    for each in known:
        yield ""
        yield f"{_names(each.processes)}:"
        for frame in each.frames[:MAX_FRAMES]:
            yield f"    {_clean(f'{frame.function} ({frame.file}:{frame.line})')}"
        if len(each.frames) > MAX_FRAMES:
            yield f"    ... {len(each.frames) - MAX_FRAMES} outer calls"
    problems: dict[str, list[Process]] = {}
    for process in (process for each in groups if not each.frames for process in each.processes):
        problems.setdefault(process.problem, []).append(process)
    for problem, members in problems.items():
        yield f"{_names(members)}: {_clean(problem)}"


def _names(processes: Sequence[Process]) -> str:
    """`rank 0, 1, 3`; `rank 0-62, 64`; or the names of the replicas."""
    ranks = [each.name.removeprefix("rank ") for each in processes if each.name.startswith("rank ")]
    if len(ranks) != len(processes) or not all(rank.isdecimal() for rank in ranks):
        return cut(_clean(", ".join(each.name for each in processes)), 300)
    return f"rank {', '.join(_runs(sorted(map(int, ranks))))}"


def _runs(numbers: Sequence[int]) -> Iterator[str]:
    """Three or more consecutive numbers as `first-last`."""
    begin = 0
    for index in range(1, len(numbers) + 1):
        if index == len(numbers) or numbers[index] != numbers[index - 1] + 1:
            run = numbers[begin:index]
            yield from (f"{run[0]}-{run[-1]}",) if len(run) > 2 else map(str, run)
            begin = index


def _clean(text: str) -> str:
    return cut(printable(" ".join(text.split())), 300)
