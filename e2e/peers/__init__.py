"""Other operators for the same jobs, built from Go modules: measured beside ours, and replaced by ours.

A peer is built with the dependencies of its release, pinned in go/NAME/go.mod.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.build import Program, build, module_folder
from e2e.cluster.certificates import Authority
from e2e.cluster.places import binary, cache

HERE = Path(__file__).resolve().parent
CERTIFICATES = Path("/tmp/k8s-webhook-server/serving-certs")
"""Where training-operator reads its webhook certificate; the path is not configurable."""
CERTIFICATE_FILES = ("ca.crt", "ca.key", "tls.crt", "tls.key")
"""The files that training-operator expects in its Secret."""


@dataclass(frozen=True, slots=True)
class Peer:
    """An operator written in Go."""

    program: Program
    module: str
    """The Go module that contains the manifests."""
    manifests: str = "manifests"
    """The folder of the manifests in the module."""
    crds: str = "base/crds/*.yaml"
    """The CRDs below it."""

    @property
    def version(self) -> str:
        """The version pinned in go.mod."""
        found = re.search(rf"{re.escape(self.module)} (v\S+)", (self.program.sources / "go.mod").read_text())
        return found[1] if found else "unknown"

    @property
    def manifest_folder(self) -> Path:
        """The copy of the manifests of this version."""
        return cache() / "manifests" / f"{self.program.module}-{self.version}"

    def crd_files(self) -> list[Path]:
        return sorted(path for path in self.manifest_folder.glob(self.crds) if path.stem != "kustomization")

    def copy_manifests(self) -> None:
        """Copies the manifests from the module, once, so that their users do not need Go. Raises `NoGoError`."""
        if self.manifest_folder.exists():
            return
        folder = module_folder(self.program, self.module)
        fresh = self.manifest_folder.with_name(self.manifest_folder.name + ".new")
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(folder / self.manifests, fresh)
        fresh.rename(self.manifest_folder)


def _training_operator(name: str) -> Peer:
    module = "github.com/kubeflow/training-operator"
    return Peer(Program(name, f"{module}/cmd/training-operator.v1", root=HERE / "go"), module)


def _mpi_operator(name: str) -> Peer:
    module = "github.com/kubeflow/mpi-operator"
    program = Program(name, f"{module}/cmd/mpi-operator", root=HERE / "go")
    return Peer(program, module, crds="base/kubeflow.org_mpijobs.yaml")


TRAINING_OPERATORS = ("training-operator", "training-operator-1.7")
"""1.7 is the last release with MXJob."""
MPI_OPERATOR = "mpi-operator"

PEERS = {name: _training_operator(name) for name in TRAINING_OPERATORS} | {MPI_OPERATOR: _mpi_operator(MPI_OPERATOR)}

MPI_TESTS = "mpi-operator-e2e"
"""The end-to-end tests of mpi-operator, as one program."""


def build_mpi_tests() -> Path:
    """Builds `MPI_TESTS`, once, and returns the program. Raises `NoGoError` if Go is needed and not installed."""
    package = "github.com/kubeflow/mpi-operator/test/e2e"
    program = Program(MPI_TESTS, package, root=HERE / "go", tests=True)
    build((MPI_TESTS,), {MPI_TESTS: program})
    return binary(MPI_TESTS)


def build_peers(names: Iterable[str]) -> None:
    """Builds peers and copies their manifests, once. Raises `NoGoError` if Go is needed and not installed."""
    chosen = {name: PEERS[name] for name in names}
    build(tuple(chosen), {name: peer.program for name, peer in chosen.items()})
    for peer in chosen.values():
        peer.copy_manifests()


def issue_webhook_certificate(folder: Path) -> None:
    """Writes the files that training-operator's cert-controller and mounted Secret would provide."""
    authority = Authority(folder)
    authority.issue("tls", "training-operator.kubeflow.svc", hosts=["training-operator.kubeflow.svc"])
