"""The embedded API server: the composition root of the package, reached by HTTP or in process."""

from __future__ import annotations

import asyncio
import base64
import random
import secrets
from pathlib import Path

from trainop.local.api import status_errors
from trainop.local.api.background.crd_finalizer import CrdFinalizer
from trainop.local.api.background.event_expiry import EventExpiry
from trainop.local.api.background.garbage_collector import GarbageCollector
from trainop.local.api.background.namespace_controller import NamespaceController
from trainop.local.api.registry.backend import Backend
from trainop.local.api.registry.builtin_kinds import builtin_kinds
from trainop.local.api.registry.crds import CrdRegistrar
from trainop.local.api.registry.jwt import KEY_SIZE, Signer
from trainop.local.api.registry.kinds import Registry
from trainop.local.api.registry.namespaces import SYSTEM_NAMESPACES
from trainop.local.api.registry.workloads import NoControllerEvents
from trainop.local.api.request.deletes import Deleter
from trainop.local.api.request.pod_streams import ExecSource, PodStreams, PortSource
from trainop.local.api.request.pod_subresources import LogSource, PodSubresources
from trainop.local.api.request.resource_metrics import MetricsSource, ResourceMetrics
from trainop.local.api.serving.http_server import HttpServer
from trainop.local.api.serving.router import BufferedStream, Router, error_response
from trainop.local.api.serving.tls import make_certificate
from trainop.local.api.storage.persistence import Journal, StorageError
from trainop.local.api.storage.versioned_store import Listener, Store
from trainop.runtime import CUSTOM_RESOURCE_DEFINITIONS, EVENTS, NAMESPACES, Clock, Json, NotConnectedError, SystemClock
from trainop.runtime.lowlevel import Request, Response, Stream, Transport

__all__ = ["ApiServer", "ExecSource", "LogSource", "PortSource"]


class ApiServer:
    """The Kubernetes API over an in-memory store; sockets, files and real time are optional.

    `run` runs the controllers: garbage collection, deletion of namespaces and CRDs, expiry of Events. Reads, writes and
    watches work without `run`. `persist` is the SQLite file, `history` the number of changes kept per resource for
    watches and consistent lists, `network` the CIDR of cluster IPs. Raises `OSError` if the file cannot be used.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        persist: Path | None = None,
        log_source: LogSource | None = None,
        rng: random.Random | None = None,
        history: int = 8192,
        network: str = "10.96.0.0/16",
    ) -> None:
        store, clock = Store(history), clock or SystemClock()
        self._journal = Journal(persist, store, clock) if persist is not None else None
        self._backend = Backend(
            store,
            Registry(),
            clock,
            rng or random.Random(),  # noqa: S311 - names and addresses, not secrets
            Signer(self._journal.signing_key(KEY_SIZE) if self._journal else secrets.token_bytes(KEY_SIZE)),
        )
        for kind in builtin_kinds(self._backend, network):
            self._backend.registry.add(kind)
        deleter = Deleter(self._backend)
        self._crd_registrar = CrdRegistrar(self._backend)
        self._garbage_collector = GarbageCollector(self._backend, deleter)
        self._namespaces = NamespaceController(self._backend, deleter)
        self._crd_finalizer = CrdFinalizer(self._backend, deleter)
        self._event_expiry = EventExpiry(self._backend)
        self._controllers = (self._garbage_collector, self._namespaces, self._crd_finalizer, self._event_expiry)
        for listener in (self._crd_registrar, *self._controllers, NoControllerEvents(self._backend)):
            store.listen(listener)
        self._pods = PodSubresources(self._backend, log_source)
        self._streams = PodStreams(self._backend, self._pods)
        self._router = Router(self._backend, self._pods, self._streams)
        self._http = HttpServer(self._backend, self.answer, self._router.connect)
        self._open = True
        self.url = ""
        self.authority = b""
        """The PEM of the CA certificate for clients; empty without TLS."""
        self._load_or_initialize()

    def _load_or_initialize(self) -> None:
        """Load persisted objects, and create the system namespaces unless they exist."""
        store = self._backend.store
        loaded = self._journal is not None and self._journal.load()
        if loaded:
            self._resume()
        if self._journal is not None:
            store.listen(self._journal)
        for name in SYSTEM_NAMESPACES:
            if store.get(NAMESPACES.plural, ("", name)) is None:
                self._create_namespace(name)

    def _resume(self) -> None:
        """Initialize the registry and the controllers from the loaded objects."""
        store = self._backend.store
        for stored in list(store.table(str(CUSTOM_RESOURCE_DEFINITIONS)).objects.values()):
            self._crd_registrar.register(stored.value)
        for table in store.tables():
            for stored in table.objects.values():
                self._garbage_collector.observe(stored, table.name)
        for stored in store.table(EVENTS.plural).objects.values():
            self._event_expiry.observe(stored)
        self._namespaces.resume()
        self._crd_finalizer.resume()

    @property
    def log_source(self) -> LogSource | None:
        """The source of `pods/log`; may be set later, once the node exists."""
        return self._pods.log_source

    @log_source.setter
    def log_source(self, source: LogSource | None) -> None:
        self._pods.log_source = source

    @property
    def exec_source(self) -> ExecSource | None:
        """The source of `pods/exec`; may be set later, once the node exists."""
        return self._streams.exec_source

    @exec_source.setter
    def exec_source(self, source: ExecSource | None) -> None:
        self._streams.exec_source = source

    @property
    def port_source(self) -> PortSource | None:
        """The source of `pods/portforward`; may be set later, once the node exists."""
        return self._streams.port_source

    @port_source.setter
    def port_source(self, source: PortSource | None) -> None:
        self._streams.port_source = source

    def serve_metrics(self, source: MetricsSource) -> None:
        """Serve metrics.k8s.io from now on, for `kubectl top`."""
        self._router.metrics = ResourceMetrics(self._backend, source)

    def transport(self) -> Transport:
        """A transport within this process, without authentication."""
        return _InProcessTransport(self)

    async def serve(self, host: str = "127.0.0.1", port: int = 0, *, token: str, tls: bool = True) -> str:
        """Listen; returns the URL, such as `https://127.0.0.1:45123`. Clients must send `token` as bearer token.

        Sets `authority`. TLS is the default because kubectl does not send tokens without it. Raises `ValueError` for an
        empty token, and `OSError` if the port is not available.
        """
        if not token:
            raise ValueError("an API server without a token would serve everybody")
        self._backend.tokens.add(token)
        certificate = make_certificate(host, self._backend.clock.now()) if tls else None
        self.url = await self._http.start(host, port, certificate)
        self.authority = certificate.certificate if certificate else b""
        return self.url

    def kubeconfig(self, token: str, *, namespace: str = "default") -> Json:
        """A kubeconfig for the URL of `serve`, with the context `trainop`."""
        cluster: Json = {"server": self.url}
        if self.authority:
            cluster["certificate-authority-data"] = base64.b64encode(self.authority).decode()
        context = {"cluster": "trainop", "user": "trainop", "namespace": namespace}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "trainop",
            "clusters": [{"name": "trainop", "cluster": cluster}],
            "users": [{"name": "trainop", "user": {"token": token}}],
            "contexts": [{"name": "trainop", "context": context}],
        }

    async def run(self) -> None:
        """Run the controllers and the background commits, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for controller in self._controllers:
                group.create_task(controller.run())
            if self._journal is not None:
                group.create_task(self._journal.run())

    async def close(self) -> None:
        """End all watches, stop listening and commit pending changes. Further requests raise `NotConnectedError`."""
        if not self._open:
            return
        self._open = False
        self._router.end_watches()
        await self._http.stop()
        if self._journal is not None:
            self._journal.close()

    def listen(self, listener: Listener) -> None:
        """Call `listener` synchronously after every write from now on."""
        self._backend.store.listen(listener)

    def restore(self, table: str, value: Json) -> None:
        """Store an object of another server as it is, with its UID and status."""
        metadata = value["metadata"]
        metadata.setdefault("uid", self._backend.new_uid())
        self._backend.store.put(table, (metadata.get("namespace", ""), metadata["name"]), value)

    def compact(self) -> None:
        """Drop the history, like a compaction of etcd: older watches and continue tokens get 410."""
        self._backend.store.compact()

    async def answer(self, request: Request) -> Response | Stream:
        """Handle a request; writes return after their change is on disk, with 500 if that fails. For transports."""
        if not self._open:
            raise NotConnectedError("the API server is closed")
        if self._journal is None or request.method == "GET":
            return await self._router.answer(request)
        try:
            await self._journal.retry_failed_commit()
            answer = await self._router.answer(request)
            await self._journal.flush()
        except StorageError as error:
            return error_response(status_errors.internal_error(f"the change is not on disk: {error}"))
        return answer

    def _create_namespace(self, name: str) -> None:
        metadata = {
            "name": name,
            "uid": self._backend.new_uid(),
            "creationTimestamp": self._backend.now(),
            "labels": {"kubernetes.io/metadata.name": name},
        }
        value = {
            "kind": "Namespace",
            "apiVersion": "v1",
            "metadata": metadata,
            "spec": {"finalizers": ["kubernetes"]},
            "status": {"phase": "Active"},
        }
        self._backend.store.put(NAMESPACES.plural, ("", name), value)


class _InProcessTransport:
    """A `Transport` that calls the server directly."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server

    async def send(self, request: Request) -> Response:
        answer = await self._server.answer(request)
        if isinstance(answer, Response):
            return answer
        body = b"".join([chunk async for chunk in answer.chunks()])
        return Response(answer.status, answer.headers, body)

    async def open(self, request: Request) -> Stream:
        answer = await self._server.answer(request)
        if isinstance(answer, Response):
            return BufferedStream(answer.status, answer.headers, answer.body)
        return answer

    async def close(self) -> None:
        """Nothing to release; the server keeps running."""
