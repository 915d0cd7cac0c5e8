"""Single exchanges with the API server: defaults, gate, retries, metrics, and errors instead of statuses."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Mapping
from typing import Protocol

import structlog
from msgspec.structs import replace

from trainop.runtime.client.recovery import Recovery
from trainop.runtime.client.transport import AnswerTooLongError, NotConnectedError, Request, Response, Stream, Transport
from trainop.runtime.clock import Clock
from trainop.runtime.errors import ApiError, api_error

EXCHANGE_TIMEOUT = 30.0
MAX_TRIES = 5
RETRY_BUDGET = 30.0
FIRST_DELAY = 0.2
MAX_DELAY = 10.0
JITTER = 0.2

REFUSAL_PATIENCE = 10.0
MAX_REFUSAL = 64 * 1024
"""Seconds and bytes for the words of a server that refuses to stream."""

TRANSIENT = frozenset({500, 502, 503, 504})
AWAY = frozenset({502, 503, 504})
"""The server is not there yet, as far as who answered can tell."""

READS = frozenset({"GET", "HEAD"})

log = structlog.get_logger(__name__)


class RequestMetrics(Protocol):
    """What a client counts; `method` is in capitals."""

    def requested(self, method: str, code: str, host: str, seconds: float, *, sent: int, received: int) -> None:
        """One attempt, a retry or not; `code` is `<error>` when no answer came, sizes are those of bodies in bytes.
        Of what streams, `received` is 0."""
        ...

    def retried(self, method: str, code: str, host: str) -> None:
        """An attempt that ended with `code` is repeated."""
        ...

    def limited(self, method: str, host: str, seconds: float) -> None:
        """Our own limit made an attempt wait so long."""
        ...

    def decoded(self, seconds: float) -> None:
        """The time in which the event loop did nothing but decode a response."""
        ...


class Unmeasured:
    """Metrics for whoever wants none."""

    def requested(self, method: str, code: str, host: str, seconds: float, *, sent: int, received: int) -> None: ...
    def retried(self, method: str, code: str, host: str) -> None: ...
    def limited(self, method: str, host: str, seconds: float) -> None: ...
    def decoded(self, seconds: float) -> None: ...


class Limiter(Protocol):
    """A client-side rate limit, shared by all requests of the process."""

    async def acquire(self) -> None: ...


class Sender:
    """Sends requests over a transport; raises `ApiError`, `ConnectionError` or `TimeoutError`."""

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
        self.recovery = Recovery()
        self._warnings: dict[str, None] = {}

    async def send(self, request: Request, *, repeatable: bool) -> Response:
        """Tries up to five times within 30 s; what is not `repeatable` only if the server surely did not act on it."""
        deadline = self._clock.monotonic() + RETRY_BUDGET
        tries = 1
        while True:
            try:
                return await self.attempt(request)
            except (ApiError, ConnectionError, TimeoutError) as failure:
                error = failure
                if tries == MAX_TRIES or not _worth_repeating(error, repeatable):
                    raise
                delay = self._delay(error, tries)
                if self._clock.monotonic() + delay > deadline:
                    raise
                log.debug("request is retried", method=request.method, path=request.path, error=str(error), delay=delay)
            await self._clock.sleep(delay)
            tries += 1
            self._metrics.retried(request.method, _code_of(error), self._host)

    async def attempt(self, request: Request) -> Response:
        """One exchange."""
        if self._limiter:
            arrived = self._clock.monotonic()
            await self._limiter.acquire()
            self._metrics.limited(request.method, self._host, self._clock.monotonic() - arrived)
        request = self._complete(request)
        if request.gate is not None:
            request.gate()  # what is refused already need not wait for a connection; the transport asks again
        started = self._clock.monotonic()
        code, received = "<error>", 0
        try:
            response = await self._transport.send(request)
            code, received = str(response.status), len(response.body)
            self._note(response.status)
        except AnswerTooLongError:  # the server is there
            raise
        except (ConnectionError, TimeoutError):
            self.recovery.failed()
            raise
        finally:
            self._count(request, code, started, received)
        self._repeat_warnings(response.headers)
        if 200 <= response.status < 300:
            return response
        raise api_error(response.status, response.body, retry_after(response.headers))

    async def open(self, request: Request) -> Stream:
        """One attempt; `timeout` bounds the time until the response begins."""
        request = self._complete(request)
        started = self._clock.monotonic()
        code = "<error>"
        try:
            stream = await self._transport.open(request)
            code = str(stream.status)
            self._note(stream.status)
        except (ConnectionError, TimeoutError):
            self.recovery.failed()
            raise
        finally:
            self._count(request, code, started, 0)
        if 200 <= stream.status < 300:
            return stream
        raise api_error(stream.status, await _refusal(stream), retry_after(stream.headers))

    def _complete(self, request: Request) -> Request:
        """Fills in what every request carries; writes tell the server when we stop waiting."""
        timeout = EXCHANGE_TIMEOUT if request.timeout is None else request.timeout
        query, gate = request.query, None
        if request.method not in READS:
            gate = self._gate
            if "timeout" not in query:
                query = {**query, "timeout": f"{timeout:.0f}s"}
        headers = {"user-agent": self._user_agent, **request.headers}
        return replace(request, timeout=timeout, query=query, headers=headers, gate=gate, urgent=self._urgent)

    def _note(self, status: int) -> None:
        if status in AWAY:
            self.recovery.failed()
        else:
            self.recovery.succeeded()

    def _delay(self, error: Exception, tries: int) -> float:
        after = getattr(error, "retry_after", None)
        if after:
            # What the server asks for is the least; jitter only adds, so that not all come back at once.
            return float(after) * self._rng.uniform(1, 1 + JITTER)
        exact = min(MAX_DELAY, FIRST_DELAY * 2.0 ** (tries - 1))
        return exact * self._rng.uniform(1 - JITTER, 1 + JITTER)

    def _count(self, request: Request, code: str, started: float, received: int) -> None:
        seconds = self._clock.monotonic() - started
        self._metrics.requested(request.method, code, self._host, seconds, sent=len(request.body), received=received)

    def _repeat_warnings(self, headers: Mapping[str, str]) -> None:
        """Logs each `Warning: 299` of the server once."""
        header = headers.get("warning")
        if not header:
            return
        for text in re.findall(r'299 \S+ "((?:[^"\\]|\\.)*)"', header):
            if text not in self._warnings and len(self._warnings) < 1000:
                self._warnings[text] = None
                log.warning("server warns", warning=text)


async def _refusal(stream: Stream) -> bytes:
    """What a stream that is none says. Who refuses may be anything: it gets neither long nor much, the status tells."""
    body = b""
    try:
        async with asyncio.timeout(REFUSAL_PATIENCE):
            async for chunk in stream.chunks():
                body += chunk
                if len(body) > MAX_REFUSAL:
                    break
    except (ConnectionError, TimeoutError):
        pass  # what has come is enough
    finally:
        await stream.close()
    return body


def _code_of(error: Exception) -> str:
    return str(error.code) if isinstance(error, ApiError) else "<error>"


def _worth_repeating(error: Exception, repeatable: bool) -> bool:
    """A throttled or never sent request was not acted upon; after other transient failures nobody knows."""
    if isinstance(error, NotConnectedError) or (isinstance(error, ApiError) and error.code == 429):
        return True
    if isinstance(error, AnswerTooLongError):
        return False
    return repeatable and (not isinstance(error, ApiError) or error.code in TRANSIENT)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks to wait. A date is not obeyed: API servers send none, and clocks differ."""
    text = headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdecimal() else None
