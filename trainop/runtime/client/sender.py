"""Sends single requests: fills in defaults, checks the gate, retries, records metrics, and turns statuses into errors.

Also limits the memory of the bodies in flight, and tracks whether the API server is reachable, so that back-offs end
early after an outage: reflectors and controllers wait with `Recovery.sleep`.

Stands between `Client` (objects) and `Transport` (one HTTP exchange), and reports every outcome to `Recovery`.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import msgspec
import structlog
from msgspec.structs import replace

from trainop.runtime.client.transport import AnswerTooLongError, NotConnectedError, Request, Response, Stream, Transport
from trainop.runtime.clock import Clock
from trainop.runtime.errors import ApiError, ForbiddenError, api_error
from trainop.runtime.objects.metadata import Json

EXCHANGE_TIMEOUT = 30.0
"""Default timeout in seconds of a request without one of its own."""

MAX_TRIES = 5
RETRY_BUDGET = 30.0
"""Seconds after which no further retry starts."""

FIRST_DELAY = 0.2
MAX_DELAY = 10.0
JITTER = 0.2

ERROR_BODY_TIMEOUT = 10.0
MAX_ERROR_BODY = 64 * 1024
"""Limits in seconds and bytes for reading the error body of a rejected stream."""

TRANSIENT = frozenset({500, 502, 503, 504})
"""Statuses after which a repeatable request is retried."""

UNAVAILABLE = frozenset({502, 503, 504})
"""Statuses that a proxy or load balancer sends while the API server is unreachable."""

READS = frozenset({"GET", "HEAD"})

log = structlog.get_logger(__name__)


WEIGHT = 1 / 16
"""Of the last write in the moving average of their durations."""

OWN_FIELDS = {"fieldValidation": "Ignore"}
"""The query for bodies into which no field of a user flows. By default the API server compares each body with the
schema, for warnings about unknown fields."""

_encode = msgspec.json.Encoder().encode


def delete_options(options: Mapping[str, Any]) -> bytes:
    """The body of a deletion; empty if no option is given."""
    given = {name: value for name, value in options.items() if value is not None}
    return _encode({"apiVersion": "v1", "kind": "DeleteOptions"} | given) if given else b""


def names_version(patch: Json | Sequence[Json]) -> bool:
    """Whether the patch demands a resourceVersion, so that it cannot be applied twice."""
    if isinstance(patch, dict):
        return bool((patch.get("metadata") or {}).get("resourceVersion"))
    return any(op.get("op") == "test" and op.get("path") == "/metadata/resourceVersion" for op in patch)


LARGE_BODY = 64 * 1024
"""Bytes from which on a body counts against the budget."""

CAPACITY = 4 * 1024 * 1024
"""Bytes of large bodies in flight, for all jobs together: about three pods of the largest template that etcd can store,
which is enough to keep an API server busy. Each body is copied about five times before it is sent."""


class BodyBudget:
    """Limits the memory of request bodies in flight: a pod template may exceed a megabyte and is encoded once per pod,
    so that many concurrent creates could use hundreds of megabytes.

    One per process. Waiting requests are admitted in order of arrival. `capacity` is in bytes."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._free = capacity
        self._turn = asyncio.Lock()
        self._returned = asyncio.Event()

    @asynccontextmanager
    async def reserve(self, encode: Callable[[], bytes]) -> AsyncIterator[msgspec.Raw]:
        """Yields the result of `encode` for the duration of a request. A large body is encoded again once the budget
        has room, so that no body is held in memory while it waits. A body above the whole capacity is sent alone."""
        body = encode()
        if len(body) < LARGE_BODY:
            yield msgspec.Raw(body)
            return
        size = min(len(body), self._capacity)
        del body
        async with self._turn:
            while self._free < size:
                self._returned.clear()
                await self._returned.wait()
            self._free -= size
        try:
            yield msgspec.Raw(encode())
        finally:
            self._free += size
            self._returned.set()


class Recovery:
    """Availability of the API server as seen by the requests of one client; initially assumed."""

    def __init__(self) -> None:
        self._available = asyncio.Event()
        self._available.set()

    @property
    def available(self) -> bool:
        """Whether the server answered the last request."""
        return self._available.is_set()

    def failed(self) -> None:
        """Records a connection failure, or an answer by a proxy in front of the server (502, 503, 504)."""
        self._available.clear()

    def succeeded(self) -> None:
        """Records an answer of the server, whatever its status; wakes all sleepers."""
        self._available.set()

    async def sleep(self, seconds: float, clock: Clock) -> bool:
        """Sleeps for `seconds`, or less if the server is or becomes available; true if it was less."""
        sleeping = asyncio.ensure_future(clock.sleep(seconds))
        recovering = asyncio.ensure_future(self._available.wait())
        try:
            await asyncio.wait((sleeping, recovering), return_when=asyncio.FIRST_COMPLETED)
            return not sleeping.done()
        finally:
            sleeping.cancel()
            recovering.cancel()


class RequestMetrics(Protocol):
    """Receives the measurements of a client. `method` is the HTTP method in capitals."""

    def requested(self, method: str, code: str, host: str, seconds: float, *, sent: int, received: int) -> None:
        """One attempt has ended. `code` is the HTTP status, or `<error>` without an answer; `sent` and `received` are
        body bytes. `received` is 0 for streams."""
        ...

    def retried(self, method: str, code: str, host: str) -> None:
        """An attempt that ended with `code` is retried."""
        ...

    def limited(self, method: str, host: str, seconds: float) -> None:
        """The client-side rate limit delayed an attempt by `seconds`."""
        ...

    def decoded(self, seconds: float) -> None:
        """Decoding a response blocked the event loop for `seconds`."""
        ...


class NoRequestMetrics:
    """A `RequestMetrics` that records nothing."""

    def requested(self, method: str, code: str, host: str, seconds: float, *, sent: int, received: int) -> None: ...
    def retried(self, method: str, code: str, host: str) -> None: ...
    def limited(self, method: str, host: str, seconds: float) -> None: ...
    def decoded(self, seconds: float) -> None: ...


class Limiter(Protocol):
    """A client-side rate limit, shared by all requests of the process."""

    async def acquire(self) -> None:
        """Waits until one more request may be sent."""
        ...


class Sender:
    """Sends requests over a transport. All methods raise `ApiError`, `ConnectionError` or `TimeoutError`."""

    def __init__(
        self,
        transport: Transport,
        *,
        clock: Clock,
        rng: random.Random,
        metrics: RequestMetrics,
        host: str,
        user_agent: str,
        limiter: Limiter | None,
        gate: Callable[[], None] | None,
        urgent: bool = False,
        denied: Callable[[ApiError], None] | None = None,
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._rng = rng
        self._metrics = metrics
        self._host = host
        self._user_agent = user_agent
        self._limiter = limiter
        self._gate = gate
        self._urgent = urgent
        self._denied = denied
        self.recovery = Recovery()
        self.write_seconds = 0.0
        self._warnings: dict[str, None] = {}

    async def send(self, request: Request, *, repeatable: bool) -> Response:
        """Sends a request, with up to five attempts within 30 s. A request that is not `repeatable` is only retried if
        the server certainly did not execute it."""
        deadline = self._clock.monotonic() + RETRY_BUDGET
        tries = 1
        while True:
            try:
                return await self.attempt(request)
            except (ApiError, ConnectionError, TimeoutError) as failure:
                error = failure
                if tries == MAX_TRIES or not _is_retryable(error, repeatable):
                    raise
                delay = self._delay(error, tries)
                if self._clock.monotonic() + delay > deadline:
                    raise
                log.debug(
                    "request failed, retrying", method=request.method, path=request.path, error=str(error), delay=delay
                )
            await self._clock.sleep(delay)
            tries += 1
            self._metrics.retried(request.method, _code_of(error), self._host)

    async def attempt(self, request: Request) -> Response:
        """Sends a request once."""
        if self._limiter:
            arrived = self._clock.monotonic()
            await self._limiter.acquire()
            self._metrics.limited(request.method, self._host, self._clock.monotonic() - arrived)
        request = self._complete(request)
        if request.gate is not None:
            request.gate()  # fails early; the transport calls it again right before it sends
        started = self._clock.monotonic()
        code, received = "<error>", 0
        try:
            response = await self._transport.send(request)
            code, received = str(response.status), len(response.body)
            self._update_recovery(response.status)
        except AnswerTooLongError:  # the server did answer
            raise
        except (ConnectionError, TimeoutError):
            self.recovery.failed()
            raise
        finally:
            self._count(request, code, started, received)
        self._pass_warnings_on(request, response.headers)
        if 200 <= response.status < 300:
            return response
        raise self._error(response.status, response.body, response.headers)

    async def open(self, request: Request) -> Stream:
        """Opens a stream, without retries. The request's `timeout` limits the time until the response begins."""
        request = self._complete(request)
        started = self._clock.monotonic()
        code = "<error>"
        try:
            stream = await self._transport.open(request)
            code = str(stream.status)
            self._update_recovery(stream.status)
        except (ConnectionError, TimeoutError):
            self.recovery.failed()
            raise
        finally:
            self._count(request, code, started, 0)
        if 200 <= stream.status < 300:
            return stream
        raise self._error(stream.status, await _error_body(stream), stream.headers)

    def _error(self, status: int, body: bytes, headers: Mapping[str, str]) -> ApiError:
        error = api_error(status, body, retry_after(headers))
        if self._denied is not None and isinstance(error, ForbiddenError):
            self._denied(error)
        return error

    def _complete(self, request: Request) -> Request:
        """Adds the defaults of every request. Writes carry a `timeout` parameter, so that the server does not execute
        them after this client has given up."""
        timeout = EXCHANGE_TIMEOUT if request.timeout is None else request.timeout
        query, gate = request.query, None
        if request.method not in READS:
            gate = self._gate
            if "timeout" not in query:
                query = {**query, "timeout": f"{timeout:.0f}s"}
        headers = {"user-agent": self._user_agent, **request.headers}
        return replace(request, timeout=timeout, query=query, headers=headers, gate=gate, urgent=self._urgent)

    def _update_recovery(self, status: int) -> None:
        if status in UNAVAILABLE:
            self.recovery.failed()
        else:
            self.recovery.succeeded()

    def _delay(self, error: Exception, tries: int) -> float:
        after = getattr(error, "retry_after", None)
        if after:
            # Retry-After is a minimum: jitter only lengthens it, so that clients do not return all at once.
            return float(after) * self._rng.uniform(1, 1 + JITTER)
        exact = min(MAX_DELAY, FIRST_DELAY * 2.0 ** (tries - 1))
        return exact * self._rng.uniform(1 - JITTER, 1 + JITTER)

    def _count(self, request: Request, code: str, started: float, received: int) -> None:
        seconds = self._clock.monotonic() - started
        if request.method not in READS:
            self.write_seconds += (seconds - self.write_seconds) * WEIGHT
        self._metrics.requested(request.method, code, self._host, seconds, sent=len(request.body), received=received)

    def _pass_warnings_on(self, request: Request, headers: Mapping[str, str]) -> None:
        """Gives each API warning (`Warning: 299` header) to the sender of the request, and logs each distinct one
        once."""
        header = headers.get("warning")
        if not header:
            return
        for quoted in re.findall(r'299 \S+ "((?:[^"\\]|\\.)*)"', header):
            text = re.sub(r"\\(.)", r"\1", quoted)
            if request.warned is not None:
                request.warned(text)
            if text not in self._warnings and len(self._warnings) < 1000:
                self._warnings[text] = None
                log.warning("API server warning", warning=text)


async def _error_body(stream: Stream) -> bytes:
    """The body of a rejected stream, as far as it arrives within the limits. A partial body is enough, because the
    status alone determines the error."""
    body = b""
    try:
        async with asyncio.timeout(ERROR_BODY_TIMEOUT):
            async for chunk in stream.chunks():
                body += chunk
                if len(body) > MAX_ERROR_BODY:
                    break
    except (ConnectionError, TimeoutError):
        pass
    finally:
        await stream.close()
    return body


def _code_of(error: Exception) -> str:
    return str(error.code) if isinstance(error, ApiError) else "<error>"


def _is_retryable(error: Exception, repeatable: bool) -> bool:
    """Whether to retry. A throttled request (429) and one that was never sent have had no effect; after any other
    transient failure the effect is unknown. etcd refuses an object that is too large with status 500 every time."""
    if isinstance(error, NotConnectedError) or (isinstance(error, ApiError) and error.code == 429):
        return True
    if isinstance(error, AnswerTooLongError):
        return False
    if not isinstance(error, ApiError):
        return repeatable
    return repeatable and error.code in TRANSIENT and not error.too_large


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds in a Retry-After header. A date is ignored: API servers do not send one, and clocks differ."""
    text = headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdecimal() else None
