"""The operators under comparison: command line, CRDs and sizes of each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from e2e.bench.gang import podgroup_crd
from e2e.bench.kinds import MPI_EXEC, MPI_SSH, PYTORCH, JobKind
from e2e.cluster.places import ClusterError, binary
from e2e.peers import MPI_OPERATOR, PEERS, build_peers
from trainop.runtime.objects.metadata import Json

NAMESPACE = "kubeflow"
"""The namespace of the operator, of its lease and of the warm-up job."""
HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def training_operator_flags(kubeconfig: Path, metrics: int, probes: int) -> list[str]:
    """Flags of training-operator, which ours has too; `metrics` and `probes` are ports of 127.0.0.1."""
    addresses = [f"--metrics-bind-address=127.0.0.1:{metrics}", f"--health-probe-bind-address=127.0.0.1:{probes}"]
    return [f"--kubeconfig={kubeconfig}", *addresses]


def mpi_operator_flags(kubeconfig: Path, metrics: int, _probes: int) -> list[str]:
    """Flags of mpi-operator, which `trainop mpi-operator` has too. Its probes have a fixed port."""
    return [f"--kubeConfig={kubeconfig}", f"--monitoring-port={metrics}", f"--lock-namespace={NAMESPACE}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    kind: JobKind
    flags: tuple[str, ...]
    peer: str = ""
    """The key of `PEERS`; empty for our operator."""
    module: tuple[str, ...] = ("trainop", "operator")
    """For our operator: the Python module and its first arguments."""
    addresses: Callable[[Path, int, int], list[str]] = training_operator_flags
    """Flags for a kubeconfig and two ports."""
    crd: str = "*"
    """The CRDs that are installed, as a pattern of their files' names."""
    sizes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Scenario -> sizes that replace the defaults: a rate-limited operator takes too long at full size."""
    pause: float = 0.1
    """Seconds between two pod failures in s4."""
    gang: bool = False
    """Whether pods are scheduled together, by Volcano's PodGroups."""
    webhooks: bool = False
    """Whether the API server calls the operator's webhooks."""

    def command(self, kubeconfig: Path, metrics: int, probes: int) -> list[str]:
        """The command line; `metrics` and `probes` are ports of 127.0.0.1."""
        program = [str(_binary(self.peer))] if self.peer else [sys.executable, "-m", *self.module]
        return [*program, *self.addresses(kubeconfig, metrics, probes), *self.flags]

    @property
    def needs_certificate(self) -> bool:
        """Whether it does not start without the certificate of its webhooks."""
        return self.peer.startswith("training-operator")

    def crds(self) -> list[Json]:
        """The CRDs that it is measured with: those that it ships, and with gang scheduling the PodGroup's."""
        shipped = [yaml.safe_load(path.read_text()) for path in self.crd_files()]
        return [*shipped, podgroup_crd()] if self.gang else shipped

    def crd_files(self) -> list[Path]:
        """The CRDs that the operator ships; each operator is measured with its own."""
        folder = ROOT / "manifests" / "crds"
        files = PEERS[self.peer].crd_files() if self.peer else sorted(folder.glob("*.yaml"))
        return [path for path in files if path.match(f"{self.crd}.yaml") and path.stem != "kustomization"]


TUNED = ("--kube-api-qps=10000", "--kube-api-burst=20000", "--controller-threads=8")
QUIET = ("--zap-devel=false",)  # as in the deployment: log level info, JSON
GANG = ("--gang-scheduler-name=volcano",)
ONLY_MPI = ("--enable-scheme=MPIJob",)
MPI_TUNED = (
    "--kube-api-qps=10000",
    "--kube-api-burst=20000",
    "--threadiness=8",
    "--controller-queue-rate-limit=10000",
    "--controller-queue-burst=20000",
)
MPI_CRD = "*mpijob*"

OPERATORS = {
    "trainop": Operator(kind=PYTORCH, flags=QUIET),
    "trainop-leader": Operator(kind=PYTORCH, flags=(*QUIET, "--service-mode=leader")),
    "trainop-job": Operator(kind=PYTORCH, flags=(*QUIET, "--service-mode=job")),
    "training-operator-tuned": Operator(kind=PYTORCH, flags=TUNED, peer="training-operator"),
    "training-operator-default": Operator(
        kind=PYTORCH,
        flags=(),
        peer="training-operator",
        sizes={"s1": {"jobs": 20}, "s2": {"workers": 200}, "s4": {"jobs": 10, "failures": 1}},
        pause=2.0,
    ),
    "trainop-gang": Operator(kind=PYTORCH, flags=(*QUIET, *GANG), gang=True),
    "training-operator-gang": Operator(kind=PYTORCH, flags=(*TUNED, *GANG), peer="training-operator", gang=True),
    "trainop-webhook": Operator(kind=PYTORCH, flags=QUIET, webhooks=True),
    "training-operator-webhook": Operator(kind=PYTORCH, flags=TUNED, peer="training-operator", webhooks=True),
    "trainop-ssh": Operator(
        kind=MPI_SSH,
        flags=("--threadiness=8",),
        module=("trainop", "mpi-operator"),
        addresses=mpi_operator_flags,
        crd=MPI_CRD,
    ),
    "mpi-operator-tuned": Operator(
        kind=MPI_SSH, flags=MPI_TUNED, peer=MPI_OPERATOR, addresses=mpi_operator_flags, crd=MPI_CRD
    ),
    "trainop-exec": Operator(kind=MPI_EXEC, flags=(*QUIET, *ONLY_MPI), crd=MPI_CRD),
    "training-operator-exec": Operator(kind=MPI_EXEC, flags=(*TUNED, *ONLY_MPI), peer="training-operator", crd=MPI_CRD),
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
