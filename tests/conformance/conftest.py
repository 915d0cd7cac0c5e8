"""The two API servers under test: the embedded one always, the real one if its binaries are built."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from e2e.cluster.controlplane import ControlPlane
from tests.conformance.client import Backend, Call, Until
from tests.conformance.objects import CRD, CRDS, GROUP
from tests.patience import PATIENCE
from trainop.local.api.serving.server import ApiServer


class EmbeddedBackend:
    """The embedded API server in a thread with its own event loop, reached over a socket like the real one."""

    url = ""
    headers: Mapping[str, str] = {"Authorization": "Bearer secret"}
    context: ssl.SSLContext | None = None

    def __init__(self) -> None:
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)
        self._thread.start()
        assert self._started.wait(PATIENCE)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._server = ApiServer()
        try:
            self.url = await self._server.serve(token="secret")
            self.context = ssl.create_default_context(cadata=self._server.authority.decode())
            async with asyncio.TaskGroup() as tasks:
                background = tasks.create_task(self._server.run())
                self._started.set()
                await self._over.wait()
                background.cancel()
        finally:
            self._started.set()
            await self._server.close()

    def _call(self, action: Callable[[], Any]) -> None:
        async def act() -> None:
            action()

        asyncio.run_coroutine_threadsafe(act(), self._loop).result(PATIENCE)

    def kubeconfig(self, folder: Path) -> Path:
        path = folder / "kubeconfig"
        path.write_text(json.dumps(self._server.kubeconfig("secret")))
        return path

    def sign(self, claims: Mapping[str, Any]) -> str:
        return self._server._backend.signer.sign(claims)

    def compact(self) -> None:
        self._call(self._server.compact)

    def close(self) -> None:
        self._call(self._over.set)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


class RealBackend:
    """kube-apiserver; its history is compacted through etcd's HTTP gateway."""

    headers: Mapping[str, str] = {}

    def __init__(self, plane: ControlPlane) -> None:
        self.url = plane.plan.url
        self.context: ssl.SSLContext | None = plane.api.context
        flag = next(f for f in plane.plan.commands["etcd"] if f.startswith("--listen-client-urls="))
        self._etcd = flag.removeprefix("--listen-client-urls=http://")
        self._kubeconfig = plane.kubeconfig
        self._key = plane.data / "pki" / "service-accounts.key"

    def sign(self, claims: Mapping[str, Any]) -> str:
        key = serialization.load_pem_private_key(self._key.read_bytes(), None)
        assert isinstance(key, rsa.RSAPrivateKey)
        signed = ".".join(_base64(json.dumps(part).encode()) for part in ({"alg": "RS256"}, claims))
        return f"{signed}.{_base64(key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"

    def kubeconfig(self, folder: Path) -> Path:
        """Of the administrator; it lies elsewhere."""
        return self._kubeconfig

    def compact(self) -> None:
        connection = http.client.HTTPConnection(self._etcd, timeout=PATIENCE)
        connection.request("POST", "/v3/kv/range", json.dumps({"key": "AA=="}))
        revision = json.loads(connection.getresponse().read())["header"]["revision"]
        connection.request("POST", "/v3/kv/compaction", json.dumps({"revision": revision, "physical": True}))
        assert connection.getresponse().read()
        connection.close()


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def install(backend: Backend, crds: list[dict[str, Any]]) -> None:
    """Create the CRDs of the table and wait until they are served."""
    for crd in crds:
        Call("POST", CRDS, crd, 201).take(backend, {})
    # In an empty namespace: other tests leave jobs on the real API server that are nested too deep to be decoded here.
    for path in (f"/apis/{GROUP}/v1/namespaces/empty/widgets", "/apis/kubeflow.org/v1/namespaces/empty/pytorchjobs"):
        Until(Call("GET", path)).take(backend, {})


@pytest.fixture(scope="session")
def embedded(crds: list[dict[str, Any]]) -> Iterator[Backend]:
    backend = EmbeddedBackend()
    try:
        install(backend, [CRD, *crds])
        yield backend
    finally:
        backend.close()


@pytest.fixture(scope="session")
def real(control_plane: ControlPlane) -> Backend:
    backend = RealBackend(control_plane)
    install(backend, [CRD])
    return backend


@pytest.fixture(scope="session")
def real_with_controllers(control_plane_with_controllers: ControlPlane) -> Backend:
    backend = RealBackend(control_plane_with_controllers)
    install(backend, [CRD])
    return backend
