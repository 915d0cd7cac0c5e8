"""The transport over sockets: aiohttp with dead peers noticed, credentials renewed and certificates reloaded."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
import structlog
from aiohttp.abc import AbstractResolver, ResolveResult
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from trainop.runtime.clock import Clock, SystemClock
from trainop.runtime.cluster import ClusterConfig, ConfigError, Proof
from trainop.runtime.tls import Material, read_material, tls_context
from trainop.runtime.transport import NotConnectedError, Request, Response

CONNECT_TIMEOUT = 10.0
KEEP_ALIVE = 90.0
MAX_REQUESTS = 32
"""Connections for requests: each costs a handshake of some 2 ms, and eight keep an API server almost busy."""

RELOAD_INTERVAL = 60.0
DRAIN = 60.0
CHUNK = 256 * 1024

SOCKET_OPTIONS = tuple(
    (socket.IPPROTO_TCP, getattr(socket, name), value)
    for name, value in (
        ("TCP_KEEPIDLE", 15),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 30_000),
    )
    if hasattr(socket, name)  # not every system has all of them
)
"""A peer that vanished without a word is noticed within 30 s (`TCP_USER_TIMEOUT` in milliseconds)."""

TROUBLE = (aiohttp.ClientError, OSError)
"""What goes wrong between us and the server."""

_PLAIN_PATH = re.compile(r"[A-Za-z0-9/._-]+")

log = structlog.get_logger(__name__)


class HttpTransport:
    """A `Transport` to one API server. Sessions open with the first request; `close` ends them."""

    def __init__(
        self,
        config: ClusterConfig,
        *,
        clock: Clock | None = None,
        resolved: Callable[[str, float], None] | None = None,
    ) -> None:
        """Raises `ConfigError` if the certificates cannot be used. `resolved` is told of names that were looked up, and
        of the seconds that it took."""
        self._config = config
        self._clock = clock or SystemClock()
        self._tls: ssl.SSLContext | None = None
        self._material: Material | None = None
        self._resolved = resolved
        self._pool: _Pool | None = None
        self._retired: list[tuple[float, _Pool]] = []
        self._checked_at = self._clock.monotonic()
        self._changing = asyncio.Lock()
        try:
            self._adopt(read_material(config, None))
        except OSError as error:
            raise ConfigError(f"{error.filename}: {error.strerror}; it must be a readable PEM file") from error

    @property
    def host(self) -> str:
        """`host:port` of the server, as metrics label it."""
        parts = urlsplit(self._config.server)
        return parts.netloc if parts.port else f"{parts.netloc}:{443 if parts.scheme == 'https' else 80}"

    async def send(self, request: Request) -> Response:
        try:
            async with asyncio.timeout(request.timeout):
                async with await self._begin(request, streams=False) as response:
                    body = await response.read()
                    return Response(response.status, _plain_headers(response.headers), body)
        except TROUBLE as error:
            raise _plain_error(error, request) from error

    async def open(self, request: Request) -> HttpStream:
        try:
            async with asyncio.timeout(request.timeout):
                return HttpStream(await self._begin(request, streams=True), request)
        except TROUBLE as error:
            raise _plain_error(error, request) from error

    async def close(self) -> None:
        """Ends all sessions."""
        pools = [pool for _, pool in self._retired] + ([self._pool] if self._pool else [])
        self._pool, self._retired = None, []
        for pool in pools:
            await pool.close()

    async def _begin(self, request: Request, *, streams: bool) -> aiohttp.ClientResponse:
        """The response up to its body; credentials that were refused are renewed once."""
        response = await self._ask(request, streams)
        credentials = self._config.credentials
        if response.status == 401 and credentials is not None and credentials.refused():
            response.release()
            response = await self._ask(request, streams)
        return response

    async def _ask(self, request: Request, streams: bool) -> aiohttp.ClientResponse:
        config = self._config
        proof = await config.credentials.proof() if config.credentials else None
        pool = await self._current_pool(proof)
        headers = CIMultiDict({"accept": request.accept, **request.headers})
        headers.extend(config.headers)
        if proof is not None:
            headers.update(proof.headers)
        if request.body:
            headers["content-type"] = request.content_type
        return await (pool.watches if streams else pool.requests).request(
            request.method,
            _url(self._config.server, request.path, tuple(request.query.items())),
            data=request.body or None,
            headers=headers,
            allow_redirects=False,
            proxy=config.proxy,
            ssl=self._tls if self._tls is not None else True,
            server_hostname=config.tls_server_name,
        )

    async def _current_pool(self, proof: Proof | None) -> _Pool:
        now = self._clock.monotonic()
        brought = proof is not None and proof.certificate is not None
        if now - self._checked_at >= RELOAD_INTERVAL or (brought and not self._uses(proof)):
            async with self._changing:
                await self._reload(proof)
        if self._pool is None:
            self._pool = _Pool.open(self._resolver)
        return self._pool

    def _resolver(self) -> AbstractResolver:
        return _MeasuredResolver(self._clock, self._resolved)

    def _uses(self, proof: Proof | None) -> bool:
        return proof is not None and self._material is not None and self._material.certificate == proof.certificate

    async def _reload(self, proof: Proof | None) -> None:
        """Certificates are compared by content; what cannot be read or used leaves the old ones in place."""
        now = self._checked_at = self._clock.monotonic()
        try:
            material = await asyncio.to_thread(read_material, self._config, proof)
            if material != self._material:
                self._adopt(material)
                log.info("certificates changed", server=self._config.server)
        except (OSError, ConfigError) as error:
            log.warning("certificates cannot be reloaded", server=self._config.server, error=str(error))
        drained = [pool for until, pool in self._retired if until <= now]
        self._retired = [(until, pool) for until, pool in self._retired if until > now]
        for pool in drained:
            await pool.close()

    def _adopt(self, material: Material) -> None:
        if self._config.server.startswith("https:"):
            self._tls = tls_context(self._config, material)
        self._material = material
        if self._pool is not None:
            self._retired.append((self._clock.monotonic() + DRAIN, self._pool))
            self._pool = None


@dataclass(frozen=True, slots=True)
class _Pool:
    """Connections that share credentials; watches have their own, so that they never take a place of a request."""

    requests: aiohttp.ClientSession
    watches: aiohttp.ClientSession

    @classmethod
    def open(cls, resolver: Callable[[], AbstractResolver]) -> _Pool:
        return cls(_session(MAX_REQUESTS, resolver()), _session(0, resolver()))

    async def close(self) -> None:
        await self.requests.close()
        await self.watches.close()


class _MeasuredResolver(aiohttp.ThreadedResolver):
    """Tells how long the look-up of a name takes; with aiohttp's own tracing every request would pay for it."""

    def __init__(self, clock: Clock, tell: Callable[[str, float], None] | None) -> None:
        super().__init__()
        self._clock = clock
        self._tell = tell

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        began = self._clock.monotonic()
        try:
            return await super().resolve(host, port, family)
        finally:
            if self._tell is not None:
                self._tell(host, self._clock.monotonic() - began)


def _session(limit: int, resolver: AbstractResolver) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=limit, keepalive_timeout=KEEP_ALIVE, socket_factory=_socket, resolver=resolver
        ),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT),
        cookie_jar=aiohttp.DummyCookieJar(),
        # Unpacking costs both sides more than a cluster's network: client-go programs set DisableCompression for it.
        headers={"accept-encoding": "identity"},
        read_bufsize=CHUNK,
        trust_env=False,
    )


def _socket(address: tuple[int, int, int, str, tuple[object, ...]]) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for level, option, value in SOCKET_OPTIONS:
        made.setsockopt(level, option, value)
    return made


@lru_cache(maxsize=256)
def _url(server: str, path: str, query: tuple[tuple[str, str], ...]) -> URL:
    """Most requests create something, where others were created before."""
    quoted = path if _PLAIN_PATH.fullmatch(path) else quote(path, safe="/:@!$&'()*+,;=~")
    return URL(server.rstrip("/") + quoted + _query_text(query), encoded=True)


@lru_cache(maxsize=256)
def _query_text(query: tuple[tuple[str, str], ...]) -> str:
    """With its question mark. Nearly all requests have one of a few queries."""
    return f"?{urlencode(query, quote_via=quote)}" if query else ""


class HttpStream:
    """A response whose body is read as it comes."""

    def __init__(self, response: aiohttp.ClientResponse, request: Request) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = _plain_headers(response.headers)
        self._response = response
        self._request = request

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except TROUBLE as error:
            raise _plain_error(error, self._request) from error

    async def close(self) -> None:
        self._response.close()


def _plain_headers(headers: CIMultiDictProxy[str]) -> dict[str, str]:
    plain = {name.lower(): value for name, value in headers.items()}
    if len(plain) < len(headers):  # some come more than once, which is rare
        plain = {name.lower(): ", ".join(headers.getall(name)) for name in headers}
    return plain


def _plain_error(error: Exception, request: Request) -> Exception:
    """aiohttp's errors as the built-in ones that `Transport` promises, with the request in their words."""
    about = f"{request.method} {request.path}"
    match error:
        case NotConnectedError():
            return error
        case aiohttp.ClientConnectorError() | aiohttp.ConnectionTimeoutError() | aiohttp.ClientHttpProxyError():
            return NotConnectedError(f"{about}: {_in_words(error)}")
        case TimeoutError():
            return TimeoutError(f"{about}: {str(error) or 'no answer in time'}")
    return ConnectionError(f"{about}: {_in_words(error)}")


def _in_words(error: Exception) -> str:
    """One line that a user can act upon; aiohttp shows its `SSLContext` as an object at some address."""
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
        return os.strerror(error.errno)  # asyncio writes the address there, once more
    return " ".join((error.strerror or str(error)).split())
