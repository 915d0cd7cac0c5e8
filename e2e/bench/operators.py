"""The operators that are compared: how each is started, with which CRDs, at which sizes.

A peer is built from the Go module proxy with the dependencies of its own release, which go/NAME/go.mod pins.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from e2e.bench.kinds import PYTORCH, JobKind
from e2e.cluster.build import NoGoError, Program, build
from e2e.cluster.places import ClusterError, binary, cache

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

    @property
    def version(self) -> str:
        """As its go.mod pins it."""
        found = re.search(rf"{re.escape(self.module)} (v\S+)", (self.program.sources / "go.mod").read_text())
        return found[1] if found else "unknown"

    @property
    def crd_folder(self) -> Path:
        return cache() / "crds" / f"{self.program.module}-{self.version}"

    def keep_crds(self) -> None:
        """Copies them from the module, once; so a measurement needs no Go."""
        if self.crd_folder.exists():
            return
        go = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
        if go is None:
            raise NoGoError(f"the CRDs of {self.program.module} have to be fetched and Go is not installed (go.dev/dl)")
        found = subprocess.run(
            [go, "list", "-m", "-f", "{{.Dir}}", self.module],
            cwd=self.program.sources,
            capture_output=True,
            text=True,
            check=True,
        )
        fresh = self.crd_folder.with_suffix(".new")
        fresh.mkdir(parents=True, exist_ok=True)
        for path in Path(found.stdout.strip()).glob(self.crds):
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
"""mpi-operator v0.8.0 joins with MPIJob: one more go/NAME/go.mod, and one more row here and in `OPERATORS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    kind: JobKind
    flags: tuple[str, ...]
    peer: str = ""
    """The key of `PEERS`; ours if empty."""
    module: tuple[str, ...] = ("trainop", "operator")
    """Ours: what Python runs, and its first arguments."""
    sizes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Scenario -> sizes other than the usual: what is rate-limited takes too long at full size."""
    pause: float = 0.1
    """Seconds between two failures in s4."""

    def command(self, kubeconfig: Path, metrics: int, probes: int) -> list[str]:
        """`metrics` and `probes` are ports of 127.0.0.1."""
        program = [str(_binary(self.peer))] if self.peer else [sys.executable, "-m", *self.module]
        addresses = [
            f"--metrics-bind-address=127.0.0.1:{metrics}",
            f"--health-probe-bind-address=127.0.0.1:{probes}",
        ]
        return [*program, f"--kubeconfig={kubeconfig}", *addresses, *self.flags]

    def crd_files(self) -> list[Path]:
        """Each operator is measured with the CRDs that it ships."""
        folder = PEERS[self.peer].crd_folder if self.peer else ROOT / "manifests" / "crds"
        return sorted(path for path in folder.glob("*.yaml") if path.stem != "kustomization")


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
    for peer in PEERS.values():
        peer.keep_crds()


def peer_versions() -> dict[str, str]:
    return {name: peer.version for name, peer in PEERS.items()}


def _binary(peer: str) -> Path:
    try:
        return binary(peer)
    except ClusterError:
        raise ClusterError(f"{peer} is not built: run `python -m e2e.bench build`") from None
