"""Folders and files that only their owner may enter or read: who holds the cluster's token may start processes.

Nothing here follows a symbolic link in the last part of a path, and whatever belongs to somebody else is refused.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

_FOLDER, _FILE = 0o700, 0o600
_SAFE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def make_folder(path: Path) -> None:
    """Makes it if it is missing, and takes the rights of all others from it. Raises `OSError` that names it."""
    with suppress(FileExistsError):  # whatever that is: see below
        path.mkdir(mode=_FOLDER, parents=True)
    fd = _open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _take(fd, path, _FOLDER)
    finally:
        os.close(fd)


def open_file(path: Path, flags: int) -> int:
    """A descriptor of a regular file, made if it is missing. Raises `OSError` that names it."""
    fd = _open(path, flags | os.O_CREAT)
    try:
        _take(fd, path, _FILE)
    except OSError:
        os.close(fd)
        raise
    return fd


def tighten(path: Path) -> None:
    """As `open_file`, for a file that may be there; one that is missing stays so."""
    if os.path.lexists(path):
        os.close(open_file(path, os.O_RDONLY))


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """For text that is appended."""
    with open(open_file(path, os.O_WRONLY | os.O_APPEND), "a", encoding="utf-8") as file:  # a descriptor
        yield file


def replace_text(path: Path, text: str) -> None:
    """The file has the old or the new text whole, whenever somebody reads it."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    with open(open_file(fresh, os.O_WRONLY | os.O_EXCL), "w", encoding="utf-8") as file:  # as above
        file.write(text)
    fresh.replace(path)


def read_start(path: Path, size: int) -> bytes:
    """At most the first `size` bytes of a regular file; of anything else, such as a FIFO, nothing. Never waits."""
    fd = _open(path, os.O_RDONLY)
    try:
        return os.read(fd, size) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    finally:
        os.close(fd)


def _open(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | _SAFE, _FILE)
    except OSError as error:
        if path.is_symlink():
            raise OSError(error.errno, f"{path} is a symbolic link; name the place itself") from error
        raise


def _take(fd: int, path: Path, mode: int) -> None:
    status = os.fstat(fd)
    if mode == _FILE and not stat.S_ISREG(status.st_mode):
        raise OSError(f"{path} is not a regular file")
    if status.st_uid != os.geteuid():
        raise PermissionError(f"{path} belongs to another user (UID {status.st_uid})")
    if stat.S_IMODE(status.st_mode) != mode:
        os.fchmod(fd, mode)
