"""Processes that run beside us: started with a log and a pid file, ended by that pid and by no name."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path


def free_ports(count: int) -> list[int]:
    """`count` TCP ports of 127.0.0.1 that are free now."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def wait_until(condition: Callable[[], bool], seconds: float, every: float = 0.05) -> bool:
    """True as soon as `condition()` holds, False if it does not within `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(every)
    return True


class Daemons:
    """The processes of one data folder: DATA/log/NAME.log, and DATA/pid/NAME with pid and start time.

    With `tied` they die with the process that started them, however that ends (Linux only).
    """

    def __init__(self, data: Path, *, tied: bool = False) -> None:
        self.data = data
        self.tied = tied
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: Sequence[str]) -> None:
        for folder in ("log", "pid"):
            (self.data / folder).mkdir(parents=True, exist_ok=True)
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.data,
                # between fork and exec runs one system call, which no other thread can disturb
                preexec_fn=_die_with_parent if self.tied and sys.platform == "linux" else None,  # noqa: PLW1509
            )
        self._children[name] = process
        self._pid_file(name).write_text(f"{process.pid} {_started_at(process.pid)}")

    def running(self, name: str) -> int | None:
        """The pid of a daemon that was started here, or None if it has ended."""
        try:
            pid, born = self._pid_file(name).read_text().split()
        except (OSError, ValueError):
            return None
        if name in self._children:  # a child of ours that has ended is a zombie until it is asked
            self._children[name].poll()
        return int(pid) if _started_at(int(pid)) == born else None

    def signal(self, name: str, number: signal.Signals) -> bool:
        """Send a signal; False if the daemon does not run."""
        if (pid := self.running(name)) is None:
            return False
        os.kill(pid, number)
        return True

    def stop(self, name: str, patience: float = 10.0) -> None:
        """End one daemon: SIGTERM, after `patience` seconds SIGKILL."""
        for number, wait in ((signal.SIGTERM, patience), (signal.SIGKILL, 5.0)):
            if wait and self.signal(name, number):
                self.signal(name, signal.SIGCONT)  # a frozen process hears SIGTERM only when it goes on
                wait_until(lambda: self.running(name) is None, wait, every=0.02)
        if child := self._children.pop(name, None):
            child.wait(5)
        self._pid_file(name).unlink(missing_ok=True)

    def log(self, name: str) -> Path:
        return self.data / "log" / f"{name}.log"

    def tail(self, name: str, lines: int = 15) -> str:
        """The end of a daemon's log."""
        with contextlib.suppress(OSError):
            return "\n".join(self.log(name).read_text(errors="replace").splitlines()[-lines:])
        return ""

    def _pid_file(self, name: str) -> Path:
        return self.data / "pid" / name


_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    if _prctl:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _started_at(pid: int) -> str | None:
    """Start time in ticks since boot: with the pid it names one process, even after pids wrap around."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]
