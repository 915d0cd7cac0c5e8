"""The transport over sockets: aiohttp with dead peers noticed, credentials renewed and certificates reloaded."""

from __future__ import annotations

import asyncio
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

from trainop.runtime.client.cluster import ClusterConfig, ConfigError, Proof
from trainop.runtime.client.pool import MeasuredResolver, Pool
from trainop.runtime.client.tls import Material, read_material, tls_context
from trainop.runtime.client.transport import AnswerTooLongError, NotConnectedError, Request, Response
from trainop.runtime.clock import Clock, SystemClock

RELOAD_INTERVAL = 60.0
RELOAD_AFTER_REFUSAL = 5.0
DRAIN = 60.0
PIECE = 128 * 1024
"""Bytes of a body that are handed to the kernel at once."""

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
        self._pool: Pool | None = None
        self._retired: list[tuple[float, Pool]] = []
        self._checked_at = self._clock.monotonic()
        self._changing = asyncio.Lock()
        self._refused = False
        try:
            self._adopt(read_material(config, None))
        except OSError as error:
            raise ConfigError(f"{error.filename}: {error.strerror}; it must be a readable PEM file") from error

    @property
    def host(self) -> str:
        """`host:port` of the server, as metrics label it."""
        parts = urlsplit(self._config.server)
        return parts.netloc if parts.port else f"{parts.netloc}:{443 if parts.scheme == 'https' else 80}"

    def refused(self) -> bool:
        """The last answer was a 401, although credentials were renewed before."""
        return self._refused

    async def send(self, request: Request) -> Response:
        try:
            async with asyncio.timeout(request.timeout):
                async with await self._begin(request, streams=False) as response:
                    body = await _body_of(response, request.max_answer)
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
        credentials = self._config.credentials
        proof = await credentials.proof() if credentials else None
        shown = self._material
        response = await self._ask(request, streams, proof)
        if response.status == 401 and await self._renewed(proof, shown):
            response.release()
            response = await self._ask(request, streams, await credentials.proof() if credentials else None)
        self._refused = response.status == 401
        return response

    async def _renewed(self, proof: Proof | None, shown: Material | None) -> bool:
        """After a 401: whether there may be something else to show. Certificates are read again at once, once for all
        requests that were refused, and not again within the next seconds."""
        if self._clock.monotonic() - self._checked_at >= RELOAD_AFTER_REFUSAL:
            async with self._changing:
                if self._clock.monotonic() - self._checked_at >= RELOAD_AFTER_REFUSAL:
                    await self._reload(proof)
        credentials = self._config.credentials
        again = credentials is not None and proof is not None and credentials.refused(proof)
        return again or self._material is not shown

    async def _ask(self, request: Request, streams: bool, proof: Proof | None) -> aiohttp.ClientResponse:
        config = self._config
        pool = await self._current_pool(proof)
        session = pool.watches if streams else pool.urgent if request.urgent else pool.requests
        headers = CIMultiDict({"accept": request.accept, **request.headers})
        headers.extend(config.headers)
        if proof is not None:
            headers.update(proof.headers)
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
                request.gate()  # aiohttp reports the gate's refusal as an error of the connection
            raise

    async def _current_pool(self, proof: Proof | None) -> Pool:
        now = self._clock.monotonic()
        brought = proof is not None and proof.certificate is not None
        if now - self._checked_at >= RELOAD_INTERVAL or (brought and not self._uses(proof)):
            async with self._changing:
                await self._reload(proof)
        if self._pool is None:
            self._pool = Pool.open(self._resolver)
        return self._pool

    def _resolver(self) -> AbstractResolver:
        return MeasuredResolver(self._clock, self._resolved)

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


class _Body(Payload):
    """The body of a request, also an empty one, that asks the gate in the very step that hands the bytes to the kernel.

    aiohttp holds the headers back until then, and calls this once more if it sends again on another connection. A large
    body goes piece by piece, so that it is not encrypted and buffered as a whole while nothing else can run.
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
        for start in range(0, max(1, len(self._value)), PIECE):
            if self._gate is not None:
                self._gate()  # a body that is not complete has no effect
            self.sent = start + PIECE >= len(self._value)
            await writer.write(self._value[start : start + PIECE])


async def _body_of(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Raises `AnswerTooLongError` for a body of more than `limit` bytes, before more of it is held."""
    parts: list[bytes] = []
    held = 0
    async for part in response.content.iter_any():
        parts.append(part)
        held += len(part)
        if held > limit:
            raise AnswerTooLongError(f"the answer is longer than {limit} bytes")
    return parts[0] if len(parts) == 1 else b"".join(parts)


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
        case AnswerTooLongError():
            return AnswerTooLongError(f"{about}: {error}")
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
