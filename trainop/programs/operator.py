"""The composition root: an `Operator` of the library with all controllers, from `Settings`, run as a process.

This is the only module that depends on all parts of the operator.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable
from pathlib import Path

import structlog

import trainop
from trainop.controllers.admission import configurations_of, rotation_options, webhooks_of
from trainop.controllers.counters import JobMetrics
from trainop.controllers.crd_check import JobCrdCheck
from trainop.controllers.gang import CrdCheck, open_gang_caches
from trainop.controllers.wiring import ControllerDependencies, build_controller
from trainop.engine.kind import Kind
from trainop.engine.kueue import FLAVORS, WORKLOAD_CLASSES, WORKLOADS
from trainop.errors import StartError
from trainop.logs import configure_logs
from trainop.programs.mpi_versions import MpiVersionWatch, adapt_to_crds
from trainop.programs.process import run_on_cluster
from trainop.programs.progress import EmbeddedEndpoint, Serving, add_progress
from trainop.programs.schemes import KINDS, enabled_schemes, kinds_with_webhooks, runs_train_jobs
from trainop.programs.settings import Settings
from trainop.runtime import (
    Client,
    Clock,
    LeaderElection,
    Manager,
    Operator,
    OperatorParts,
    Resource,
    SystemClock,
    Timing,
    TokenBucket,
    serve_webhooks,
)
from trainop.runtime.lowlevel import Address, Permission, ServingCertificate, Transport, parse_address

NAME = "training-operator"
"""Source of the events about the operator itself."""

DEFAULT_BURST = 30
"""Used if --kube-api-qps is given without --kube-api-burst."""

Warn = Callable[[str, str], None]
"""Records a Warning event with this reason and message about the operator's own pod."""

log = structlog.get_logger(__name__)


def _optional_resources(kinds: Iterable[Kind]) -> set[Resource]:
    """The resources without which an installation works for all jobs but some kinds, or those with a queue."""
    found = {each.resource for kind in kinds for each in kind.companion_kinds if each.permission_optional}
    return found | ({WORKLOADS, FLAVORS, WORKLOAD_CLASSES} if any(kind.queued for kind in kinds) else set())


def _enabled_kinds(settings: Settings) -> list[Kind]:
    kinds = [kind for scheme in enabled_schemes(settings.schemes) for kind in KINDS[scheme](settings.options)]
    if not settings.queued:
        return kinds
    from trainop.programs.queues import with_queues  # noqa: PLC0415  # saves memory

    return with_queues(kinds, settings.queued)


def build(
    settings: Settings,
    transport: Transport,
    *,
    host: str = "",
    clock: Clock | None = None,
    rng: random.Random | None = None,
    signals: bool = True,
    metrics: JobMetrics | None = None,
    progress: EmbeddedEndpoint | None = None,
) -> Manager:
    """Builds the operator on `transport`, ready for `Manager.run`. `host` is the label of the client's metrics. Without
    `signals`, the caller stops it with `Manager.stop`. `progress` serves progress without webhooks. Raises
    `StartError`."""
    clock, metrics = clock or SystemClock(), metrics or JobMetrics()
    operator = declare(settings, clock)
    operator.setup(functools.partial(_add_jobs, settings, metrics, embedded=progress))
    return operator.build(transport, host=host, clock=clock, rng=rng, metrics=metrics, signals=signals)


def declare(settings: Settings, clock: Clock) -> Operator:
    """The operator without controllers and webhooks. Raises `StartError`."""
    _address("health-probe-bind-address", settings.health_probe_bind_address)
    _address("metrics-bind-address", settings.metrics_bind_address)
    folder = settings.metrics_cert_dir
    return Operator(
        "trainop",
        version=trainop.__version__,
        namespaces=settings.namespaces,
        metrics=settings.metrics_bind_address,
        secure_metrics=settings.metrics_secure and (Path(folder) if folder else True),
        health=settings.health_probe_bind_address,
        leader_election=_election(settings),
        grace=settings.graceful_shutdown_timeout,
        limiter=_limiter(settings, clock),
        optional=_optional_resources(_enabled_kinds(settings)),
    )


def _address(flag: str, text: str) -> Address | None:
    try:
        return parse_address(text)
    except ValueError as error:
        raise StartError(f"--{flag}: {error}") from None


def _election(settings: Settings) -> LeaderElection | bool:
    if not settings.leader_elect:
        return False
    namespace = settings.leader_election_namespace or settings.pod_namespace
    if not namespace:
        raise StartError("not running in-cluster, please specify --leader-election-namespace")
    timing = Timing(settings.leader_lease_duration, settings.leader_renew_deadline, settings.leader_retry_period)
    return LeaderElection(settings.leader_election_id, namespace, timing, settings.hostname)


def _limiter(settings: Settings, clock: Clock) -> TokenBucket | None:
    """The client-side rate limiter; None unless --kube-api-qps is given."""
    if settings.kube_api_qps is None or settings.kube_api_qps <= 0:
        return None
    return TokenBucket(clock, settings.kube_api_qps, settings.kube_api_burst or DEFAULT_BURST)


def _add_jobs(
    settings: Settings, metrics: JobMetrics, parts: OperatorParts, *, embedded: EmbeddedEndpoint | None = None
) -> None:
    """Adds what makes an operator for jobs: webhooks on every replica, and the controllers."""
    warn = _warnings(settings, parts)
    parts.permissions.announce = functools.partial(_record_denial, warn)
    certificate = _add_webhooks(settings, parts, warn)
    if not settings.webhooks_only:
        needs = _dependencies(settings, metrics, parts)
        if embedded is not None:
            needs = add_progress(parts, needs, embedded.serving(_enabled_kinds(settings)))
        elif (address := _address("progress-bind-address", settings.progress_bind_address)) is not None:
            kinds, per_job = _enabled_kinds(settings), settings.progress_job_metrics
            needs = add_progress(parts, needs, Serving(kinds, address, certificate, job_metrics=per_job))
        _add_controllers(settings, needs, parts, warn)


def _warnings(settings: Settings, parts: OperatorParts) -> Warn:
    """Records events about the operator itself. Outside a pod, nothing is recorded."""
    if not settings.pod:
        return lambda _reason, _message: None
    return functools.partial(parts.recorder(NAME, standby=True).event, settings.pod, "Warning")


def _record_denial(warn: Warn, permission: Permission, message: str) -> None:
    """An event about the operator's own pod: there may be no job, or no permission to read any."""
    warn("PermissionDenied", f"the operator's role lacks `{permission}`: {message}")


def _dependencies(settings: Settings, metrics: JobMetrics, parts: OperatorParts) -> ControllerDependencies:
    return ControllerDependencies(
        client=parts.client,
        cache=parts.cache,
        clock=parts.clock,
        rng=parts.rng,
        metrics=metrics,
        options=settings.options,
        workers=settings.controller_threads,
        pod_events=settings.pod_events,
    )


def _add_controllers(settings: Settings, needs: ControllerDependencies, parts: OperatorParts, warn: Warn) -> None:
    kinds, manager = _enabled_kinds(settings), parts.manager
    jobs = [needs.cache.informer(kind.source, kind.decode, optional=True) for kind in kinds]
    manager.add(JobCrdCheck(jobs, functools.partial(warn, "CrdsNotInstalled")), "check of the CRDs")
    if settings.options.gang is not None:
        manager.add(CrdCheck(open_gang_caches(settings.options.gang, needs.cache)), "check of the PodGroup CRD")
    for kind in kinds:
        manager.add_controller(build_controller(kind, needs, parts.recorder(kind.component or kind.controller)))
    if runs_train_jobs(settings.schemes):
        from trainop.controllers.train_jobs import train_job_controller  # noqa: PLC0415  # saves memory

        manager.add_controller(train_job_controller(parts, kinds, settings.controller_threads))


def _add_webhooks(settings: Settings, parts: OperatorParts, warn: Warn) -> ServingCertificate | None:
    """Returns the certificate of the webhooks. Outside a pod they are left out: the API server could not reach them by
    their Service."""
    if not (settings.webhook_server_port and settings.pod_namespace):
        if settings.webhooks_only:
            raise StartError("no webhooks without --webhook-server-port and, outside a pod, MY_POD_NAMESPACE")
        log.info("admission webhooks are not served; jobs are validated when they are reconciled")
        return None
    webhooks = webhooks_of(_served_kinds(settings))
    return serve_webhooks(
        parts,
        {webhook.path: webhook.handler for webhook in webhooks},
        rotation_options(
            settings.pod_namespace,
            settings.webhook_service_name,
            settings.webhook_secret_name,
            configurations_of(webhooks),
        ),
        port=settings.webhook_server_port,
        folder=Path(settings.webhook_cert_dir) if settings.webhook_cert_dir else None,
        # di-webhook has no right to write events, and only logs
        announce=None if settings.webhooks_only else functools.partial(warn, "CABundleReset"),
    )


def _served_kinds(settings: Settings) -> list[Kind]:
    """The kinds whose webhooks this process serves."""
    if settings.webhooks_only:
        return _enabled_kinds(settings)
    own = KINDS["DIJob"](settings.options) if settings.di_webhooks else ()
    return [*kinds_with_webhooks(settings.options), *own]


def run(settings: Settings) -> int:
    """Runs the operator in this process until SIGTERM or SIGINT; returns the exit code. Raises `StartError`."""
    configure_logs(settings.logs)
    _enabled_kinds(settings)  # first, so that an invalid flag is reported even without a cluster
    metrics = JobMetrics(depth_by_priority=settings.depth_by_priority)
    operator = declare(settings, SystemClock())

    @operator.discover
    async def adapt(client: Client) -> None:
        adapted = await adapt_to_crds(settings, client)
        operator.setup(functools.partial(_add_jobs, adapted, metrics))
        if "MPIJob" in enabled_schemes(settings.schemes) and not settings.webhooks_only:
            operator.setup(functools.partial(_watch_mpi_version, adapted))

    return run_on_cluster(operator, settings.kubeconfig, metrics)


def _watch_mpi_version(settings: Settings, parts: OperatorParts) -> None:
    watch = MpiVersionWatch(settings, parts.urgent, parts.clock, parts.manager.stop)
    parts.manager.add(watch, "version of MPIJobs")
