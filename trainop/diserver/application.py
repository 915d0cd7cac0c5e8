"""The HTTP surface of di-server (DI-orchestrator v0.2.2 `server/http/server.go`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, TypeAlias

import structlog
from aiohttp import web

from trainop.diserver.caches import Caches
from trainop.diserver.callers import read_caller
from trainop.diserver.inflight import Inflight, StoppingError
from trainop.diserver.limits import CallerLimiter
from trainop.diserver.metrics import DiServerMetrics
from trainop.diserver.openapi import PAGE, document
from trainop.diserver.operations import Call, Operations, Progress
from trainop.diserver.query import read_query
from trainop.diserver.replies import GOT, Answer, PodFacts, Refusal, Replicas, fail, of_api, succeed
from trainop.diserver.retries import FAILURES
from trainop.kinds.dijob.names import REPLICA_TYPE, coordinator_name
from trainop.runtime import Clock, Manager
from trainop.runtime.lowlevel import Bodies, BodyRefusedError, Checks, metrics_handler

REPLICAS = "/v1alpha1/replicas"
FAILED = "/v1alpha1/replicas/failed"
BODY_TIMEOUT = 10.0
"""Seconds for receiving a body."""

SEND_TIMEOUT = 5.0
"""Seconds for sending the answer of a request that changed pods; its job is locked until then."""

SYNC_TIMEOUT = 30.0
"""Seconds that a request waits for the caches of a server that has just started."""

Operation: TypeAlias = Callable[[Call], AbstractAsyncContextManager[Progress]]

log = structlog.get_logger(__name__)


class Surface(NamedTuple):
    """What the application consists of."""

    caches: Caches
    operations: Operations
    inflight: Inflight
    limiter: CallerLimiter
    metrics: DiServerMetrics
    clock: Clock
    manager: Manager
    max_body: int


class _Api:
    """Answers the requests of the two API paths."""

    def __init__(self, surface: Surface) -> None:
        self._surface = surface
        self._bodies = Bodies(surface.max_body)

    async def replicas(self, request: web.Request) -> web.StreamResponse:
        operations = self._surface.operations
        return await self._serve(request, {"POST": operations.create, "DELETE": operations.delete}, reads=True)

    async def failed(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, {"POST": self._surface.operations.replace}, reads=False)

    async def _serve(
        self, request: web.Request, operations: dict[str, Operation], *, reads: bool
    ) -> web.StreamResponse:
        began, surface = self._surface.clock.monotonic(), self._surface
        operation = operations.get(request.method)
        known = operation is not None or (reads and request.method == "GET")
        data = Replicas() if operation is not None else None
        code = 500
        try:
            if not known:
                raise Refusal(501, f"{request.method[:32]} not implemented")  # noqa: TRY301  # one way to refuse
            self._admit(request)
            await self._wait_synced()
            if operation is None:
                response = await self._send(request, await self._get(request))
            else:
                response = await self._change(request, operation)
            code = response.status
        except (Refusal, *FAILURES) as error:
            refusal = error if isinstance(error, Refusal) else of_api(error)
            code = refusal.status
            response = await self._send(request, fail(refusal.about(data) if data else refusal))
        finally:
            method, path = request.method if known else "other", request.path
            surface.metrics.requests_served.labels(method, path, str(code)).inc()
            surface.metrics.request_seconds.labels(method, path).observe(surface.clock.monotonic() - began)
        return response

    def _admit(self, request: web.Request) -> None:
        if not self._surface.limiter.allows(request.remote or ""):
            raise Refusal(429, "too many requests")

    async def _wait_synced(self) -> None:
        cache = self._surface.caches.cache
        if cache.synced:
            return
        try:
            async with asyncio.timeout(SYNC_TIMEOUT):
                await cache.wait_synced()
        except TimeoutError:
            raise Refusal(503, "the caches of the server are not synced yet") from None

    async def _get(self, request: web.Request) -> Answer:
        caches, query = self._surface.caches, read_query(request.query.items())
        if query.name:
            pod = await caches.pod(query.namespace, query.name)
            job = await caches.job_of(pod)
            role, coordinator = pod.metadata.labels.get(REPLICA_TYPE, ""), coordinator_name(job.metadata.name)
            return succeed(GOT, PodFacts(query.namespace, coordinator, role, query.name))
        if query.coordinator:
            job = await caches.job_of(await caches.pod(query.namespace, query.coordinator))
            return succeed(GOT, caches.replicas(job, query.coordinator))
        if query.aggregator:
            job = await caches.job_of(await caches.pod(query.namespace, query.aggregator))
            return succeed(GOT, caches.ddp_learners(job, query.aggregator))
        return succeed(GOT, caches.coordinators(query.namespace))

    async def _change(self, request: web.Request, operation: Operation) -> web.StreamResponse:
        """Carries out a request that changes pods, to its end even if the client leaves."""
        caller = read_caller(request.remote or "", request.headers.get("Authorization", ""))
        try:
            async with self._bodies.receive(request, BODY_TIMEOUT) as body:
                call = Call(request.method, request.path, body, caller, lambda: _is_gone(request))
                return await self._surface.inflight.run_request(self._carry_out(request, operation, call))
        except BodyRefusedError as error:
            detail = f"failed to decode request body: {error}" if error.status == 400 else str(error)
            raise Refusal(error.status, detail) from None
        except StoppingError:  # clients repeat what has no answer, and reach another server
            if request.transport is not None:
                request.transport.abort()
            raise Refusal(503, "the server is stopping") from None

    async def _carry_out(self, request: web.Request, operation: Operation, call: Call) -> web.StreamResponse:
        async with operation(call) as (answer, held):
            response = await self._send(request, answer)
            if held is not None:
                held.sent = not _is_gone(request)
                if not held.sent:
                    log.info("client left before its answer", method=call.method, path=call.path)
            return response

    @staticmethod
    async def _send(request: web.Request, answer: Answer) -> web.StreamResponse:
        response = web.Response(status=answer.status, body=answer.body, content_type="application/json")
        if (
            answer.status in {400, 408, 413, 429} and not request.content.is_eof()
        ):  # what remains of the body is not read
            response.force_close()
        try:
            async with asyncio.timeout(SEND_TIMEOUT):
                await response.prepare(request)
                await response.write_eof()
            if request.content.exception() is not None:  # what remains of a broken body cannot be read
                request.protocol.force_close()
        except (ConnectionError, TimeoutError):
            if request.transport is not None:
                request.transport.abort()
        return response


def _is_gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


def build_application(surface: Surface) -> web.Application:
    """The application; every other path is a plain 404."""
    api, application = _Api(surface), web.Application(middlewares=[_plain_not_found])
    application.router.add_route("*", REPLICAS, api.replicas)
    application.router.add_route("*", FAILED, api.failed)
    application.router.add_route("*", "/healthz", _check(surface.manager.health))
    application.router.add_route("*", "/readyz", _check(surface.manager.ready))
    application.router.add_get("/metrics", metrics_handler(surface.metrics.registry))
    described = document(surface.max_body)
    application.router.add_get("/openapi.json", _constant(described, "application/json"))
    application.router.add_get("/", _constant(PAGE, "text/html"))
    return application


@web.middleware
async def _plain_not_found(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPNotFound:
        return web.Response(status=404, text="404 page not found\n")


def _check(checks: Checks) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_request: web.Request) -> web.Response:
        status, text = await checks.all()
        return web.Response(status=status, text="" if status == 200 else text)

    return answer


def _constant(body: bytes, content_type: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=body, content_type=content_type, charset="utf-8")

    return answer
