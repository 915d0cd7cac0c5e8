"""Root file systems of Debian packages, made by mmdebstrap, and programs that are compiled in them."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.packages import IMAGES, advice, lacking
from e2e.cluster.places import ClusterError
from e2e.realnode.oci import pack

RELEASE, PYTHON = "bookworm", "3.11"
SOURCES = (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list"))


@dataclass(frozen=True, slots=True)
class Compiled:
    """How a Python package without wheels is compiled."""

    debian: str
    """The packages that compile it, and those that it needs, separated by spaces."""
    environment: str = ""
    """Variables as NAME=value, separated by spaces."""


COMPILED = {
    "horovod==0.28.1": Compiled(
        "cmake g++ libopenmpi-dev libtorch-dev make pybind11-dev python3-cffi python3-cloudpickle python3-dev "
        "python3-packaging python3-pip python3-psutil python3-setuptools python3-torch python3-wheel python3-yaml",
        "HOROVOD_WITH_MPI=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 "
        "HOROVOD_WITHOUT_MXNET=1",
    )
}
"""By name and version of the source distribution on PyPI."""


def bootstrap(packages: Sequence[str], target: str | Path, *options: str, form: str = "tar") -> None:
    """Writes a minimal Debian with these packages to `target`, or nowhere with the form `null`.

    Raises `ClusterError` with the end of the output of mmdebstrap if it fails.
    """
    if missing := lacking(IMAGES):
        raise ClusterError(advice(missing))
    if os.geteuid() != 0:
        raise ClusterError("images are built as root")
    sources = next((path for path in SOURCES if path.exists()), SOURCES[-1])
    call(
        *("mmdebstrap", "--variant=minbase", f"--format={form}", f"--include={','.join(packages)}", "--quiet"),
        *('--aptopt=APT::Install-Recommends "false"', *options, RELEASE, str(target), str(sources)),
    )


def compile_package(package: str, target: Path, python: Path) -> None:
    """Writes a layer with a package of `COMPILED`; `python` has pip, which downloads the sources."""
    how = COMPILED[package]
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        sdist = (f"--no-binary={package.partition('==')[0]}", "--no-deps", "--quiet", f"--dest={work}", package)
        call(python, "-m", "pip", "download", "--disable-pip-version-check", *sdist)
        (archive,) = Path(work).iterdir()
        site, programs = Path(work, "site"), Path(work, "bin")
        install = "pip install --quiet --no-deps --no-index --no-build-isolation --target=/built/site"
        variables = f"{how.environment} MAKEFLAGS=-j{os.cpu_count()}"
        hooks = (
            f'mkdir "$1"/built; cp {shlex.quote(str(archive))} "$1"/built',
            f'chroot "$1" env {variables} python3 -m {install} /built/{archive.name}',
            f'cp -a "$1"/built/site {shlex.quote(str(site))}',
        )
        bootstrap(how.debian.split(), "-", *(f"--customize-hook={hook}" for hook in hooks), form="null")
        shutil.move(site / "bin", programs)
        # Debian's folders, since programs that sshd starts have no variables of the image
        pack([(site, f"usr/local/lib/python{PYTHON}/dist-packages"), (programs, "usr/local/bin")], target)


def call(*command: str | Path, check: bool = True) -> None:
    """Runs a command. Raises `ClusterError` with the end of its output if it fails, unless `check` is unset."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if check and done.returncode:
        raise ClusterError(f"{Path(command[0]).name} failed:\n" + "\n".join(done.stdout.splitlines()[-15:]))
