"""Kills process trees where no PID namespace is available. Finds descendants in /proc on Linux, with ps elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

_POLL_INTERVAL = 0.002  # seconds: time for killed processes to disappear


def _parents_in_proc() -> dict[int, int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):  # the process exited after the directory was listed
            # The process name is in parentheses and may contain any character; fixed fields follow the last ")".
            state, parent = (entry / "stat").read_bytes().rpartition(b")")[2].split()[:2]
            if state != b"Z":
                parents[int(entry.name)] = int(parent)
    return parents


def _parents_by_ps() -> dict[int, int]:
    parents: dict[int, int] = {}
    with subprocess.Popen(["/bin/ps", "-axo", "pid=,ppid=,stat="], stdout=subprocess.PIPE, text=True) as ps:
        for line in ps.stdout or ():
            pid, parent, state = line.split()[:3]
            if not state.startswith("Z") and int(pid) != ps.pid:
                parents[int(pid)] = int(parent)
    return parents


def descendants(*roots: int) -> list[int]:
    """PIDs of all living descendants of `roots`, in breadth-first order."""
    children: dict[int, list[int]] = defaultdict(list)
    for pid, parent in (_parents_in_proc() if sys.platform == "linux" else _parents_by_ps()).items():
        children[parent].append(pid)
    found = [pid for root in roots for pid in children[root]]
    for pid in found:  # the list grows during iteration
        found += children[pid]
    return found


def kill_tree(pids: list[int]) -> None:
    """Kills `pids` and their current descendants. Sends SIGSTOP to all first, so that none forks in between."""
    targets = list(dict.fromkeys([*pids, *descendants(*pids)]))
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in targets:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def kill_descendants(root: int) -> None:
    """Kills all descendants of `root` and returns when none is alive. `root` must be a subreaper."""
    while alive := descendants(root):
        kill_tree(alive)
        time.sleep(_POLL_INTERVAL)


def reap() -> list[tuple[int, int]]:
    """Reaps exited children without blocking: pairs of PID and exit code, 128+N for signal N as in a shell."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        code = os.waitstatus_to_exitcode(status)
        ended.append((pid, code if code >= 0 else 128 - code))
