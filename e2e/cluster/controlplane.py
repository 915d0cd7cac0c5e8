"""A Kubernetes control plane on loopback: etcd, kube-apiserver and optional components; ready in about 4 s.

TLS, RBAC, service-account tokens and the default admission plugins are enabled. Without a controller-manager there is
no garbage collection, no EndpointSlices are created, and namespaces never finish terminating.
"""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

from e2e.cluster.api import Api
from e2e.cluster.components import ClusterOptions, Plan, make_plan
from e2e.cluster.daemons import Daemons, free_ports, wait_until
from e2e.cluster.places import ClusterError, binary
from e2e.cluster.simulated import bind_at_creation, make_nodes

SIGNALS = {"freeze": signal.SIGSTOP, "thaw": signal.SIGCONT}
SECOND = "kube-apiserver-2"
PORT = "--secure-port="
PATIENCE = 2.0
"""Seconds from SIGTERM to SIGKILL. On SIGTERM kube-apiserver waits up to a minute for open watches."""


class ControlPlane:
    """One control plane with its files in `data`; several can run side by side.

    With `die_with_parent` it is killed when the process that started it exits. Otherwise it runs until `down`, which
    any process can call.
    """

    def __init__(self, data: Path, *, die_with_parent: bool = False) -> None:
        self.data = data
        self.daemons = Daemons(data, die_with_parent=die_with_parent)

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig of an administrator."""
        return self.data / "admin.kubeconfig"

    @property
    def plan(self) -> Plan:
        """The plan it was started with. Raises `ClusterError` if it was not started."""
        try:
            return Plan(**json.loads((self.data / "state.json").read_text()))
        except FileNotFoundError:
            raise ClusterError(f"no control plane at {self.data}") from None

    @property
    def program_folders(self) -> list[str]:
        """The folders of the programs it was started with, as for PATH: kubectl of the same release is in one."""
        return [*dict.fromkeys(str(Path(program).parent) for program, *_ in self.plan.commands.values())]

    @property
    def api(self) -> Api:
        """A client with an administrator's rights."""
        return self.client(self.plan.port)

    def client(self, port: int) -> Api:
        """The same of an API server, or of what passes connections on to one, at another port."""
        pki = self.data / "pki"
        return Api("127.0.0.1", port, pki / "ca.crt", pki / "admin.crt", pki / "admin.key")

    def up(self, options: ClusterOptions | None = None) -> None:
        """Starts all programs and waits until they are ready.

        Raises `ClusterError` with the end of the failed program's log.
        """
        options = options or ClusterOptions()
        for name in options.programs():
            binary(name, options.release)
        if self.daemons.running("kube-apiserver"):
            raise ClusterError(f"already up at {self.data}")
        for attempt in (1, 2, 3):  # another process may bind a chosen port first
            self.down()
            self._prepare(options)
            try:
                self.start("etcd", "kube-apiserver")
                break
            except ClusterError as error:
                if attempt == 3 or "address already in use" not in str(error):
                    raise
        self.start(*(name for name in self.plan.commands if name not in ("etcd", "kube-apiserver")))
        if "kwok" in options.extras:
            make_nodes(self.api, options.nodes)
        if "binder" in options.extras:
            bind_at_creation(self.api)

    def down(self) -> None:
        """Stops all processes and removes the data; does nothing if it is down."""
        if (self.data / "state.json").exists():
            for name in reversed(self.plan.commands):
                self.stop(name)
        shutil.rmtree(self.data, ignore_errors=True)

    def start(self, *names: str) -> None:
        """Starts these programs with unchanged ports and data, and waits until the control plane is ready."""
        commands = self.plan.commands
        for name in names:
            if not self.daemons.running(name):
                self.daemons.start(name, commands[name])
        self._wait_ready(names)

    def stop(self, name: str, patience: float = PATIENCE) -> None:
        """Stops one program: SIGTERM, and SIGKILL after `patience` seconds; only SIGKILL if `patience` is 0."""
        self.daemons.stop(name, patience)

    def change_release(self, name: str, release: str) -> None:
        """Stops one program of Kubernetes and starts that of another release: same flags, ports and data."""
        plan = self.plan
        plan.commands[name][0] = str(binary(Path(plan.commands[name][0]).name, release))
        self.stop(name)
        self._write(plan)
        self.start(name)

    def add_api_server(self, release: str) -> int:
        """Starts a second API server, of this release, on the same etcd; the name `SECOND` stands for it. Returns its
        port, which with the program is the only difference to the first."""
        plan, port = self.plan, *free_ports(1)
        flags = [f"{PORT}{port}" if flag.startswith(PORT) else flag for flag in plan.commands["kube-apiserver"][1:]]
        plan.commands[SECOND] = [str(binary("kube-apiserver", release)), *flags]
        self._write(plan)
        self.start(SECOND)
        return port

    def signal(self, name: str, number: signal.Signals) -> None:
        if not self.daemons.signal(name, number):
            raise ClusterError(f"{name} does not run")

    def _prepare(self, options: ClusterOptions) -> None:
        self.data.mkdir(parents=True, mode=0o700)
        self._write(make_plan(self.data, options))

    def _write(self, plan: Plan) -> None:
        state = {"port": plan.port, "commands": plan.commands}
        (self.data / "state.json").write_text(json.dumps(state, indent=1))

    def _wait_ready(self, names: tuple[str, ...], seconds: float = 180) -> None:
        asked = SECOND if names == (SECOND,) else "kube-apiserver"
        port = next(flag.removeprefix(PORT) for flag in self.plan.commands[asked] if flag.startswith(PORT))
        api = self.client(int(port))
        watched = [name for name in self.plan.commands if name in ("etcd", "kube-apiserver", *names)]

        def ended() -> list[str]:
            return [name for name in watched if not self.daemons.running(name)]

        def ready() -> bool:
            # /readyz succeeds before the namespace `default` and its service account exist
            paths = ["/readyz", "/api/v1/namespaces/default"]
            if "kube-controller-manager" in names:
                paths.append("/api/v1/namespaces/default/serviceaccounts/default")
            return bool(ended()) or all(api("GET", path).status == 200 for path in paths)

        if not wait_until(ready, seconds, every=0.1) or ended():
            failed = next(iter([*ended(), *names, "kube-apiserver"]))
            raise ClusterError(f"{failed} did not get ready:\n{self.daemons.tail(failed)}")
