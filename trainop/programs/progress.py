"""Adds the endpoint for progress to an operator: its server, the writer behind it, and what pods get to reach it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import structlog

from trainop.controllers.progress.metrics import ProgressMetrics
from trainop.controllers.progress.reporters import TokenCheck
from trainop.controllers.progress.server import CONNECTIONS, ProgressServer, Reporting, find_ratios
from trainop.controllers.progress.writer import FIELD_MANAGER, INTERVAL, Job, ProgressWriter
from trainop.controllers.wiring import ControllerDependencies
from trainop.engine.kind import Kind
from trainop.engine.progress import ProgressEndpoint
from trainop.errors import StartError
from trainop.runtime import PODS, Cache, Clock, ObjectReference, OperatorParts, Recorder
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
    url: Callable[[int], str] | None = None
    """Returns scheme, host and port as pods see them, by the port that is bound; None: those of the options."""
    interval: float = INTERVAL
    """Seconds between two writes of one job."""

    def authority(self) -> str:
        """The CA certificates (PEM) that pods get; empty until there are some."""
        certificate = self.certificate
        found = certificate and (certificate.authority or certificate.mounted_authority)
        return (found or b"").decode()


@dataclass(frozen=True, slots=True)
class EmbeddedEndpoint:
    """The endpoint of an operator beside its cluster in one process, on a free port of 127.0.0.1."""

    certificate: ServingCertificate
    url: Callable[[int], str]
    """As in `Serving`."""

    def serving(self, kinds: Sequence[Kind]) -> Serving:
        """Writes are cheap there, and people look at them."""
        return Serving(kinds, Address("127.0.0.1", 0), self.certificate, url=self.url, interval=1.0)


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
    announce = _warnings(parts.recorder(FIELD_MANAGER, standby=True))
    writer = ProgressWriter(client, clock, metrics.count_write, interval=serving.interval, announce=announce)
    tokens = TokenCheck(client, clock)
    metrics.show_pending(lambda: writer.pending)
    kinds = [_watch(kind, needs.cache) for kind in serving.kinds]
    server = ProgressServer(
        kinds,
        endpoint=progress,
        tokens=tokens,
        writer=writer,
        clock=clock,
        count=metrics.count_report,
        tell=needs.reports.tell,
    )
    http = HttpServer("progress", serving.address, server.application, certificate.context, connections=CONNECTIONS)
    manager = parts.manager
    manager.add_http(http, "progress")
    manager.add(writer, "progress writer")
    if serving.job_metrics:
        metrics.show_jobs(lambda: find_ratios(kinds) if needs.metrics.leads else iter(()))
    manager.before_controllers(lambda: _wait_for(serving.authority, clock))

    def endpoint() -> ProgressEndpoint:
        url = serving.url(http.port or 0) if serving.url else progress.url
        return replace(progress, url=url, authority=serving.authority())

    return replace(needs, endpoint=endpoint)


def _warnings(recorder: Recorder) -> Callable[[Job, str], None]:
    """Every replica writes, so that every replica may warn: each at most once per job."""

    def announce(job: Job, message: str) -> None:
        about = ObjectReference(job.resource.api_version, job.resource.kind, *job.key, job.uid)
        recorder.event(about, "Warning", "ProgressNotReported", message)

    return announce


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
