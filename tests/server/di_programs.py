"""di-operator and di-server as processes, also with the rights that the overlay di-system gives them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import free_ports, wait_until
from tests.patience import PATIENCE
from tests.server.pod import AS_IN_A_POD, UNSHARE, deployment_of, flags_of, write_service_account
from tests.server.process import ROOT, Operator, fetch
from tests.server.world import Json

PYTHON = (sys.executable, "-m", "trainop")


class DiServer:
    """A process of di-server, ready when this returns."""

    def __init__(self, log: Path, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        (self.port,) = free_ports(1)
        self.log = log
        bound = f"--server-bind-address=127.0.0.1:{self.port}"
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, bound], stdout=output, stderr=output, cwd=ROOT, env={**os.environ, **(environment or {})}
            )
        assert wait_until(self._is_ready, PATIENCE), log.read_text()

    def _is_ready(self) -> bool:
        return any(fetch(f"http://127.0.0.1:{self.port}{path}")[0] == 200 for path in ("/readyz", "/healthz"))

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE)


class DiOperator(Operator):
    """A process of di-operator, not started, which serves no webhooks."""

    def __init__(
        self, log: Path, *flags: str, command: Sequence[str] = (), environment: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(log, environment=environment)
        addresses = [flag for flag in self.command if "bind-address" in flag]
        self.command = [*(command or (*PYTHON, "di-operator")), *addresses, *flags]


class Pods:
    """Stands in for the pods of one installation in `namespace`."""

    def __init__(self, plane: ControlPlane, namespace: str, folder: Path, objects: Sequence[Json]) -> None:
        """`objects` are those of the installation."""
        self._plane, self._namespace, self._folder, self._objects = plane, namespace, folder, objects
        self.environment = {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(plane.plan.port),
            "MY_POD_NAMESPACE": namespace,
        }

    def inside(self, account: str) -> list[str]:
        """The prefix of a command that runs it with the files of the service account."""
        folder = self._folder / account
        authority = self._plane.data / "pki" / "ca.crt"
        write_service_account(self._plane.api, self._namespace, folder, authority, account)
        return [*UNSHARE, "sh", "-c", AS_IN_A_POD, "sh", str(folder)]

    def arguments(self, program: str) -> list[str]:
        """The arguments of the Deployment, but the addresses that it listens on."""
        return flags_of(deployment_of(self._objects, program))
