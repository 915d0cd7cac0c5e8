"""The embedded API server without its most expensive parts, for measurements in which the operator is the bottleneck.

Writes to the given tables skip validation, defaulting and field management. Lists, watches, deletions and everything
else are handled by the embedded API server.
"""

from __future__ import annotations

import base64
import random
import secrets
from collections.abc import Collection

import msgspec

from trainop.local.api import status_errors
from trainop.local.api.fields.json_patch import merge_patch
from trainop.local.api.registry.backend import Backend
from trainop.local.api.registry.builtin_kinds import builtin_kinds
from trainop.local.api.registry.crds import CrdRegistrar
from trainop.local.api.registry.jwt import KEY_SIZE, Signer
from trainop.local.api.registry.kinds import Registry
from trainop.local.api.request.pod_streams import PodStreams
from trainop.local.api.request.pod_subresources import PodSubresources
from trainop.local.api.request.request_info import RequestInfo, parse_path
from trainop.local.api.serving.http_server import HttpServer
from trainop.local.api.serving.router import BufferedStream, Router
from trainop.local.api.serving.tls import make_certificate
from trainop.local.api.status_errors import StatusError
from trainop.local.api.storage.versioned_store import Store, Stored
from trainop.runtime.client.transport import Request, Response, Stream
from trainop.runtime.clock import SystemClock
from trainop.runtime.objects.metadata import PODS, Json

_JSON = {"content-type": "application/json"}
_MERGES = ("application/merge-patch+json", "application/strategic-merge-patch+json")
"""Strategic patches are merged as plain ones: those of the simulated node replace whole lists."""
_SERVED = {"POST": {""}, "PUT": {"status"}, "PATCH": {"", "status"}}
"""Method -> the subresources of the plain tables."""
_PARTIAL = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}


class _PlainRouter(Router):
    def __init__(self, backend: Backend, tables: Collection[str]) -> None:
        pods = PodSubresources(backend)
        super().__init__(backend, pods, PodStreams(backend, pods))
        self._tables = tables

    async def answer(self, request: Request) -> Response | Stream:
        """Handles creations, patches that merge, and new statuses in the plain tables; passes all other requests to the
        router."""
        merges = request.method == "PATCH" and request.content_type in _MERGES
        if request.method not in {"POST", "PUT"} and not merges:
            return await super().answer(request)
        info = parse_path(self._backend.registry, request.path)
        if info.kind.table not in self._tables or info.subresource not in _SERVED[request.method]:
            return await super().answer(request)
        value = msgspec.json.decode(request.body)
        try:
            stored = self._create(info, value) if request.method == "POST" else self._write(request.method, info, value)
        except StatusError as error:
            return Response(error.code, _JSON, msgspec.json.encode(error.status))
        body = stored.body
        if "as=PartialObjectMetadata" in request.accept:
            body = msgspec.json.encode({**_PARTIAL, "metadata": stored.value["metadata"]})
        return Response(201 if request.method == "POST" else 200, _JSON, body)

    def _create(self, info: RequestInfo, value: Json) -> Stored:
        resource, metadata = info.kind.resource, value["metadata"]
        key = (info.namespace or "", metadata["name"])
        if self._backend.store.get(info.kind.table, key) is not None:
            raise status_errors.already_exists(resource, metadata["name"], deleting=False)
        metadata |= {
            "namespace": info.namespace,
            "uid": self._backend.new_uid(),
            "creationTimestamp": self._backend.now(),
            "generation": 1,
        }
        value |= {"kind": resource.kind, "apiVersion": resource.api_version}
        if resource == PODS:
            value["status"] = {"phase": "Pending"}
        return self._backend.store.put(info.kind.table, key, value)

    def _write(self, method: str, info: RequestInfo, value: Json) -> Stored:
        if method == "PATCH":
            return self._merge(info, value)
        return self._merge(info, {"metadata": value["metadata"], "status": value["status"]}, replaced="status")

    def _merge(self, info: RequestInfo, patch: Json, replaced: str = "") -> Stored:
        stored = self._backend.store.get(info.kind.table, info.key)
        if stored is None:
            raise info.not_found()
        old, wanted = stored.value["metadata"], patch.get("metadata") or {}
        if any(name in wanted and wanted[name] != old[name] for name in ("uid", "resourceVersion")):
            raise status_errors.conflict(info.kind.resource, info.name)
        value = merge_patch({name: part for name, part in stored.value.items() if name != replaced}, patch)
        value["metadata"] = dict(value["metadata"])
        return self._backend.store.put(info.kind.table, info.key, value)


class PlainServer:
    """The server as an in-process `Transport` for the harness, and over TLS for the operator."""

    def __init__(self, tables: Collection[str], history: int) -> None:
        """`tables` are stored without checks; `history` is the number of changes that each table keeps for watches."""
        self._backend = Backend(
            Store(history), Registry(), SystemClock(), random.Random(), Signer(secrets.token_bytes(KEY_SIZE))
        )
        for kind in builtin_kinds(self._backend, "10.96.0.0/16"):
            self._backend.registry.add(kind)
        self._backend.store.listen(CrdRegistrar(self._backend))
        self._router = _PlainRouter(self._backend, tables)
        self._http = HttpServer(self._backend, self._router.answer)

    async def serve(self, token: str) -> Json:
        """Starts listening with TLS; returns the kubeconfig."""
        self._backend.tokens.add(token)
        certificate = make_certificate("127.0.0.1", self._backend.clock.now())
        url = await self._http.start("127.0.0.1", 0, certificate)
        authority = base64.b64encode(certificate.certificate).decode()
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "bench",
            "clusters": [{"name": "bench", "cluster": {"server": url, "certificate-authority-data": authority}}],
            "users": [{"name": "bench", "user": {"token": token}}],
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        }

    async def send(self, request: Request) -> Response:
        answer = await self._router.answer(request)
        assert isinstance(answer, Response)
        return answer

    async def open(self, request: Request) -> Stream:
        answer = await self._router.answer(request)
        return BufferedStream(answer.status, answer.headers, answer.body) if isinstance(answer, Response) else answer

    async def close(self) -> None:
        self._router.end_watches()
        await self._http.stop()
