"""The admission server: AdmissionReviews in over TLS, verdicts out.

Semantics and texts of controller-runtime `pkg/webhook`: whatever happens to a review, the HTTP status is 200 and the
code stands in the response. Beyond it, no handler keeps the API server waiting: it is answered before it gives up.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import ssl

import structlog
from aiohttp import web

from trainop.runtime.client.decoding import TOO_DEEP
from trainop.runtime.clock import Clock, SystemClock
from trainop.runtime.errors import ApiError, UnhealthyError
from trainop.runtime.metrics.metrics import Metrics
from trainop.runtime.serving.certificate_folder import ServingCertificate
from trainop.runtime.serving.server import Address, HttpServer
from trainop.runtime.webhook.admission import (
    AdmissionRequest,
    Handler,
    MalformedReviewError,
    Verdict,
    becomes_too_deep,
    decode_review,
    deny,
    encode_review,
    refuse,
)

PORT = 9443
ANY_ADDRESS = Address(None, PORT)
MAX_BODY = 7 * 1024 * 1024
"""Bytes; the largest object that etcd takes, twice, and then some."""

CONNECTIONS = 128
BODY_WITHIN = 10.0
"""Seconds in which the body of a review has to be there."""

DEFAULT_TIMEOUT = 10.0
MARGIN = 0.5
"""Seconds before the API server's deadline at which it is answered."""

SLOW_HANDLER = 0.005
PROBE_TIMEOUT = 10.0

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}

log = structlog.get_logger(__name__)


class WebhookServer:
    """Serves handlers by path; goes to `Manager.add_webhooks`. Paths are registered before `bind`."""

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
        self._application = web.Application(client_max_size=MAX_BODY)
        self._server = HttpServer("webhooks", address, self._application, certificate.context, connections=CONNECTIONS)
        self._paths: set[str] = set()

    def register(self, path: str, handler: Handler) -> None:
        """Raises `ValueError` if the path is taken."""
        if path in self._paths:
            raise ValueError(f"webhook path {path} is registered already")
        self._paths.add(path)
        self._application.router.add_route("*", path, _Endpoint(path, handler, self._metrics, self._clock).answer)

    async def bind(self) -> None:
        """Raises `BindError`. Without a certificate yet, connections fail until there is one."""
        await self._server.bind()

    async def run(self) -> None:
        await self._server.run()

    @property
    def port(self) -> int | None:
        return self._server.port

    async def check(self) -> None:
        """For readiness: connects as the API server would; raises `UnhealthyError` or `OSError`."""
        if self.port is None:
            raise UnhealthyError("webhook server has not been started yet")
        if not self._certificate.loaded:
            raise UnhealthyError("webhook server has no certificate yet")
        host = self._server.address.host if self._server.address else None
        name = self._certificate.server_name
        try:
            async with asyncio.timeout(PROBE_TIMEOUT):
                _, writer = await asyncio.open_connection(
                    host or "localhost", self.port, ssl=self._certificate.client_context(), server_hostname=name
                )
        except (TimeoutError, ssl.SSLError) as error:
            raise UnhealthyError(f"webhook server is not reachable: {error}") from error
        writer.close()


class _Endpoint:
    """One path: its handler and what is measured of it."""

    def __init__(self, path: str, handler: Handler, metrics: Metrics, clock: Clock) -> None:
        self._path = path
        self._handler = handler
        self._metrics = metrics.webhook(path)
        self._clock = clock

    async def answer(self, request: web.Request) -> web.Response:
        began = self._clock.monotonic()
        with self._metrics.in_flight.track_inprogress():
            body = await self._review(request)
        self._metrics.latency.observe(self._clock.monotonic() - began)
        self._metrics.succeeded.inc()
        return web.Response(body=body, content_type="application/json")

    async def _review(self, request: web.Request) -> bytes:
        refusal, body = await _read(request)
        if refusal is None:
            try:
                api_version, asked = await decode_review(body)
            except MalformedReviewError as error:
                refusal = refuse(400, str(error))
            else:
                if becomes_too_deep(asked):
                    return encode_review(deny(f"the object {TOO_DEEP}"), asked.uid, api_version)
                verdict = await self._judge(asked, seconds_for(request.query.get("timeout", "")))
                return encode_review(verdict, asked.uid, api_version)
        log.warning("bad admission request", webhook=self._path, error=refusal.message)
        return encode_review(refusal, "")

    async def _judge(self, asked: AdmissionRequest, seconds: float) -> Verdict:
        """The handler's verdict, in a task of its own: whatever it raises concerns this one request."""
        task = asyncio.create_task(self._call(asked), name=f"webhook {self._path}")
        try:
            await asyncio.wait((task,), timeout=seconds)
            if not task.done():
                log.error("webhook took too long", webhook=self._path, seconds=seconds, uid=asked.uid)
                return refuse(500, "timeout")
        finally:
            if task.cancel():
                await asyncio.wait((task,), timeout=MARGIN / 2)
        if task.cancelled():
            return self._failed(asked, RuntimeError("it awaited something that was cancelled"))
        error = task.exception()
        return task.result() if error is None else self._failed(asked, error)

    async def _call(self, asked: AdmissionRequest) -> Verdict:
        began = self._clock.monotonic()
        verdict = self._handler(asked)
        took = self._clock.monotonic() - began
        if took > SLOW_HANDLER:
            log.warning("webhook is slow", webhook=self._path, seconds=round(took, 4), uid=asked.uid)
        return await verdict if inspect.isawaitable(verdict) else verdict

    def _failed(self, asked: AdmissionRequest, error: BaseException) -> Verdict:
        if isinstance(error, ApiError):
            return Verdict(False, error.code, error.reason, error.message, status=error.status)
        self._metrics.panics.inc()
        log.error("webhook raised", webhook=self._path, uid=asked.uid, error=repr(error), exc_info=error)
        return refuse(500, f"panic: {error} [recovered]")


async def _read(request: web.Request) -> tuple[Verdict | None, bytes]:
    """The body, or why it is none."""
    content_type = request.headers.get("Content-Type", "")
    try:
        async with asyncio.timeout(BODY_WITHIN):
            body = await request.read()
    except TimeoutError:
        return refuse(408, f"request body did not come within {BODY_WITHIN:.0f} s"), b""
    except web.HTTPRequestEntityTooLarge:
        return refuse(413, f"request entity is too large; limit is {MAX_BODY} bytes"), b""
    if body and content_type != "application/json":
        return refuse(400, f"contentType={content_type}, expected application/json"), b""
    return None, body


def seconds_for(timeout: str) -> float:
    """How long a handler may take if the API server waits for `timeout`, such as `10s` (a Go duration)."""
    parts = re.findall(r"(\d+(?:\.\d*)?|\.\d+)(h|ms|us|µs|ns|m|s)", timeout)
    whole = bool(parts) and "".join(number + unit for number, unit in parts) == timeout
    asked = sum(float(number) * _UNITS[unit] for number, unit in parts) if whole else DEFAULT_TIMEOUT
    return max(asked - MARGIN, 0.1)
