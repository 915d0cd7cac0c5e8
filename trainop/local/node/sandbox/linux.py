"""Linux system calls that Python 3.11 does not provide. Each raises `OSError` with the call in its message.

Sources: unshare(2), setns(2), mount(2), mount_setattr(2), open_tree(2), pivot_root(2), prctl(2), capset(2).
"""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_NOATIME = 1024
MS_NODIRATIME = 2048
MS_BIND = 4096
MS_MOVE = 8192
MS_REC = 16384
MS_UNBINDABLE = 1 << 17
MS_PRIVATE = 1 << 18
MS_RELATIME = 1 << 21
MNT_DETACH = 2

MOUNT_ATTR_RDONLY = 1
MOUNT_ATTR_NOSUID = 2
MOUNT_ATTR_NODEV = 4

_OPEN_TREE, _MOVE_MOUNT, _OPENAT2, _MOUNT_SETATTR = 428, 429, 437, 442
"""Numbers of system calls, the same on all architectures."""
_AT_FDCWD = -100
_AT_EMPTY_PATH, _AT_RECURSIVE = 0x1000, 0x8000
_RESOLVE_NO_SYMLINKS = 4
_OPEN_TREE_CLONE = 1
_MOVE_FROM_DESCRIPTOR, _MOVE_FOLLOWS_LINKS = 4, 0x10
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITY_VERSION_3 = 0x20080522
_CAPABILITIES = 64
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), f"unshare({flags:#x})")


def setns(fd: int, kind: int) -> None:
    _check(_libc.setns(fd, kind), f"setns({kind:#x})")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    result = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        kind.encode() or None,
        ctypes.c_ulong(flags),
        data.encode() or None,
    )
    _check(result, f"mount {kind or source} on {target}")


def unmount(target: str) -> None:
    """Lazy unmount: detaches `target` at once; the kernel frees the mount when it is no longer in use."""
    _check(_libc.umount2(os.fsencode(target), MNT_DETACH), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    _check(_libc.pivot_root(os.fsencode(new), os.fsencode(old)), f"pivot_root {new}")


def set_hostname(name: str) -> None:
    encoded = name.encode()
    _check(_libc.sethostname(encoded, len(encoded)), f"sethostname {name}")


def die_with_parent(signal: int) -> None:
    """The kernel sends `signal` to this process when the thread that forked it ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def adopt_orphans() -> None:
    """Makes this process a subreaper: orphaned descendants become its children instead of those of PID 1."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")


class _Attributes(ctypes.Structure):
    """`struct mount_attr`."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns"))


def set_attributes(target: str, attributes: int = 0, *, clear: int = 0, recursive: bool = True) -> None:
    """Sets and clears attributes of the mount at `target` and, if `recursive`, of all below it; of all or of none."""
    given = _Attributes(attributes, clear)
    flags = _AT_RECURSIVE if recursive else 0
    result = _libc.syscall(
        _MOUNT_SETATTR, _AT_FDCWD, os.fsencode(target), flags, ctypes.byref(given), ctypes.sizeof(given)
    )
    _check(result, f"mount_setattr {target}")


def copy_tree(path: str, *, links: bool = True) -> int:
    """A descriptor of a copy of the mounts at and below `path`, which is nowhere yet: see `place_tree`.

    Without `links`, a symbolic link in the path is an error.
    """
    how = (ctypes.c_uint64 * 3)(os.O_PATH | os.O_CLOEXEC, 0, 0 if links else _RESOLVE_NO_SYMLINKS)
    place: int = _libc.syscall(_OPENAT2, _AT_FDCWD, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how))
    _check(min(place, 0), f"openat2 {path}")
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_RECURSIVE | _AT_EMPTY_PATH
    descriptor: int = _libc.syscall(_OPEN_TREE, place, b"", flags)
    _check(min(descriptor, 0), f"open_tree {path}")
    os.close(place)
    return descriptor


def place_tree(descriptor: int, target: str) -> None:
    """Mounts what `copy_tree` has copied."""
    flags = _MOVE_FROM_DESCRIPTOR | _MOVE_FOLLOWS_LINKS
    _check(_libc.syscall(_MOVE_MOUNT, descriptor, b"", _AT_FDCWD, os.fsencode(target), flags), f"move_mount {target}")


def map_user(user: int, group: int) -> None:
    """In a new user namespace: user and group keep their numbers, and no others exist."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:  # noqa: PTH123  # one write(2) each
            file.write(text)


def drop_capabilities() -> None:
    """This process and its programs have no capability in its user namespace, and get none from any file."""
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")
    for number in range(_CAPABILITIES):
        if _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
            break  # the kernel has no more
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    none = (ctypes.c_uint32 * 6)()
    _check(_libc.capset(ctypes.byref(header), ctypes.byref(none)), "capset")
