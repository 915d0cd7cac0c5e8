"""The operators of MPIJobs and training-operator as processes. training-operator is started as the kubelet would start
its pod: with a webhook certificate and a namespace, in a mount namespace of its own."""

from __future__ import annotations

import base64
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import free_ports, wait_until
from e2e.cluster.places import ClusterError, binary
from e2e.peers import CERTIFICATE_FILES, CERTIFICATES, MPI_OPERATOR, PEERS, issue_webhook_certificate
from tests.patience import PATIENCE
from tests.server.process import Operator

NAMESPACE = "kubeflow"
SECRET = "training-operator-webhook-cert"
UNSHARE = ["unshare", "--user", "--map-root-user", "--mount"]
AS_IN_A_POD = f"""
mkdir -p {CERTIFICATES} && mount --bind "$1" {CERTIFICATES} &&
mount -t tmpfs none /var/run && mkdir -p /var/run/secrets/kubernetes.io/serviceaccount &&
printf %s {NAMESPACE} > /var/run/secrets/kubernetes.io/serviceaccount/namespace && shift && exec "$@"
"""
FLAGS = {
    "training-operator": ("--kube-api-qps=1000", "--kube-api-burst=2000", "--webhook-server-port={port}"),
    "training-operator-1.7": ("--monitoring-port={port}",),
}


class GoOperator(Operator):
    """A release of training-operator."""

    def __init__(self, log: Path, peer: str, kubeconfig: Path, certificates: Path, *flags: str) -> None:
        super().__init__(log)
        addresses = [flag for flag in self.command if "bind-address" in flag]
        own = [flag.format(port=self.webhook_port) for flag in FLAGS[peer]]
        program = [str(binary(peer)), f"--kubeconfig={kubeconfig}", "--controller-threads=4"]
        inside = [*UNSHARE, "sh", "-c", AS_IN_A_POD, "sh", str(certificates)]
        self.command = [*inside, *program, *addresses, *own, *flags]
        self.environment["MY_POD_NAMESPACE"] = NAMESPACE


HEALTH = "http://127.0.0.1:8080"
"""The health endpoint of mpi-operator and of `trainop mpi-operator`; the port is not configurable."""


class GoMpiOperator(Operator):
    """A release of mpi-operator. It serves no metrics, and does not release its lease when it ends."""

    def __init__(self, log: Path, kubeconfig: Path, *flags: str) -> None:
        super().__init__(log)
        self.probe_url = HEALTH
        limits = (
            "--kube-api-qps=1000",
            "--kube-api-burst=2000",
            "--threadiness=4",
            "--controller-queue-rate-limit=1000",
        )
        self.command = [str(binary(MPI_OPERATOR)), f"--kubeConfig={kubeconfig}", *limits, *flags]

    def start(self, *, wait: bool = True) -> None:
        """Start the process; with `wait`, return once it leads."""
        led = self.text().count("Leading started") if self.log.exists() else 0
        super().start(wait=False)
        if wait:
            leads = wait_until(lambda: not self.running or self.text().count("Leading started") > led, PATIENCE)
            assert leads, self.text()
            assert self.running, self.text()


class MpiOperator(Operator):
    """`trainop mpi-operator`."""

    def __init__(self, log: Path, kubeconfig: Path, *flags: str) -> None:
        super().__init__(log)
        (metrics,) = free_ports(1)
        self.metrics_url = f"http://127.0.0.1:{metrics}/metrics"
        self.probe_url = HEALTH
        own = (f"--kubeConfig={kubeconfig}", f"--monitoring-port={metrics}")
        self.command = [sys.executable, "-m", "trainop", "mpi-operator", *own, *flags]


def need_mounts() -> None:
    """Skips a test where mount namespaces are not possible."""
    tried = shutil.which("unshare") and subprocess.run([*UNSHARE, "true"], capture_output=True, check=False)
    if not tried or tried.returncode:
        pytest.skip("needs `unshare` (util-linux) and the right to make user namespaces")


def need_peer(name: str) -> None:
    """Skips a test whose operator is not built."""
    peer = PEERS[name]
    try:
        binary(name)
    except ClusterError as error:
        pytest.skip(f"{error}; `make test-takeover` builds it")
    if not peer.manifest_folder.exists():
        pytest.skip(f"the manifests of {name} are missing; `make test-takeover` copies them")


def install_certificates(plane: ControlPlane, folder: Path) -> Path:
    """Creates the namespace, the Secret and the mounted folder that training-operator requires; returns the folder."""
    issue_webhook_certificate(folder)
    data = {name: base64.b64encode((folder / name).read_bytes()).decode() for name in CERTIFICATE_FILES}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}, "data": data}
    assert plane.api("POST", "/api/v1/namespaces", namespace).status in {201, 409}
    assert plane.api("POST", f"/api/v1/namespaces/{NAMESPACE}/secrets", secret).status in {201, 409}
    return folder
