"""The embedded API server: one object to start, reached over sockets or in process."""

from __future__ import annotations

import asyncio
import base64
import random
from pathlib import Path

from trainop.local.api import status_errors
from trainop.local.api.background.crd_finalizer import CrdFinalizer
from trainop.local.api.background.event_expiry import EventExpiry
from trainop.local.api.background.garbage_collector import GarbageCollector
from trainop.local.api.background.namespace_controller import NamespaceController
from trainop.local.api.registry.backend import Backend
from trainop.local.api.registry.builtin_kinds import builtin_kinds
from trainop.local.api.registry.crds import CrdRegistrar
from trainop.local.api.registry.kinds import Registry
from trainop.local.api.registry.namespaces import SYSTEM_NAMESPACES
from trainop.local.api.registry.workloads import NoControllerEvents
from trainop.local.api.request.deletes import Deleter
from trainop.local.api.request.pod_subresources import LogSource, PodSubresources
from trainop.local.api.serving.http_server import HttpServer
from trainop.local.api.serving.router import BufferedStream, Router, respond
from trainop.local.api.serving.tls import make_certificate
from trainop.local.api.storage.persistence import Journal, StorageError
from trainop.local.api.storage.versioned_store import Store
from trainop.runtime.client.transport import NotConnectedError, Request, Response, Stream, Transport
from trainop.runtime.clock import Clock, SystemClock
from trainop.runtime.objects.metadata import Json
from trainop.runtime.objects.resource import CUSTOM_RESOURCE_DEFINITIONS, EVENTS, NAMESPACES

__all__ = ["ApiServer", "LogSource"]


class ApiServer:
    """Speaks the Kubernetes API over an in-memory store; nothing of it needs a socket, a file or real time.

    `run` does what controllers of a control plane do besides: garbage collection, namespace deletion, expiry of events.
    Without `run` objects are stored, validated and watched all the same.
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
        self._backend = Backend(
            Store(history),
            Registry(),
            clock or SystemClock(),
            rng or random.Random(),  # noqa: S311 - names and addresses, not secrets
        )
        store = self._backend.store
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
        self._router = Router(self._backend, self._pods)
        self._http = HttpServer(self._backend, self.answer)
        self._open = True
        self.url = ""
        self.authority = b""
        """PEM of the certificate that clients must trust; empty without TLS."""
        self._journal = Journal(persist, store, self._backend.clock) if persist is not None else None
        self._begin()

    def _begin(self) -> None:
        """Continue where the last run ended, or make what every cluster has."""
        store = self._backend.store
        known = self._journal is not None and self._journal.load()
        if known:
            self._resume()
        if self._journal is not None:
            store.listen(self._journal)
        for name in SYSTEM_NAMESPACES:
            if store.get(NAMESPACES.plural, ("", name)) is None:
                self._make_namespace(name)

    def _resume(self) -> None:
        """Let those who follow the store see what is in it."""
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
        """Where `pods/log` reads from; may be set once the node is there."""
        return self._pods.log_source

    @log_source.setter
    def log_source(self, source: LogSource | None) -> None:
        self._pods.log_source = source

    def transport(self) -> Transport:
        """Answers requests within this process, as an administrator."""
        return _InProcess(self)

    async def serve(self, host: str = "127.0.0.1", port: int = 0, *, token: str, tls: bool = True) -> str:
        """Listen; return the URL (`https://127.0.0.1:45123`). Every request must carry `token` as bearer token.

        `authority` then is what clients must trust. Without TLS kubectl would not send the token.
        """
        if not token:
            raise ValueError("an API server without a token would serve everybody")
        self._backend.tokens.add(token)
        certificate = make_certificate(host, self._backend.clock.now()) if tls else None
        self.url = await self._http.start(host, port, certificate)
        self.authority = certificate.certificate if certificate else b""
        return self.url

    def kubeconfig(self, token: str, *, namespace: str = "default") -> Json:
        """A kubeconfig for the served address, context `trainop`."""
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
        """Collect garbage, empty terminating namespaces, let events expire; until cancelled."""
        async with asyncio.TaskGroup() as group:
            for controller in self._controllers:
                group.create_task(controller.run())
            if self._journal is not None:
                group.create_task(self._journal.run())

    async def close(self) -> None:
        """Stop listening, end all watches, write what is still to be written."""
        if not self._open:
            return
        self._open = False
        self._router.end_watches()
        await self._http.stop()
        if self._journal is not None:
            self._journal.close()

    def compact(self) -> None:
        """Forget the history: watches and continuations from before now get 410."""
        self._backend.store.compact()

    async def answer(self, request: Request) -> Response | Stream:
        """The answer to a request; for transports."""
        if not self._open:
            raise NotConnectedError("the API server is closed")
        if self._journal is None or request.method == "GET":
            return await self._router.answer(request)
        try:
            await self._journal.retry_failed_commit()
            answer = await self._router.answer(request)
            await self._journal.flush()
        except StorageError as error:
            return respond(status_errors.internal_error(f"the change is not on disk: {error}"))
        return answer

    def _make_namespace(self, name: str) -> None:
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


class _InProcess:
    """A `Transport` that calls."""

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
        """The server goes on."""
