"""training-operator as a process, started as the kubelet would start its pod: with a webhook certificate and a
namespace, in a mount namespace of its own."""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path

import pytest

from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.places import ClusterError, binary
from e2e.peers import CERTIFICATE_FILES, CERTIFICATES, PEERS, issue_webhook_certificate
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
