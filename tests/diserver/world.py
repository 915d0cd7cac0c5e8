"""di-servers on the embedded API server, with jobs, coordinators and clients at addresses of their own."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeAlias

import aiohttp

from tests.patience import PATIENCE
from trainop.diserver.journal import Times
from trainop.diserver.metrics import DiServerMetrics
from trainop.diserver.server import DiServer, declare
from trainop.kinds.dijob.crd import aggregator_config_crd, dijob_crd
from trainop.kinds.dijob.names import AGGREGATOR_CONFIGS, DIJOBS, LEASES_OF_REQUESTS, OUR_PODS, Role
from trainop.kinds.dijob.pods import PodOptions, build_pod, read_job, template_of
from trainop.local.api.serving.server import ApiServer
from trainop.programs.di_server import DiServerSettings
from trainop.runtime.client.client import Client
from trainop.runtime.client.transport import Request, Response, Stream, Transport
from trainop.runtime.errors import AlreadyExistsError
from trainop.runtime.objects.metadata import (
    CUSTOM_RESOURCE_DEFINITIONS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    Json,
)
from trainop.runtime.serving.server import Address

TEMPLATE: Json = {"spec": {"containers": [{"name": "di-container", "image": "i"}]}}
SETTINGS = DiServerSettings(bind_address=Address("127.0.0.1", 0), caller_rate=0.0, lease_namespace="default")
FAST = Times(lease=4.0, renew=0.3, wait=20.0, sweep=0.2)
COORDINATOR_ADDRESS = "127.0.0.1"


class Answered(NamedTuple):
    """An answer of di-server."""

    status: int
    body: Any
    headers: Any = None

    @property
    def data(self) -> Any:
        return self.body["data"]

    @property
    def message(self) -> str:
        return str(self.body["message"])


class Faulty:
    """A transport on which requests can be made to fail or to wait."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.before: Callable[[Request], Any] = lambda _request: None
        """May raise, or return an awaitable."""
        self.after: Callable[[Request], Any] = lambda _request: None
        """Called after the request has had its effect."""
        self.answer: Callable[[Request], Response | None] = lambda _request: None
        """Answers a request in place of the API server."""

    async def send(self, request: Request) -> Response:
        await _await(self.before(request))
        if (answer := self.answer(request)) is not None:
            return answer
        response = await self._transport.send(request)
        await _await(self.after(request))
        return response

    async def open(self, request: Request) -> Stream:
        return await self._transport.open(request)

    async def close(self) -> None:
        await self._transport.close()


async def _await(found: Any) -> None:
    if asyncio.iscoroutine(found):
        await found


class Running:
    """A di-server that runs."""

    def __init__(self, server: DiServer, transport: Faulty, metrics: DiServerMetrics) -> None:
        self.server = server
        self.transport = transport
        self.metrics = metrics
        self.task = asyncio.create_task(server.manager.run())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.http.port}"

    async def kill(self) -> None:
        """The process ends without any clean-up: nothing it sends from now on has an effect."""

        def dead(_request: Request) -> None:
            raise asyncio.CancelledError

        self.transport.before = self.transport.after = dead
        self.task.cancel()
        await asyncio.wait([self.task])

    async def call(
        self,
        method: str,
        path: str = "/v1alpha1/replicas",
        body: Any = None,
        *,
        address: str = COORDINATOR_ADDRESS,
        headers: Any = None,
    ) -> Answered:
        """One request on a connection of its own, from a loopback address."""
        connector = aiohttp.TCPConnector(local_addr=(address, 0), force_close=True)
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        async with (
            aiohttp.ClientSession(connector=connector, skip_auto_headers=["Content-Type"]) as session,
            session.request(method, self.url + path, data=raw, headers=headers) as response,
        ):
            text = await response.read()
            is_json = response.headers.get("Content-Type", "").startswith("application/json")
            return Answered(response.status, json.loads(text) if is_json else text.decode(), response.headers)

    async def post(self, body: Any, **more: Any) -> Answered:
        return await self.call("POST", body=body, **more)

    async def delete(self, body: Any, **more: Any) -> Answered:
        return await self.call("DELETE", body=body, **more)

    async def failed(self, body: Any, **more: Any) -> Answered:
        return await self.call("POST", "/v1alpha1/replicas/failed", body, **more)

    async def get(self, query: str = "", **more: Any) -> Answered:
        return await self.call("GET", f"/v1alpha1/replicas{query}", **more)


class World:
    """The API server, and everything that is not di-server."""

    def __init__(self, connect: Callable[[], Transport]) -> None:
        self.connect = connect
        self.transport = connect()
        self.client = Client(self.transport)
        self.options = PodOptions("di-server.di-system:8080")

    async def open(self) -> None:
        for name in ("default", "other", "di-system"):
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            with suppress(AlreadyExistsError):
                await self.client.create(NAMESPACES, body)
        for crd in (dijob_crd(), aggregator_config_crd()):
            with suppress(AlreadyExistsError):
                await self.client.create(CUSTOM_RESOURCE_DEFINITIONS, crd)

    async def nodes(self, *gpus: int) -> None:
        for index, count in enumerate(gpus):
            status = {
                "allocatable": {"nvidia.com/gpu": str(count)} if count else {},
                "conditions": [{"type": "Ready", "status": "True"}],
            }
            body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{index}"}, "status": status}
            await self.client.create(NODES, body)
            await self.client.patch(NODES, f"n{index}", None, {"status": status}, subresource="status")

    async def aggregator_config(self, name: str = "aggregator-config", image: str = "agg", **container: object) -> None:
        template = {"spec": {"containers": [{"name": "di-container", "image": image, **container}]}}
        spec = {"aggregator": {"template": template}}
        metadata = {"name": name, "namespace": "di-system"}
        body = {"apiVersion": AGGREGATOR_CONFIGS.api_version, "kind": "AggregatorConfig", "metadata": metadata}
        await self.client.create(AGGREGATOR_CONFIGS, {**body, "spec": spec})

    async def job(
        self,
        name: str = "a",
        namespace: str = "default",
        *,
        address: str = COORDINATOR_ADDRESS,
        coordinator_pod: bool = True,
        **spec: Any,
    ) -> Json:
        """A job with a running coordinator at this address, unless the operator creates it."""
        roles: Json = {role: {"template": TEMPLATE} for role in ("coordinator", "collector", "learner")}
        given = {role: value for role, value in (roles | spec).items() if value is not None}
        body = {"apiVersion": DIJOBS.api_version, "kind": "DIJob", "metadata": {"name": name, "namespace": namespace}}
        job = await self.client.create(DIJOBS, {**body, "spec": given})
        if coordinator_pod:
            await self.coordinator(job, address)
        return job

    async def coordinator(self, job: Json, address: str) -> Json:
        facts, template = read_job(job), template_of(job, Role.COORDINATOR)
        pod = build_pod(facts, Role.COORDINATOR, template or TEMPLATE, self.options)
        made = await self.client.create(PODS, pod)
        await self.set_status(made["metadata"]["name"], facts.namespace, podIP=address)
        return made

    async def set_status(self, name: str, namespace: str = "default", phase: str = "Running", **fields: Any) -> None:
        status = {"phase": phase, **fields}
        await self.client.patch(PODS, name, namespace, {"status": status}, subresource="status")

    async def finish(self, name: str = "a", phase: str = "Succeeded") -> None:
        await self.client.patch(DIJOBS, name, "default", {"status": {"phase": phase}}, subresource="status")

    async def pods(self, role: str = "", namespace: str = "default") -> list[Json]:
        selector = f"{OUR_PODS},replica-type={role}" if role else OUR_PODS
        found = (await self.client.list(PODS, namespace, label_selector=selector)).items
        return sorted(found, key=lambda pod: pod["metadata"]["name"])

    async def names(self, role: str = "") -> list[str]:
        return [pod["metadata"]["name"] for pod in await self.pods(role)]

    async def leases(self, namespace: str = "default") -> list[Json]:
        return list((await self.client.list(LEASES, namespace, label_selector=LEASES_OF_REQUESTS)).items)

    async def until_released(self, namespace: str = "default") -> None:
        """Waits until no request is in progress: a lease is deleted after the answer."""

        async def released() -> bool:
            return not await self.leases(namespace)

        await self.until(released)

    @asynccontextmanager
    async def di_server(
        self, settings: DiServerSettings = SETTINGS, *, times: Times = FAST, seed: int = 1, synced: bool = True
    ) -> AsyncIterator[Running]:
        transport, metrics = Faulty(self.connect()), DiServerMetrics()
        opened, operator = list[DiServer](), declare(settings)
        operator.setup(lambda parts: opened.append(DiServer(settings, metrics, parts, times)))
        operator.build(transport, rng=random.Random(seed), metrics=metrics, signals=False)
        made = opened[0]
        running = Running(made, transport, metrics)
        try:
            await self.until(lambda: made.http.port is not None)

            async def ready() -> bool:
                return not synced or (await running.call("GET", "/readyz")).status == 200

            await self.until(ready)
            yield running
        finally:
            made.manager.stop()
            await asyncio.wait([running.task])
            await transport.close()

    async def until(self, condition: Callable[[], Any]) -> None:
        """Waits until the condition, which may be a coroutine function, is true."""
        async with asyncio.timeout(PATIENCE):
            while True:
                found = condition()
                if asyncio.iscoroutine(found):
                    found = await found
                if found:
                    return
                await asyncio.sleep(0.02)


@asynccontextmanager
async def embedded() -> AsyncIterator[World]:
    """A new embedded API server."""
    server = ApiServer(rng=random.Random(1))
    cleaning = asyncio.create_task(server.run())
    try:
        yield World(server.transport)
    finally:
        cleaning.cancel()
        await asyncio.wait([cleaning])
        await server.close()


Backend: TypeAlias = Callable[[], AbstractAsyncContextManager[World]]
BACKEND: ContextVar[Backend] = ContextVar("backend", default=embedded)
"""The API server of the tests; `tests/server/test_diserver.py` runs them on another."""


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    async with BACKEND.get()() as made:
        await made.open()
        yield made


def request(
    collectors: int | Json | None = None, learners: int | Json | None = None, coordinator: str = "a-coordinator"
) -> Json:
    """A body; a number stands for so many replicas."""
    body: Json = {"namespace": "default", "coordinator": coordinator}
    for field, given in (("collectors", collectors), ("learners", learners)):
        if given is not None:
            body[field] = {"replicas": given} if isinstance(given, int) else given
    return body
