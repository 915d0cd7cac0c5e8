"""The first process in the node's namespaces: it starts the cluster, then waits for SIGTERM and reaps orphans."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from e2e.cluster.components import ClusterOptions
from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import Daemons, wait_until
from e2e.cluster.node import configs
from e2e.cluster.node.cgroups import create_cgroups
from e2e.cluster.places import ClusterError, binary
from e2e.image.archive import ImageConfig, make_layer, write_archive

SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""Settings of the whole machine that a kubelet would change. It sees files with the wanted values instead."""
PRIVATE = ("/var/lib/kubelet", "/var/lib/cni", "/var/log/pods", "/var/log/containers")
DAEMONS = ("containerd", "coredns", "kube-proxy", "kubelet")


class Inside:
    """Builds the cluster of one node; `data` is on disk, `control` is the directory of the control plane."""

    def __init__(self, data: Path, control: Path, cgroup: str, images: list[Path]) -> None:
        self.data = data
        self.cgroup = cgroup
        self.images = images
        self.plane = ControlPlane(control)
        self.daemons = Daemons(data)

    def run(self) -> None:
        """Returns after SIGTERM. The kernel then ends all processes of the namespaces, pods included."""
        self._make_network()
        self._make_mounts()
        create_cgroups(self.cgroup)
        os.environ["PATH"] = f"{binary('runc').parent}:{os.environ['PATH']}"
        self._start_containerd()
        extras = ("controller-manager", "scheduler")
        self.plane.up(ClusterOptions(extras=extras, service_cidr=configs.SERVICES, node=configs.IDENTITY))
        self._import_images()
        self._start_node()
        self._wait_ready()
        signals = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        (self.data / "ready").touch()
        while signal.sigwait(signals) == signal.SIGCHLD:
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass

    def _make_network(self) -> None:
        """A bridge has the node's address, because not every kernel has `dummy` devices.

        The default route leads nowhere; without one, cluster IPs are unreachable before kube-proxy's rules are applied.
        """
        address = f"addr add {configs.IDENTITY.address}/24 dev node0"
        steps = ("link set lo up", "link add node0 type bridge", address, "link set node0 up")
        for step in (*steps, "route add default dev node0"):
            call("ip", *step.split())
        for name in ("ipv4/ip_forward", "bridge/bridge-nf-call-iptables"):
            path = Path("/proc/sys/net", name)
            if path.exists():
                path.write_text("1")

    def _make_mounts(self) -> None:
        call("mount", "--make-rshared", "/")
        call("mount", "-t", "tmpfs", "tmpfs", "/run")
        for target in PRIVATE:
            source = self.data / target.strip("/").replace("/", "-")
            source.mkdir()
            Path(target).mkdir(parents=True, exist_ok=True)
            call("mount", "--bind", source, target)
        for name, value in SYSCTLS.items():
            if Path("/proc/sys", name).exists():
                file = self._write(f"sysctl-{name.replace('/', '.')}", f"{value}\n")
                call("mount", "--bind", file, f"/proc/sys/{name}")

    def _start_containerd(self) -> None:
        (self.data / "cni").mkdir()
        (self.data / "cni" / "10-pods.conflist").write_text(configs.network())
        config = self._write("containerd.toml", configs.containerd(self.data))
        self.daemons.start("containerd", [str(binary("containerd")), f"--config={config}"])
        if not wait_until(lambda: Path(configs.SOCKET).exists(), 60):
            raise ClusterError(f"containerd did not start:\n{self.daemons.tail('containerd')}")

    def _import_images(self) -> None:
        for archive in (make_pause_image(self.data / "pause.tar"), *self.images):
            call(binary("ctr"), f"--address={configs.SOCKET}", "--namespace=k8s.io", "images", "import", archive)

    def _start_node(self) -> None:
        control = self.plane.data
        corefile = self._write("Corefile", configs.coredns(control / "coredns.kubeconfig"))
        self.daemons.start("coredns", [str(binary("coredns")), "-conf", str(corefile)])
        proxy = self._write("kube-proxy.json", configs.kube_proxy(control / "kube-proxy.kubeconfig"))
        self.daemons.start("kube-proxy", [str(binary("kube-proxy")), f"--config={proxy}"])
        self._write("resolv.conf", "")
        config = self._write("kubelet.json", configs.kubelet(self.data, control / "pki", self.cgroup))
        self.daemons.start(
            "kubelet",
            [
                str(binary("kubelet")),
                f"--config={config}",
                f"--kubeconfig={control / 'kubelet.kubeconfig'}",
                f"--hostname-override={configs.IDENTITY.name}",
                f"--node-ip={configs.IDENTITY.address}",
            ],
        )

    def _wait_ready(self) -> None:
        api = self.plane.api

        def ended() -> list[str]:
            return [name for name in DAEMONS if not self.daemons.running(name)]

        def ready() -> bool:
            answer = api("GET", f"/api/v1/nodes/{configs.IDENTITY.name}")
            conditions = answer.body["status"].get("conditions", ()) if answer.status == 200 else ()
            return bool(ended()) or any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

        if not wait_until(ready, 180, every=0.1) or ended():
            failed = next(iter([*ended(), "kubelet"]))
            raise ClusterError(f"{failed} did not get ready:\n{self.daemons.tail(failed)}")

    def _write(self, name: str, text: str) -> Path:
        path = self.data / name
        path.write_text(text)
        return path


def make_pause_image(archive: Path) -> Path:
    """Writes the image of pod sandboxes, which contains one static program."""
    with tempfile.TemporaryDirectory() as tree:
        shutil.copy(binary("pause"), Path(tree, "pause"))
        layer = make_layer("pause", Path(tree), 0)
    config = ImageConfig(configs.PAUSE, "amd64", 0, "/pause", (), {})
    write_archive(archive, config, [layer], 0)
    return archive


def call(*command: str | Path) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}".strip())


def main() -> None:
    data, control, cgroup, *images = sys.argv[1:]
    try:
        Inside(Path(data), Path(control), cgroup, [Path(image) for image in images]).run()
    except ClusterError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
