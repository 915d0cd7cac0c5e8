"""The admission webhook server: dispatches AdmissionReviews, received over TLS, to handlers by path.

Semantics and messages are those of controller-runtime `pkg/webhook`: the HTTP status is always 200, and errors are
reported by `response.status`. In addition, each handler has a timeout slightly shorter than that of the API server, so
that the API server receives a response even if the handler hangs.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import ssl
from typing import NamedTuple

import structlog
from aiohttp import web

from trainop.runtime.client.decoding import TOO_DEEP
from trainop.runtime.clock import Clock, SystemClock
from trainop.runtime.errors import ApiError, UnhealthyError
from trainop.runtime.log_throttle import LogThrottle
from trainop.runtime.metrics.metrics import Metrics
from trainop.runtime.serving.bodies import Bodies, BodyRefusedError
from trainop.runtime.serving.certificate_folder import ServingCertificate
from trainop.runtime.serving.server import Address, HttpServer
from trainop.runtime.webhook.admission import (
    AdmissionHandler,
    AdmissionRequest,
    AdmissionResponse,
    MalformedReviewError,
    answer_crowded,
    becomes_too_deep,
    decode_review,
    deny,
    encode_review,
    refuse,
)

PORT = 9443
ANY_ADDRESS = Address(None, PORT)
MAX_BODY = 7 * 1024 * 1024
"""Bytes. An UPDATE review contains two objects, each at most 3 MiB (the API server's limit on request bodies)."""

CONNECTIONS = 128
LARGE_BODY = 256 * 1024
"""Bytes from which a review is large. A decoded review takes several times its size."""

LARGE_REVIEWS = 4
"""Large reviews that are evaluated at a time; others wait once they have been received, so that no slow client keeps
others waiting. Otherwise, all connections together could use a gigabyte."""

DEFAULT_TIMEOUT = 10.0
MAX_TIMEOUT = 30.0
"""The longest timeout of a webhook that the API server permits."""
MARGIN = 0.5
"""Seconds by which an answer is due before the API server stops waiting for it."""

SHORTEST = 0.1
"""Seconds that each step of an answer gets in any case."""

SLOW_HANDLER = 0.005
"""Seconds. A synchronous handler that takes longer is logged, because it blocks the event loop."""

LOG_INTERVAL = 300.0
"""Seconds between two log entries of one kind about the same path: any pod may send requests to the server."""

PROBE_TIMEOUT = 10.0
PROBE_INTERVAL = 1.0
"""Minimum seconds between two probes that succeed, because anyone can ask for readiness, and TLS handshakes cost."""

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}

log = structlog.get_logger(__name__)


class WebhookServer:
    """The admission server, for `Manager.add_webhooks`. Handlers must be registered before `bind`.

    `certificate` may be loaded or replaced while the server runs. Until a certificate is loaded, TLS handshakes fail.
    """

    def __init__(
        self,
        certificate: ServingCertificate,
        *,
        address: Address = ANY_ADDRESS,
        metrics: Metrics | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._certificate = certificate
        self._metrics = metrics or Metrics()
        self._clock = clock or SystemClock()
        self._application = web.Application()
        self._server = HttpServer("webhooks", address, self._application, certificate.context, connections=CONNECTIONS)
        self._paths: set[str] = set()
        self._rooms = _Rooms(Bodies(MAX_BODY), asyncio.Semaphore(LARGE_REVIEWS))
        self._probing = asyncio.Lock()
        self._probed: tuple[float, tuple[object, ...]] = (float("-inf"), ())
        """When a probe has succeeded, and with which certificate."""

    def register(self, path: str, handler: AdmissionHandler) -> None:
        """Serves `handler` at `path`. Raises `ValueError` if the path is already registered."""
        if path in self._paths:
            raise ValueError(f"webhook path {path} is registered already")
        self._paths.add(path)
        endpoint = _Endpoint(path, handler, self._metrics, self._clock, self._rooms)
        self._application.router.add_route("*", path, endpoint.answer)

    async def bind(self) -> None:
        """Starts listening. Raises `BindError`."""
        await self._server.bind()

    async def run(self) -> None:
        """Serves until cancelled."""
        await self._server.run()

    @property
    def port(self) -> int | None:
        """The listening port; None before `bind`."""
        return self._server.port

    async def check(self) -> None:
        """Readiness check: makes a TLS connection to the server. Raises `UnhealthyError` or `OSError`."""
        if self.port is None:
            raise UnhealthyError("webhook server has not been started yet")
        if not self._certificate.loaded:
            raise UnhealthyError("webhook server has no certificate yet")
        async with self._probing:
            since, certificate = self._probed
            if self._clock.monotonic() - since >= PROBE_INTERVAL or certificate != self._certificate.identity:
                certificate = self._certificate.identity
                await self._probe(self.port)
                self._probed = (self._clock.monotonic(), certificate)

    async def _probe(self, port: int) -> None:
        host = self._server.address.host if self._server.address else None
        name = self._certificate.server_name
        try:
            async with asyncio.timeout(PROBE_TIMEOUT):
                _, writer = await asyncio.open_connection(
                    host or "localhost", port, ssl=self._certificate.client_context(), server_hostname=name
                )
        except (TimeoutError, ssl.SSLError) as error:
            raise UnhealthyError(f"webhook server is not reachable: {error}") from error
        writer.close()


class _Rooms(NamedTuple):
    """What all reviews of a server share."""

    bodies: Bodies
    large: asyncio.Semaphore


class _Endpoint:
    """One registered path: its handler and its metrics."""

    def __init__(self, path: str, handler: AdmissionHandler, metrics: Metrics, clock: Clock, rooms: _Rooms) -> None:
        self._rooms = rooms
        self._path = path
        self._handler = handler
        self._metrics = metrics.webhook(path)
        self._clock = clock
        self._throttle = LogThrottle(clock, LOG_INTERVAL)

    async def answer(self, request: web.Request) -> web.Response:
        began = self._clock.monotonic()
        with self._metrics.in_flight.track_inprogress():
            body = await self._receive(request, began + handler_timeout(request.query.get("timeout", "")))
        self._metrics.latency.observe(self._clock.monotonic() - began)
        self._metrics.succeeded.inc()
        return web.Response(body=body, content_type="application/json")

    async def _receive(self, request: web.Request, deadline: float) -> bytes:
        try:
            async with self._rooms.bodies.receive(request, self._left(deadline)) as body:
                content_type = request.headers.get("Content-Type", "")
                if body and content_type != "application/json":
                    return self._refuse(refuse(400, f"contentType={content_type}, expected application/json"))
                if len(body) < LARGE_BODY:
                    return await self._review(body, deadline)
                return await self._review_large(body, deadline)
        except BodyRefusedError as error:
            message = f"request entity is too large; limit is {MAX_BODY} bytes" if error.status == 413 else str(error)
            return self._refuse(refuse(error.status, message))

    async def _review_large(self, body: bytes, deadline: float) -> bytes:
        try:
            async with asyncio.timeout(self._left(deadline)):
                await self._rooms.large.acquire()
        except TimeoutError:
            return self._refuse(refuse(429, "too many large requests are being served"))
        try:
            return await self._review(body, deadline)
        finally:
            self._rooms.large.release()

    def _left(self, deadline: float) -> float:
        return max(deadline - self._clock.monotonic(), SHORTEST)

    async def _review(self, body: bytes, deadline: float) -> bytes:
        if (answer := answer_crowded(body)) is not None:
            return answer
        try:
            api_version, review = await decode_review(body)
        except MalformedReviewError as error:
            return self._refuse(refuse(400, str(error)))
        if len(body) >= LARGE_BODY:
            await asyncio.sleep(0)  # decoding has taken some milliseconds
        if becomes_too_deep(review):
            return encode_review(deny(f"the object {TOO_DEEP}"), review.uid, api_version)
        response = await self._respond(review, self._left(deadline))
        return encode_review(response, review.uid, api_version)

    def _refuse(self, refusal: AdmissionResponse) -> bytes:
        self._warn("admission request refused", error=refusal.message)
        return encode_review(refusal, "")

    async def _respond(self, request: AdmissionRequest, seconds: float) -> AdmissionResponse:
        """Calls the handler in a separate task, so that its errors and its timeout affect only this request."""
        task = asyncio.create_task(self._call(request), name=f"webhook {self._path}")
        try:
            await asyncio.wait((task,), timeout=seconds)
            if not task.done():
                log.error("webhook handler timed out", webhook=self._path, seconds=seconds, uid=request.uid)
                return refuse(500, "timeout")
        finally:
            if task.cancel():
                await asyncio.wait((task,), timeout=MARGIN / 2)
        if task.cancelled():
            return self._failed(request, RuntimeError("the handler was cancelled by something it awaited"))
        error = task.exception()
        return task.result() if error is None else self._failed(request, error)

    async def _call(self, request: AdmissionRequest) -> AdmissionResponse:
        began = self._clock.monotonic()
        response = self._handler(request)
        took = self._clock.monotonic() - began
        if took > SLOW_HANDLER:
            self._warn("slow webhook handler", seconds=round(took, 4), uid=request.uid)
        return await response if inspect.isawaitable(response) else response

    def _warn(self, what: str, **about: object) -> None:
        left_out = self._throttle.count(what)
        if left_out is not None:
            log.warning(what, webhook=self._path, left_out=left_out, **about)

    def _failed(self, request: AdmissionRequest, error: BaseException) -> AdmissionResponse:
        if isinstance(error, ApiError):
            return AdmissionResponse(False, error.code, error.reason, error.message, status=error.status)
        self._metrics.panics.inc()
        log.error("webhook handler raised", webhook=self._path, uid=request.uid, error=repr(error), exc_info=error)
        return refuse(500, f"panic: {error} [recovered]")


def handler_timeout(timeout: str) -> float:
    """Seconds for an answer, body included, if the API server waits for `timeout` (a Go duration, e.g. `10s`)."""
    parts = re.findall(r"(\d+(?:\.\d*)?|\.\d+)(h|ms|us|µs|ns|m|s)", timeout)
    whole = bool(parts) and "".join(number + unit for number, unit in parts) == timeout
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts) if whole else DEFAULT_TIMEOUT
    return max(min(seconds, MAX_TIMEOUT) - MARGIN, SHORTEST)
