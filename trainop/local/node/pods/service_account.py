"""What a pod needs to call the API server as its service account: token, certificate and namespace, as files.

Clients look for them at a fixed path, and for the address of the API server in two variables (client-go
`rest/config.go`, InClusterConfig).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainop.local.node.pods.tokens import PodTokens
from trainop.local.node.pods.volumes import File, TokenSource, token_mode, write_files
from trainop.runtime import Json, NotFoundError

MOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
SERVICE_ADDRESS, SERVICE_PORT = "10.96.0.1", 443
"""Where pods reach the API server, as in clusters with the usual network of Services."""
EXPOSED_ADDRESS = "10.96.0.2"
"""Where pods reach the one other server of this machine that is exposed to them, at the same port."""
SERVICE_NAME = "kubernetes.default.svc.cluster.local"
VARIABLES = {"KUBERNETES_SERVICE_HOST": SERVICE_ADDRESS, "KUBERNETES_SERVICE_PORT": str(SERVICE_PORT)}

_TOKEN = TokenSource("", 3607)
"""As in the volume that kube-apiserver adds to pods; the API server extends tokens of exactly this lifetime."""


@dataclass(frozen=True, slots=True)
class ApiEndpoint:
    """Where the API server listens on this machine, and the PEM of the CA certificate that proves it."""

    host: str
    port: int
    authority: bytes


class ServiceAccounts:
    """Writes the files of pods."""

    def __init__(self, endpoint: ApiEndpoint | None) -> None:
        """`endpoint` None: pods cannot reach the API server."""
        self._endpoint = endpoint

    async def write(self, pod: Json, tokens: PodTokens, directory: Path) -> bool:
        """Whether the pod has access to the API; `directory` then has the files for `MOUNT_PATH`.

        It has if it names a service account, and this exists. Raises `ApiError` as the client does, and `OSError`.
        """
        spec, namespace = pod["spec"], str(pod["metadata"].get("namespace", ""))
        named = spec.get("serviceAccountName")
        if self._endpoint is None or not named or spec.get("automountServiceAccountToken") is False:
            return False
        try:
            token = await tokens.get(pod, _TOKEN)
        except NotFoundError:
            return False
        write_files(
            directory,
            {
                "token": File(token.encode(), token_mode(spec, 0o644)),
                "ca.crt": File(self._endpoint.authority, 0o644),
                "namespace": File(namespace.encode(), 0o644),
            },
        )
        return True
