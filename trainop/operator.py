"""The composition root: builds a `Manager` with all controllers from `Settings`, and runs it as a process.

This is the only module that depends on all parts of the operator.
"""

from __future__ import annotations

import asyncio
import functools
import platform
import random
import secrets
import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import structlog

import trainop
from trainop.controllers.admission import configurations_of, readiness, rotation_options, webhooks_of
from trainop.controllers.counters import JobMetrics
from trainop.controllers.gang import CrdCheck, open_gang_caches
from trainop.controllers.wiring import ControllerDependencies, build_controller
from trainop.engine.framework import Framework
from trainop.engine.kind import Kind, kind_of
from trainop.engine.schema.crd import crd
from trainop.engine.seen import Options
from trainop.errors import StartError, UnknownSchemeError
from trainop.kinds.jax import JAX
from trainop.kinds.mpi.crd import mpi_crd
from trainop.kinds.mpi.kinds import mpi_kinds
from trainop.kinds.mxnet import MXNET
from trainop.kinds.paddle import PADDLE
from trainop.kinds.pytorch import PYTORCH
from trainop.kinds.tensorflow import TENSORFLOW
from trainop.kinds.xgboost import XGBOOST
from trainop.logs import configure_logs
from trainop.mpi_versions import MpiVersionWatch, adapt_to_crds
from trainop.runtime.cache.cache import Cache
from trainop.runtime.client.auth import ConfigError, load_config
from trainop.runtime.client.client import Client
from trainop.runtime.client.http import HttpTransport
from trainop.runtime.client.identity import CredentialsCheck
from trainop.runtime.client.permissions import MissingPermissions, Permission
from trainop.runtime.client.transport import Transport
from trainop.runtime.clock import Clock, SystemClock
from trainop.runtime.controller.ratelimit import TokenBucket
from trainop.runtime.events.recorder import Recorder
from trainop.runtime.manager.leader import LeaderElector, Timing
from trainop.runtime.manager.manager import Manager
from trainop.runtime.manager.stalls import StallWatch
from trainop.runtime.metrics.authorize import Authorizer, require_permission
from trainop.runtime.objects.metadata import Json, ObjectReference
from trainop.runtime.objects.resource import Resource
from trainop.runtime.process import (
    loop_factory,
    raise_descriptor_limit,
    return_freed_memory,
    tune_garbage_collector,
)
from trainop.runtime.serving.certificate_folder import CertificateFolder, ServingCertificate
from trainop.runtime.serving.server import Address, HttpServer, health_application, metrics_application, parse_address
from trainop.runtime.webhook.rotation import CertificateRotation
from trainop.runtime.webhook.server import WebhookServer
from trainop.settings import Settings


def _only_kind_of(framework: Framework, options: Options) -> Sequence[Kind]:
    return (kind_of(framework, options),)


FRAMEWORKS: dict[str, Framework] = {
    framework.kind: framework
    for framework in (
        TENSORFLOW,
        PYTORCH,
        MXNET,
        XGBOOST,
        PADDLE,
        JAX,
    )
}
"""The kinds that are a `Framework`, by name. A new one is registered here."""


def _dijob_kinds(_options: Options) -> Sequence[Kind]:
    """Imported only if its scheme is enabled."""
    from trainop.kinds.dijob.kind import DIJOB  # noqa: PLC0415  # saves memory

    return (DIJOB,)


KINDS: dict[str, Callable[[Options], Sequence[Kind]]] = {
    **{name: functools.partial(_only_kind_of, framework) for name, framework in FRAMEWORKS.items()},
    "MPIJob": mpi_kinds,
    "DIJob": _dijob_kinds,
}
"""What `--enable-scheme` may name: scheme -> its kinds, each with a controller of its own."""

NAME = "training-operator"
"""Source of the events about the operator itself."""

DEFAULT_BURST = 30
"""Used if --kube-api-qps is given without --kube-api-burst."""

_Client = functools.partial(
    Client,
    user_agent=f"trainop/{trainop.__version__} ({platform.system().lower()}/{platform.machine()})",
    field_manager="trainop",
)
"""A client with the user agent (audit logs) and field manager (`managedFields`) of the operator."""

log = structlog.get_logger(__name__)


def crds() -> list[Json]:
    """The CRDs of all kinds."""
    from trainop.kinds.dijob.crd import aggregator_config_crd, dijob_crd  # noqa: PLC0415  # not needed to run

    made = (crd(framework) for framework in FRAMEWORKS.values())
    return [*made, mpi_crd(), dijob_crd(), aggregator_config_crd()]


def all_kinds(options: Options | None = None) -> list[Kind]:
    """The kinds of all schemes. A resource that has several controllers, or several versions, has several kinds."""
    return [kind for kinds in KINDS.values() for kind in kinds(options or Options())]


def kinds_with_webhooks(options: Options | None = None) -> list[Kind]:
    """The kinds whose webhooks the operator serves, enabled or not: a cluster may have one webhook configuration for
    all kinds. Those of DIJobs have configurations of their own, and a process of their own serves them."""
    schemes = (kinds for scheme, kinds in KINDS.items() if scheme != "DIJob")
    return [kind for kinds in schemes for kind in kinds(options or Options())]


def _optional_resources(kinds: Iterable[Kind]) -> set[Resource]:
    """The resources without which an installation works for all jobs but some kinds."""
    return {each.resource for kind in kinds for each in kind.companion_kinds if each.permission_optional}


def _enabled_kinds(settings: Settings) -> list[Kind]:
    return [kind for scheme in enabled_schemes(settings.schemes) for kind in KINDS[scheme](settings.options)]


def enabled_schemes(schemes: Iterable[str]) -> list[str]:
    """The keys of `KINDS` that `--enable-scheme` names, ignoring case and duplicates; all if it names none.

    Raises `UnknownSchemeError`.
    """
    known = {kind.lower(): kind for kind in KINDS}
    chosen: dict[str, str] = {}
    for scheme in schemes:
        name = scheme.lower()
        if name not in known:
            raise UnknownSchemeError(f"scheme {name} is not supported yet")
        chosen[name] = known[name]
    return list((chosen or known).values())


def build(
    settings: Settings,
    transport: Transport,
    *,
    host: str = "",
    clock: Clock | None = None,
    rng: random.Random | None = None,
    signals: bool = True,
    metrics: JobMetrics | None = None,
) -> Manager:
    """Builds the operator on `transport`, ready for `Manager.run`. `host` is the label of the client's metrics. Without
    `signals`, the caller stops it with `Manager.stop`. Raises `StartError`."""
    clock, metrics = clock or SystemClock(), metrics or JobMetrics()
    rng = rng or random.Random(secrets.randbits(64))  # noqa: S311  # jitter and names
    permissions = MissingPermissions(clock, metrics, optional=_optional_resources(_enabled_kinds(settings)))
    connect = functools.partial(_Client, transport, clock=clock, rng=rng, metrics=metrics, host=host)
    connect = functools.partial(connect, limiter=_limiter(settings, clock), denied=permissions.report)
    reader = connect()
    elector, lease_recorder = _build_elector(settings, connect, clock, rng, metrics)
    needs = ControllerDependencies(
        client=connect(gate=elector.gate) if elector else reader,
        cache=Cache(reader, namespaces=settings.namespaces, clock=clock, rng=rng, metrics=metrics),
        clock=clock,
        rng=rng,
        metrics=metrics,
        options=settings.options,
        workers=settings.controller_threads,
        pod_events=settings.pod_events,
    )
    manager = Manager(clock=clock, grace=settings.graceful_shutdown_timeout, elector=elector, signals=signals)
    if lease_recorder:
        manager.add_recorder(lease_recorder)
    if settings.pod:
        manager.add_recorder(recorder := Recorder(reader, NAME, clock, rng=rng, metrics=metrics))
        permissions.announce = functools.partial(_record_denial, recorder, settings.pod)
    _add_servers(manager, settings, needs, reader)
    if not settings.webhooks_only:
        _add_controllers(manager, settings, needs)
    return manager


def _record_denial(recorder: Recorder, pod: ObjectReference, permission: Permission, message: str) -> None:
    """An event about the operator's own pod: there may be no job, or no permission to read any."""
    recorder.event(pod, "Warning", "PermissionDenied", f"the operator's role lacks `{permission}`: {message}")


def _add_controllers(manager: Manager, settings: Settings, needs: ControllerDependencies) -> None:
    manager.add_cache(needs.cache)
    if settings.options.gang is not None:
        manager.add(CrdCheck(open_gang_caches(settings.options.gang, needs.cache).groups), "check of the PodGroup CRD")
    for kind in _enabled_kinds(settings):
        source = kind.component or kind.controller
        recorder = Recorder(needs.client, source, needs.clock, rng=needs.rng, metrics=needs.metrics)
        manager.add_recorder(recorder)
        manager.add_controller(build_controller(kind, needs, recorder))


def _build_elector(
    settings: Settings, connect: Callable[..., Client], clock: Clock, rng: random.Random, metrics: JobMetrics
) -> tuple[LeaderElector, Recorder] | tuple[None, None]:
    """The elector and a recorder for its events, if leader election is enabled.

    The recorder is not gated, because standbys record events, too.
    """
    if not settings.leader_elect:
        return None, None
    namespace = settings.leader_election_namespace or settings.pod_namespace
    if not namespace:
        raise StartError("not running in-cluster, please specify --leader-election-namespace")
    identity = f"{settings.hostname}_{uuid.UUID(int=rng.getrandbits(128), version=4)}"
    timing = Timing(settings.leader_lease_duration, settings.leader_renew_deadline, settings.leader_retry_period)
    recorder = Recorder(connect(), identity, clock, rng=rng, metrics=metrics)
    elector = LeaderElector(
        connect(limiter=None, urgent=True),  # renewals must not wait for other requests or the rate limit
        namespace,
        [settings.leader_election_id],
        identity,
        timing=timing,
        clock=clock,
        rng=rng,
        metrics=metrics,
        recorder=recorder,
    )
    return elector, recorder


def _limiter(settings: Settings, clock: Clock) -> TokenBucket | None:
    """The client-side rate limiter; None unless --kube-api-qps is given."""
    if settings.kube_api_qps is None or settings.kube_api_qps <= 0:
        return None
    return TokenBucket(clock, settings.kube_api_qps, settings.kube_api_burst or DEFAULT_BURST)


def _add_servers(manager: Manager, settings: Settings, needs: ControllerDependencies, client: Client) -> None:
    """Adds the servers for probes, metrics and webhooks. `client` is not gated by leader election, because every
    replica serves them."""
    metrics = needs.metrics
    health = health_application(manager.health, manager.ready)
    probe_address = _address("health-probe-bind-address", settings.health_probe_bind_address)
    metrics_address = _address("metrics-bind-address", settings.metrics_bind_address)
    manager.add_http(HttpServer("health probes", probe_address, health), "health probes")
    if settings.metrics_secure:
        application = metrics_application(metrics.registry, require_permission(Authorizer(client)))
        server = HttpServer(
            "metrics", metrics_address, application, _metrics_certificate(manager, settings, metrics).context
        )
    else:
        server = HttpServer("metrics", metrics_address, metrics_application(metrics.registry))
    manager.add_http(server, "metrics")
    _add_webhooks(manager, settings, needs, client)


def _add_webhooks(manager: Manager, settings: Settings, needs: ControllerDependencies, client: Client) -> None:
    """Adds the admission webhooks, on every replica. Controllers never wait for them.

    Outside a pod they are left out: the API server could not reach them by their Service.
    """
    if not (settings.webhook_server_port and settings.pod_namespace):
        if settings.webhooks_only:
            raise StartError("no webhooks without --webhook-server-port and, outside a pod, MY_POD_NAMESPACE")
        log.info("admission webhooks are not served; jobs are validated when they are reconciled")
        return
    webhooks = webhooks_of(_served_kinds(settings))
    options = rotation_options(
        settings.pod_namespace,
        settings.webhook_service_name,
        settings.webhook_secret_name,
        configurations_of(webhooks),
    )
    certificate = ServingCertificate(server_name=options.names[0])
    server = WebhookServer(
        certificate, address=Address(None, settings.webhook_server_port), metrics=needs.metrics, clock=needs.clock
    )
    for webhook in webhooks:
        server.register(webhook.path, webhook.handler)
    manager.add_webhooks(server)
    mounted = Path(settings.webhook_cert_dir) if settings.webhook_cert_dir else None
    if mounted and (mounted / "tls.crt").exists():
        folder = CertificateFolder(mounted, certificate, metrics=needs.metrics, clock=needs.clock)
        manager.add(folder, "certificates")
        manager.ready.add("webhooks", server.check)
        return
    rotation = CertificateRotation(
        client, options, certificate, clock=needs.clock, rng=needs.rng, metrics=needs.metrics
    )
    manager.add(rotation, "certificates")
    manager.ready.add("webhooks", readiness(rotation, certificate, server))


def _served_kinds(settings: Settings) -> list[Kind]:
    """The kinds whose webhooks this process serves."""
    if settings.webhooks_only:
        return _enabled_kinds(settings)
    own = _dijob_kinds(settings.options) if settings.di_webhooks else ()
    return [*kinds_with_webhooks(settings.options), *own]


def _metrics_certificate(manager: Manager, settings: Settings, metrics: JobMetrics) -> ServingCertificate:
    """The certificate in --metrics-cert-dir, reloaded on changes; by default a self-signed one for localhost."""
    certificate = ServingCertificate()
    if settings.metrics_cert_dir:
        folder = CertificateFolder(Path(settings.metrics_cert_dir), certificate, metrics=metrics)
        manager.add(folder, "metrics certificate")
        return certificate
    from trainop.runtime.webhook.certificates import issue, make_authority  # noqa: PLC0415  # `cryptography` takes 20 MiB

    now = datetime.now(UTC)
    pair = issue(make_authority("trainop-metrics", "trainop", now), ["localhost"], now)
    certificate.load(pair.certificate, pair.key)
    return certificate


def _address(flag: str, text: str) -> Address | None:
    try:
        return parse_address(text)
    except ValueError as error:
        raise StartError(f"--{flag}: {error}") from None


def run(settings: Settings) -> int:
    """Runs the operator in this process until SIGTERM or SIGINT; returns the exit code. Raises `StartError`."""
    configure_logs(settings.logs)
    raise_descriptor_limit()
    return_freed_memory()
    enabled_schemes(settings.schemes)  # first, so that an invalid flag is reported even without a cluster
    metrics = JobMetrics(depth_by_priority=settings.depth_by_priority)
    try:
        transport = HttpTransport(load_config(settings.kubeconfig or None), resolved=metrics.resolved)
    except ConfigError as error:
        raise StartError(str(error)) from None
    tune_garbage_collector()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_serve(settings, transport, metrics))


async def _serve(settings: Settings, transport: HttpTransport, metrics: JobMetrics) -> int:
    probe_client = _Client(transport, host=transport.host, metrics=metrics, urgent=True)
    settings = await adapt_to_crds(settings, probe_client)
    manager = build(settings, transport, host=transport.host, metrics=metrics)
    if "MPIJob" in enabled_schemes(settings.schemes) and not settings.webhooks_only:
        manager.add(MpiVersionWatch(settings, probe_client, SystemClock(), manager.stop), "version of MPIJobs")
    manager.add(StallWatch(), "stall watch")
    manager.ready.add("credentials", CredentialsCheck(probe_client, transport.refused).check)
    try:
        return await manager.run()
    finally:
        await transport.close()
