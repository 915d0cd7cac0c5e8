"""The operators that are compared: how each is started, with which CRDs, at which sizes.

A peer is built from the Go module proxy with the dependencies of its own release, which go/NAME/go.mod pins.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from e2e.bench.kinds import PYTORCH, JobKind
from e2e.cluster.build import Program, build
from e2e.cluster.places import ClusterError, binary

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


@dataclass(frozen=True, slots=True)
class Peer:
    """A Go program to compare with."""

    program: Program
    module: str
    """The Go module whose folder holds the CRDs."""
    crds: str
    """Pattern below that folder."""

    def crd_files(self) -> list[Path]:
        command = ["go", "list", "-m", "-f", "{{.Dir}}", self.module]
        found = subprocess.run(command, cwd=self.program.sources, capture_output=True, text=True, check=True)
        return sorted(path for path in Path(found.stdout.strip()).glob(self.crds) if path.stem != "kustomization")


PEERS = {
    "training-operator": Peer(
        Program(
            "training-operator", "github.com/kubeflow/training-operator/cmd/training-operator.v1", root=HERE / "go"
        ),
        "github.com/kubeflow/training-operator",
        "manifests/base/crds/*.yaml",
    ),
}
"""mpi-operator v0.8.0 joins with MPIJob: one more go/NAME/go.mod, and one more row here and in `OPERATORS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    kind: JobKind
    flags: tuple[str, ...]
    peer: str = ""
    """The key of `PEERS`; ours if empty."""
    sizes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Scenario -> sizes other than the usual: what is rate-limited takes too long at full size."""
    pause: float = 0.1
    """Seconds between two failures in s4."""

    def command(self, kubeconfig: Path, metrics: int, probes: int) -> list[str]:
        """`metrics` and `probes` are ports of 127.0.0.1."""
        program = [str(_binary(self.peer))] if self.peer else [sys.executable, "-m", "trainop", "operator"]
        addresses = [
            f"--metrics-bind-address=127.0.0.1:{metrics}",
            f"--health-probe-bind-address=127.0.0.1:{probes}",
        ]
        return [*program, f"--kubeconfig={kubeconfig}", *addresses, *self.flags]

    def crd_files(self) -> list[Path]:
        """Each operator is measured with the CRDs that it ships."""
        if self.peer:
            return PEERS[self.peer].crd_files()
        return [ROOT / "manifests" / "crds" / f"{self.kind.resource.plural}.kubeflow.org.yaml"]


TUNED = ("--kube-api-qps=10000", "--kube-api-burst=20000", "--controller-threads=8")
QUIET = ("--zap-devel=false",)  # what the deployment has: log level info, as JSON

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
    """Once; raises `NoGoError` if that needs Go and there is none."""
    build(tuple(PEERS), {name: peer.program for name, peer in PEERS.items()})


def _binary(peer: str) -> Path:
    try:
        return binary(peer)
    except ClusterError:
        raise ClusterError(f"{peer} is not built: run `python -m e2e.bench build`") from None
