"""Background processes with a log and a PID file. They are stopped by PID, never by name."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

PORTS = range(10_000, 32_768)
"""Below the ports that systems give to outgoing connections (Linux: from 32768, others: from 49152). Any connection may
take one of those between the choice and the start of the program that listens on it."""


_CLAIMS: deque[socket.socket] = deque(maxlen=200)
"""Held until as many further ports were chosen: by then the programs that use the first ones have long started."""


@atexit.register
def _release() -> None:
    while _CLAIMS:
        _CLAIMS.pop().close()


def free_ports(count: int) -> list[int]:
    """`count` TCP ports of 127.0.0.1 that are currently free, chosen at random. On Linux, no other process that calls
    this gets them, though the programs that will use them do not listen yet."""
    with contextlib.ExitStack() as held:
        found: list[int] = []
        while len(found) < count:
            port = random.choice(PORTS)
            one = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                one.bind(("127.0.0.1", port))
                _claim(port)
                found.append(port)
        return found


def _claim(port: int) -> None:
    """Raises `OSError` if another process has claimed the port. A claim is an address in Linux's abstract namespace,
    which is the same for all users and ends with the process."""
    if sys.platform == "linux":
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0trainop-port-{port}")
        except OSError:
            claim.close()
            raise
        if len(_CLAIMS) == _CLAIMS.maxlen:
            _CLAIMS.popleft().close()
        _CLAIMS.append(claim)


def wait_until(condition: Callable[[], bool], seconds: float, every: float = 0.05) -> bool:
    """Polls `condition`; returns True once it holds, False after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(every)
    return True


class Daemons:
    """The processes of one data directory: DATA/log/NAME.log, and DATA/pid/NAME with PID and start time.

    With `die_with_parent` the kernel kills them when the process that started them ends for any reason (Linux only).
    """

    def __init__(self, data: Path, *, die_with_parent: bool = False) -> None:
        self.data = data
        self.die_with_parent = die_with_parent
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
                preexec_fn=DIE_WITH_PARENT if self.die_with_parent else None,  # noqa: PLW1509  # see there
            )
        self._children[name] = process
        self._pid_file(name).write_text(f"{process.pid} {_started_at(process.pid)}")

    def running(self, name: str) -> int | None:
        """The PID of a daemon of this data directory, or None if it is not running."""
        try:
            pid, born = self._pid_file(name).read_text().split()
        except (OSError, ValueError):
            return None
        if name in self._children:  # reaps the child if it has exited
            self._children[name].poll()
        return int(pid) if _started_at(int(pid)) == born else None

    def signal(self, name: str, number: signal.Signals) -> bool:
        """Sends a signal; False if the daemon is not running."""
        if (pid := self.running(name)) is None:
            return False
        os.kill(pid, number)
        return True

    def stop(self, name: str, patience: float = 10.0) -> None:
        """Stops one daemon: SIGTERM, and SIGKILL after `patience` seconds."""
        for number, wait in ((signal.SIGTERM, patience), (signal.SIGKILL, 5.0)):
            if wait and self.signal(name, number):
                self.signal(name, signal.SIGCONT)  # a stopped process handles SIGTERM only after SIGCONT
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


DIE_WITH_PARENT = _die_with_parent if sys.platform == "linux" else None
"""The `preexec_fn` of a process that the kernel kills when the thread that started it ends, for any reason (Linux
only). Only one system call runs between fork and exec, so that other threads are no risk."""


def _started_at(pid: int) -> str | None:
    """Start time in clock ticks since boot. PID and start time identify a process even if PIDs are reused."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]
