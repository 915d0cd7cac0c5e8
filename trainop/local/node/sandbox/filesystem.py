"""A container's root file system: the host's files with the container's volumes mounted over them.

Runs in the container's mount namespace, so the host sees none of these mounts. A missing mount point is created if the
caller can write to its parent directory. Otherwise the parent is mirrored: it is covered by a tmpfs that contains a
bind mount of each of its entries, and the mount point is created there. The host's directory is not modified.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainop.local.node.sandbox import linux

TERMINATION_LOG = "/dev/termination-log"
"""Kubernetes' default `terminationMessagePath`, and therefore a mount point of nearly every container."""

# Consoles, serial lines, loop and RAM disks: containers do not use them, and mirroring hundreds of them is slow.
_EXCLUDED_DEVICES = re.compile(r"(tty[A-Zs]*\d+|vcs.*|loop\d+|ram\d+)$")
# Root can write everywhere, but must not leave mount points behind in these directories.
_SYSTEM_DIRECTORIES = frozenset(
    {"", "bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "media", "mnt", "opt", "proc"}
    | {"run", "sbin", "srv", "sys", "usr", "var"}
)
# statvfs(3) flag -> mount(2) flag. The numbers are literal because `os` defines the names on Linux only.
_PRESERVED_FLAGS = (
    (2, linux.MS_NOSUID),
    (4, linux.MS_NODEV),
    (8, linux.MS_NOEXEC),
    (1024, linux.MS_NOATIME),
    (2048, linux.MS_NODIRATIME),
    (4096, linux.MS_RELATIME),
)


@dataclass(frozen=True, slots=True)
class Mount:
    """A bind mount of `source` (file or directory) at the absolute path `target`.

    If `source` is empty, a tmpfs limited to `size` bytes; 0 means no explicit limit.
    """

    target: str
    source: str = ""
    read_only: bool = False
    size: int = 0


def make_private() -> None:
    """Stops mount propagation: later mounts are visible in this mount namespace only."""
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)


def mirror_devices() -> None:
    """Creates the mount point for the termination log in a mirror of `/dev`, once for all containers."""
    if not Path(TERMINATION_LOG).exists():
        _mirror(Path("/dev"), exclude=_EXCLUDED_DEVICES)
        Path(TERMINATION_LOG).touch()


def assemble(mounts: list[Mount]) -> None:
    """Mounts `/proc` of the container's PID namespace, then `mounts`, parent directories first. Raises `OSError`."""
    ordered = sorted(mounts, key=lambda mount: mount.target.count("/") if mount.target != "/" else 0)
    if any(not Path("/", *Path(mount.target).parts[1:2]).exists() for mount in ordered):
        replace_root()
    linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    # All sources are opened first, because a mount may cover those of later ones: an emptyDir at /tmp, for example.
    sources = [os.open(mount.source, os.O_PATH | os.O_CLOEXEC) if mount.source else -1 for mount in ordered]
    for mount, fd in zip(ordered, sources, strict=True):
        _mount(mount, Path(f"/proc/self/fd/{fd}"))
    for fd in sources:
        if fd >= 0:
            os.close(fd)


def locate(needed: Mapping[str, str]) -> dict[str, list[Path]]:
    """Those of the paths that exist now, each as written and with its symbolic links followed."""
    return {name: [Path(path), Path(path).resolve()] for name, path in needed.items() if Path(path).exists()}


def find_hidden(located: Mapping[str, Sequence[Path]], mounts: Iterable[Mount]) -> dict[str, str]:
    """What `locate` found before `mounts` were assembled and is missing now, with the mount point that hides it."""
    targets = sorted((mount.target for mount in mounts), key=len, reverse=True)
    hidden: dict[str, str] = {}
    for name, paths in located.items():
        above = (target for target in targets if any(path.is_relative_to(target) for path in paths))
        if not paths[0].exists() and (target := next(above, "")):
            hidden[name] = target
    return hidden


def _mount(mount: Mount, source: Path) -> None:
    """`source` is the opened `mount.source`; unused for a tmpfs."""
    target = Path(mount.target)
    if not target.exists():
        make_target(target, directory=not mount.source or source.is_dir())
    if not mount.source:
        size = f"size={mount.size}" if mount.size else ""
        linux.mount("tmpfs", mount.target, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, f"mode=1777,{size}".rstrip(","))
    elif not (mount.source == mount.target and not mount.read_only):
        _bind(str(source), mount.target)
        if mount.read_only:
            _make_read_only(mount.target)


def _bind(source: str, target: str) -> None:
    # Recursive, because in a user namespace the kernel rejects a bind mount that would reveal what submounts hide.
    linux.mount(source, target, flags=linux.MS_BIND | linux.MS_REC)


def _make_read_only(target: str) -> None:
    present = os.statvfs(target).f_flag
    kept = sum(flag for statvfs_flag, flag in _PRESERVED_FLAGS if present & statvfs_flag)
    linux.mount("none", target, flags=linux.MS_BIND | linux.MS_REMOUNT | linux.MS_RDONLY | kept)


def make_target(target: Path, *, directory: bool) -> None:
    """Creates a mount point, on the host only where this user may write. Raises `OSError`."""
    parent = next(above for above in target.parents if above.is_dir())
    dangling = target.is_symlink()
    if not _can_create_in(parent) or (dangling and parent not in _mirrored):
        _mirror(parent)
    if dangling:
        target.unlink()
    (target if directory else target.parent).mkdir(parents=True, exist_ok=True)
    if not directory:
        target.touch()


def _can_create_in(directory: Path) -> bool:
    if directory in _mirrored:
        return True
    top = directory.parts[1] if len(directory.parts) > 1 else ""
    return os.access(directory, os.W_OK) and (os.geteuid() != 0 or top not in _SYSTEM_DIRECTORIES)


_mirrored: set[Path] = set()


def mirrored() -> Iterable[Path]:
    """The directories that have been covered by mirrors of themselves."""
    return _mirrored


def _mirror(directory: Path, exclude: re.Pattern[str] | None = None) -> None:
    staging = _build_mirror(directory, exclude)
    linux.mount(staging, str(directory), flags=linux.MS_MOVE)
    os.rmdir(staging)  # noqa: PTH106  # never a recursive delete: host files were mounted below
    _mirrored.add(directory)


def _build_mirror(directory: Path, exclude: re.Pattern[str] | None = None) -> str:
    staging = tempfile.mkdtemp(prefix="trainop-")
    linux.mount("tmpfs", staging, "tmpfs", linux.MS_NOSUID, "mode=0755")
    # Unbindable, so that a mirror of a parent directory does not recursively contain the staging directory.
    linux.mount("none", staging, flags=linux.MS_UNBINDABLE)
    for entry in os.scandir(directory):
        copy = os.path.join(staging, entry.name)  # noqa: PTH118  # os.path for speed: about 100 entries per container
        if exclude is not None and exclude.match(entry.name):
            continue
        if entry.is_symlink():
            Path(copy).symlink_to(Path(entry.path).readlink())
            continue
        if entry.is_dir():
            os.mkdir(copy)  # noqa: PTH102  # as above
        else:
            os.close(os.open(copy, os.O_CREAT | os.O_WRONLY, 0o600))
        _bind(entry.path, copy)
    linux.mount("none", staging, flags=linux.MS_PRIVATE)
    return staging


def replace_root() -> None:
    """Replaces the root by a mirror of itself, in which mount points can be created."""
    staging = _build_mirror(Path("/"))
    working_directory = Path.cwd()
    os.chdir(staging)
    linux.pivot_root(".", ".")
    linux.unmount(".")
    os.chdir(working_directory)
    _mirrored.add(Path("/"))
    os.rmdir(staging)  # noqa: PTH106  # as in _mirror
