"""HTTP servers, and the applications for liveness, readiness and metrics.

Response texts are those of controller-runtime (`pkg/healthz/healthz.go`), because existing scripts and probes parse
them.
"""

from __future__ import annotations

import asyncio
import inspect
import ssl
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware
from prometheus_client import CollectorRegistry

from trainop.runtime.errors import UnhealthyError
from trainop.runtime.serving.listener import Limits, Listener, listen, track_use
from trainop.runtime.serving.scrapes import metrics_handler

HealthCheck: TypeAlias = Callable[[], None] | Callable[[], Awaitable[None]]
"""A health check. Returns if healthy; raises `UnhealthyError` or `OSError` with the reason otherwise."""

CONNECTIONS = 64
"""Default limit of open connections of one server: enough for probes and several scrapers."""

_OPTIONS = {"access_log": None, "keepalive_timeout": 100.0, "max_headers": 64, "max_field_size": 32 * 1024}
"""Of aiohttp. The listener closes idle connections before aiohttp does."""

log = structlog.get_logger(__name__)


class BindError(Exception):
    """The server cannot listen on its address; the message is one line."""


class Address(NamedTuple):
    """A bind address. `host` is None for all interfaces."""

    host: str | None
    port: int


def parse_address(text: str) -> Address | None:
    """Parses a Go bind address: `:8080`, `127.0.0.1:8080` or `[::1]:8080`. Empty and `0` mean disabled (None).

    Raises `ValueError` for anything else.
    """
    if text in {"", "0"}:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"bind address {text!r} is not of the form host:port or :port")
    return Address(host.removeprefix("[").removesuffix("]") or None, int(port))


class Checks:
    """The named health checks of one endpoint, `healthz` or `readyz`. Without any, the check `ping` passes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._checks: dict[str, HealthCheck] = {}

    def add(self, name: str, check: HealthCheck) -> None:
        """Adds a check. Raises `ValueError` if the name is in use."""
        if name in self._checks:
            raise ValueError(f"{self.name} check {name!r} exists")
        self._checks[name] = check

    async def all(self, exclude: Iterable[str] = (), *, verbose: bool = False) -> tuple[int, str]:
        """HTTP status and text: `ok`, or one line per check if one fails or `verbose` is set.

        `exclude` names checks to skip. Failure reasons are withheld, as upstream, because the endpoint is public.
        """
        checks: dict[str, HealthCheck] = self._checks or {"ping": ping}
        unknown = [name for name in dict.fromkeys(exclude) if name not in checks]
        lines, failed = [], []
        for name, check in sorted(checks.items()):
            if name in exclude:
                lines.append(f"[+]{name} excluded: ok")
                continue
            reason = await _failure(check)
            if reason is None:
                lines.append(f"[+]{name} ok")
            else:
                failed.append(f"{name}: {reason}")
                lines.append(f"[-]{name} failed: reason withheld")
        if unknown:
            names = ",".join(f'"{name}"' for name in unknown)
            lines.append(f"warn: some health checks cannot be excluded: no matches for {names}")
        if failed:
            log.info("health check failed", endpoint=self.name, failed=failed)
            return 500, "\n".join([*lines, "healthz check failed", ""])  # upstream says healthz for readyz, too
        if not verbose:
            return 200, "ok"
        return 200, "\n".join([*lines, "healthz check passed", ""])

    async def one(self, name: str) -> tuple[int, str]:
        """HTTP status and text of one check; 404 if it does not exist."""
        checks: dict[str, HealthCheck] = self._checks or {"ping": ping}
        if name not in checks:
            return 404, "404 page not found\n"
        reason = await _failure(checks[name])
        return (200, "ok") if reason is None else (500, f"internal server error: {reason}\n")


def ping() -> None:
    """The default check, which always passes."""


async def _failure(check: HealthCheck) -> str | None:
    try:
        answer = check()
        if inspect.isawaitable(answer):
            await answer
    except (UnhealthyError, OSError) as error:
        return str(error)
    return None


class HttpServer:
    """Serves an aiohttp application on one address, or not at all if that is None.

    With a TLS context, it serves HTTPS; the certificate of the context may be replaced while the server runs. At most
    `connections` are open at a time (see `listener.py`). `options` are those of aiohttp's `RequestHandler`.
    """

    def __init__(
        self,
        name: str,
        address: Address | None,
        application: web.Application,
        tls: ssl.SSLContext | None = None,
        *,
        connections: int = CONNECTIONS,
        limits: Limits = Limits(),  # noqa: B008  # immutable
        grace: float = 5.0,
        handler_cancellation: bool = False,
        **options: Any,
    ) -> None:
        """`grace` are the seconds for which requests in progress may go on once the server ends."""
        self.name = name
        self.address = address
        self._tls = tls
        self._connections = connections
        self._limits = limits
        self._options = {**_OPTIONS, **options}
        self._listener: Listener | None = None
        application.middlewares.insert(0, track_use)
        self._runner = web.AppRunner(
            application,
            access_log=None,
            handle_signals=False,
            handler_cancellation=handler_cancellation,
            shutdown_timeout=grace,
        )

    async def bind(self) -> None:
        """Starts listening. Raises `BindError` if the address cannot be bound."""
        if self.address is None:
            return
        await self._runner.setup()
        try:
            sockets = listen(*self.address)
        except OSError as error:
            await self._runner.cleanup()
            where = f"{self.address.host or ''}:{self.address.port}"
            raise BindError(f"cannot listen on {where} for {self.name}: {error.strerror or error}") from error
        assert self._runner.server is not None  # noqa: S101  # set by `setup`
        self._listener = Listener(
            self.name, self._runner.server, sockets, self._tls, self._connections, limits=self._limits, **self._options
        )
        log.info("listening", server=self.name, port=self.port)

    @property
    def port(self) -> int | None:
        """The listening port, chosen by the system if port 0 was requested; None before `bind` or if disabled."""
        return self._listener.sockets[0].getsockname()[1] if self._listener else None

    async def run(self) -> None:
        """Serves until cancelled, then waits for requests in progress."""
        try:
            if self._listener is None:
                await _forever()
            else:
                await self._listener.run()
        finally:
            if self._listener is not None:
                self._listener.close()
                self._listener = None
            await self._runner.cleanup()


async def _forever() -> None:
    await asyncio.get_running_loop().create_future()


def health_application(*groups: Checks) -> web.Application:
    """An application that serves `/<name>` and `/<name>/<check>` for each group, such as `/healthz/ping`."""
    application = web.Application()
    for checks in groups:
        application.router.add_get(f"/{checks.name}", _answer_all(checks))
        application.router.add_get(f"/{checks.name}/", _answer_all(checks))
        application.router.add_get(f"/{checks.name}/{{check}}", _answer_one(checks))
    return application


def _answer_all(checks: Checks) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(request: web.Request) -> web.Response:
        exclude = request.query.getall("exclude", [])
        return _text(*await checks.all(exclude, verbose="verbose" in request.query))

    return answer


def _answer_one(checks: Checks) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(request: web.Request) -> web.Response:
        return _text(*await checks.one(request.match_info["check"]))

    return answer


def _text(status: int, text: str) -> web.Response:
    headers = {"X-Content-Type-Options": "nosniff"}
    return web.Response(status=status, text=text, content_type="text/plain", charset="utf-8", headers=headers)


def metrics_application(registry: CollectorRegistry, *middlewares: Middleware) -> web.Application:
    """An application that serves `/metrics` in the format and compression that the scraper accepts.

    `middlewares` may reject requests, for example `authorize.require_permission`.
    """

    application = web.Application(middlewares=middlewares)
    application.router.add_get("/metrics", metrics_handler(registry))
    return application
