"""The composition root that most operators need: from declarations to a `Manager` with everything wired."""

from __future__ import annotations

import asyncio
import functools
import platform
import random
import socket
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, Unpack, overload

import structlog

from trainop.runtime.builder.context import Context, OperatorParts, Watch
from trainop.runtime.builder.controller import ControllerBuilder, ControllerOptions
from trainop.runtime.cache.cache import Cache
from trainop.runtime.cache.scope import Namespaces
from trainop.runtime.client.auth import load_config
from trainop.runtime.client.client import Client
from trainop.runtime.client.cluster import ClusterConfig, ConfigError
from trainop.runtime.client.http import HttpTransport
from trainop.runtime.client.identity import CredentialsCheck
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
from trainop.runtime.objects.metadata import HasMetadata, Unstructured
from trainop.runtime.objects.resource import Resource
from trainop.runtime.process import raise_descriptor_limit, return_freed_memory
from trainop.runtime.serving.server import HttpServer, health_application, metrics_application, parse_address

T = TypeVar("T", bound=HasMetadata)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LeaderElection:
    """The Lease by which replicas agree on one leader. An empty `name` is the operator's; an empty `namespace` that of
    the pod, or of the kubeconfig's context outside a cluster."""

    name: str = ""
    namespace: str = ""
    timing: Timing = Timing()  # noqa: RUF009  # frozen


class Operator:
    """One process with any number of controllers:

        operator = Operator("greetings")

        @operator.for_(GREETINGS).owns(CONFIG_MAPS).reconcile
        async def greet(ctx: Context, greeting: Unstructured) -> Result | None: ...

        sys.exit(operator.run())

    `name` is the user agent, field manager, source of events and name of the Lease. `namespaces` limits what is watched
    (none: all). `metrics` and `health` are addresses as Go writes them (`:8080`, `127.0.0.1:8080`; `0` disables).
    Replicas elect a leader unless `leader_election` is false; a standby has warm caches and writes nothing. After a
    signal running reconciles get `grace` seconds. There is no client-side rate limit without a `limiter`.
    """

    def __init__(
        self,
        name: str,
        *,
        namespaces: Namespaces = (),
        metrics: str = ":8080",
        health: str = ":8081",
        leader_election: LeaderElection | bool = True,
        grace: float = 30.0,
        limiter: Limiter | None = None,
    ) -> None:
        """Raises `ValueError` for an address that cannot be parsed."""
        self.name = name
        self._namespaces = namespaces
        self._metrics_address = parse_address(metrics)
        self._health_address = parse_address(health)
        self._election = LeaderElection() if leader_election is True else leader_election or None
        self._grace = grace
        self._limiter = limiter
        self._controllers: list[ControllerBuilder[Any]] = []
        self._setups: list[Callable[[OperatorParts], None]] = []

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

    def setup(self, function: Callable[[OperatorParts], None]) -> Callable[[OperatorParts], None]:
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
        clock = clock or SystemClock()
        rng = rng or random.Random()  # noqa: S311  # jitter and names, no secrets
        metrics = metrics or Metrics(clock)
        common: dict[str, Any] = {"clock": clock, "rng": rng, "metrics": metrics}
        connect = functools.partial(self._client, transport, host=host, **common)
        reader, announcer = connect(limiter=self._limiter), Recorder(connect(), self.name, **common)
        elector = self._elector(connect(urgent=True), namespace, recorder=announcer, **common)
        parts = OperatorParts(
            manager=Manager(clock=clock, grace=self._grace, elector=elector, signals=signals),
            client=connect(limiter=self._limiter, gate=elector.gate if elector is not None else None),
            unfenced=reader,
            cache=Cache(reader, namespaces=self._namespaces, guarded=guarded, **common),
            **common,
        )
        parts.manager.add_recorder(announcer)
        if serve:
            self._add_servers(parts)
        self._add_controllers(parts)
        for function in self._setups:
            function(parts)
        return parts.manager

    def run(self, *, kubeconfig: str | None = None, context: str | None = None) -> int:
        """Runs on the cluster of `load_config` until SIGTERM or SIGINT; returns the exit code. Logs are set up by
        `configure_logging` unless the program has configured structlog. What is wrong with a kubeconfig or an address
        is one line in the log and exit code 1."""
        if not structlog.is_configured():
            configure_logging()
        raise_descriptor_limit()
        return_freed_memory()
        try:
            return asyncio.run(self._serve(load_config(kubeconfig, context)))
        except ConfigError as error:
            log.error("cluster configuration cannot be used", error=str(error))  # noqa: TRY400  # one line says it
            return 1

    async def _serve(self, config: ClusterConfig) -> int:
        metrics = Metrics()
        transport = HttpTransport(config, resolved=metrics.resolved)
        try:
            manager = self.build(transport, namespace=config.namespace, host=transport.host, metrics=metrics)
            manager.add(StallWatch(), "stall watch")
            asking = self._client(transport, host=transport.host, metrics=metrics, urgent=True)
            manager.ready.add("credentials", CredentialsCheck(asking, transport.refused).check)
            return await manager.run()
        finally:
            await transport.close()

    def _client(self, transport: Transport, **options: Any) -> Client:
        user_agent = f"{self.name} ({platform.system().lower()}/{platform.machine()})"
        return Client(transport, user_agent=user_agent, field_manager=self.name, **options)

    def _elector(self, client: Client, namespace: str, rng: random.Random, **options: Any) -> LeaderElector | None:
        election = self._election
        if election is None:
            return None
        names = [election.name or self.name]
        identity = f"{socket.gethostname()}_{uuid.UUID(int=rng.getrandbits(128), version=4)}"
        namespace = election.namespace or namespace
        return LeaderElector(client, namespace, names, identity, timing=election.timing, rng=rng, **options)

    def _add_servers(self, parts: OperatorParts) -> None:
        manager = parts.manager
        health = health_application(manager.health, manager.ready)
        manager.add_http(HttpServer("health probes", self._health_address, health), "health probes")
        scraped = metrics_application(parts.metrics.registry)
        manager.add_http(HttpServer("metrics", self._metrics_address, scraped), "metrics")

    def _add_controllers(self, parts: OperatorParts) -> None:
        manager = parts.manager
        manager.add_cache(parts.cache)
        for controller in self._controllers:
            recorder = Recorder(parts.unfenced, controller.name, parts.clock, rng=parts.rng, metrics=parts.metrics)
            manager.add_recorder(recorder)
            manager.add_controller(controller.open(Context(controller.resource, parts, recorder), parts.rng))
