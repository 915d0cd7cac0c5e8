"""The operator as its Deployment starts it: the command of the container, the service account's files and rights."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from e2e.cluster.api import Api
from e2e.cluster.controlplane import ControlPlane
from tests.needs import lack
from tests.server.process import Operator
from tests.server.world import Json

NAME = "training-operator"
# Mounts the service account files where in-cluster configuration reads them, in a private mount namespace.
AS_IN_A_POD = """
mount -t tmpfs none /var/run && mkdir -p /var/run/secrets/kubernetes.io/serviceaccount &&
cp "$1"/* /var/run/secrets/kubernetes.io/serviceaccount/ && shift && exec "$@"
"""
UNSHARE = ["unshare", "--user", "--map-root-user", "--mount"]


def flags_of(deployment: Json) -> list[str]:
    """The arguments of the Deployment, as the kubelet expands them, without the listen addresses, which the test
    chooses."""
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    given = [*container.get("command", [])[1:], *container.get("args", [])]
    namespace = deployment["metadata"]["namespace"]
    return [flag.replace("$(MY_POD_NAMESPACE)", namespace) for flag in given if "bind-address" not in flag]


def deployment_of(objects: Iterable[Json], name: str = NAME) -> Json:
    (found,) = (each for each in objects if (each["kind"], each["metadata"]["name"]) == ("Deployment", name))
    return found


def write_service_account(api: Api, namespace: str, folder: Path, authority: Path, account: str = NAME) -> None:
    """Write the service account files that a kubelet mounts into a pod."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    answer = api("POST", path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}})
    assert answer.status == 201, answer
    folder.mkdir(exist_ok=True)
    (folder / "token").write_text(answer.body["status"]["token"])
    (folder / "namespace").write_text(namespace)
    shutil.copy(authority, folder / "ca.crt")


class PodStandIn:
    """Runs the operator as a process in place of its pod. `folder` gets the files of the service account."""

    def __init__(
        self,
        control_plane: ControlPlane,
        folder: Path,
        make_operator: Callable[..., Operator],
        account: str = NAME,
        program: Sequence[str] = (),
    ) -> None:
        """Skips the test if the machine cannot make the mounts of a pod."""
        possible = shutil.which("unshare") and subprocess.run(
            [*UNSHARE, "mount", "-t", "tmpfs", "none", "/var/run"], capture_output=True, check=False
        )
        if not possible or possible.returncode:
            lack("needs `unshare` and the right to make user namespaces, to stand in for a pod's mounts")
        self._control_plane = control_plane
        self._folder = folder
        self._make_operator = make_operator
        self._account = account
        self._program: dict[str, Sequence[str]] = {"program": program} if program else {}

    def start(self, namespace: str, *flags: str, **variables: str) -> Operator:
        """Starts the operator with the rights of the service account in `namespace`, and more environment variables."""
        authority = self._control_plane.data / "pki" / "ca.crt"
        write_service_account(self._control_plane.api, namespace, self._folder, authority, self._account)
        inside = [*UNSHARE, "sh", "-c", AS_IN_A_POD, "sh", str(self._folder)]
        place = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self._control_plane.plan.port)}
        place |= variables
        operator = self._make_operator(None, *flags, inside=inside, environment=place, **self._program)
        operator.start()
        return operator
