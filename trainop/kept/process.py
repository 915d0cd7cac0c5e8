"""The identity of a process, by which a living one is told from another that has got its number later."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import msgspec


class ProcessIdentity(msgspec.Struct, frozen=True):
    """`start` is when the process began, in a form that depends on the system; `boot` identifies the start of the
    machine and is empty where the system does not say."""

    pid: int
    start: str
    boot: str
    host: str

    @property
    def is_elsewhere(self) -> bool:
        """Whether it belongs to another machine, as the folder may be in a home that several share."""
        return self.host != socket.gethostname()

    @property
    def lives(self) -> bool:
        """Whether it runs on this machine. A zombie does not."""
        return (
            not self.is_elsewhere and self.boot == _boot() and self.start != "" and (self.start == start_of(self.pid))
        )


def this_process() -> ProcessIdentity:
    pid = os.getpid()
    return ProcessIdentity(pid, start_of(pid), _boot(), socket.gethostname())


def start_of(pid: int) -> str:
    """When the process began; empty if there is none, or it has ended."""
    if Path("/proc/self/stat").exists():
        try:
            text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            return ""
        fields = text.rpartition(")")[2].split()  # the name before may contain anything; the state is the first field
        return "" if fields[0] in {"Z", "X"} else fields[19]
    command = ["/bin/ps", "-o", "state=,lstart=", "-p", str(pid)]
    shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603  # as above
    state, _, start = shown.partition(" ")
    return "" if state.startswith("Z") else start.strip()


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
