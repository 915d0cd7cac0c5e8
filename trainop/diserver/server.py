"""The composition root of di-server: from its settings to a `Manager`, and to a process."""

from __future__ import annotations

import asyncio
import functools
import platform
import random
import secrets
import socket

import trainop
from trainop.di_server_settings import DiServerSettings
from trainop.diserver.application import Surface, build_application
from trainop.diserver.caches import Caches
from trainop.diserver.callers import CallerCheck
from trainop.diserver.inflight import Inflight
from trainop.diserver.journal import Journal, Times
from trainop.diserver.limits import CallerLimiter
from trainop.diserver.metrics import DiServerMetrics
from trainop.diserver.operations import Operations, Rules
from trainop.diserver.writer import PodWriter
from trainop.errors import StartError
from trainop.kinds.dijob.pods import PodOptions
from trainop.logs import configure_logs
from trainop.runtime.cache.cache import Cache
from trainop.runtime.client.auth import ConfigError, load_config
from trainop.runtime.client.client import Client
from trainop.runtime.client.http import HttpTransport
from trainop.runtime.client.identity import CredentialsCheck
from trainop.runtime.client.transport import Transport
from trainop.runtime.clock import Clock, SystemClock
from trainop.runtime.manager.manager import Manager
from trainop.runtime.manager.stalls import StallWatch
from trainop.runtime.metrics.authorize import Authorizer
from trainop.runtime.process import (
    loop_factory,
    raise_descriptor_limit,
    return_freed_memory,
    tune_garbage_collector,
)
from trainop.runtime.serving.server import HttpServer

_Client = functools.partial(
    Client,
    user_agent=f"di-server/{trainop.__version__} ({platform.system().lower()}/{platform.machine()})",
    field_manager="di-server",
)


class DiServer:
    """One di-server, ready to run."""

    def __init__(
        self,
        settings: DiServerSettings,
        transport: Transport,
        *,
        host: str = "",
        clock: Clock | None = None,
        rng: random.Random | None = None,
        metrics: DiServerMetrics | None = None,
        times: Times = Times(),  # noqa: B008  # immutable
        signals: bool = True,
    ) -> None:
        """`host` is the label of the client's metrics. Without `signals`, the caller stops it with `manager.stop`."""
        clock, metrics = clock or SystemClock(), metrics or DiServerMetrics()
        rng = rng or random.Random(secrets.randbits(64))  # noqa: S311  # names and jitter
        connect = functools.partial(_Client, transport, clock=clock, rng=rng, metrics=metrics, host=host)
        client = connect()
        namespaces = (settings.namespace,) if settings.namespace else ()
        cache = Cache(client, namespaces=namespaces, clock=clock, rng=rng, metrics=metrics)
        self.manager = Manager(clock=clock, grace=settings.shutdown_timeout, signals=signals)
        self.caches = Caches(cache, client, clock)
        writer = PodWriter(client, clock, metrics, grace_seconds=settings.grace_seconds)
        journal = _journal(settings, connect(urgent=True), writer, clock, rng=rng, metrics=metrics, times=times)
        callers = _callers(settings, self.caches, client, clock, rng=rng, metrics=metrics)
        operations = Operations(self.caches, writer, journal, callers, rules=_rules(settings), rng=rng)
        self.inflight = Inflight()
        application = build_application(
            Surface(
                caches=self.caches,
                operations=operations,
                inflight=self.inflight,
                limiter=CallerLimiter(clock, settings.caller_rate, settings.caller_burst),
                metrics=metrics,
                clock=clock,
                manager=self.manager,
                max_body=settings.max_body,
            )
        )
        self.http = HttpServer("di-server", settings.bind_address, application, connections=settings.connections)
        self._add_runnables(cache, journal)

    def _add_runnables(self, cache: Cache, journal: Journal) -> None:
        self.manager.add_http(self.http, "di-server")
        self.manager.add_cache(cache)
        self.manager.add(journal, "journal")
        self.manager.add_controller(self.inflight)


def _journal(
    settings: DiServerSettings,
    client: Client,
    writer: PodWriter,
    clock: Clock,
    *,
    rng: random.Random,
    metrics: DiServerMetrics,
    times: Times,
) -> Journal:
    return Journal(
        client,
        writer,
        clock,
        namespace=settings.lease_namespace,
        prefix=settings.lease_prefix,
        identity=f"{socket.gethostname()}_{rng.getrandbits(64):016x}",
        times=times,
        metrics=metrics,
    )


def _callers(
    settings: DiServerSettings,
    caches: Caches,
    client: Client,
    clock: Clock,
    *,
    rng: random.Random,
    metrics: DiServerMetrics,
) -> CallerCheck:
    return CallerCheck(caches, Authorizer(client, clock, rng), metrics, enabled=settings.caller_check)


def _rules(settings: DiServerSettings) -> Rules:
    options = PodOptions(settings.server_address, settings.ports_by_rank)
    return Rules(options, settings.config_namespace, settings.config_name, settings.max_pods)


def run(settings: DiServerSettings) -> int:
    """Runs di-server in this process until SIGTERM or SIGINT; returns the exit code. Raises `StartError`."""
    configure_logs(settings.logs)
    raise_descriptor_limit()
    return_freed_memory()
    metrics = DiServerMetrics()
    try:
        transport = HttpTransport(load_config(settings.kubeconfig or None), resolved=metrics.resolved)
    except ConfigError as error:
        raise StartError(str(error)) from None
    tune_garbage_collector()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_serve(settings, transport, metrics))


async def _serve(settings: DiServerSettings, transport: HttpTransport, metrics: DiServerMetrics) -> int:
    manager = DiServer(settings, transport, host=transport.host, metrics=metrics).manager
    manager.add(StallWatch(), "stall watch")
    asking = _Client(transport, host=transport.host, metrics=metrics, urgent=True)
    manager.ready.add("credentials", CredentialsCheck(asking, transport.refused).check)
    try:
        return await manager.run()
    finally:
        await transport.close()
