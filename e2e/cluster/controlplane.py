"""A Kubernetes control plane on loopback: etcd and kube-apiserver, more when asked for; ready in about 4 s.

TLS, RBAC, service-account tokens and the default admission plugins are on. Without a controller-manager nothing is
garbage-collected, no EndpointSlices are made, and namespaces never finish deleting.
"""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

from e2e.cluster.api import Api
from e2e.cluster.components import Plan, Wishes, make_plan
from e2e.cluster.daemons import Daemons, wait_until
from e2e.cluster.places import ClusterError, binary
from e2e.cluster.simulated import bind_at_creation, make_nodes

SIGNALS = {"freeze": signal.SIGSTOP, "thaw": signal.SIGCONT}
PATIENCE = 2.0
"""Seconds from SIGTERM to SIGKILL: kube-apiserver would wait up to a minute for open watches."""


class ControlPlane:
    """One control plane, whose files lie in `data`; several run side by side.

    With `tied` it dies with the process that started it; else it stays until `down`, which any process may call.
    """

    def __init__(self, data: Path, *, tied: bool = False) -> None:
        self.data = data
        self.daemons = Daemons(data, tied=tied)

    @property
    def kubeconfig(self) -> Path:
        """Of an administrator."""
        return self.data / "admin.kubeconfig"

    @property
    def plan(self) -> Plan:
        """As it was started; raises ClusterError if it was not."""
        try:
            return Plan(**json.loads((self.data / "state.json").read_text()))
        except FileNotFoundError:
            raise ClusterError(f"no control plane at {self.data}") from None

    @property
    def api(self) -> Api:
        """A client with an administrator's rights."""
        pki = self.data / "pki"
        return Api("127.0.0.1", self.plan.port, pki / "ca.crt", pki / "admin.crt", pki / "admin.key")

    def up(self, wishes: Wishes | None = None) -> None:
        """Start everything and wait until it is ready; raises ClusterError with the end of the guilty log."""
        wishes = wishes or Wishes()
        for name in wishes.programs():
            binary(name)
        if self.daemons.running("kube-apiserver"):
            raise ClusterError(f"already up at {self.data}")
        for attempt in (1, 2, 3):  # a free port may be taken by another process before its owner binds it
            self.down()
            self._prepare(wishes)
            try:
                self.start("etcd", "kube-apiserver")
                break
            except ClusterError as error:
                if attempt == 3 or "address already in use" not in str(error):
                    raise
        self.start(*(name for name in self.plan.commands if name not in ("etcd", "kube-apiserver")))
        if "kwok" in wishes.extras:
            make_nodes(self.api, wishes.nodes)
        if "binder" in wishes.extras:
            bind_at_creation(self.api)

    def down(self) -> None:
        """End every process and remove the data; nothing happens if it is down."""
        if (self.data / "state.json").exists():
            for name in reversed(self.plan.commands):
                self.stop(name)
        shutil.rmtree(self.data, ignore_errors=True)

    def start(self, *names: str) -> None:
        """Start these programs, on the same ports and data as before, and wait until the whole is ready again."""
        commands = self.plan.commands
        for name in names:
            if not self.daemons.running(name):
                self.daemons.start(name, commands[name])
        self._wait_ready(names)

    def stop(self, name: str, patience: float = PATIENCE) -> None:
        """End one program: SIGTERM, after `patience` seconds SIGKILL; at once SIGKILL if that is 0."""
        self.daemons.stop(name, patience)

    def signal(self, name: str, number: signal.Signals) -> None:
        if not self.daemons.signal(name, number):
            raise ClusterError(f"{name} does not run")

    def _prepare(self, wishes: Wishes) -> None:
        self.data.mkdir(parents=True, mode=0o700)
        plan = make_plan(self.data, wishes)
        state = {"port": plan.port, "commands": plan.commands}
        (self.data / "state.json").write_text(json.dumps(state, indent=1))

    def _wait_ready(self, names: tuple[str, ...], seconds: float = 180) -> None:
        api = self.api
        watched = [name for name in self.plan.commands if name in ("etcd", "kube-apiserver", *names)]

        def ended() -> list[str]:
            return [name for name in watched if not self.daemons.running(name)]

        def ready() -> bool:
            # /readyz is green before the namespace `default` exists, and its service account is made later still
            paths = ["/readyz", "/api/v1/namespaces/default"]
            if "kube-controller-manager" in names:
                paths.append("/api/v1/namespaces/default/serviceaccounts/default")
            return bool(ended()) or all(api("GET", path).status == 200 for path in paths)

        if not wait_until(ready, seconds, every=0.1) or ended():
            guilty = next(iter([*ended(), *names, "kube-apiserver"]))
            raise ClusterError(f"{guilty} did not get ready:\n{self.daemons.tail(guilty)}")
