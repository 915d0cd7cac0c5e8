"""A node seen from outside: it is started in new namespaces, and commands enter these."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from e2e.cluster import packages
from e2e.cluster.build import NODE
from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import Daemons, wait_until
from e2e.cluster.node import configs
from e2e.cluster.node.cgroups import remove_cgroups
from e2e.cluster.packages import advice, lacking
from e2e.cluster.places import ClusterError, binary, default_data
from e2e.cluster.releases import VARIABLE, find_release

ROOT = Path(__file__).parents[3]
SEALED = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


class Node:
    """A cluster with one real node. Several can run side by side. Needs root.

    Network, mounts and processes are in namespaces without a way out: the API server, services and pods are reached by
    commands that enter them (`inside`). Stopping one process ends everything in it. With `die_with_parent` the kernel
    does that when the process that started the node ends for any reason. `up` starts the `release` of Kubernetes
    (`find_release`).
    """

    def __init__(self, name: str, *, release: str = "", die_with_parent: bool = False) -> None:
        self.name = name
        self.release = find_release(release)
        self.data = Path("/var/tmp/trainop-node") / name  # images are too large for a tmpfs
        self.control = default_data(f"node-{name}")
        self.kubeconfig = self.control / "admin.kubeconfig"
        self.cgroup = f"trainop-node-{name}"
        self.daemons = Daemons(self.data, die_with_parent=die_with_parent)

    def up(self, images: Sequence[Path] = (), seconds: float = 300) -> None:
        """Starts the cluster with these image archives and waits until the node is ready.

        Raises `ClusterError` if something is missing or does not start.
        """
        check_requirements(self.release.name)
        if self.init():
            raise ClusterError(f"node {self.name} is already up")
        self.down()
        self.data.mkdir(parents=True)
        arguments = [str(self.data), str(self.control), self.cgroup, *(str(image.absolute()) for image in images)]
        program = [sys.executable, "-m", "e2e.cluster.node.inside", *arguments]
        variables = [f"PYTHONPATH={ROOT}", f"{VARIABLE}={self.release.name}"]
        self.daemons.start("node", [*SEALED, "env", *variables, *program])
        ready = self.data / "ready"
        wait_until(lambda: ready.exists() or not self.daemons.running("node"), seconds, every=0.1)
        if not ready.exists():
            message = self.daemons.tail("node")
            self._stop()
            raise ClusterError(f"the node did not get ready (logs: {self.data / 'log'}):\n{message}")

    def down(self) -> None:
        """Stops everything and removes its files; does nothing if it is down."""
        self._stop()
        for folder in (self.control, self.data):
            shutil.rmtree(folder, ignore_errors=True)

    def init(self) -> int | None:
        """The PID of the first process in the namespaces; None if the node is down."""
        pid = self.daemons.running("node")
        if pid is None:
            return None
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            return int(children[0]) if children else None
        return None

    def inside(self) -> list[str]:
        """The prefix of a command that enters the namespaces. `kubectl` and `ctr` are configured."""
        if (pid := self.init()) is None:
            raise ClusterError(f"node {self.name} is not up")
        variables = {
            "KUBECONFIG": str(self.kubeconfig),
            "PATH": ":".join((*ControlPlane(self.control).program_folders, os.environ["PATH"])),
            "CONTAINERD_ADDRESS": configs.SOCKET,
            "CONTAINERD_NAMESPACE": "k8s.io",
        }
        entered = ["nsenter", f"--target={pid}", "--net", "--mount", "--pid", f"--wdns={Path.cwd()}", "--"]
        return [*entered, "env", *(f"{name}={value}" for name, value in variables.items())]

    def run(self, *command: str, stdin: str | None = None) -> str:
        """The standard output of a command inside. Raises `ClusterError` with its error output if it fails."""
        done = subprocess.run(
            [*self.inside(), *command], input=stdin, capture_output=True, text=True, cwd=ROOT, check=False
        )
        if done.returncode:
            raise ClusterError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
        return done.stdout

    def _stop(self) -> None:
        if (pid := self.init()) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            wait_until(lambda: self.daemons.running("node") is None, 10)
        self.daemons.stop("node", patience=1)
        remove_cgroups(self.cgroup)


def check_requirements(release: str = "") -> None:
    """Raises `ClusterError` with what is missing."""
    if os.geteuid() != 0:
        raise ClusterError("a real node needs root")
    for name in NODE:
        binary(name, release)
    if missing := lacking(packages.NODE):
        raise ClusterError(advice(missing))
