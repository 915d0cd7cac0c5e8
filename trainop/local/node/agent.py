"""The node agent: scheduler, kubelet and cluster DNS of a single-node cluster whose pods are local processes.

`Node` wires the parts together. An informer on pods feeds the pod manager, which runs one pod worker per pod;
informers on ConfigMaps and Secrets refresh mounted volumes; informers on Services and pods answer name lookups.
It relies on an API server (`Client`) and on the container runtime in `sandbox/`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import structlog

from trainop.local import private_files
from trainop.local.node import registration
from trainop.local.node.devices import Devices
from trainop.local.node.isolation import Isolation
from trainop.local.node.network.addresses import AddressAllocator
from trainop.local.node.network.dns import DnsServer
from trainop.local.node.network.host_network import (
    DirectHostNetwork,
    Gateway,
    HostNetwork,
    NoHostNetwork,
    RedirectedNetwork,
    forwarded_ports,
)
from trainop.local.node.network.loopback import LoopbackNames, ready_addresses
from trainop.local.node.network.names import ObjectLookup, belongs_to_cluster, resolve
from trainop.local.node.network.pod_ports import connect_to_port
from trainop.local.node.podman.node import PodmanOptions, start_podman
from trainop.local.node.pods.containers import READY, Containers, start_processes
from trainop.local.node.pods.context import KeepLog, LogStore, NodeContext, Timing
from trainop.local.node.pods.exec_session import ExecSession
from trainop.local.node.pods.logreader import LogOptions, explain_missing_log, read_log
from trainop.local.node.pods.pod_manager import PodManager, ReferenceHandler
from trainop.local.node.pods.service_account import (
    EXPOSED_ADDRESS,
    SERVICE_ADDRESS,
    SERVICE_NAME,
    SERVICE_PORT,
    ApiEndpoint,
    ServiceAccounts,
)
from trainop.local.node.sandbox.bridge import HUB_ADDRESS, NETWORK
from trainop.local.node.sandbox.sandbox import ContainerRuntime, NetworkMode, SandboxError
from trainop.local.node.sandbox.usage import Usage
from trainop.local.retries import retry_api_call
from trainop.local.scheduler.filters import STRICT, Leniency
from trainop.local.scheduler.scheduler import Scheduler, Stores
from trainop.runtime import (
    CONFIG_MAPS,
    NODES,
    PODS,
    SECRETS,
    SERVICES,
    ApiError,
    Cache,
    Client,
    Clock,
    Key,
    Recorder,
    SystemClock,
    by_namespace,
    decode_unstructured,
)
from trainop.runtime.lowlevel import error_of_status

__all__ = ["ApiEndpoint", "NetworkMode", "Node", "NodeOptions", "PodmanOptions", "SandboxError", "Timing"]

_DNS_PORT = 53

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """`network` None selects mode `namespaces` if the kernel grants it to this user, else `addresses`."""

    network: NetworkMode | None = None
    timing: Timing = field(default_factory=Timing)
    host_network: HostNetwork | None = None
    """Network outside the cluster for pods in mode `namespaces`; None uses this process's own network access."""
    keep_log: KeepLog | None = None
    """Gets the output of all containers, too."""
    gpus: Sequence[str] = ()
    """Their names in `CUDA_VISIBLE_DEVICES`."""
    leniency: Leniency = STRICT
    isolation: Isolation | None = None
    """What containers see of this machine, if they are isolated from it; this needs mode `namespaces`."""
    podman: PodmanOptions | None = None
    """Containers run from their images, by podman; None: as processes of this machine, without images."""


class Node:
    """One node of the embedded cluster. `run` serves until it is cancelled; no pod process outlives it."""

    def __init__(
        self,
        client: Client,
        name: str,
        directory: Path,
        *,
        clock: Clock | None = None,
        options: NodeOptions | None = None,
    ) -> None:
        """`directory` holds pod volumes and logs and is created if missing; `name` is the name of the Node object."""
        self.name = name
        self._client = client
        self._directory = directory.absolute()
        self._clock = clock or SystemClock()
        self._options = options or NodeOptions()
        self.api_endpoint: ApiEndpoint | None = None
        """Where pods reach the API server, in mode `namespaces`; to be set before `run`."""
        self._redirected: dict[tuple[str, int], tuple[str, int]] = {}
        """Addresses and ports of the pod network that stand for servers of this machine."""
        self._runtime: ContainerRuntime | None = None
        self._containers: Containers
        self._devices = Devices(self._options.gpus, allow_cpu=self._options.leniency.allow_cpu)
        self._ready = asyncio.Event()
        self._pod_manager: PodManager | None = None
        self._scheduler: Scheduler | None = None
        self._logs = LogStore(self._directory, self._options.keep_log)
        self._cache = Cache(client, clock=self._clock)
        self._pods = self._cache.informer(PODS, decode_unstructured, indices={"namespace": by_namespace})
        self._services = self._cache.informer(SERVICES, decode_unstructured)
        self._objects = ObjectLookup(
            service=lambda namespace, name: self._services.store.get(Key(namespace, name)),
            pod=lambda namespace, name: self._pods.store.get(Key(namespace, name)),
            pods=lambda namespace: self._pods.store.by_index("namespace", namespace),
        )

    @property
    def network(self) -> NetworkMode:
        """The network mode in use. Raises `RuntimeError` before `prepare` has finished."""
        if self._runtime is None:
            raise RuntimeError("the node is not prepared")
        return self._runtime.network

    async def prepare(self) -> ContainerRuntime:
        """Starts the container runtime unless it is running; `run` calls this too.

        Raises `SandboxError`, an `OSError`, if the requested network mode or podman is not available.
        """
        if self._runtime is None:
            network, podman = self._options.network, self._options.podman
            isolated = self._options.isolation is not None
            start = (
                start_processes(network, isolated=isolated) if podman is None else start_podman(network, self._devices)
            )
            self._runtime, self._containers = await start
        return self._runtime

    async def wait_ready(self) -> None:
        """Waits until the Node object is registered, the caches are synced and pods can start."""
        await self._ready.wait()

    async def run(self) -> None:
        """Registers the Node, then binds and runs pods; when cancelled, kills all pod processes and returns.

        Raises `SandboxError` if the requested network mode is not available or the container runtime has exited.
        """
        runtime = await self.prepare()
        description = registration.describe_network(runtime.network, runtime.fallback_reason)
        log.info("node started", node=self.name, network=runtime.network, description=description)
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._serve(runtime, tasks)
        finally:
            self._ready.clear()
            await self._containers.close()
            await runtime.close()

    async def _serve(self, runtime: ContainerRuntime, tasks: asyncio.TaskGroup) -> None:
        """Registers the Node and starts pod manager, network services, informers and event recorders in `tasks`."""
        kubelet = Recorder(self._client, "kubelet", self._clock)
        scheduler = Recorder(self._client, "default-scheduler", self._clock)
        addresses = AddressAllocator(runtime.network, seed=os.getpid())
        context = self._make_context(runtime, kubelet, addresses)
        host_ip = HUB_ADDRESS if runtime.network == "namespaces" else "127.0.0.1"
        facts = (self.name, runtime.network, runtime.fallback_reason, host_ip)
        node = registration.node_object(
            *facts, containers=self._containers, capacity=context.allocatable, now=self._clock.now()
        )
        await retry_api_call(lambda: registration.register(self._client, node), self._clock)
        pod_manager = self._pod_manager = PodManager(context, self.name, host_ip, addresses)
        pod_manager.start(tasks)
        if runtime.network == "namespaces":
            await self._serve_network(runtime, tasks)
        else:
            pod_manager.on_change = self._publish_ready_addresses
        self._pods.add_handler(pod_manager)
        self._scheduler = self._make_scheduler(scheduler)
        for kind, resource in (("configmap", CONFIG_MAPS), ("secret", SECRETS)):
            handler = ReferenceHandler(kind, pod_manager)
            self._cache.informer(resource, decode_unstructured).add_handler(handler)
        for runner in (kubelet, scheduler, self._cache):
            tasks.create_task(runner.run())
        tasks.create_task(_fail_when_lost(runtime))
        await self._cache.wait_synced()
        tasks.create_task(self._scheduler.run(), name="scheduler")
        self._logs.remove_orphans({pod.metadata.uid for pod in self._pods.store.list()})
        self._ready.set()

    def _make_scheduler(self, recorder: Recorder) -> Scheduler:
        nodes = self._cache.informer(NODES, decode_unstructured)
        stores = Stores(self._pods.store, nodes.store)
        scheduler = Scheduler(
            self._client, stores, self.name, clock=self._clock, recorder=recorder, leniency=self._options.leniency
        )
        for informer in (self._pods, nodes):
            informer.add_handler(scheduler)
        return scheduler

    def expose(self, port: int) -> str:
        """Lets pods reach one server on 127.0.0.1 of this machine; returns its `host:port` as pods see it."""
        if self.network == "addresses":
            return f"127.0.0.1:{port}"
        self._redirected[EXPOSED_ADDRESS, SERVICE_PORT] = ("127.0.0.1", port)
        return f"{EXPOSED_ADDRESS}:{SERVICE_PORT}"

    async def _serve_network(self, runtime: ContainerRuntime, tasks: asyncio.TaskGroup) -> None:
        """Serves cluster DNS and the outbound gateway on sockets in the pod network."""
        isolated = self._options.isolation is not None
        outside = self._options.host_network or (NoHostNetwork() if isolated else DirectHostNetwork())
        host_network = RedirectedNetwork(outside, self._redirected)
        if self.api_endpoint is not None:
            self._redirected[SERVICE_ADDRESS, SERVICE_PORT] = (self.api_endpoint.host, self.api_endpoint.port)

        async def lookup(name: str) -> list[str] | None:
            if name.rstrip(".").lower() == SERVICE_NAME:
                return [SERVICE_ADDRESS]
            found = resolve(name, self._objects)
            return found if found or belongs_to_cluster(name, self._objects) else await host_network.resolve(name)

        udp = await runtime.make_socket("udp", HUB_ADDRESS, _DNS_PORT)
        tcp = await runtime.make_socket("tcp", HUB_ADDRESS, _DNS_PORT)
        tasks.create_task(DnsServer(lookup).serve(udp, tcp), name="dns")
        gateway = Gateway(host_network, NETWORK)
        for port in forwarded_ports({} if isolated else os.environ):
            listening = await runtime.make_socket("tcp", "0.0.0.0", port)  # noqa: S104  # inside the pod network only
            tasks.create_task(gateway.serve(listening), name=f"gateway {port}")

    def _make_context(self, runtime: ContainerRuntime, recorder: Recorder, addresses: AddressAllocator) -> NodeContext:
        private_files.ensure_directory(self._directory)
        shims = self._directory / "bin"
        registration.write_shims(shims)
        isolation, podman = self._options.isolation, self._options.podman
        variables = isolation.environment(os.environ) if isolation else os.environ
        loopback = LoopbackNames(self._objects, addresses)
        if podman is not None:
            defaults = podman.defaults(self._directory, runtime.network)
        else:
            defaults = registration.process_defaults(self._directory, variables, shims, runtime.network)
        return NodeContext(
            runtime=runtime,
            containers=self._containers,
            client=self._client,
            clock=self._clock,
            timing=self._options.timing,
            recorder=recorder,
            logs=self._logs,
            directory=self._directory,
            environment=defaults.environment,
            working_directory=defaults.directory,
            allocatable=registration.allocatable(self._directory, len(self._options.gpus)),
            service_accounts=ServiceAccounts(self.api_endpoint if runtime.network == "namespaces" else None),
            devices=self._devices,
            isolation=isolation.of_cluster(shims) if isolation else None,
            common_mounts=defaults.mounts,
            address_of=loopback.address_of,
        )

    def _publish_ready_addresses(self) -> None:
        """Mode `addresses`: writes the file that the `nslookup` fallback reads (see `registration`)."""
        text = ready_addresses(self._pods.store.list())
        (self._directory / READY).write_text(text)

    def begin_stop(self) -> tuple[int, float]:
        """Starts a graceful node shutdown: terminates all pods and starts no new ones.

        Returns the number of running pods and their longest termination grace period in seconds.
        """
        if self._pod_manager is None or self._scheduler is None:
            return 0, 0.0
        self._scheduler.stop()
        return self._pod_manager.begin_shutdown()

    def kill_pods(self) -> None:
        """Kills terminating pods at once, without waiting for the rest of their grace period."""
        if self._pod_manager is not None:
            self._pod_manager.kill()

    async def pods_ended(self) -> None:
        """After `begin_stop`: waits until all pods have ended and their final statuses are written."""
        if self._pod_manager is not None:
            await self._pod_manager.wait_ended()

    def log_file(self, namespace: str, pod: str, container: str) -> Path | None:
        """The log file of the container's latest run; None once the pod is deleted."""
        found = self._pods.store.get(Key(namespace, pod))
        log_file = self._logs.find(found.raw["metadata"], container, previous=False) if found else None
        return log_file.path if log_file else None

    def open_log(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        follow: bool = False,
        previous: bool = False,
        tail_lines: int | None = None,
        since: datetime | None = None,
        timestamps: bool = False,
        limit_bytes: int | None = None,
    ) -> AsyncIterator[bytes]:
        """The log of one container, in chunks. Raises `ApiError` (400, 404) with kubelet's messages before it returns.

        The options are those of `kubectl logs`.
        """
        found = self._pods.store.get(Key(namespace, pod))
        if found is None:
            raise _api_error(404, "NotFound", f'pods "{pod}" not found')
        log_file = self._logs.find(found.raw["metadata"], container, previous=previous)
        if log_file is None:
            raise _api_error(400, "BadRequest", explain_missing_log(found.raw, container, previous=previous))
        options = LogOptions(follow, tail_lines, since, timestamps, limit_bytes)
        return read_log(log_file, options)

    async def usage(self) -> tuple[dict[str, dict[str, Usage]], Usage]:
        """What each running container uses, by UID of the pod and name, and what the whole machine does."""
        manager = self._pod_manager
        await self.prepare()
        running = {
            process: (pod.metadata.uid, container["name"])
            for pod in (self._pods.store.list() if manager else ())
            for container in pod.raw["spec"]["containers"]
            if manager and (process := manager.process(pod.metadata.uid, container["name"]))
        }
        used, machine = await self._containers.usage(running)
        found: dict[str, dict[str, Usage]] = {}
        for process, amounts in used.items():
            uid, container = running[process]
            found.setdefault(uid, {})[container] = amounts
        return found, machine

    def open_exec(
        self,
        namespace: str,
        pod: str,
        container: str,
        command: Sequence[str],
        *,
        stdin: bool = False,
        stdout: bool = True,
        stderr: bool = True,
        tty: bool = False,
    ) -> ExecSession:
        """A session that runs `command` in a container. Raises `ApiError` (404, kubelet's) if that is not running."""
        found = self._pods.store.get(Key(namespace, pod))
        process = self._pod_manager.process(found.metadata.uid, container) if found and self._pod_manager else None
        if process is None:
            raise _api_error(404, "NotFound", f'unable to upgrade connection: container not found ("{container}")')
        return ExecSession(process, command, stdin=stdin, stdout=stdout, stderr=stderr, tty=tty)

    def open_ports(
        self, namespace: str, pod: str
    ) -> Callable[[int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]:
        """A function that connects to a TCP port of the pod, or raises `OSError`.

        Raises `ApiError` (404, kubelet's) if the pod is not running.
        """
        found = self._pods.store.get(Key(namespace, pod))
        manager = self._pod_manager
        if found is None or manager is None or manager.address(uid := found.metadata.uid) is None:
            raise _api_error(404, "NotFound", "unable to upgrade connection: pod does not exist")

        async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            address = manager.address(uid)
            if address is None or self._runtime is None:
                raise OSError("the pod is not running")
            return await connect_to_port(self._runtime, uid, address, port)

        return connect


async def _fail_when_lost(runtime: ContainerRuntime) -> None:
    await runtime.lost
    raise SandboxError("the container runtime has exited, and all pod processes with it")


def _api_error(code: int, reason: str, message: str) -> ApiError:
    return error_of_status({"code": code, "reason": reason, "message": message, "status": "Failure"}, code)
