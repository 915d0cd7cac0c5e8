"""How soon the name of a pod resolves, with the Service of its job before the pod, or after it.

python -m e2e.bench.names COREDNS [--times 6] [--late 2]      about two minutes

COREDNS is the program with its plugin cache, which that of the real node lacks:
GOBIN=FOLDER go install github.com/coredns/coredns@v1.12.4

It reads a real kube-apiserver, and keeps answers as in most clusters (`cache 30`); kube-controller-manager writes the
EndpointSlices. A pod runs, and a peer asks for its name 0.3 s later until there is an answer.
"""

from __future__ import annotations

import argparse
import random
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from e2e.bench.processes import exit_on_sigterm
from e2e.cluster.components import ClusterOptions
from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import DIE_WITH_PARENT, wait_until

NAMESPACE = "/api/v1/namespaces/default"
PEER = 0.3
"""Seconds after which the peer asks first: it has started as well, and imported its framework."""
PATIENCE = 60.0


def has_address(port: int, name: str) -> bool:
    """Whether a query of type A has an answer. False as well without any reply within 2 s."""
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    head = struct.pack(">HHHHHH", random.getrandbits(16), 0x100, 1, 0, 0, 0)  # recursion desired, one question
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.settimeout(2)
        peer.sendto(head + labels + b"\0" + struct.pack(">HH", 1, 1), ("127.0.0.1", port))
        try:
            return int.from_bytes(peer.recv(2048)[6:8], "big") > 0
        except OSError:
            return False


class Names:
    """A control plane with CoreDNS; jobs are a pod and a headless Service each."""

    def __init__(self, plane: ControlPlane, port: int) -> None:
        self._plane, self._port, self._number = plane, port, 0

    def create(self, kind: str, body: dict[str, object]) -> None:
        answer = self._plane.api("POST", f"{NAMESPACE}/{kind}", body)
        assert answer.status == 201, answer

    def service(self, name: str) -> None:
        spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"job": name}}
        self.create("services", {"metadata": {"name": name}, "spec": {**spec, "ports": [{"port": 29500}]}})

    def pod(self, name: str) -> None:
        """A pod that is about to run on a node that exists, so that nobody removes it."""
        spec = {"containers": [{"name": "c", "image": "i"}], "nodeName": "n", "hostname": "w0", "subdomain": name}
        more = {"automountServiceAccountToken": False}
        self.create("pods", {"metadata": {"name": name, "labels": {"job": name}}, "spec": {**spec, **more}})

    def run(self, name: str) -> None:
        address = f"10.1.{self._number // 250}.{self._number % 250 + 1}"
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
        status |= {"conditions": [{"type": "Ready", "status": "True"}]}
        path = f"{NAMESPACE}/pods/{name}/status"
        answer = self._plane.api("PATCH", path, {"status": status}, "application/merge-patch+json")
        assert answer.status == 200, answer

    def measure(self, late: float | None) -> float:
        """Seconds from the start of a pod to the first answer. `late`: the Service comes so long after the pod; None:
        before it."""
        self._number += 1
        name = f"job-{self._number}"
        if late is None:
            self.service(name)
        self.pod(name)
        time.sleep(0.5)  # it starts
        self.run(name)
        began = time.monotonic()
        if late is not None:
            threading.Timer(late, self.service, (name,)).start()
        time.sleep(PEER)
        asked = f"w0.{name}.default.svc.cluster.local"
        assert wait_until(lambda: has_address(self._port, asked), PATIENCE, every=0.02), asked
        return time.monotonic() - began


def compare(coredns: Path, folder: Path, times: int, late: float) -> None:
    plane = ControlPlane(folder / "plane", die_with_parent=True)
    plane.up(ClusterOptions(extras=("controller-manager",)))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    plugins = f"bind 127.0.0.1\n kubernetes cluster.local {{\n  kubeconfig {plane.kubeconfig}\n }}\n cache 30"
    corefile = folder / "Corefile"
    corefile.write_text(f"cluster.local:{port} {{\n {plugins}\n}}\n")
    server = subprocess.Popen(
        [str(coredns), "-conf", str(corefile)],
        stdout=subprocess.DEVNULL,
        preexec_fn=DIE_WITH_PARENT,  # noqa: PLW1509  # see there
    )
    try:
        assert plane.api("POST", "/api/v1/nodes", {"metadata": {"name": "n"}}).status == 201
        kubernetes = "kubernetes.default.svc.cluster.local"
        assert wait_until(lambda: has_address(port, kubernetes), PATIENCE, every=0.2), kubernetes
        names = Names(plane, port)
        for what, delay in (("before the pod", None), ("0.1 s after it", 0.1), (f"{late:g} s after it", late)):
            taken = [names.measure(delay) for _ in range(times)]
            print(f"Service {what}: first answer {statistics.median(taken):.1f} s after the pod's start", flush=True)
    finally:
        server.terminate()
        server.wait()
        plane.down()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("coredns", type=Path)
    parser.add_argument("--times", type=int, default=6)
    parser.add_argument("--late", type=float, default=2.0, help="seconds")
    given = parser.parse_args()
    exit_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="trainop-names-") as folder:
        compare(given.coredns, Path(folder), given.times, given.late)
    return 0


if __name__ == "__main__":
    sys.exit(main())
