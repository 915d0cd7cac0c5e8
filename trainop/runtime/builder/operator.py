"""The composition root that most operators need: from declarations to a `Manager` with everything wired."""

from __future__ import annotations

import asyncio
import functools
import platform
import random
import secrets
import socket
import uuid
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, Unpack, overload

import structlog

from trainop.runtime.builder.context import Context, OperatorParts, Watch
from trainop.runtime.builder.controller import ControllerBuilder, ControllerOptions
from trainop.runtime.builder.serving import serve_metrics, serve_probes
from trainop.runtime.cache.cache import Cache
from trainop.runtime.cache.scope import Namespaces
from trainop.runtime.client.auth import load_config
from trainop.runtime.client.client import Client
from trainop.runtime.client.cluster import ClusterConfig, ConfigError
from trainop.runtime.client.http import HttpTransport
from trainop.runtime.client.identity import CredentialsCheck
from trainop.runtime.client.library_config import ConnectionSource, cluster_config
from trainop.runtime.client.permissions import MissingPermissions
from trainop.runtime.client.sender import Limiter
from trainop.runtime.client.transport import Transport
from trainop.runtime.clock import Clock, SystemClock
from trainop.runtime.controller.enqueue import Predicate
from trainop.runtime.events.recorder import Recorder
from trainop.runtime.manager.leader import LeaderElector, Timing
from trainop.runtime.manager.logs import configure_logging
from trainop.runtime.manager.manager import Manager
from trainop.runtime.manager.stalls import StallWatch
from trainop.runtime.metrics.metrics import Metrics
from trainop.runtime.objects.metadata import HasMetadata, Resource, Unstructured
from trainop.runtime.process import loop_factory, raise_descriptor_limit, return_freed_memory, tune_garbage_collector
from trainop.runtime.serving.server import parse_address

T = TypeVar("T", bound=HasMetadata)

Setup: TypeAlias = Callable[[OperatorParts], object]
Discover: TypeAlias = Callable[[Client], Awaitable[None]]

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LeaderElection:
    """The Lease by which replicas agree on one leader. An empty `name` is the operator's; an empty `namespace` that of
    the pod, or of the kubeconfig's context outside a cluster. The holder is `host`, by default the name of this one,
    with a random number."""

    name: str = ""
    namespace: str = ""
    timing: Timing = Timing()  # noqa: RUF009  # frozen
    host: str = ""


class Operator:
    """One process with any number of controllers:

        operator = Operator("greetings")

        @operator.for_(GREETINGS).owns(CONFIG_MAPS).reconcile
        async def greet(ctx: Context, greeting: Unstructured) -> Result | None: ...

        sys.exit(operator.run())

    `name` is the user agent (with `version`), field manager and name of the Lease. `namespaces` limits what is watched
    (none: all). `metrics` and `health` are addresses as Go writes them (`:8080`, `127.0.0.1:8080`; `0` disables); with
    `secure_metrics`, metrics are served over TLS to callers with the permission to read them, with the certificate in
    that folder, or one for localhost. Replicas elect a leader unless `leader_election` is false; a standby has warm
    caches and writes nothing. After a signal running reconciles get `grace` seconds. There is no client-side rate limit
    without a `limiter`. A missing permission to list or watch `optional` resources is not reported.
    """

    def __init__(
        self,
        name: str,
        *,
        version: str = "",
        namespaces: Namespaces = (),
        metrics: str = ":8080",
        secure_metrics: Path | bool = False,
        health: str = ":8081",
        leader_election: LeaderElection | bool = True,
        grace: float = 30.0,
        limiter: Limiter | None = None,
        optional: Collection[Resource] = (),
    ) -> None:
        """Raises `ValueError` for an address that cannot be parsed."""
        self.name = name
        self._agent = f"{name}/{version}" if version else name
        self._namespaces = namespaces
        self._metrics_address = parse_address(metrics)
        self._secure_metrics = secure_metrics
        self._health_address = parse_address(health)
        self._election = LeaderElection() if leader_election is True else leader_election or None
        self._grace = grace
        self._limiter = limiter
        self._optional = optional
        self._controllers: list[ControllerBuilder[Any]] = []
        self._discoveries: list[Discover] = []
        self._setups: list[Setup] = []

    @overload
    def for_(
        self, objects: Resource, *predicates: Predicate, **options: Unpack[ControllerOptions]
    ) -> ControllerBuilder[Unstructured]: ...
    @overload
    def for_(
        self, objects: Watch[T], *predicates: Predicate, **options: Unpack[ControllerOptions]
    ) -> ControllerBuilder[T]: ...
    def for_(
        self, objects: Resource | Watch[Any], *predicates: Predicate, **options: Unpack[ControllerOptions]
    ) -> ControllerBuilder[Any]:
        """A controller for these objects. Each event of one that passes all `predicates` triggers it. The options are
        `name`, `workers`, `reconcile_timeout` and `limiter`, see `ControllerOptions`."""
        self._controllers.append(ControllerBuilder(objects, predicates, options))
        return self._controllers[-1]

    def discover(self, function: Discover) -> Discover:
        """Awaited by `run` before `build`, with a client: to find out what the cluster serves; a decorator."""
        self._discoveries.append(function)
        return function

    def setup(self, function: Setup) -> Setup:
        """Called at the end of `build`: for webhooks, more checks, other runnables; a decorator."""
        self._setups.append(function)
        return function

    def build(
        self,
        transport: Transport,
        *,
        namespace: str = "default",
        host: str = "",
        clock: Clock | None = None,
        rng: random.Random | None = None,
        metrics: Metrics | None = None,
        signals: bool = True,
        serve: bool = True,
        guarded: bool = False,
    ) -> Manager:
        """The operator on this transport, ready for `Manager.run`; may be called again for another replica.
        `namespace` has the Lease unless `leader_election` names one; `host` labels the client's metrics. Without
        `signals` the caller stops it with `Manager.stop`; without `serve` it listens on no port. `guarded`: a mutation
        of a cached object ends the process when the object changes next, for tests. Raises `ValueError` for a
        controller without a reconcile function or a name used twice."""
        parts = self._parts(
            transport,
            clock or SystemClock(),
            namespace=namespace,
            host=host,
            rng=rng,
            metrics=metrics,
            signals=signals,
            guarded=guarded,
        )
        if serve:
            self._add_servers(parts)
        parts.manager.add_cache(parts.cache)
        for controller in self._controllers:
            ctx = Context(controller.resource, parts, parts.recorder(controller.name))
            parts.manager.add_controller(controller.open(ctx, parts.rng))
        for function in self._setups:
            function(parts)
        return parts.manager

    def run(self, *, kubeconfig: str | None = None, context: str | None = None) -> int:
        """Runs on the cluster of `load_config` until SIGTERM or SIGINT; returns the exit code. Logs are set up by
        `configure_logging` unless the program has configured structlog. What is wrong with a kubeconfig is one line in
        the log and exit code 1."""
        if not structlog.is_configured():
            configure_logging()
        try:
            return self.run_on(load_config(kubeconfig, context))
        except ConfigError as error:
            log.error("cluster configuration cannot be used", error=str(error))  # noqa: TRY400  # one line says it
            return 1

    def run_on(self, cluster: ConnectionSource, *, metrics: Metrics | None = None) -> int:
        """The same on a given cluster, with logs as they are. `cluster` is the result of `load_config`, or a
        `Configuration` of kubernetes_asyncio. Raises `ConfigError`."""
        config = cluster_config(cluster)
        raise_descriptor_limit()
        return_freed_memory()
        tune_garbage_collector()
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(self._serve(config, metrics or Metrics()))

    async def _serve(self, config: ClusterConfig, metrics: Metrics) -> int:
        transport = HttpTransport(config, resolved=metrics.resolved)
        try:
            asking = self._client(transport, host=transport.host, metrics=metrics, urgent=True)
            for function in self._discoveries:
                await function(asking)
            manager = self.build(transport, namespace=config.namespace, host=transport.host, metrics=metrics)
            manager.add(StallWatch(), "stall watch")
            manager.ready.add("credentials", CredentialsCheck(asking, transport.refused).check)
            return await manager.run()
        finally:
            await transport.close()

    def _client(self, transport: Transport, **options: Any) -> Client:
        user_agent = f"{self._agent} ({platform.system().lower()}/{platform.machine()})"
        return Client(transport, user_agent=user_agent, field_manager=self.name, **options)

    def _parts(
        self,
        transport: Transport,
        clock: Clock,
        *,
        namespace: str,
        host: str,
        rng: random.Random | None,
        metrics: Metrics | None,
        signals: bool,
        guarded: bool,
    ) -> OperatorParts:
        rng = rng or random.Random(secrets.randbits(64))  # noqa: S311  # jitter and names
        metrics = metrics or Metrics(clock)
        common: dict[str, Any] = {"clock": clock, "rng": rng, "metrics": metrics}
        permissions = MissingPermissions(clock, metrics, optional=self._optional)
        connect = functools.partial(self._client, transport, host=host, denied=permissions.report, **common)
        reader, urgent = connect(limiter=self._limiter), connect(urgent=True)
        host_name = (self._election and self._election.host) or socket.gethostname()
        identity = f"{host_name}_{uuid.UUID(int=rng.getrandbits(128), version=4)}"
        announcer = Recorder(reader, identity, **common)
        elector = self._elector(urgent, namespace, identity, recorder=announcer, **common)
        manager = Manager(clock=clock, grace=self._grace, elector=elector, signals=signals)
        if elector:
            manager.add_recorder(announcer)
        return OperatorParts(
            manager=manager,
            client=connect(limiter=self._limiter, gate=elector.gate) if elector else reader,
            unfenced=reader,
            urgent=urgent,
            # Pages cost the API server about half as much as streamed lists, and the operator the same.
            cache=Cache(reader, namespaces=self._namespaces, guarded=guarded, streamed=False, **common),
            permissions=permissions,
            **common,
        )

    def _elector(self, client: Client, namespace: str, identity: str, **options: Any) -> LeaderElector | None:
        election = self._election
        if election is None:
            return None
        names = [election.name or self.name]
        return LeaderElector(
            client, election.namespace or namespace, names, identity, timing=election.timing, **options
        )

    def _add_servers(self, parts: OperatorParts) -> None:
        serve_probes(parts, self._health_address)
        serve_metrics(parts, self._metrics_address, self._secure_metrics)
