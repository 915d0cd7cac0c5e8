"""The base layer: files of a few Debian packages, unpacked without running their maintainer scripts.

The packages are named one by one instead of being resolved, because their dependencies include debconf and Perl, which
only maintainer scripts use. `test_image.py` loads every extension module, so a missing library is noticed.
"""

from __future__ import annotations

import fnmatch
import io
import shutil
import subprocess
import tarfile
from pathlib import Path

RELEASE = "bookworm"
PYTHON = "python3.11"
PACKAGES = (
    "base-files",  # /etc/os-release, and the licences that copyright files refer to
    *("libc6", "libgcc-s1", "libstdc++6", "gcc-12-base"),  # the last has the licence of the two before
    *("libexpat1", "libffi8", "libssl3", "zlib1g"),
    *(f"lib{PYTHON}-minimal", f"lib{PYTHON}-stdlib", f"{PYTHON}-minimal"),
)
WANTED = (
    "etc/os-release",
    "lib/*",
    "lib64/*",
    f"usr/bin/{PYTHON}",
    "usr/lib/*",
    "usr/share/common-licenses/*",
    "usr/share/doc/*/copyright",
)
_WITHOUT_LIBRARY = (
    *("_bz2", "_crypt", "_curses", "_curses_panel", "_dbm"),
    *("_lzma", "_sqlite3", "_uuid", "nis", "readline"),
)
LEFT_OUT = (
    "usr/lib/*/gconv/*",  # Python has its own codecs
    "usr/lib/*/engines-3/*",
    *("usr/lib/binfmt.d/*", "usr/lib/valgrind/*"),
    *("usr/lib/debug/*", "lib/*/libthread_db.so.1", "lib/*/libc_malloc_debug.so.0", "lib/*/libmvec.so.1"),
    *(f"usr/lib/{PYTHON}/{name}" for name in ("test/*", "pydoc_data/*", "turtle.py", "config-*", "ensurepip/*")),
    *(f"usr/lib/{PYTHON}/{name}" for name in ("sqlite3/*", "curses/*", "dbm/*")),
    # modules of Python's own tests, and those whose libraries are not in the image
    *(f"usr/lib/{PYTHON}/lib-dynload/{name}.*" for name in ("_test*", "_ctypes_test", "_xx*", "xx*")),
    *(f"usr/lib/{PYTHON}/lib-dynload/{name}.*" for name in _WITHOUT_LIBRARY),
)
RECORDS = "var/lib/dpkg/status.d"
"""Directory of package records where vulnerability scanners look for them in images without dpkg."""


class ImageError(Exception):
    """The image cannot be built; the message is user-facing."""


def download(folder: Path) -> list[Path]:
    """Downloads the packages with the machine's apt, which verifies their signatures. Needs no root.

    Raises `ImageError` if the machine's apt does not offer the packages of `RELEASE`.
    """
    missing = [tool for tool in ("apt-get", "dpkg-deb", "dpkg") if not shutil.which(tool)]
    if missing or RELEASE not in Path("/etc/os-release").read_text(encoding="utf-8"):
        raise ImageError(f"the image is built from Debian packages: run this on Debian {RELEASE}")
    folder.mkdir(parents=True)
    command = ["apt-get", "download", "--quiet", "--option=APT::Sandbox::User=root", *PACKAGES]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ImageError(f"packages could not be downloaded (apt-get update may help): {done.stderr.strip()}")
    return sorted(folder.glob("*.deb"))


def architecture() -> str:
    """The machine's architecture as Debian and OCI name it, such as amd64."""
    return subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout.strip()


def unpack(packages: list[Path], tree: Path) -> None:
    """Unpacks the wanted files of the packages, and keeps the record of each."""
    records = tree / RECORDS
    records.mkdir(parents=True)
    for package in packages:
        data = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            members = [member for member in archive if is_wanted(member)]
            archive.extractall(tree, members, filter="fully_trusted")
        record = subprocess.run(["dpkg-deb", "--field", package], capture_output=True, check=True).stdout
        (records / package.name.partition("_")[0]).write_bytes(record)


def is_wanted(member: tarfile.TarInfo) -> bool:
    path = member.name.removeprefix("./")
    if member.issym() and path.startswith("usr/share/doc/"):  # to the copyright file of another package
        return True
    chosen = any(fnmatch.fnmatchcase(path, pattern) for pattern in WANTED)
    return chosen and not any(fnmatch.fnmatchcase(path, pattern) for pattern in LEFT_OUT)


def add_configuration(tree: Path, user: int) -> None:
    """Adds accounts, name resolution, and the directories that container runtimes mount over."""
    (tree / "etc").mkdir(exist_ok=True)
    (tree / "etc/passwd").write_text(f"root:x:0:0:root:/:/nologin\nnonroot:x:{user}:{user}:nonroot:/:/nologin\n")
    (tree / "etc/group").write_text(f"root:x:0:\nnonroot:x:{user}:\n")
    (tree / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
    (tree / "etc/nsswitch.conf").write_text("hosts: files dns\n")
    for name in ("tmp", "proc", "sys", "dev", "run"):
        (tree / name).mkdir()
    (tree / "var/run").symlink_to("/run")
    (tree / "tmp").chmod(0o1777)
