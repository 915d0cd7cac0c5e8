"""The operator's own HTTP endpoints: health, readiness and metrics.

The texts are those of controller-runtime (`pkg/healthz/healthz.go`), which scripts and probes know.
"""

from __future__ import annotations

import asyncio
import inspect
import ssl
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple, TypeAlias

import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from trainop.runtime.errors import UnhealthyError
from trainop.runtime.serving.listener import Listener, listen, note_use

Check: TypeAlias = Callable[[], None] | Callable[[], Awaitable[None]]
"""Returns if all is well, raises `UnhealthyError` (or `OSError`) with the reason if not."""

CONNECTIONS = 64
"""Enough for a probe or some scrapers at a time."""

_LIMITS = {"access_log": None, "keepalive_timeout": 100.0, "max_headers": 64, "max_field_size": 32 * 1024}
"""Headers of 2 MiB at most; the listener closes idle connections before aiohttp would."""

log = structlog.get_logger(__name__)


class BindError(Exception):
    """An address that cannot be listened on: one clear line."""


class Address(NamedTuple):
    """`host` is None for all interfaces."""

    host: str | None
    port: int


def parse_address(text: str) -> Address | None:
    """A bind address as Go writes it: `:8080`, `127.0.0.1:8080`, `[::1]:8080`; empty and `0` disable (None).
    Raises `ValueError` on anything else."""
    if text in {"", "0"}:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"bind address {text!r} is not of the form host:port or :port")
    return Address(host.removeprefix("[").removesuffix("]") or None, int(port))


class Checks:
    """Named checks behind one path, `healthz` or `readyz`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._checks: dict[str, Check] = {}

    def add(self, name: str, check: Check) -> None:
        """Raises `ValueError` if the name is taken."""
        if name in self._checks:
            raise ValueError(f"{self.name} check {name!r} exists")
        self._checks[name] = check

    async def all(self, exclude: Iterable[str] = (), *, verbose: bool = False) -> tuple[int, str]:
        """HTTP status and text: `ok`, or one line per check if something fails or `verbose` is asked for. The reasons
        are not told here, since anybody may ask."""
        checks: dict[str, Check] = self._checks or {"ping": ping}
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
            return 500, "\n".join([*lines, "healthz check failed", ""])  # so upstream, for readyz too
        if not verbose:
            return 200, "ok"
        return 200, "\n".join([*lines, "healthz check passed", ""])

    async def one(self, name: str) -> tuple[int, str]:
        """HTTP status and text of one check; 404 if there is none of that name."""
        checks: dict[str, Check] = self._checks or {"ping": ping}
        if name not in checks:
            return 404, "404 page not found\n"
        reason = await _failure(checks[name])
        return (200, "ok") if reason is None else (500, f"internal server error: {reason}\n")


def ping() -> None:
    """Passes."""


async def _failure(check: Check) -> str | None:
    try:
        answer = check()
        if inspect.isawaitable(answer):
            await answer
    except (UnhealthyError, OSError) as error:
        return str(error)
    return None


class HttpServer:
    """Serves an aiohttp application on one address; disabled if that is None. Over TLS if a context is given, whose
    certificate may be exchanged while it runs. At most `connections` are open at a time (see `listener.py`).

    `bind` makes it listen and raises `BindError`, also if another server of ours has that port; `run` serves until
    cancelled, then lets open requests end.
    """

    def __init__(
        self,
        name: str,
        address: Address | None,
        application: web.Application,
        tls: ssl.SSLContext | None = None,
        *,
        connections: int = CONNECTIONS,
    ) -> None:
        self.name = name
        self.address = address
        self._tls = tls
        self._connections = connections
        self._listener: Listener | None = None
        application.middlewares.insert(0, note_use)
        self._runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=5.0)

    async def bind(self) -> None:
        if self.address is None:
            return
        await self._runner.setup()
        try:
            sockets = listen(*self.address)
        except OSError as error:
            await self._runner.cleanup()
            where = f"{self.address.host or ''}:{self.address.port}"
            raise BindError(f"cannot listen on {where} for {self.name}: {error.strerror or error}") from error
        assert self._runner.server is not None  # noqa: S101  # it was set up
        self._listener = Listener(self.name, self._runner.server, sockets, self._tls, self._connections, **_LIMITS)
        log.info("listening", server=self.name, port=self.port)

    @property
    def port(self) -> int | None:
        """The port listened on, which the system chooses if port 0 was asked for; None before `bind`."""
        return self._listener.sockets[0].getsockname()[1] if self._listener else None

    async def run(self) -> None:
        try:
            if self._listener is None:
                await _for_ever()
            else:
                await self._listener.run()
        finally:
            if self._listener is not None:
                self._listener.close()
                self._listener = None
            await self._runner.cleanup()


async def _for_ever() -> None:
    await asyncio.get_running_loop().create_future()


def health_application(*groups: Checks) -> web.Application:
    """`/healthz`, `/healthz/<check>` and the same for every other group of checks."""
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
    """`/metrics` in the format that the scraper asks for, compressed if it likes; `middlewares` such as
    `authorize.require_permission` may refuse it."""

    async def answer(request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        names = request.query.getall("name[]", [])
        chosen = registry.restricted_registry(names) if names else registry
        response = web.Response(body=encode(chosen), headers={"Content-Type": content_type})
        response.enable_compression()
        return response

    application = web.Application(middlewares=middlewares)
    application.router.add_get("/metrics", answer)
    return application
