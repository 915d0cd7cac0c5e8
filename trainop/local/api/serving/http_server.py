"""The HTTP server: authenticates requests by bearer token and converts between aiohttp and `Request` / `Response`.

Connections are accepted and limited by the listener of the operator's servers, with limits of its own: watches and
sessions with containers have no end, and a request line may contain a command.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec
from aiohttp import web

from trainop.local.api import status_errors
from trainop.local.api.registry.authentication import NotAuthenticatedError, authenticate
from trainop.local.api.registry.backend import Backend
from trainop.local.api.request.pod_streams import Arguments, PodPorts, Session
from trainop.local.api.serving import channels, port_forward
from trainop.local.api.serving.tls import SERVICE_NAMES, Certificate
from trainop.local.api.status_errors import StatusError, bad_request
from trainop.runtime.lowlevel import MAX_HEAD, Address, BindError, Limits, Request, Response, Stream
from trainop.runtime.lowlevel import HttpServer as Listener

Handler = Callable[[Request], Awaitable[Response | Stream]]
Connector = Callable[[Request, Arguments], Session | PodPorts | Response | None]

MAX_SESSIONS = 500
"""Open sessions with containers and pods. One of exec takes a process and about eight descriptors."""
_BODY_LIMIT = 8 * 1024 * 1024
_LINE_LIMIT = 1024 * 1024
"""Bytes of a request line, as in Go: the URL of an exec contains its command."""
_PUBLIC = {"/healthz", "/livez", "/readyz", "/version"}
"""What every client may read, as by the ClusterRole system:public-info-viewer of Kubernetes."""
CONNECTIONS = 2_000
"""Open at a time; each watch is one."""
_LIMITS = Limits(share=2, head=_LINE_LIMIT + MAX_HEAD, response=None)
_LOCAL_NAMES = {"localhost", *SERVICE_NAMES}


class HttpServer:
    """Listens on one address. Rejects requests without a valid token, but for `_PUBLIC`, and all of browsers."""

    def __init__(self, backend: Backend, handler: Handler, connector: Connector = lambda *_: None) -> None:
        """`connector` opens the session of a request that asks for one; `handler` answers all others."""
        self._backend = backend
        self._handler = handler
        self._connector = connector
        self._sessions = 0
        self._serving: asyncio.Task[None] | None = None
        self._host = ""

    async def start(self, host: str, port: int, certificate: Certificate | None) -> str:
        """Listen, with TLS if a certificate is given; returns the URL. Port 0 selects a free port. Raises `OSError`."""
        application = web.Application(client_max_size=_BODY_LIMIT)
        application.router.add_route("*", "/{path:.*}", self._serve)
        http = Listener(
            "API",
            Address(host, port),
            application,
            certificate.context() if certificate else None,
            connections=CONNECTIONS,
            limits=_LIMITS,
            grace=1.0,
            handler_cancellation=True,
            max_line_size=_LINE_LIMIT,
        )
        try:
            await http.bind()
        except BindError as error:
            raise error.__cause__ or OSError(str(error)) from None
        self._serving, self._host = asyncio.create_task(http.run(), name="API"), host
        await asyncio.sleep(0)  # `run` has begun, and so closes the sockets when it is cancelled
        shown = f"[{host}]" if ":" in host else host
        return f"{'https' if certificate else 'http'}://{shown}:{http.port}"

    async def stop(self) -> None:
        """Stop listening and close all connections; idempotent."""
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait([self._serving])
            self._serving = None

    async def _serve(self, incoming: web.Request) -> web.StreamResponse:
        if (error := self._authenticate(incoming)) is not None:
            return _error(error)
        request = Request(
            method="GET" if incoming.method == "HEAD" else incoming.method,
            path=incoming.path,
            query=dict(incoming.query),
            body=await incoming.read(),
            content_type=incoming.headers.get("Content-Type", ""),
            accept=incoming.headers.get("Accept", "*/*"),
            headers={name.lower(): value for name, value in incoming.headers.items()},
        )
        if "Upgrade" in incoming.headers:
            opened = self._connector(request, tuple(incoming.query.items()))
            if opened is not None:
                return _plain(opened) if isinstance(opened, Response) else await self._serve_session(incoming, opened)
        answer = await self._handler(request)
        if isinstance(answer, Response):
            return _plain(answer)
        response = web.StreamResponse(status=answer.status, headers=_canonical_headers(answer.headers))
        try:
            await response.prepare(incoming)
            async for chunk in answer.chunks():
                await response.write(chunk)
        except ConnectionResetError:
            return response
        finally:
            await answer.close()
        return response

    async def _serve_session(self, incoming: web.Request, session: Session | PodPorts) -> web.StreamResponse:
        protocols = port_forward.PROTOCOLS if isinstance(session, PodPorts) else channels.PROTOCOLS
        if (error := _handshake_error(incoming, protocols)) is not None:
            return _error(error)
        if self._sessions >= MAX_SESSIONS:
            message = f"Too many requests: {MAX_SESSIONS} sessions with containers and pods are open"
            return _error(StatusError(429, "TooManyRequests", message, {"retryAfterSeconds": 1}))
        self._sessions += 1
        try:
            if isinstance(session, PodPorts):
                return await port_forward.serve_port_forward(incoming, session)
            return await channels.serve_session(incoming, session)
        finally:
            self._sessions -= 1

    def _authenticate(self, incoming: web.Request) -> status_errors.StatusError | None:
        """The error of a request from a web page (403) or without a valid token (401); None if it is accepted."""
        if "Origin" in incoming.headers or not self._is_expected_host(incoming.host):
            return status_errors.StatusError(403, "Forbidden", "requests from web pages are refused", {})
        if "Authorization" not in incoming.headers and _is_public(incoming):
            return None
        scheme, _, token = incoming.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return status_errors.unauthorized()
        try:
            authenticate(self._backend, token.strip())
        except NotAuthenticatedError:
            return status_errors.unauthorized()
        return None

    def _is_expected_host(self, host: str) -> bool:
        """Whether the Host header names this server; a DNS rebinding attack sends the name of the attacker."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and not host.endswith("]") else host
        name = name.strip("[]")
        if name in _LOCAL_NAMES or name == self._host:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _is_public(incoming: web.Request) -> bool:
    return incoming.method == "GET" and incoming.path.rstrip("/") in _PUBLIC


def _handshake_error(incoming: web.Request, protocols: Sequence[str]) -> StatusError | None:
    """The 400 for a client that asks for another protocol than these."""
    if incoming.headers.get("Upgrade", "").lower() != "websocket":
        return bad_request(
            "this cluster serves exec, attach and portforward over WebSockets only; kubectl uses them since version "
            "1.31, and before with KUBECTL_REMOTE_COMMAND_WEBSOCKETS=true and KUBECTL_PORT_FORWARD_WEBSOCKETS=true"
        )
    offered = {name.strip() for name in incoming.headers.get("Sec-WebSocket-Protocol", "").split(",")}
    if offered.isdisjoint(protocols):
        return bad_request(f"this cluster speaks the WebSocket protocol {' or '.join(protocols)} here")
    return None


def _plain(answer: Response) -> web.Response:
    return web.Response(status=answer.status, body=answer.body, headers=_canonical_headers(answer.headers))


def _error(error: StatusError) -> web.Response:
    body = msgspec.json.encode(error.status)
    headers = _canonical_headers(error.headers)
    return web.Response(status=error.code, body=body, headers=headers, content_type="application/json")


def _canonical_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers with canonical names such as `Content-Type`, because some clients are case-sensitive."""
    return {name.title(): value for name, value in headers.items()}
