"""di-operator and di-server as processes, also with the rights that the overlay di-system gives them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import free_ports, wait_until
from tests.patience import PATIENCE
from tests.server.pod import AS_IN_A_POD, UNSHARE, write_service_account
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

    def __init__(self, plane: ControlPlane, namespace: str, folder: Path) -> None:
        self._plane, self._namespace, self._folder = plane, namespace, folder
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
        text = (ROOT / "manifests" / "overlays" / "di-system" / "deployments.yaml").read_text(encoding="utf-8")
        (deployment,) = (each for each in yaml.safe_load_all(text) if each["metadata"]["name"] == program)
        given: list[str] = deployment["spec"]["template"]["spec"]["containers"][0].get("args", [])
        return [each.replace("$(MY_POD_NAMESPACE)", self._namespace) for each in given if "bind-address" not in each]


def overlay_roles(account: str, namespace: str) -> list[Json]:
    """The service account of the overlay di-system, its roles and their bindings, in `namespace`."""
    text = (ROOT / "manifests" / "overlays" / "di-system" / "rbac.yaml").read_text(encoding="utf-8")
    documents: list[Json] = list(yaml.safe_load_all(text))
    bound = [each for each in documents if any(one["name"] == account for one in each.get("subjects", ()))]
    wanted = {each["roleRef"]["name"] for each in bound} | {account}
    for each in bound:
        each["subjects"][0]["namespace"] = namespace  # as kustomize does
    return [*bound, *(each for each in documents if each["metadata"]["name"] in wanted and each not in bound)]
