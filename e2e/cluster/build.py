"""Builds the programs of a test cluster from Go modules; binaries of unchanged sources are reused.

Needs Go >= 1.24 (kwok: 1.26, which `go` downloads itself if GOTOOLCHAIN permits) and a Go module proxy.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.places import HERE, VERSION, ClusterError, cache

KUBE = "k8s.io/kubernetes/cmd/"


def _release(version: str) -> str:
    """Linker flags that set the version; without them a program reports v0.0.0."""
    major, minor = version.removeprefix("v").split(".")[:2]
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    return " ".join(f"-X k8s.io/component-base/version.{key}={value}" for key, value in values.items())


RELEASE = _release(VERSION)


@dataclass(frozen=True, slots=True)
class Program:
    """A Go program; `module` is a directory below `root` whose go.mod pins all dependencies."""

    module: str
    package: str
    linker_flags: str = ""
    root: Path = HERE / "go"

    @property
    def sources(self) -> Path:
        return self.root / self.module


PROGRAMS = {
    "etcd": Program("etcd", "go.etcd.io/etcd/server/v3"),
    "kube-apiserver": Program("kubernetes", KUBE + "kube-apiserver", RELEASE),
    "kube-controller-manager": Program("kubernetes", KUBE + "kube-controller-manager", RELEASE),
    "kube-scheduler": Program("kubernetes", KUBE + "kube-scheduler", RELEASE),
    "kubectl": Program("kubernetes", KUBE + "kubectl", RELEASE),
    "kubectl-1.33": Program("kubectl-1.33", ".", _release("v1.33.6")),
    "kwok": Program("kwok", "sigs.k8s.io/kwok/cmd/kwok", "-X sigs.k8s.io/kwok/pkg/consts.Version=v0.8.0"),
}
MINIMAL = ("etcd", "kube-apiserver")
STANDARD = (*MINIMAL, "kube-controller-manager", "kubectl")
"""The programs that the tests need."""


class NoGoError(ClusterError):
    """A program is not available and cannot be built on this machine."""


def build(names: tuple[str, ...] = MINIMAL, programs: Mapping[str, Program] = PROGRAMS) -> Path:
    """Builds missing or outdated programs and returns their directory. Concurrent callers wait for a file lock.

    Raises `NoGoError` if Go is required and not installed, `ClusterError` if a build fails.
    """
    if unknown := [name for name in names if name not in programs]:
        raise ClusterError(f"no such program: {', '.join(unknown)} (there are {', '.join(programs)})")
    if sys.platform != "linux":
        raise NoGoError("the test cluster needs Linux: it tracks its processes through /proc")
    folder = cache() / "bin"
    (folder / ".made").mkdir(parents=True, exist_ok=True)
    with (cache() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name in names:
            if not _is_current(name, programs[name], folder):
                _compile(name, programs[name], folder)
    return folder


def _identity(program: Program) -> str:
    sources = b"".join(path.read_bytes() for path in sorted(program.sources.iterdir()))
    return hashlib.sha256(sources + program.linker_flags.encode() + program.package.encode()).hexdigest()


def _is_current(name: str, program: Program, folder: Path) -> bool:
    made = folder / ".made" / name
    return (folder / name).exists() and made.exists() and made.read_text() == _identity(program)


def _compile(name: str, program: Program, folder: Path) -> None:
    go = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    if go is None:
        raise NoGoError(f"{name} has to be built and Go is not installed (go.dev/dl)")
    print(f"building {name} from Go modules, once ...", end="", flush=True, file=sys.stderr)
    start = time.monotonic()
    fresh = folder / f".{name}.new"
    flags = ["-mod=readonly", "-buildvcs=false", "-trimpath", "-ldflags", f"-s -w {program.linker_flags}".strip()]
    done = subprocess.run(
        [go, "build", *flags, "-o", fresh, program.package],
        cwd=program.sources,
        env={**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ClusterError(f"\n{name}: go build failed\n{done.stdout}")
    fresh.replace(folder / name)
    (folder / ".made" / name).write_text(_identity(program))
    print(f" {time.monotonic() - start:.0f} s", file=sys.stderr)
