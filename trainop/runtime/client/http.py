"""HTTP transport over aiohttp: authenticates requests, renews credentials after a 401, and reloads certificates.

Implements `Transport` for a real API server. Errors of aiohttp become `ConnectionError`, `TimeoutError` or
`NotConnectedError`.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from functools import lru_cache
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
import structlog
from aiohttp.abc import AbstractResolver, AbstractStreamWriter
from aiohttp.payload import Payload
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from trainop.runtime.client.cluster import AuthHeaders, ConfigError
from trainop.runtime.client.library_config import ConnectionSource, cluster_config
from trainop.runtime.client.pool import MeasuredResolver, Pool
from trainop.runtime.client.timeout import Timeout
from trainop.runtime.client.tls import Material, read_material, tls_context
from trainop.runtime.client.transport import AnswerTooLongError, NotConnectedError, Request, Response, Stream
from trainop.runtime.clock import Clock, SystemClock

RELOAD_INTERVAL = 60.0
"""Seconds between two checks of the certificate files."""

RELOAD_AFTER_REFUSAL = 5.0
"""Minimum seconds between two such checks if a 401 caused the second one."""

DRAIN_SECONDS = 60.0
"""Seconds for which connections with old certificates stay open, so that their requests can finish."""

WRITE_CHUNK = 128 * 1024
"""Bytes of a request body per write to the socket."""

READING = 0.125
"""Part of the pace of a body in which it is read, if so much arrives."""

LARGE_PIECE = 64 * 1024
"""Bytes of a body in one piece, after which more may have arrived already: the kernel is read 256 KiB at a time."""

_DESCRIPTOR_IN_USE = "is used by transport"
"""Part of uvloop's message if a new connection gets the descriptor of one that other code has closed under it
(`loop.pyx`, `_ensure_fd_no_transport`). `OwnedSocket` keeps our own sockets from doing so."""

NETWORK_ERRORS = (aiohttp.ClientError, OSError)
"""Exceptions of aiohttp and of sockets while a request is sent or its response is read."""

_PLAIN_PATH = re.compile(r"[A-Za-z0-9/._-]+")

log = structlog.get_logger(__name__)


class HttpTransport:
    """A `Transport` to one API server. Connections are opened with the first request; `close` ends them."""

    def __init__(
        self,
        config: ConnectionSource,
        *,
        clock: Clock | None = None,
        resolved: Callable[[str, float], None] | None = None,
    ) -> None:
        """`config` may also be a `Configuration` or `ApiClient` of kubernetes_asyncio. `resolved` is called with the
        host and the seconds of each DNS lookup. Raises `ConfigError` if the certificates cannot be used."""
        self._clock = clock or SystemClock()
        self._config = config = cluster_config(config, clock=self._clock)
        self._tls: ssl.SSLContext | None = None
        self._material: Material | None = None
        self._resolved = resolved
        self._pool: Pool | None = None
        self._retired: list[tuple[float, Pool]] = []
        self._checked_at = self._clock.monotonic()
        self._reloading = asyncio.Lock()
        self._refused = False
        try:
            self._use_material(read_material(config, None))
        except OSError as error:
            raise ConfigError(f"{error.filename}: {error.strerror}; it must be a readable PEM file") from error

    @property
    def host(self) -> str:
        """`host:port` of the server, as metrics label it."""
        parts = urlsplit(self._config.server)
        return parts.netloc if parts.port else f"{parts.netloc}:{443 if parts.scheme == 'https' else 80}"

    def refused(self) -> bool:
        """Whether the last answer was a 401 even after the credentials were renewed."""
        return self._refused

    async def send(self, request: Request) -> Response:
        try:
            with Timeout(request.timeout):
                response = await self._start(request, streams=False)
                if response.content.is_eof():  # it arrived with the headers, and the connection is free again
                    body = response.content.read_nowait()
                    _check_length(len(body), request.max_answer)
                else:
                    async with response:
                        body = await _body_of(response, request.max_answer)
                return Response(response.status, _plain_headers(response.headers), body)
        except NETWORK_ERRORS as error:
            raise _builtin_error(error, request) from error

    async def open(self, request: Request) -> Stream:
        try:
            with Timeout(request.timeout):
                return HttpStream(await self._start(request, streams=True), request)
        except NETWORK_ERRORS as error:
            raise _builtin_error(error, request) from error

    async def close(self) -> None:
        """Closes all connections."""
        pools = [pool for _, pool in self._retired] + ([self._pool] if self._pool else [])
        self._pool, self._retired = None, []
        for pool in pools:
            await pool.close()

    async def _start(self, request: Request, *, streams: bool) -> aiohttp.ClientResponse:
        """Sends the request and returns the response before its body is read. After a 401, the credentials are renewed
        and the request is sent once more."""
        credentials = self._config.credentials
        auth = await credentials.auth_headers() if credentials else None
        used = self._material
        response = await self._send_once(request, streams, auth)
        if response.status == 401 and await self._renew_credentials(auth, used):
            response.release()
            auth = await credentials.auth_headers() if credentials else None
            response = await self._send_once(request, streams, auth)
        self._refused = response.status == 401
        return response

    async def _renew_credentials(self, auth: AuthHeaders | None, used: Material | None) -> bool:
        """After a 401, renews headers and rereads certificates; returns whether either may have changed. Concurrent 401
        responses cause a single reload, at most once per `RELOAD_AFTER_REFUSAL`."""
        if self._clock.monotonic() - self._checked_at >= RELOAD_AFTER_REFUSAL:
            async with self._reloading:
                if self._clock.monotonic() - self._checked_at >= RELOAD_AFTER_REFUSAL:
                    await self._reload(auth)
        credentials = self._config.credentials
        again = credentials is not None and auth is not None and credentials.refused(auth)
        return again or self._material is not used

    async def _send_once(self, request: Request, streams: bool, auth: AuthHeaders | None) -> aiohttp.ClientResponse:
        config = self._config
        pool = await self._current_pool(auth)
        session = pool.watches if streams else pool.urgent if request.urgent else pool.requests
        headers = CIMultiDict({"accept": request.accept, **request.headers})
        headers.extend(config.headers)
        if auth is not None:
            headers.update(auth.headers)
        if request.body:
            headers["content-type"] = request.content_type
        body = _Body(request) if request.body or request.gate else None
        try:
            return await session.request(
                request.method,
                _url(self._config.server, request.path, tuple(request.query.items())),
                data=body,
                headers=headers,
                allow_redirects=False,
                proxy=config.proxy,
                ssl=self._tls if self._tls is not None else True,
                server_hostname=config.tls_server_name,
            )
        except aiohttp.ClientError:
            if request.gate is not None and body is not None and not body.sent:
                request.gate()  # raises the gate's error, which aiohttp reports as a connection error
            raise
        except RuntimeError as error:
            if _DESCRIPTOR_IN_USE not in str(error):
                raise
            raise NotConnectedError(f"{request.method} {request.path}: {error}") from error

    async def _current_pool(self, auth: AuthHeaders | None) -> Pool:
        now = self._clock.monotonic()
        has_certificate = auth is not None and auth.certificate is not None
        if now - self._checked_at >= RELOAD_INTERVAL or (has_certificate and not self._uses(auth)):
            async with self._reloading:
                await self._reload(auth)
        if self._pool is None:
            self._pool = Pool.open(self._resolver)
        return self._pool

    def _resolver(self) -> AbstractResolver:
        return MeasuredResolver(self._clock, self._resolved)

    def _uses(self, auth: AuthHeaders | None) -> bool:
        return auth is not None and self._material is not None and self._material.certificate == auth.certificate

    async def _reload(self, auth: AuthHeaders | None) -> None:
        """Rereads the certificates and, if their content has changed, opens new connections. Unreadable or invalid
        files leave the old certificates in use."""
        now = self._checked_at = self._clock.monotonic()
        try:
            material = await asyncio.to_thread(read_material, self._config, auth)
            if material != self._material:
                self._use_material(material)
                log.info("certificates changed", server=self._config.server)
        except (OSError, ConfigError) as error:
            log.warning("certificates cannot be reloaded", server=self._config.server, error=str(error))
        drained = [pool for until, pool in self._retired if until <= now]
        self._retired = [(until, pool) for until, pool in self._retired if until > now]
        for pool in drained:
            await pool.close()

    def _use_material(self, material: Material) -> None:
        if self._config.server.startswith("https:"):
            self._tls = tls_context(self._config, material)
        self._material = material
        if self._pool is not None:
            self._retired.append((self._clock.monotonic() + DRAIN_SECONDS, self._pool))
            self._pool = None


class _Body(Payload):
    """A request body, possibly empty, that checks the gate immediately before bytes are handed to the kernel.

    Waiting for a connection can take long enough to lose leadership, so an earlier check would not be safe. aiohttp
    sends the headers together with the first chunk, and calls `write` again if it repeats the request on another
    connection. A large body is written in chunks, because encrypting it at once would block the event loop.
    """

    _value: bytes

    def __init__(self, request: Request) -> None:
        super().__init__(request.body, content_type=request.content_type)
        self._size = len(request.body)
        self._gate = request.gate
        self.sent = False

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self._value.decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        await self.write_with_length(writer, None)

    async def write_with_length(self, writer: AbstractStreamWriter, _content_length: int | None) -> None:
        self.sent = False
        for start in range(0, max(1, len(self._value)), WRITE_CHUNK):
            if self._gate is not None:
                self._gate()  # the server ignores a request with an incomplete body
            self.sent = start + WRITE_CHUNK >= len(self._value)
            await writer.write(self._value[start : start + WRITE_CHUNK])


async def _body_of(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Reads the response body. Raises `AnswerTooLongError` as soon as more than `limit` bytes have arrived."""
    parts: list[bytes] = []
    held = 0
    async for part in response.content.iter_any():
        parts.append(part)
        held += len(part)
        _check_length(held, limit)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _check_length(length: int, limit: int) -> None:
    if length > limit:
        raise AnswerTooLongError(f"the answer is longer than {limit} bytes")


@lru_cache(maxsize=256)
def _url(server: str, path: str, query: tuple[tuple[str, str], ...]) -> URL:
    """The escaped URL, cached because most requests are creations with the same collection path."""
    quoted = path if _PLAIN_PATH.fullmatch(path) else quote(path, safe="/:@!$&'()*+,;=~")
    return URL(server.rstrip("/") + quoted + _query_text(query), encoded=True)


@lru_cache(maxsize=256)
def _query_text(query: tuple[tuple[str, str], ...]) -> str:
    """The encoded query with its question mark, cached because few different queries occur."""
    return f"?{urlencode(query, quote_via=quote)}" if query else ""


class HttpStream:
    """A `Stream`: a response whose body is read as it arrives."""

    def __init__(self, response: aiohttp.ClientResponse, request: Request) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = _plain_headers(response.headers)
        self._response = response
        self._request = request

    async def chunks(self) -> AsyncIterator[bytes]:
        pace, clock, read_since = self._request.pace, asyncio.get_running_loop().time, -math.inf
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
                if pace and (len(chunk) < LARGE_PIECE or clock() - read_since > pace * READING):
                    await self._pause(pace)
                    read_since = clock()
        except NETWORK_ERRORS as error:
            raise _builtin_error(error, self._request) from error

    async def _pause(self, pace: float) -> None:
        """Leaves what arrives to the kernel until the next multiple of `pace`, so that all streams are read at the same
        moments."""
        connection = self._response.connection
        transport = connection.transport if connection is not None else None
        if transport is None:
            return  # the body is complete
        transport.pause_reading()  # nothing arrives, so that the flow control of the response does not interfere
        try:
            await wait_for_multiple(pace)
        finally:
            transport.resume_reading()

    async def close(self) -> None:
        """Closes the connection at once. TLS would wait for the server's close_notify, up to 30 s if it is busy."""
        connection = self._response.connection
        if connection is not None and connection.transport is not None:
            connection.transport.abort()
        self._response.close()


async def wait_for_multiple(pace: float) -> None:
    """Waits until the time of the loop is a multiple of `pace` seconds."""
    await asyncio.sleep(pace - asyncio.get_running_loop().time() % pace)


def _plain_headers(headers: CIMultiDictProxy[str]) -> dict[str, str]:
    plain = {name.lower(): value for name, value in headers.items()}
    if len(plain) < len(headers):  # some header is repeated
        plain = {name.lower(): ", ".join(headers.getall(name)) for name in headers}
    return plain


def _builtin_error(error: Exception, request: Request) -> Exception:
    """Converts an aiohttp error to a built-in one, as `Transport` promises, with the request in its message."""
    about = f"{request.method} {request.path}"
    match error:
        case NotConnectedError():
            return error
        case aiohttp.ClientConnectorError() | aiohttp.ConnectionTimeoutError() | aiohttp.ClientHttpProxyError():
            return NotConnectedError(f"{about}: {_describe(error)}")
        case AnswerTooLongError():
            return AnswerTooLongError(f"{about}: {error}")
        case TimeoutError():
            return TimeoutError(f"{about}: {str(error) or 'no answer in time'}")
    return ConnectionError(f"{about}: {_describe(error)}")


def _describe(error: Exception) -> str:
    """The error as one readable line. aiohttp's messages include the `repr` of an `SSLContext`."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"certificate of {error.host}:{error.port} is not accepted: {error.certificate_error}"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot connect to {error.host}:{error.port}: {_reason(error.os_error)}"
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"the proxy refuses: {error.status} {error.message}"
    if isinstance(error, aiohttp.ClientResponseError):
        return f"the answer is not HTTP: {error.message.partition(':')[0]}"
    return " ".join(str(error).split()) or type(error).__name__


def _reason(error: OSError) -> str:
    if error.errno and not isinstance(error, ssl.SSLError | socket.gaierror):
        return os.strerror(error.errno)  # asyncio's own text repeats the address
    return " ".join((error.strerror or str(error)).split())
