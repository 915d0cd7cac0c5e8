"""Memory limits of containers, as control groups (cgroup v2, or v1 where the memory controller is still there).

A container's command joins its group before it starts. If its processes exceed the limit, the kernel kills them.
Source: kernel `Documentation/admin-guide/cgroup-v2.rst` and `cgroup-v1/memory.rst`. As kubelet does, a group of v2 is
killed as a whole (`memory.oom.group`).
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PREFIX = "trainop"
_V1 = Path("memory")


@dataclass(slots=True)
class MemoryGroup:
    """The group of one run of a container. `path` is empty if nothing is limited."""

    path: str = ""
    version: int = 2

    def close(self) -> bool:
        """Removes the group. Returns whether the kernel has killed a process of it; False if it is removed already."""
        if not self.path:
            return False
        path, self.path = Path(self.path), ""
        killed = False
        with suppress(OSError):  # a process is left; the next start of a node removes the group
            text = (path / ("memory.events" if self.version == 2 else "memory.oom_control")).read_text(encoding="ascii")
            killed = dict(line.split() for line in text.splitlines()).get("oom_kill", "0") != "0"
            path.rmdir()
        return killed


@dataclass(slots=True)
class MemoryLimits:
    """Makes groups below `parent`; if that is None, there are no limits, and `reason` says why."""

    parent: Path | None
    version: int = 2
    reason: str = ""
    _reported: bool = False

    @classmethod
    def find(cls, root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> MemoryLimits:
        """The group below which this process may make others. Removes those that an earlier one left there."""
        try:
            lines = [line.split(":", 2) for line in own.read_text(encoding="utf-8").splitlines()]
        except OSError:
            return cls(None, reason="this system has no control groups")
        paths = {controllers: path.lstrip("/") for _, controllers, path in lines}
        if "memory" in paths:
            found, version = [root / _V1 / paths["memory"]], 1
        else:
            mine = root / paths.get("", "")
            found, version = [*([mine.parent] if mine != root else []), mine], 2
        for parent in found:
            if version == 1 or _delegates(parent):
                limits = cls(parent, version)
                if limits._is_permitted():
                    limits._remove_old()
                    return limits
        return cls(None, reason="no control group with the memory controller is delegated to this user")

    def unenforced(self, limit: int) -> str:
        """Why a limit in bytes has no effect; empty if it has, and after the first time."""
        if not limit or self.parent is not None or self._reported:
            return ""
        self._reported = True
        return f"Memory limits are not enforced on this machine: {self.reason}"

    def open(self, limit: int) -> MemoryGroup:
        """A group with a limit in bytes; for 0, none. Raises `OSError`."""
        if not limit or self.parent is None:
            return MemoryGroup()
        path = self.parent / f"{_PREFIX}-{os.getpid()}-{secrets.token_hex(4)}"
        path.mkdir()
        group = MemoryGroup(str(path), self.version)
        try:
            self._set(path, limit)
        except OSError:
            group.close()
            raise
        return group

    def _set(self, path: Path, limit: int) -> None:
        if self.version == 2:
            (path / "memory.max").write_text(f"{limit}\n")
            optional = {"memory.swap.max": "0", "memory.oom.group": "1"}
        else:
            (path / "memory.limit_in_bytes").write_text(f"{limit}\n")
            optional = {"memory.memsw.limit_in_bytes": str(limit)}
        for name, value in optional.items():
            with suppress(OSError):  # kernels without swap accounting
                (path / name).write_text(f"{value}\n")

    def _is_permitted(self) -> bool:
        try:
            group = self.open(1 << 30)
        except OSError:
            return False
        try:
            return os.access(Path(group.path, "cgroup.procs"), os.W_OK)
        finally:
            group.close()

    def _remove_old(self) -> None:
        for path in self.parent.glob(f"{_PREFIX}-*-*") if self.parent else ():
            pid = path.name.split("-")[1]
            if pid.isdecimal() and not Path("/proc", pid).exists():
                with suppress(OSError):
                    path.rmdir()


def join(path: str) -> None:
    """Moves the calling process into a group. Raises `OSError`."""
    with open(f"{path}/cgroup.procs", "w", encoding="ascii") as file:  # noqa: PTH123  # one write(2)
        file.write("0")


def _delegates(parent: Path) -> bool:
    """Whether groups below it have the memory controller, and processes may be moved there from this one."""
    try:
        controllers = (parent / "cgroup.subtree_control").read_text(encoding="ascii").split()
    except OSError:
        return False
    return "memory" in controllers and os.access(parent / "cgroup.procs", os.W_OK)
