"""The socket side: aiohttp requests become `Request` values, answers become responses."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Mapping

import msgspec
from aiohttp import web

from trainop.local.api import status_errors
from trainop.local.api.registry.backend import Backend
from trainop.local.api.serving.tls import Certificate
from trainop.runtime.client.transport import Request, Response, Stream

Answer = Callable[[Request], Awaitable[Response | Stream]]

_BODY_LIMIT = 8 * 1024 * 1024
_LOCAL_NAMES = {"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}


class HttpServer:
    """Listens on one address; lets nobody in without the token, and no browser at all."""

    def __init__(self, backend: Backend, answer: Answer) -> None:
        self._backend = backend
        self._answer = answer
        self._runner: web.AppRunner | None = None
        self._host = ""

    async def start(self, host: str, port: int, certificate: Certificate | None) -> str:
        """Listen, with TLS if there is a certificate; return the URL."""
        application = web.Application(client_max_size=_BODY_LIMIT)
        application.router.add_route("*", "/{path:.*}", self._serve)
        runner = web.AppRunner(application, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        self._runner, self._host = runner, host
        site = web.TCPSite(runner, host, port, ssl_context=certificate.context() if certificate else None)
        await site.start()
        bound = runner.addresses[0][1]
        shown = f"[{host}]" if ":" in host else host
        return f"{'https' if certificate else 'http'}://{shown}:{bound}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _serve(self, incoming: web.Request) -> web.StreamResponse:
        if (error := self._authenticate(incoming)) is not None:
            body = msgspec.json.encode(error.status)
            return web.Response(status=error.code, body=body, content_type="application/json")
        request = Request(
            method="GET" if incoming.method == "HEAD" else incoming.method,
            path=incoming.path,
            query=dict(incoming.query),
            body=await incoming.read(),
            content_type=incoming.headers.get("Content-Type", ""),
            accept=incoming.headers.get("Accept", "*/*"),
            headers={name.lower(): value for name, value in incoming.headers.items()},
        )
        answer = await self._answer(request)
        if isinstance(answer, Response):
            return web.Response(status=answer.status, body=answer.body, headers=_named(answer.headers))
        response = web.StreamResponse(status=answer.status, headers=_named(answer.headers))
        try:
            await response.prepare(incoming)
            async for chunk in answer.chunks():
                await response.write(chunk)
        except ConnectionResetError:
            return response
        finally:
            await answer.close()
        return response

    def _authenticate(self, incoming: web.Request) -> status_errors.StatusError | None:
        """Why the request is not even looked at: it comes from a web page, or has no token."""
        if "Origin" in incoming.headers or not self._meant_for_us(incoming.host):
            return status_errors.StatusError(403, "Forbidden", "requests from web pages are refused", {})
        scheme, _, token = incoming.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not self._backend.accepts_token(token.strip()):
            return status_errors.unauthorized()
        return None

    def _meant_for_us(self, host: str) -> bool:
        """A page that rebinds its DNS name to this address still sends its own name as Host."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and not host.endswith("]") else host
        name = name.strip("[]")
        if name in _LOCAL_NAMES or name == self._host:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _named(headers: Mapping[str, str]) -> dict[str, str]:
    """Header names as they are usually written; some clients look for these letters."""
    return {name.title(): value for name, value in headers.items()}
