"""Processor time and memory of process trees, from /proc (Linux)."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

WINDOW = 0.5
"""Seconds between the two samples from which the use of processors is computed."""

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Usage(NamedTuple):
    """What processes use."""

    cores: float
    """Processors in use, on average over `WINDOW`."""
    memory: int
    """Bytes of resident memory. A page that two processes share counts twice."""


class _Process(NamedTuple):
    parent: int
    seconds: float
    """Processor time, with that of children that have ended."""
    memory: int


def _read_processes() -> dict[int, _Process]:
    found: dict[int, _Process] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # the process exited after the directory was listed
                # The process name is in parentheses and may contain any character; see proc_pid_stat(5).
                fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
                seconds = sum(map(int, fields[11:15])) / _TICKS
                found[int(entry.name)] = _Process(int(fields[1]), seconds, int(fields[21]) * _PAGE)
    return found


def _trees(processes: dict[int, _Process], roots: Iterable[int]) -> dict[int, list[int]]:
    """Root -> the PIDs of its living descendants."""
    children: dict[int, list[int]] = defaultdict(list)
    for pid, process in processes.items():
        children[process.parent].append(pid)
    trees = {}
    for root in roots:
        trees[root] = found = list(children[root])
        for pid in found:  # the list grows during iteration
            found += children[pid]
    return trees


def _find_inits(processes: dict[int, _Process], supervisor: int, inits: Iterable[int]) -> dict[int, int]:
    """The PIDs of `inits`, which are those in the PID namespace below, among the descendants of the supervisor."""
    wanted, found = set(inits), {}
    for pid in _trees(processes, [supervisor])[supervisor]:
        with suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
            inner = status.partition("\nNSpid:")[2].partition("\n")[0].split()[1:2]  # proc_pid_status(5)
            if inner and int(inner[0]) in wanted:
                found[int(inner[0])] = pid
    return found


def _sample(supervisor: int, inits: Iterable[int], nested: bool) -> tuple[dict[int, _Process], dict[int, int]]:
    """All processes, and the PID of each init."""
    processes = _read_processes()
    places = _find_inits(processes, supervisor, inits) if nested else {init: init for init in inits}
    return processes, {init: pid for init, pid in places.items() if pid in processes}


async def measure(supervisor: int, inits: Iterable[int], *, nested: bool) -> tuple[dict[int, Usage], Usage]:
    """What the containers with these inits use, without those that end meanwhile, and what the whole machine does.
    `nested`: the PIDs of inits are those in the PID namespace of the supervisor. Takes `WINDOW` seconds.

    The memory of an init itself is the runtime's and not counted. Raises `OSError` without /proc.
    """
    known = list(inits)
    loop = asyncio.get_running_loop()
    first, places = await asyncio.to_thread(_sample, supervisor, known, nested)
    began = loop.time()
    await asyncio.sleep(WINDOW)
    second = await asyncio.to_thread(_read_processes)
    elapsed = loop.time() - began
    before, after = _trees(first, places.values()), _trees(second, places.values())
    used = {}
    for init, root in places.items():
        seconds = _seconds(second, [root, *after[root]]) - _seconds(first, [root, *before[root]])
        memory = sum(second[pid].memory for pid in after[root])
        used[init] = Usage(max(0.0, seconds) / elapsed, memory)
    total = max(0.0, _seconds(second, second) - _seconds(first, first)) / elapsed
    return used, Usage(min(total, float(os.cpu_count() or 1)), _used_memory())


def _seconds(processes: dict[int, _Process], pids: Iterable[int]) -> float:
    return sum(processes[pid].seconds for pid in pids if pid in processes)


def _used_memory() -> int:
    """Bytes of the machine's memory that are not available."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
    sizes = {line[0]: int(line[1]) * 1024 for line in lines if len(line) > 1}
    return sizes["MemTotal:"] - sizes["MemAvailable:"]
