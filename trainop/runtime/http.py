"""The transport over sockets: dead peers noticed, credentials renewed and certificates reloaded."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
import structlog
from aiohttp.abc import ResolveResult
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from trainop.runtime.clock import Clock, SystemClock
from trainop.runtime.cluster import ClusterConfig, ConfigError, Proof
from trainop.runtime.dial import CONNECT_TIMEOUT, DialError, Place, dial, make_socket, unaccepted, unreachable
from trainop.runtime.tls import Material, read_material, tls_context
from trainop.runtime.transport import NotConnectedError, Request, Response
from trainop.runtime.wire import Line, Lines

MAX_REQUESTS = 32
"""Connections for requests: each costs a handshake of some 2 ms, and eight keep an API server almost busy."""

UNPACKED = {"accept-encoding": "identity"}
"""Unpacking costs both sides more than a cluster's network: client-go programs set DisableCompression for it."""

READS = frozenset({"GET", "HEAD"})
TROUBLE = (aiohttp.ClientError, OSError, DialError)

RELOAD_INTERVAL = 60.0
DRAIN = 60.0
CHUNK = 256 * 1024

_PLAIN_PATH = re.compile(r"[A-Za-z0-9/._-]+")
_BROKEN_LINE = re.compile(r"[\r\n\0]")

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
                if self._config.proxy:
                    return await self._send_by_proxy(request)
                response = await self._exchange(request)
                if response.status == 401 and self._may_ask_again():
                    response = await self._exchange(request)
                return response
        except TROUBLE as error:
            raise _plain(error, request) from error

    async def open(self, request: Request) -> HttpStream:
        try:
            async with asyncio.timeout(request.timeout):
                return HttpStream(await self._begin(request), request)
        except TROUBLE as error:
            raise _plain(error, request) from error

    async def close(self) -> None:
        """Ends all sessions."""
        pools = [pool for _, pool in self._retired] + ([self._pool] if self._pool else [])
        self._pool, self._retired = None, []
        for pool in pools:
            await pool.close()

    async def _exchange(self, request: Request) -> Response:
        pool, headers = await self._prepare(request)
        if request.body or request.method not in READS:
            headers["content-length"] = str(len(request.body))
        lines = [f"{request.method} {self._target(request)} HTTP/1.1", f"host: {self._place.authority}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if _BROKEN_LINE.search("".join(lines)):
            raise ValueError("a header has more than one line")
        head = "\r\n".join(lines)
        return await pool.lines.exchange(request.method, f"{head}\r\n\r\n".encode() + request.body)

    async def _send_by_proxy(self, request: Request) -> Response:
        """aiohttp knows how."""
        async with await self._begin(request) as response:
            return Response(response.status, _plain_headers(response.headers), await response.read())

    def _may_ask_again(self) -> bool:
        """Whether credentials that were refused may be others now."""
        credentials = self._config.credentials
        return credentials is not None and credentials.refused()

    async def _begin(self, request: Request) -> aiohttp.ClientResponse:
        """The response up to its body; credentials that were refused are renewed once."""
        response = await self._ask(request)
        if response.status == 401 and self._may_ask_again():
            response.release()
            response = await self._ask(request)
        return response

    async def _ask(self, request: Request) -> aiohttp.ClientResponse:
        config = self._config
        pool, headers = await self._prepare(request)
        return await pool.session.request(
            request.method,
            URL(self._place.origin + self._target(request), encoded=True),
            data=request.body or None,
            headers=headers,
            allow_redirects=False,
            proxy=config.proxy,
            ssl=self._tls if self._tls is not None else True,
            server_hostname=config.tls_server_name,
        )

    async def _prepare(self, request: Request) -> tuple[_Pool, CIMultiDict[str]]:
        """The connections to use, and the headers to send."""
        config = self._config
        proof = await config.credentials.proof() if config.credentials else None
        pool = await self._current_pool(proof)
        headers = CIMultiDict({"accept": request.accept, **UNPACKED, **request.headers})
        headers.extend(config.headers)
        if proof is not None:
            headers.update(proof.headers)
        if request.body:
            headers["content-type"] = request.content_type
        return pool, headers

    async def _current_pool(self, proof: Proof | None) -> _Pool:
        now = self._clock.monotonic()
        brought = proof is not None and proof.certificate is not None
        if now - self._checked_at >= RELOAD_INTERVAL or (brought and not self._uses(proof)):
            async with self._changing:
                await self._reload(proof)
        if self._pool is None:
            session = _session(_MeasuredResolver(self._clock, self._resolved))
            self._pool = _Pool(Lines(self._dial, MAX_REQUESTS), session)
        return self._pool

    async def _dial(self) -> Line:
        return await dial(self._place, self._tls, self._config.tls_server_name, self._resolved)

    @property
    def _place(self) -> Place:
        return Place.of(self._config.server)

    def _target(self, request: Request) -> str:
        return self._place.prefix + _quote_path(request.path) + _query_text(tuple(request.query.items()))

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
    """Connections that share certificates."""

    lines: Lines
    session: aiohttp.ClientSession
    """For watches, which so never take a place of a request, and for whatever goes through a proxy."""

    async def close(self) -> None:
        await self.lines.close()
        await self.session.close()


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


def _session(resolver: _MeasuredResolver) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, socket_factory=make_socket, resolver=resolver),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT),
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=CHUNK,
        trust_env=False,
    )


def _quote_path(path: str) -> str:
    return path if _PLAIN_PATH.fullmatch(path) else quote(path, safe="/:@!$&'()*+,;=~")


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
            raise _plain(error, self._request) from error

    async def close(self) -> None:
        self._response.close()


def _plain_headers(headers: CIMultiDictProxy[str]) -> dict[str, str]:
    return {name.lower(): ", ".join(headers.getall(name)) for name in headers}


def _plain(error: Exception, request: Request) -> Exception:
    """The error that `Transport` promises, with the request in its words."""
    about = f"{request.method} {request.path}"
    match error:
        case NotConnectedError():
            return error
        case (
            DialError()
            | aiohttp.ClientConnectorError()
            | aiohttp.ConnectionTimeoutError()
            | aiohttp.ClientHttpProxyError()
        ):
            return NotConnectedError(f"{about}: {_in_words(error)}")
        case TimeoutError():
            return TimeoutError(f"{about}: {str(error) or 'no answer in time'}")
    return ConnectionError(f"{about}: {_in_words(error)}")


def _in_words(error: Exception) -> str:
    """One line that a user can act upon; aiohttp shows its `SSLContext` as an object at some address."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return unaccepted(error.host, error.port, error.certificate_error)
    if isinstance(error, aiohttp.ClientConnectorError):
        return unreachable(error.host, error.port, error.os_error)
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"the proxy refuses: {error.status} {error.message}"
    if isinstance(error, aiohttp.ClientResponseError):
        return f"the answer is not HTTP: {error.message.partition(':')[0]}"
    return " ".join(str(error).split()) or type(error).__name__
