"""The operators under comparison: command line, CRDs and sizes of each."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from e2e.bench.kinds import PYTORCH, JobKind
from e2e.cluster.places import ClusterError, binary
from e2e.peers import PEERS, build_peers

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


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
        if self.peer:
            return PEERS[self.peer].crd_files()
        folder = ROOT / "manifests" / "crds"
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


def compared_peers() -> list[str]:
    """The keys of `PEERS` that are measured."""
    return sorted({operator.peer for operator in OPERATORS.values() if operator.peer})


def build_compared_peers() -> None:
    """Builds the measured peers, once. Raises `NoGoError` if Go is needed and not installed."""
    build_peers(compared_peers())


def peer_versions() -> dict[str, str]:
    return {name: PEERS[name].version for name in compared_peers()}


def _binary(peer: str) -> Path:
    try:
        return binary(peer)
    except ClusterError:
        raise ClusterError(f"{peer} is not built: run `python -m e2e.bench build`") from None
