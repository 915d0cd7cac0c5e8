"""Directories and files with access for their owner only, because the token in the kubeconfig permits to run processes.

No function follows a symbolic link in the last component of a path; files of other users raise `PermissionError`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

_DIRECTORY_MODE, _FILE_MODE = 0o700, 0o600
_OPEN_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def ensure_directory(path: Path) -> None:
    """Create a directory with its parents, or restrict an existing one to mode 0700. Raises `OSError` with the path."""
    with suppress(FileExistsError):  # checked below
        path.mkdir(mode=_DIRECTORY_MODE, parents=True)
    fd = _open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _secure(fd, path, _DIRECTORY_MODE)
    finally:
        os.close(fd)


def open_file(path: Path, flags: int) -> int:
    """Open or create a regular file with mode 0600; returns the descriptor. Raises `OSError` with the path."""
    fd = _open(path, flags | os.O_CREAT)
    try:
        _secure(fd, path, _FILE_MODE)
    except OSError:
        os.close(fd)
        raise
    return fd


def restrict(path: Path) -> None:
    """Restrict a file to mode 0600, if it exists. Raises `OSError` as `open_file`."""
    if os.path.lexists(path):
        os.close(open_file(path, os.O_RDONLY))


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """Open a file for appending text, with mode 0600."""
    with open(open_file(path, os.O_WRONLY | os.O_APPEND), "a", encoding="utf-8") as file:  # a descriptor
        yield file


def replace_text(path: Path, text: str) -> None:
    """Replace the content of a file atomically."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    with open(open_file(fresh, os.O_WRONLY | os.O_EXCL), "w", encoding="utf-8") as file:  # as above
        file.write(text)
    fresh.replace(path)


def read_start(path: Path, size: int) -> bytes:
    """At most the first `size` bytes of a regular file; empty for anything else, such as a FIFO. Never blocks."""
    fd = _open(path, os.O_RDONLY)
    try:
        return os.read(fd, size) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    finally:
        os.close(fd)


def _open(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | _OPEN_FLAGS, _FILE_MODE)
    except OSError as error:
        if path.is_symlink():
            raise OSError(error.errno, f"{path} is a symbolic link; use its target") from error
        raise


def _secure(fd: int, path: Path, mode: int) -> None:
    status = os.fstat(fd)
    if mode == _FILE_MODE and not stat.S_ISREG(status.st_mode):
        raise OSError(f"{path} is not a regular file")
    if status.st_uid != os.geteuid():
        raise PermissionError(f"{path} belongs to another user (UID {status.st_uid})")
    if stat.S_IMODE(status.st_mode) != mode:
        os.fchmod(fd, mode)
