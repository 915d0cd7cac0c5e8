"""The operators under comparison: command line, CRDs and sizes of each.

A peer is built from Go modules with the dependencies of its release, pinned in go/NAME/go.mod.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from e2e.bench.kinds import PYTORCH, JobKind
from e2e.cluster.build import Program, build, module_folder
from e2e.cluster.places import ClusterError, binary, cache

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


@dataclass(frozen=True, slots=True)
class Peer:
    """An operator written in Go, for comparison."""

    program: Program
    module: str
    """The Go module that contains the CRDs."""
    crds: str
    """Glob pattern of the CRDs in the module."""

    @property
    def version(self) -> str:
        """The version pinned in go.mod."""
        found = re.search(rf"{re.escape(self.module)} (v\S+)", (self.program.sources / "go.mod").read_text())
        return found[1] if found else "unknown"

    @property
    def crd_folder(self) -> Path:
        return cache() / "crds" / f"{self.program.module}-{self.version}"

    def copy_crds(self) -> None:
        """Copies the CRDs from the module, once, so that measurements do not need Go. Raises `NoGoError`."""
        if self.crd_folder.exists():
            return
        folder = module_folder(self.program, self.module)
        fresh = self.crd_folder.with_suffix(".new")
        fresh.mkdir(parents=True, exist_ok=True)
        for path in folder.glob(self.crds):
            if path.stem != "kustomization":
                shutil.copyfile(path, fresh / path.name)
        fresh.rename(self.crd_folder)


PEERS = {
    "training-operator": Peer(
        Program(
            "training-operator", "github.com/kubeflow/training-operator/cmd/training-operator.v1", root=HERE / "go"
        ),
        "github.com/kubeflow/training-operator",
        "manifests/base/crds/*.yaml",
    ),
}
"""To add mpi-operator v0.8.0 with MPIJob: one go/NAME/go.mod, one entry here and one in `OPERATORS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    kind: JobKind
    flags: tuple[str, ...]
    peer: str = ""
    """The key of `PEERS`; empty for our operator."""
    module: tuple[str, ...] = ("trainop", "operator")
    """For our operator: the Python module and its first arguments."""
    sizes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Scenario -> sizes that replace the defaults: a rate-limited operator takes too long at full size."""
    pause: float = 0.1
    """Seconds between two pod failures in s4."""

    def command(self, kubeconfig: Path, metrics: int, probes: int) -> list[str]:
        """The command line; `metrics` and `probes` are ports of 127.0.0.1."""
        program = [str(_binary(self.peer))] if self.peer else [sys.executable, "-m", *self.module]
        addresses = [
            f"--metrics-bind-address=127.0.0.1:{metrics}",
            f"--health-probe-bind-address=127.0.0.1:{probes}",
        ]
        return [*program, f"--kubeconfig={kubeconfig}", *addresses, *self.flags]

    def crd_files(self) -> list[Path]:
        """The CRDs that the operator ships; each operator is measured with its own."""
        folder = PEERS[self.peer].crd_folder if self.peer else ROOT / "manifests" / "crds"
        return sorted(path for path in folder.glob("*.yaml") if path.stem != "kustomization")


TUNED = ("--kube-api-qps=10000", "--kube-api-burst=20000", "--controller-threads=8")
QUIET = ("--zap-devel=false",)  # as in the deployment: log level info, JSON

OPERATORS = {
    "trainop": Operator(kind=PYTORCH, flags=QUIET),
    "trainop-leader": Operator(kind=PYTORCH, flags=(*QUIET, "--service-mode=leader")),
    "training-operator-tuned": Operator(kind=PYTORCH, flags=TUNED, peer="training-operator"),
    "training-operator-default": Operator(
        kind=PYTORCH,
        flags=(),
        peer="training-operator",
        sizes={"s1": {"jobs": 20}, "s2": {"workers": 200}, "s4": {"jobs": 10}},
        pause=2.0,
    ),
}


def build_peers() -> None:
    """Builds the peers and copies their CRDs, once. Raises `NoGoError` if Go is needed and not installed."""
    build(tuple(PEERS), {name: peer.program for name, peer in PEERS.items()})
    for peer in PEERS.values():
        peer.copy_crds()


def peer_versions() -> dict[str, str]:
    return {name: peer.version for name, peer in PEERS.items()}


def _binary(peer: str) -> Path:
    try:
        return binary(peer)
    except ClusterError:
        raise ClusterError(f"{peer} is not built: run `python -m e2e.bench build`") from None
