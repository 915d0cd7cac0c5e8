"""Adds the endpoint for progress to an operator: its server, the writer behind it, and what pods get to reach it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import structlog

from trainop.controllers.progress.metrics import ProgressMetrics
from trainop.controllers.progress.reporters import TokenCheck
from trainop.controllers.progress.server import CONNECTIONS, ProgressServer, Reporting, find_ratios
from trainop.controllers.progress.writer import ProgressWriter
from trainop.controllers.wiring import ControllerDependencies
from trainop.engine.kind import Kind
from trainop.errors import StartError
from trainop.runtime import PODS, Cache, Clock, OperatorParts
from trainop.runtime.lowlevel import Address, HttpServer, ServingCertificate

CERTIFICATE_TIMEOUT = 15.0
"""Seconds for which controllers wait for the certificate at the start, so that the first pods get its CA, too. Jobs run
without it, but the pods that are made then cannot report."""
POLL_INTERVAL = 0.05


log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Serving:
    """What is served, where and how."""

    kinds: Sequence[Kind]
    address: Address
    certificate: ServingCertificate | None
    """That of the webhooks; None if there are none."""
    job_metrics: bool = False

    def authority(self) -> str:
        """The CA certificates (PEM) that pods get; empty until there are some."""
        certificate = self.certificate
        found = certificate and (certificate.authority or certificate.mounted_authority)
        return (found or b"").decode()


def add_progress(parts: OperatorParts, needs: ControllerDependencies, serving: Serving) -> ControllerDependencies:
    """Adds the endpoint; returns the dependencies with which controllers tell pods about it. Every replica serves it.
    Raises `StartError`."""
    progress, certificate = needs.options.progress, serving.certificate
    if certificate is None or progress is None:
        raise StartError(
            "--progress-bind-address needs the certificate of the webhooks: do not set --webhook-server-port=0, and"
            " outside a pod set MY_POD_NAMESPACE"
        )
    metrics, clock, client = ProgressMetrics(needs.metrics.registry), parts.clock, parts.unfenced
    writer, tokens = ProgressWriter(client, clock, metrics.count_write), TokenCheck(client, clock)
    metrics.show_pending(lambda: writer.pending)
    kinds = [_watch(kind, needs.cache) for kind in serving.kinds]
    server = ProgressServer(
        kinds, endpoint=progress, tokens=tokens, writer=writer, clock=clock, count=metrics.count_report
    )
    http = HttpServer("progress", serving.address, server.application, certificate.context, connections=CONNECTIONS)
    manager = parts.manager
    manager.add_http(http, "progress")
    manager.add(writer, "progress writer")
    if serving.job_metrics:
        metrics.show_jobs(lambda: find_ratios(kinds) if needs.metrics.leads else iter(()))
    manager.before_controllers(lambda: _wait_for(serving.authority, clock))
    return replace(needs, progress_authority=serving.authority)


def _watch(kind: Kind, cache: Cache) -> Reporting:
    """The informers are those of the controllers."""
    jobs = cache.informer(kind.source, kind.decode, optional=True)
    return Reporting(kind, jobs, cache.informer(PODS, kind.children.decode_pod, label_selector=kind.children.watch))


async def _wait_for(authority: Callable[[], str], clock: Clock) -> None:
    try:
        async with asyncio.timeout(CERTIFICATE_TIMEOUT):
            while not authority():
                await clock.sleep(POLL_INTERVAL)
    except TimeoutError:
        log.warning("no certificate for the endpoint for progress yet: pods that are made now cannot report")
