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
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from e2e.cluster.places import ClusterError, cache
from e2e.realnode.debian import PYTHON, RELEASE, bootstrap, call, compile_package
from e2e.realnode.oci import SITE, LayerFile, new_file, pack, write_image

ROOT = Path(__file__).parents[2]
COMMON = ("python3", "python-is-python3", "python3-distutils", "python3-setuptools", "libgomp1", "procps")
"""The packages of every image; TensorFlow needs distutils, Paddle setuptools and libgomp."""
SSH = ("openssh-server", "openssh-client")
TORCH = ("python3-numpy", "python3-torch")
HOROVOD = ("python3-cffi", "python3-cloudpickle", "python3-packaging", "python3-psutil", "python3-yaml")
SLIM = ("doc", "man", "locale", "info", "lintian")
OWN = (("examples", "srv/examples"), ("trainop/progress.py", "srv/trainop/progress.py"))
"""What every image has of the project, with its place there: the file as docs/progress.md says to copy it."""
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Recipe:
    """The contents of an image beside `COMMON` and the project's examples."""

    debian: tuple[str, ...] = ()
    pip: tuple[str, ...] = ()
    compiled: tuple[str, ...] = ()
    """Of `COMPILED`."""
    environment: tuple[str, ...] = ()
    """Variables as NAME=value."""
    full: bool = False
    """It takes several GB, and is built only if asked for."""


IMAGES = {
    "base": Recipe(pip=("numpy==1.26.4",)),
    # With Python 3.11, Debian's torchrun cannot read its own defaults of these two: it fails without them. What they
    # set here is for a tenth process, which does not exist.
    "torch": Recipe(debian=TORCH, environment=("PET_REDIRECTS=9:1", "PET_TEE=9:1")),
    "tensorflow": Recipe(pip=("tensorflow-cpu==2.18.1",)),
    "jax": Recipe(pip=("jax==0.4.38",)),
    "xgboost": Recipe(pip=("xgboost-cpu==3.0.5",)),
    "paddle": Recipe(pip=("paddlepaddle==2.6.2",)),
    # The last release of MXNet needs a NumPy that still has numpy.bool.
    "mxnet": Recipe(debian=("libquadmath0",), pip=("mxnet==1.9.1", "numpy==1.23.5")),
    "openmpi": Recipe(debian=("python3-numpy", "python3-mpi4py", "openmpi-bin", *SSH)),
    "mpich": Recipe(debian=("python3-numpy", "mpich", *SSH)),
    "horovod": Recipe(debian=(*TORCH, *SSH, *HOROVOD, "openmpi-bin"), compiled=("horovod==0.28.1",)),
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
    with (folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return [_kept(kind, packages) for kind, packages in _parts(name)]


def is_built(name: str) -> bool:
    return all(_path(kind, packages).exists() for kind, packages in _parts(name))


def _parts(name: str) -> list[tuple[str, Sequence[str]]]:
    """The layers of an image: their kinds, and what they contain."""
    wanted = recipe(name)
    parts: list[tuple[str, Sequence[str]]] = [("debian", (*COMMON, *wanted.debian))]
    if wanted.pip:
        parts.append(("pip", wanted.pip))
    return parts + [("compiled", (package,)) for package in wanted.compiled]


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


def _kept(kind: str, packages: Sequence[str]) -> LayerFile:
    path = _path(kind, packages)
    if not path.exists():
        begun = time.monotonic()
        print(f"image layer of {' '.join(packages)} ...", end="", flush=True, file=sys.stderr)
        with new_file(path) as fresh:
            BUILDERS[kind](packages, fresh)
        print(f" {path.stat().st_size // MIB} MiB in {time.monotonic() - begun:.0f} s", file=sys.stderr)
    return LayerFile.of(path)


def _own_layer() -> LayerFile:
    with tempfile.TemporaryDirectory(dir=folder()) as work:
        fresh = Path(work, "own.tar")
        pack([(ROOT / source, place) for source, place in OWN], fresh)
        digest = LayerFile.of(fresh).digest
        path = folder() / f"own-{digest.removeprefix('sha256:')[:12]}.tar"
        for old in folder().glob("own-*"):
            if time.time() - old.stat().st_mtime > 24 * 3600:
                old.unlink(missing_ok=True)
        fresh.replace(path)
    return LayerFile(path, digest)


def _build_debian(packages: Sequence[str], target: Path) -> None:
    hooks = [
        # the image contains nothing of this machine
        'rm -rf "$1"/etc/apt/sources.list* "$1"/var/lib/apt/lists/* "$1"/var/log/*',
        ': > "$1"/etc/resolv.conf; echo image > "$1"/etc/hostname',
    ]
    if "openssh-server" in packages:  # as in the images of mpi-operator
        client = "StrictHostKeyChecking no\\n UserKnownHostsFile /dev/null\\n LogLevel ERROR"
        hooks += [
            f'mkdir -p "$1"/run/sshd; printf "Host *\\n {client}\\n" > "$1"/etc/ssh/ssh_config.d/mpi.conf',
            'printf "StrictModes no\\n" > "$1"/etc/ssh/sshd_config.d/mpi.conf',
        ]
    # without skip=cleanup/run, /run/sshd would be removed
    options = ["--skip=output/dev", "--skip=cleanup/run"]
    options += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in SLIM]
    bootstrap(packages, target, *options, *(f"--customize-hook={hook}" for hook in hooks))


def _build_pip(wheels: Sequence[str], target: Path) -> None:
    tools = _release_tools()
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        site = Path(work, "site")
        chosen = ("--implementation=cp", f"--python-version={PYTHON}", "--only-binary=:all:", f"--target={site}")
        call(tools, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", *chosen, *wheels)
        if python := shutil.which(f"python{PYTHON}"):  # else each process compiles what it imports
            modes = ("-q", "-j0", "--invalidation-mode=unchecked-hash")
            call(python, "-m", "compileall", *modes, "-s", site, "-p", SITE, site, check=False)
        pack([(site, SITE.lstrip("/"))], target)


def _build_compiled(packages: Sequence[str], target: Path) -> None:
    (package,) = packages
    compile_package(package, target, _release_tools())


def _release_tools() -> Path:
    tools = ROOT / "build/release/bin/python"
    if not tools.exists():
        raise ClusterError("wheels are installed by the release tools: run `make image` first")
    return tools


BUILDERS = {"debian": _build_debian, "pip": _build_pip, "compiled": _build_compiled}


def _show() -> None:
    for name, one in IMAGES.items():
        state = "built" if is_built(name) else "full" if one.full else "-"
        print(f"{name:12} {state:6} {' '.join((*one.debian, *one.pip, *one.compiled))}")


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
