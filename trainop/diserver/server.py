"""The composition root of di-server: an `Operator` of the library without controllers, from its settings."""

from __future__ import annotations

import socket

import trainop
from trainop.diserver.application import Surface, build_application
from trainop.diserver.caches import Caches
from trainop.diserver.callers import CallerCheck
from trainop.diserver.dropped import teller
from trainop.diserver.inflight import Inflight
from trainop.diserver.journal import Journal, Times
from trainop.diserver.limits import CallerLimiter
from trainop.diserver.metrics import DiServerMetrics
from trainop.diserver.operations import Operations, Rules
from trainop.diserver.writer import PodWriter
from trainop.kinds.dijob.pods import PodOptions
from trainop.logs import configure_logs
from trainop.programs.di_server import DiServerSettings
from trainop.programs.flags import split_names
from trainop.programs.process import run_on_cluster
from trainop.runtime import Operator, OperatorParts
from trainop.runtime.lowlevel import Authorizer, HttpServer


def declare(settings: DiServerSettings) -> Operator:
    """The program, without what it serves: requests go to any replica, and probes and metrics are part of the API."""
    return Operator(
        "di-server",
        version=trainop.__version__,
        namespaces=split_names(settings.namespace),
        metrics="0",
        health="0",
        leader_election=False,
        grace=settings.shutdown_timeout,
    )


class DiServer:
    """What di-server adds to its program."""

    def __init__(
        self,
        settings: DiServerSettings,
        metrics: DiServerMetrics,
        parts: OperatorParts,
        times: Times = Times(),  # noqa: B008  # immutable
    ) -> None:
        client, clock, rng = parts.client, parts.clock, parts.rng
        self.manager = parts.manager
        self.caches = Caches(parts.cache, client, clock)
        writer = PodWriter(client, clock, metrics, grace_seconds=settings.grace_seconds)
        journal = Journal(
            parts.urgent,
            writer,
            clock,
            namespace=settings.lease_namespace,
            prefix=settings.lease_prefix,
            identity=f"{socket.gethostname()}_{rng.getrandbits(64):016x}",
            times=times,
            metrics=metrics,
        )
        callers = CallerCheck(self.caches, Authorizer(client, clock, rng), metrics, enabled=settings.caller_check)
        tell = teller(parts.recorder("di-server"))
        operations = Operations(self.caches, writer, journal, callers, rules=_rules(settings), rng=rng, tell=tell)
        self.inflight = Inflight()
        surface = Surface(
            caches=self.caches,
            operations=operations,
            inflight=self.inflight,
            limiter=CallerLimiter(clock, settings.caller_rate, settings.caller_burst),
            metrics=metrics,
            clock=clock,
            manager=self.manager,
            max_body=settings.max_body,
        )
        application = build_application(surface)
        self.http = HttpServer("di-server", settings.bind_address, application, connections=settings.connections)
        self.manager.add_http(self.http, "di-server")
        self.manager.add(journal, "journal")
        self.manager.add_controller(self.inflight)


def _rules(settings: DiServerSettings) -> Rules:
    options = PodOptions(settings.server_address, settings.ports_by_rank, settings.termination_message_policy)
    return Rules(options, settings.config_namespace, settings.config_name, settings.max_pods)


def run(settings: DiServerSettings) -> int:
    """Runs di-server in this process until SIGTERM or SIGINT; returns the exit code. Raises `StartError`."""
    configure_logs(settings.logs)
    metrics, operator = DiServerMetrics(), declare(settings)
    operator.setup(lambda parts: DiServer(settings, metrics, parts))
    return run_on_cluster(operator, settings.kubeconfig, metrics)
