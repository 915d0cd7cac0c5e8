"""What a container of an isolated run cannot do: change files of the host, use its devices, gain rights.

`assemble` makes the root file system read-only and mounts what the container may see or write over it. It runs in the
init of the container. `confine` runs in each command of the container before its program: it moves the command into a
user namespace that has no power over those mounts, nor over the init, and drops all capabilities.

Sources: mount_setattr(2), open_tree(2), user_namespaces(7), capabilities(7), kernel `fs/namespace.c`.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from trainop.local.node.sandbox import filesystem, linux
from trainop.local.node.sandbox.filesystem import Mount

_GROUPS = "/sys/fs/cgroup"
_DEVICES = re.compile(r"null|zero|full|u?random|tty|nvidia.*|dri|kfd|infiniband")
"""What a program may need of `/dev`, with GPUs. Block devices, terminals of the user and others are left out."""
_LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"}
_TEMPORARY = "/tmp"  # noqa: S108  # the container's own


def assemble(mounts: Sequence[Mount]) -> None:
    """As `filesystem.assemble`, on a root file system that is read-only, without setuid programs and devices.

    What a mount shows is as writable as it was on the host, unless it is read-only. `mounts` have one at `/tmp`, in
    which mount points are prepared. No file or directory is created on the host. Raises `OSError`.
    """
    ordered = sorted(mounts, key=lambda mount: (mount.target != _TEMPORARY, mount.target.count("/")))
    # Copied before all others become read-only, and before mounts cover them.
    # Without links in what the run can write: another container of it could have put one there.
    copies = [
        linux.copy_tree(mount.source, links=mount.source != mount.target) if mount.source else -1 for mount in ordered
    ]
    devices = {name: linux.copy_tree(f"/dev/{name}") for name in os.listdir("/dev") if _DEVICES.fullmatch(name)}  # noqa: PTH208
    linux.set_attributes("/", linux.MOUNT_ATTR_RDONLY | linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NODEV)
    os.chdir("/")  # the folder of the run may be hidden until it is mounted
    _place(ordered[0], copies[0])
    tempfile.tempdir = _TEMPORARY
    if any(not Path("/", *Path(mount.target).parts[1:2]).exists() for mount in ordered):
        filesystem.replace_root()
    linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    _make_devices(devices)
    for mount, copy in list(zip(ordered, copies, strict=True))[1:]:
        _place(mount, copy)
    for path in filesystem.mirrored():
        linux.set_attributes(str(path), linux.MOUNT_ATTR_RDONLY, recursive=False)
    with suppress(OSError):  # commands join their group before they are confined
        linux.set_attributes(_GROUPS, clear=linux.MOUNT_ATTR_RDONLY)


def confine(directory: str) -> None:
    """Takes from the calling process, before its program, everything that `assemble` has left to the init.

    Root stays root in name, which owns files of root but has no capability. Raises `OSError`.
    """
    user, group = os.geteuid(), os.getegid()
    _leave_groups(user)
    linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWNS)
    linux.map_user(user, group)
    for path in ("/proc", _GROUPS):
        if Path(path).is_dir():
            linux.set_attributes(path, linux.MOUNT_ATTR_RDONLY)
    _drop(user)
    os.chdir(directory)


def join(process: int, directory: str) -> None:
    """Moves the calling process to a command that is confined. Raises `OSError`."""
    user = os.geteuid()
    kinds = (("user", linux.CLONE_NEWUSER), ("mnt", linux.CLONE_NEWNS))
    opened = [(os.open(f"/proc/{process}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC), kind) for name, kind in kinds]
    _leave_groups(user)
    for fd, kind in opened:
        linux.setns(fd, kind)
    _drop(user)
    os.chdir(directory)


def _leave_groups(user: int) -> None:
    with suppress(PermissionError):  # an ordinary user, and root of most containers, cannot
        if user == 0:
            os.setgroups([])


def _drop(user: int) -> None:
    linux.drop_capabilities()
    if os.geteuid() != user:
        # As a volume at /proc can bring about, which takes the map of the user.
        raise OSError("the user has no name in the user namespace of the container")


def check() -> None:
    """Raises `OSError` if the kernel does not permit isolation to this process."""
    linux.unshare(linux.CLONE_NEWNS)
    assemble([Mount(_TEMPORARY)])
    confine("/")


def _place(mount: Mount, copy: int) -> None:
    """`copy` is what `mount.source` was; -1 for a tmpfs."""
    target = Path(mount.target)
    if not target.exists():
        filesystem.make_target(target, directory=copy < 0 or Path(f"/proc/self/fd/{copy}").is_dir())
    if copy < 0:
        size = f"size={mount.size}" if mount.size else ""
        linux.mount("tmpfs", mount.target, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, f"mode=1777,{size}".rstrip(","))
    else:
        linux.place_tree(copy, mount.target)
        os.close(copy)
        linux.set_attributes(mount.target, linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NODEV)
    if mount.read_only:
        linux.set_attributes(mount.target, linux.MOUNT_ATTR_RDONLY)


def _make_devices(devices: dict[str, int]) -> None:
    """A `/dev` of the container, with terminals and shared memory of its own."""
    linux.mount("tmpfs", "/dev", "tmpfs", linux.MS_NOSUID, "mode=0755")
    for name, copy in devices.items():
        path = Path("/dev", name)
        if Path(f"/proc/self/fd/{copy}").is_dir():
            path.mkdir()
        else:
            path.touch()
        linux.place_tree(copy, str(path))
        os.close(copy)
    for name, target in _LINKS.items():
        Path("/dev", name).symlink_to(target)
    for name in ("pts", "shm"):
        Path("/dev", name).mkdir()
    linux.mount(
        "devpts", "/dev/pts", "devpts", linux.MS_NOSUID | linux.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0600"
    )
    linux.mount("tmpfs", "/dev/shm", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=1777")  # noqa: S108  # its own
