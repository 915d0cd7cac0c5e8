"""Programs under measurement: each runs in its own session; CPU and memory are read from /proc."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from e2e.cluster.daemons import DIE_WITH_PARENT, wait_until

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class Memory(NamedTuple):
    """Resident memory in MiB: current and peak."""

    rss: float
    peak: float


class Program:
    """One process and its descendants in the same session. It ends with the benchmark, however that ends."""

    def __init__(self, argv: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.log = log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=dict(environment),
                start_new_session=True,
                preexec_fn=DIE_WITH_PARENT,  # noqa: PLW1509  # see there
            )
        self.pid = self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def cpu(self) -> float:
        """User and system CPU time in seconds."""
        return sum(map(cpu_seconds, _session(self.pid)))

    def memory(self) -> Memory:
        found = [_memory_of(pid) for pid in _session(self.pid)]
        return Memory(round(sum(m.rss for m in found), 1), round(sum(m.peak for m in found), 1))

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def stop(self, patience: float = 20.0) -> None:
        """Sends SIGTERM, and SIGKILL to all remaining processes of the session after `patience` seconds."""
        if self.alive:
            self._process.terminate()
            wait_until(lambda: not self.alive, patience, every=0.02)
        for pid in _session(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def tail(self, characters: int = 3000) -> str:
        return self.log.read_text(errors="replace")[-characters:]


def cancel_on_sigterm() -> None:
    """Makes SIGTERM cancel the current task, so that the task stops the processes it has started."""
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


def exit_on_sigterm() -> None:
    """The same without an event loop: SIGTERM ends this process by `SystemExit`."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process; 0 if it does not exist."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def busy_seconds() -> float:
    """CPU seconds of the whole machine, for detecting work outside the benchmark."""
    fields = [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / CLOCK_TICKS


def own_seconds() -> float:
    """CPU seconds of this process."""
    return time.process_time()


def _memory_of(pid: int) -> Memory:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return Memory(0.0, 0.0)
    values = {line.split(":")[0]: line.split()[1] for line in text.splitlines() if line.startswith("Vm")}
    return Memory(int(values.get("VmRSS", 0)) / 1024, int(values.get("VmHWM", 0)) / 1024)


def _session(leader: int) -> Iterator[int]:
    """PIDs of the session whose leader is `leader`."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                if int((entry / "stat").read_text().rpartition(")")[2].split()[3]) == leader:
                    yield int(entry.name)
