"""Programs under measurement: started in a session of their own, their CPU and memory read from /proc."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from e2e.cluster.daemons import wait_until

TICK = os.sysconf("SC_CLK_TCK")


class Memory(NamedTuple):
    """Resident, in MiB: now, and the highest so far."""

    rss: float
    peak: float


class Program:
    """One process and whatever it forks, as long as that stays in its session."""

    def __init__(self, argv: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.log = log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=dict(environment), start_new_session=True
            )
        self.pid = self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def cpu(self) -> float:
        """Seconds, user and system."""
        return sum(map(cpu_seconds, _session(self.pid)))

    def memory(self) -> Memory:
        found = [_memory_of(pid) for pid in _session(self.pid)]
        return Memory(round(sum(m.rss for m in found), 1), round(sum(m.peak for m in found), 1))

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def stop(self, patience: float = 20.0) -> None:
        """SIGTERM, and SIGKILL for what is left after so many seconds."""
        if self.alive:
            self._process.terminate()
            wait_until(lambda: not self.alive, patience, every=0.02)
        for pid in _session(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def tail(self, characters: int = 3000) -> str:
        return self.log.read_text(errors="replace")[-characters:]


def end_on_sigterm() -> None:
    """SIGTERM cancels the current task, so that what it has started is ended."""
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


def cpu_seconds(pid: int) -> float:
    """What a process has used so far; 0 if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICK


def busy_seconds() -> float:
    """CPU seconds that the whole machine was busy, to see work that is not ours."""
    fields = [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / TICK


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
    """The processes of the session that `leader` leads."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                if int((entry / "stat").read_text().rpartition(")")[2].split()[3]) == leader:
                    yield int(entry.name)
