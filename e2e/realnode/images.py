"""Images of the frameworks without a registry: Debian packages and wheels, built once.

python -m e2e.realnode.images list
python -m e2e.realnode.images build torch jax       all of them without names
python -m e2e.realnode.images write torch FILE      the OCI archive, for `ctr images import` or `podman load`

A layer is built once for each set of packages and kept in the cache of the test cluster. The folder `examples` is a
small layer of its own, made for every run. It needs root, Debian's mmdebstrap,
and the release tools of `make image` for pip.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from e2e.cluster.places import ClusterError, cache
from e2e.realnode.oci import LayerFile, new_file, pack, write_image

ROOT = Path(__file__).parents[2]
RELEASE, PYTHON = "bookworm", "3.11"
COMMON = ("python3", "python-is-python3", "python3-distutils", "python3-setuptools", "libgomp1", "procps")
"""The packages of every image; TensorFlow needs distutils, Paddle setuptools and libgomp."""
SSH = ("openssh-server", "openssh-client")
SLIM = ("doc", "man", "locale", "info", "lintian")
OWN = (("examples", "srv/examples"), ("e2e/realnode/programs", "srv/programs"))
"""Folders of the project in every image, with their place there."""
SOURCES = (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list"))
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Recipe:
    """The contents of an image beside `COMMON` and the project's examples."""

    debian: tuple[str, ...] = ()
    pip: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    """Variables as NAME=value."""
    full: bool = False
    """It takes several GB, and is built only if asked for."""


IMAGES = {
    "base": Recipe(pip=("numpy==1.26.4",)),
    # With Python 3.11, Debian's torchrun cannot read its own defaults of these two: it fails without them. What they
    # set here is for a tenth process, which does not exist.
    "torch": Recipe(debian=("python3-numpy", "python3-torch"), environment=("PET_REDIRECTS=9:1", "PET_TEE=9:1")),
    "tensorflow": Recipe(pip=("tensorflow-cpu==2.18.1",)),
    "jax": Recipe(pip=("jax==0.4.38",)),
    "xgboost": Recipe(pip=("xgboost-cpu==3.0.5",)),
    "paddle": Recipe(pip=("paddlepaddle==2.6.2",)),
    # The last release of MXNet needs a NumPy that still has numpy.bool.
    "mxnet": Recipe(debian=("libquadmath0",), pip=("mxnet==1.9.1", "numpy==1.23.5")),
    "openmpi": Recipe(debian=("python3-numpy", "python3-mpi4py", "openmpi-bin", *SSH)),
    "mpich": Recipe(debian=("python3-numpy", "mpich", *SSH)),
}


def folder() -> Path:
    """Where layers are kept."""
    path = cache() / "images"
    path.mkdir(parents=True, exist_ok=True)
    return path


def recipe(name: str) -> Recipe:
    if name not in IMAGES:
        raise ClusterError(f"no such image: {name} (there are {', '.join(IMAGES)})")
    return IMAGES[name]


def build(name: str) -> list[LayerFile]:
    """The layers of an image without those of the project; missing ones are built. Concurrent callers wait."""
    wanted = recipe(name)
    with (folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        layers = [_kept("debian", (*COMMON, *wanted.debian), _build_debian)]
        if wanted.pip:
            layers.append(_kept("pip", wanted.pip, _build_pip))
    return layers


def is_built(name: str) -> bool:
    wanted = recipe(name)
    paths = [_path("debian", (*COMMON, *wanted.debian)), *([_path("pip", wanted.pip)] if wanted.pip else [])]
    return all(path.exists() for path in paths)


class Image:
    """An image with the examples as they are now. Its `reference` changes with the contents."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.layers = [*build(name), _own_layer()]
        self.environment = recipe(name).environment
        contents = "".join((*(layer.digest for layer in self.layers), *self.environment))
        self.reference = f"localhost/trainop/{name}:{hashlib.sha256(contents.encode()).hexdigest()[:12]}"

    def write(self, output: IO[bytes]) -> None:
        machine = platform.machine()
        write_image(output, self.reference, self.layers, ARCHITECTURES.get(machine, machine), self.environment)


def _path(kind: str, packages: Sequence[str]) -> Path:
    identity = hashlib.sha256(repr((RELEASE, PYTHON, sorted(packages))).encode()).hexdigest()[:12]
    return folder() / f"{kind}-{identity}.tar"


def _kept(kind: str, packages: Sequence[str], make: Callable[[Sequence[str], Path], None]) -> LayerFile:
    path = _path(kind, packages)
    if not path.exists():
        begun = time.monotonic()
        print(f"image layer of {' '.join(packages)} ...", end="", flush=True, file=sys.stderr)
        with new_file(path) as fresh:
            make(packages, fresh)
        print(f" {path.stat().st_size // MIB} MiB in {time.monotonic() - begun:.0f} s", file=sys.stderr)
    return LayerFile.of(path)


def _own_layer() -> LayerFile:
    with tempfile.TemporaryDirectory(dir=folder()) as work:
        fresh = Path(work, "own.tar")
        pack([(ROOT / source, place) for source, place in OWN if (ROOT / source).is_dir()], fresh)
        digest = LayerFile.of(fresh).digest
        path = folder() / f"own-{digest.removeprefix('sha256:')[:12]}.tar"
        for old in folder().glob("own-*"):
            if time.time() - old.stat().st_mtime > 24 * 3600:
                old.unlink(missing_ok=True)
        fresh.replace(path)
    return LayerFile(path, digest)


def _build_debian(packages: Sequence[str], target: Path) -> None:
    if not shutil.which("mmdebstrap"):
        raise ClusterError("mmdebstrap is missing (Debian: apt-get install --no-install-recommends mmdebstrap)")
    if os.geteuid() != 0:
        raise ClusterError("images are built as root")
    hooks = [
        # the image contains nothing of this machine
        'rm -rf "$1"/etc/apt/sources.list* "$1"/var/lib/apt/lists/* "$1"/var/log/*',
        ': > "$1"/etc/resolv.conf; echo image > "$1"/etc/hostname',
    ]
    if "openssh-server" in packages:  # as in the images of mpi-operator
        options = "StrictHostKeyChecking no\\n UserKnownHostsFile /dev/null\\n LogLevel ERROR"
        hooks += [
            f'mkdir -p "$1"/run/sshd; printf "Host *\\n {options}\\n" > "$1"/etc/ssh/ssh_config.d/mpi.conf',
            'printf "StrictModes no\\n" > "$1"/etc/ssh/sshd_config.d/mpi.conf',
        ]
    sources = next((path for path in SOURCES if path.exists()), SOURCES[-1])
    # without skip=cleanup/run, /run/sshd would be removed
    _call(
        *("mmdebstrap", "--variant=minbase", "--format=tar", f"--include={','.join(packages)}", "--quiet"),
        *('--aptopt=APT::Install-Recommends "false"', "--skip=output/dev", "--skip=cleanup/run"),
        *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in SLIM),
        *(f"--customize-hook={hook}" for hook in hooks),
        *(RELEASE, str(target), str(sources)),
    )


def _build_pip(wheels: Sequence[str], target: Path) -> None:
    tools = ROOT / "build/release/bin/python"
    if not tools.exists():
        raise ClusterError("wheels are installed by the release tools: run `make image` first")
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        site = Path(work, "site")
        chosen = ("--implementation=cp", f"--python-version={PYTHON}", "--only-binary=:all:", f"--target={site}")
        _call(tools, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", *chosen, *wheels)
        if python := shutil.which(f"python{PYTHON}"):  # else each process compiles what it imports
            modes = ("-q", "-j0", "--invalidation-mode=unchecked-hash")
            _call(python, "-m", "compileall", *modes, "-s", site, "-p", "/opt/site", site, check=False)
        pack([(site, "opt/site")], target)


def _call(*command: str | Path, check: bool = True) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if check and done.returncode:
        raise ClusterError(f"{Path(command[0]).name} failed:\n" + "\n".join(done.stdout.splitlines()[-15:]))


def _show() -> None:
    for name, one in IMAGES.items():
        state = "built" if is_built(name) else "full" if one.full else "-"
        print(f"{name:12} {state:6} {' '.join((*one.debian, *one.pip))}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m e2e.realnode.images", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list")
    commands.add_parser("build").add_argument("names", nargs="*", metavar="NAME")
    write = commands.add_parser("write")
    write.add_argument("name")
    write.add_argument("file", type=Path)
    return parser.parse_args()


def main() -> None:
    options = parse()
    try:
        if options.command == "list":
            _show()
        elif options.command == "build":
            for name in options.names or [name for name, one in IMAGES.items() if not one.full]:
                layers = build(name)
                print(f"{name:12} {sum(layer.size for layer in layers) // MIB} MiB")
        else:
            with options.file.open("wb") as output:
                Image(options.name).write(output)
    except ClusterError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
