"""Ends processes together with all that they started, where no PID namespace does it (Linux by /proc, else by ps)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

_LOOK_AGAIN = 0.002  # seconds: what a killed process takes to be gone


def _parents_in_proc() -> dict[int, int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):  # it ended between the listing and the reading
            # The name, in parentheses, may hold anything: the fields that count start behind the last one.
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


def descendants(root: int) -> list[int]:
    """All living processes below `root`, nearest first."""
    children: dict[int, list[int]] = defaultdict(list)
    for pid, parent in (_parents_in_proc() if sys.platform == "linux" else _parents_by_ps()).items():
        children[parent].append(pid)
    found: list[int] = list(children[root])
    for pid in found:  # grows while it is walked
        found += children[pid]
    return found


def kill_tree(pids: list[int]) -> None:
    """Kills `pids` and what is below them now; stops all first, so that nobody forks while the rest is counted."""
    everyone = list(dict.fromkeys([*pids, *(pid for root in pids for pid in descendants(root))]))
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in everyone:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def kill_descendants(root: int) -> None:
    """Kills what `root`, which adopts orphans, has below it; returns when a look finds nobody alive."""
    while below := descendants(root):
        kill_tree(below)
        time.sleep(_LOOK_AGAIN)


def reap() -> list[tuple[int, int]]:
    """Collects ended children: pid and exit code, where a signal N counts as 128+N as in a shell."""
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
