"""What a pod needs to call the API server as its service account: token, certificate and namespace, as files.

Clients look for them at a fixed path, and for the address of the API server in two variables (client-go
`rest/config.go`, InClusterConfig).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from trainop.local.node.pods.volumes import File, write_files
from trainop.runtime.client.client import Client
from trainop.runtime.client.transport import Request
from trainop.runtime.errors import NotFoundError
from trainop.runtime.objects.metadata import Json, Key
from trainop.runtime.objects.resource import SERVICE_ACCOUNTS

MOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
SERVICE_ADDRESS, SERVICE_PORT = "10.96.0.1", 443
"""Where pods reach the API server, as in clusters with the usual network of Services."""
SERVICE_NAME = "kubernetes.default.svc.cluster.local"
VARIABLES = {"KUBERNETES_SERVICE_HOST": SERVICE_ADDRESS, "KUBERNETES_SERVICE_PORT": str(SERVICE_PORT)}

_VALIDITY = 365 * 24 * 3600  # seconds; all tokens end with the cluster


@dataclass(frozen=True, slots=True)
class ApiEndpoint:
    """Where the API server listens on this machine, and the PEM of the CA certificate that proves it."""

    host: str
    port: int
    authority: bytes


class ServiceAccounts:
    """Writes the files of pods. Each service account has one token, which its pods share."""

    def __init__(self, client: Client, endpoint: ApiEndpoint | None) -> None:
        """`endpoint` None: pods cannot reach the API server."""
        self._client = client
        self._endpoint = endpoint
        self._tokens: dict[Key, str] = {}

    async def write(self, pod: Json, directory: Path) -> bool:
        """Whether the pod has access to the API; `directory` then has the files for `MOUNT_PATH`.

        It has if it names a service account, and this exists. Raises `ApiError` as the client does, and `OSError`.
        """
        spec, namespace = pod["spec"], str(pod["metadata"].get("namespace", ""))
        name = spec.get("serviceAccountName") or ""
        if self._endpoint is None or not name or spec.get("automountServiceAccountToken") is False:
            return False
        try:
            token = await self._token(Key(namespace, name))
        except NotFoundError:
            return False
        files = {"token": token.encode(), "ca.crt": self._endpoint.authority, "namespace": namespace.encode()}
        write_files(directory, {name: File(content, 0o644) for name, content in files.items()})
        return True

    async def _token(self, account: Key) -> str:
        if (known := self._tokens.get(account)) is not None:
            return known
        body = msgspec.json.encode({"spec": {"expirationSeconds": _VALIDITY}})
        path = SERVICE_ACCOUNTS.path(account.namespace, account.name, "token")
        answer = await self._client.request(Request("POST", path, body=body))
        token = str(msgspec.json.decode(answer.body)["status"]["token"])
        self._tokens[account] = token
        return token
