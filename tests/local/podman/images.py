"""Images made of what this machine has: nothing is pulled from outside."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from pathlib import Path

BUSYBOX = "busybox"
_DEBIAN = ("dash", "getent")
"""As in images of Debian: the shell of busybox would run its own nslookup."""
_APPLETS = (
    "rm readlink tr seq cat sleep env ls id mount wget hostname ip touch stat kill ps echo true false test head tail "
    "grep sed cut dd"
)
_SKIPPED = re.compile(
    r"/(test|tests|idlelib|lib2to3|turtledemo|ensurepip|site-packages|dist-packages|__pycache__|config-.*)/"
)


def _libraries(program: str) -> Iterator[str]:
    """What a program is linked to."""
    text = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    yield from re.findall(r"(?:^|=> )\s*(/\S+)", text, re.MULTILINE)


def _files_of_python() -> Iterator[str]:
    python, library = str(Path(sys.executable).resolve()), sysconfig.get_path("stdlib")
    extensions = sorted(str(path) for path in Path(library).rglob("*.so"))
    yield python
    yield from (str(path) for path in Path(library).rglob("*") if path.is_file() and not _SKIPPED.search(str(path)))
    for program in (python, *extensions):
        yield from _libraries(program)


def make_archive(path: Path, *, python: bool) -> None:
    """A root file system: busybox, and the Python of these tests as `python` if wanted."""
    with tarfile.open(path, "w") as archive:
        _add_folders(archive)
        archive.add(str(shutil.which(BUSYBOX)), "bin/busybox")
        for applet in _APPLETS.split():
            _link(archive, f"bin/{applet}", "busybox")
        _link(archive, "bin/sh", "dash")
        for name in _DEBIAN:
            archive.add(str(shutil.which(name)), f"bin/{name}")
        linked = [each for name in _DEBIAN for each in _libraries(str(shutil.which(name)))]
        for name in dict.fromkeys([*linked, *(_files_of_python() if python else ())]):
            archive.add(str(Path(name).resolve()), name.lstrip("/"))
        if python:
            _link(archive, "bin/python", str(Path(sys.executable).resolve()))


def _add_folders(archive: tarfile.TarFile) -> None:
    for name, mode in {"bin": 0o755, "etc": 0o755, "tmp": 0o1777, "proc": 0o755, "sys": 0o755, "dev": 0o755}.items():
        entry = tarfile.TarInfo(name)
        entry.type, entry.mode = tarfile.DIRTYPE, mode
        archive.addfile(entry)
    text = b"root:x:0:0::/tmp:/bin/sh\nuser:x:1000:1000::/tmp:/bin/sh\n"
    entry = tarfile.TarInfo("etc/passwd")
    entry.size = len(text)
    archive.addfile(entry, io.BytesIO(text))


def _link(archive: tarfile.TarFile, name: str, target: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    archive.addfile(entry)
