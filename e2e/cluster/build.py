"""Builds the programs of a test cluster from Go modules; binaries of unchanged sources are reused.

Needs a Go module proxy and Go >= 1.24 (kwok and Kubernetes from 1.36 on: 1.26, which `go` downloads itself if
GOTOOLCHAIN permits); runc also a C compiler and libseccomp.
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
from typing import IO

from e2e.cluster import releases
from e2e.cluster.packages import advice, lacking_for_linking
from e2e.cluster.places import HERE, ClusterError, program_folder
from e2e.cluster.releases import Release, find_release

KUBE = "k8s.io/kubernetes/cmd/"
VOLCANO = "volcano.sh/volcano/cmd/"
CONTAINERD = "github.com/containerd/containerd/"
OAUTH2_PROXY = "github.com/oauth2-proxy/oauth2-proxy/v7"
CNI = "github.com/containernetworking/plugins/plugins/"


@dataclass(frozen=True, slots=True)
class Program:
    """A Go program; `module` is a directory below `root` whose go.mod pins all dependencies."""

    module: str
    package: str
    linker_flags: str = ""
    root: Path = HERE / "go"
    libseccomp: bool = False
    """Links libseccomp statically with the C compiler."""
    tests: bool = False
    """The program is the tests of the package."""

    @property
    def sources(self) -> Path:
        return self.root / self.module


def programs_of(release: Release) -> dict[str, Program]:
    """All programs, those of Kubernetes in the version of this release."""
    own = {name: Program(release.module, KUBE + name, release.linker_flags) for name in releases.PROGRAMS}
    return {**own, **SHARED}


SHARED = {
    "etcd": Program("etcd", "go.etcd.io/etcd/server/v3"),
    "helm": Program("helm", "helm.sh/helm/v3/cmd/helm", "-X helm.sh/helm/v3/internal/version.version=v3.19.5"),
    "kubectl-1.33": Program("kubectl-1.33", ".", Release("v1.33.6").linker_flags),
    "oauth2-proxy": Program("oauth2-proxy", OAUTH2_PROXY, f"-X {OAUTH2_PROXY}/pkg/version.VERSION=v7.15.6"),
    "kwok": Program("kwok", "sigs.k8s.io/kwok/cmd/kwok", "-X sigs.k8s.io/kwok/pkg/consts.Version=v0.8.0"),
    "containerd": Program("containerd", CONTAINERD + "cmd/containerd", f"-X {CONTAINERD}version.Version=1.7.30"),
    "containerd-shim-runc-v2": Program("containerd", CONTAINERD + "cmd/containerd-shim-runc-v2"),
    "ctr": Program("containerd", CONTAINERD + "cmd/ctr"),
    "runc": Program("runc", "github.com/opencontainers/runc", "-X main.version=1.3.4", libseccomp=True),
    "bridge": Program("cni", CNI + "main/bridge"),
    "loopback": Program("cni", CNI + "main/loopback"),
    "host-local": Program("cni", CNI + "ipam/host-local"),
    "portmap": Program("cni", CNI + "meta/portmap"),
    "coredns": Program("coredns", ".", "-X github.com/coredns/coredns/coremain.CoreVersion=1.13.2"),
    "pause": Program("pause", "."),
    "kueue": Program("kueue", "sigs.k8s.io/kueue/cmd/kueue"),
    "coscheduling": Program("coscheduling", "sigs.k8s.io/scheduler-plugins/cmd/scheduler"),
    "volcano-scheduler": Program("volcano", VOLCANO + "scheduler"),
    "volcano-controller-manager": Program("volcano", VOLCANO + "controller-manager"),
}
"""The programs that serve every release."""
PROGRAMS = programs_of(releases.DEFAULT)
MINIMAL = ("etcd", "kube-apiserver")
STANDARD = (*MINIMAL, "kube-controller-manager", "kubectl")
"""The programs of a control plane, and its client."""
TESTED = (*STANDARD, "kube-scheduler", "helm")
"""The programs that the tests need."""
NODE = (
    *STANDARD,
    *("kube-scheduler", "kubelet", "kube-proxy", "containerd", "containerd-shim-runc-v2", "ctr", "runc"),
    *("bridge", "loopback", "host-local", "portmap", "coredns", "pause"),
)
"""The programs of a cluster with a real node."""
GROUPS = {"node": NODE}
"""Names for several programs."""


class NoGoError(ClusterError):
    """A program is not available and cannot be built on this machine."""


def build(names: tuple[str, ...] = MINIMAL, programs: Mapping[str, Program] | None = None, release: str = "") -> None:
    """Builds missing or outdated programs. Concurrent callers wait for a file lock.

    `release` is that of Kubernetes' own programs, see `find_release`. Raises `NoGoError` before it builds anything if
    Go or libseccomp is required and not installed, `ClusterError` if a build fails or the release is unknown.
    """
    programs = programs or programs_of(find_release(release))
    if unknown := [name for name in names if name not in programs]:
        raise ClusterError(f"no such program: {', '.join(unknown)} (there are {', '.join(programs)})")
    if sys.platform != "linux":
        raise NoGoError("the test cluster needs Linux: it tracks its processes through /proc")
    if unbuilt := [name for name in names if not _is_current(name, programs[name], program_folder(name, release))]:
        _require_go(", ".join(unbuilt))
        if any(programs[name].libseccomp for name in unbuilt) and (packages := lacking_for_linking()):
            raise NoGoError(advice(packages))
    for name in names:
        folder = program_folder(name, release)
        (folder / ".made").mkdir(parents=True, exist_ok=True)
        with (folder.parent / "lock").open("w") as lock:
            _wait_for(lock, name)
            if not _is_current(name, programs[name], folder):
                _compile(name, programs[name], folder)


def _wait_for(lock: IO[str], name: str) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"{name}: another process builds programs here; waiting for it", file=sys.stderr)
        fcntl.flock(lock, fcntl.LOCK_EX)


def outdated(names: tuple[str, ...], release: str = "") -> list[str]:
    """Those of the programs that `build` would build."""
    programs = programs_of(find_release(release))
    return [name for name in names if not _is_current(name, programs[name], program_folder(name, release))]


def _identity(program: Program) -> str:
    sources = b"".join(path.read_bytes() for path in sorted(program.sources.iterdir()))
    return hashlib.sha256(sources + program.linker_flags.encode() + program.package.encode()).hexdigest()


def _is_current(name: str, program: Program, folder: Path) -> bool:
    made = folder / ".made" / name
    return (folder / name).exists() and made.exists() and made.read_text() == _identity(program)


def module_folder(program: Program, module: str) -> Path:
    """The directory of a Go module that `program` depends on, with the manifests it ships.

    Raises `NoGoError` if Go is not installed, `ClusterError` if the module cannot be fetched.
    """
    done = subprocess.run(
        [_require_go(f"the manifests of {program.module}"), "list", "-m", "-f", "{{.Dir}}", module],
        cwd=program.sources,
        env={**os.environ, "GOWORK": "off"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode or not done.stdout.strip():
        raise ClusterError(f"{module} is not in the module cache: build {program.module}\n{done.stderr}")
    return Path(done.stdout.strip())


def find_go() -> str | None:
    return shutil.which("go") or shutil.which("/usr/local/go/bin/go")


def _require_go(needed_for: str) -> str:
    go = find_go()
    if go is None:
        raise NoGoError(f"{needed_for} cannot be built or fetched: Go is not installed (go.dev/dl)")
    return go


def _compile(name: str, program: Program, folder: Path) -> None:
    go = _require_go(name)
    print(f"building {name} from Go modules, once ...", end="", flush=True, file=sys.stderr)
    start = time.monotonic()
    fresh = folder / f".{name}.new"
    done = subprocess.run(
        [go, *(("test", "-c") if program.tests else ("build",)), *_flags(program), "-o", fresh, program.package],
        cwd=program.sources,
        env={**os.environ, "CGO_ENABLED": "1" if program.libseccomp else "0", "GOWORK": "off"},
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


def _flags(program: Program) -> list[str]:
    common = ["-mod=readonly", "-buildvcs=false", "-trimpath"]
    linker_flags = f"-s -w {program.linker_flags}".strip()
    if program.libseccomp:
        return [*common, "-tags=seccomp,netgo,osusergo", "-ldflags", f"{linker_flags} -extldflags=-static"]
    return [*common, "-ldflags", linker_flags]
