"""What a container sees below `/`: the machine's own files, with its volumes mounted over them.

Runs in a mount namespace of its own, so nothing of it is seen outside. A mount point that does not exist is made where
the caller may write; elsewhere the directory that lacks it is mirrored: a small tmpfs that holds a bind mount of each
of its entries, so that the machine's directory stays as it is.
"""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from trainop.local.node.sandbox import linux

TERMINATION_LOG = "/dev/termination-log"
"""Kubernetes' default `terminationMessagePath`; the one mount point that nearly every container has."""

# Nobody mounts these into a container, and there are hundreds: consoles, serial lines, loop and RAM disks.
_DEVICES_LEFT_OUT = re.compile(r"(tty[A-Zs]*\d+|vcs.*|loop\d+|ram\d+)$")
# For root every directory is writable, yet mount points must not be left behind in those of the system.
_SYSTEM = frozenset({"", "bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "media", "mnt", "opt", "proc"}) | {
    *("run", "sbin", "srv", "sys", "usr", "var")
}
# statvfs(3) flag -> mount(2) flag; by number, as `os` knows the names on Linux only.
_KEPT_FLAGS = (
    (2, linux.MS_NOSUID),
    (4, linux.MS_NODEV),
    (8, linux.MS_NOEXEC),
    (1024, linux.MS_NOATIME),
    (2048, linux.MS_NODIRATIME),
    (4096, linux.MS_RELATIME),
)


@dataclass(frozen=True, slots=True)
class Mount:
    """`source` (a file or directory, or empty: a tmpfs of `size` bytes) appears at the absolute path `target`."""

    target: str
    source: str = ""
    read_only: bool = False
    size: int = 0


def make_private() -> None:
    """Mounts made from here on are seen in this mount namespace only."""
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)


def mirror_devices() -> None:
    """Gives `/dev` a place for the termination log; done once, every container inherits it."""
    if not Path(TERMINATION_LOG).exists():
        _mirror(Path("/dev"), leave_out=_DEVICES_LEFT_OUT)
        Path(TERMINATION_LOG).touch()


def assemble(mounts: list[Mount]) -> None:
    """Mounts all, parents before what lies below them, and a `/proc` that shows the processes of the container."""
    ordered = sorted(mounts, key=lambda mount: mount.target.count("/") if mount.target != "/" else 0)
    if any(not Path("/", *Path(mount.target).parts[1:2]).exists() for mount in ordered):
        _renew_root()
    linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    for mount in ordered:
        _mount(mount)


def _mount(mount: Mount) -> None:
    target = Path(mount.target)
    source = Path(mount.source)
    if not target.exists():
        _make_target(target, directory=not mount.source or source.is_dir())
    if not mount.source:
        size = f"size={mount.size}" if mount.size else ""
        linux.mount("tmpfs", mount.target, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, f"mode=1777,{size}".rstrip(","))
    elif not (source == target and not mount.read_only):
        _bind(mount.source, mount.target)
        if mount.read_only:
            _make_read_only(mount.target)


def _bind(source: str, target: str) -> None:
    # Recursive: in a user namespace the kernel refuses to uncover what is mounted below.
    linux.mount(source, target, flags=linux.MS_BIND | linux.MS_REC)


def _make_read_only(target: str) -> None:
    present = os.statvfs(target).f_flag
    kept = sum(flag for seen, flag in _KEPT_FLAGS if present & seen)
    linux.mount("none", target, flags=linux.MS_BIND | linux.MS_REMOUNT | linux.MS_RDONLY | kept)


def _make_target(target: Path, *, directory: bool) -> None:
    parent = next(above for above in target.parents if above.is_dir())
    dangling = target.is_symlink()
    if not _may_make_in(parent) or (dangling and parent not in _mirrored):
        _mirror(parent)
    if dangling:
        target.unlink()
    (target if directory else target.parent).mkdir(parents=True, exist_ok=True)
    if not directory:
        target.touch()


def _may_make_in(directory: Path) -> bool:
    if directory in _mirrored:
        return True
    top = directory.parts[1] if len(directory.parts) > 1 else ""
    return os.access(directory, os.W_OK) and (os.geteuid() != 0 or top not in _SYSTEM)


_mirrored: set[Path] = set()


def _mirror(directory: Path, leave_out: re.Pattern[str] | None = None) -> None:
    staging = _fill(directory, leave_out)
    linux.mount(staging, str(directory), flags=linux.MS_MOVE)
    os.rmdir(staging)  # noqa: PTH106  # never more than rmdir: below it lay the machine's own files
    _mirrored.add(directory)


def _fill(directory: Path, leave_out: re.Pattern[str] | None = None) -> str:
    staging = tempfile.mkdtemp(prefix="trainop-")
    linux.mount("tmpfs", staging, "tmpfs", linux.MS_NOSUID, "mode=0755")
    # Else the copy of the directory above would hold a copy of the copy.
    linux.mount("none", staging, flags=linux.MS_UNBINDABLE)
    for entry in os.scandir(directory):
        place = os.path.join(staging, entry.name)  # noqa: PTH118  # a hundred entries for every container
        if leave_out is not None and leave_out.match(entry.name):
            continue
        if entry.is_symlink():
            Path(place).symlink_to(Path(entry.path).readlink())
            continue
        if entry.is_dir():
            os.mkdir(place)  # noqa: PTH102  # as above
        else:
            os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o600))
        _bind(entry.path, place)
    linux.mount("none", staging, flags=linux.MS_PRIVATE)
    return staging


def _renew_root() -> None:
    """A root directory of our own, with everything that was in the old one, where mount points can be made."""
    staging = _fill(Path("/"))
    where = Path.cwd()
    os.chdir(staging)
    linux.pivot_root(".", ".")
    linux.unmount(".")
    os.chdir(where)
    _mirrored.add(Path("/"))
    os.rmdir(staging)  # noqa: PTH106  # as in _mirror
