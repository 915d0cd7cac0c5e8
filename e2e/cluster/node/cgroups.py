"""The control groups of a node: one directory in each hierarchy (version 1), or in the only one (version 2)."""

from __future__ import annotations

import contextlib
from pathlib import Path

from e2e.cluster.daemons import wait_until


def hierarchies() -> list[Path]:
    """Where control groups are mounted."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [Path(fields[1]) for fields in mounts if fields[2] in {"cgroup", "cgroup2"}]


def create_cgroups(name: str) -> None:
    """Creates the directories; in version 2, with all controllers."""
    for root in hierarchies():
        (root / name).mkdir(exist_ok=True)
        controllers = root / "cgroup.controllers"
        if controllers.exists():
            wanted = " ".join(f"+{controller}" for controller in controllers.read_text().split())
            for folder in (root, root / name):
                with contextlib.suppress(OSError):
                    (folder / "cgroup.subtree_control").write_text(wanted)


def remove_cgroups(name: str) -> None:
    """Removes the directories as soon as their last processes have ended."""

    def are_gone() -> bool:
        for root in hierarchies():
            folders = [folder for folder in (root / name).rglob("*") if folder.is_dir()]
            for folder in (*sorted(folders, key=lambda one: -len(one.parts)), root / name):
                with contextlib.suppress(OSError):
                    folder.rmdir()
        return not any((root / name).exists() for root in hierarchies())

    wait_until(are_gone, 10)
