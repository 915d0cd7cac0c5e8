"""The node: what a kubelet, a scheduler and a DNS server would do for one machine, for pods that are processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import structlog

from trainop.local import private
from trainop.local.node import registration
from trainop.local.node.network.addresses import AddressBook
from trainop.local.node.network.dns import DnsServer
from trainop.local.node.network.host_network import Gateway, HostNetwork, Outside, ports_to_carry
from trainop.local.node.network.loopback import LoopbackNames, ready_addresses
from trainop.local.node.network.names import NameSpace, belongs_to_cluster, resolve
from trainop.local.node.pods.context import Kit, LogShelf, Timing
from trainop.local.node.pods.environment import Reference
from trainop.local.node.pods.logreader import LogOptions, read_log
from trainop.local.node.pods.pod_manager import Roster
from trainop.local.node.pods.worker import insist
from trainop.local.node.sandbox.bridge import HUB_ADDRESS, NETWORK
from trainop.local.node.sandbox.sandbox import Machine, NetworkMode, SandboxError
from trainop.runtime.cache.cache import Cache
from trainop.runtime.cache.store import by_namespace
from trainop.runtime.client.client import Client
from trainop.runtime.clock import Clock, SystemClock
from trainop.runtime.errors import ApiError, error_of_status
from trainop.runtime.events.recorder import Recorder
from trainop.runtime.objects.metadata import Json, Key, Unstructured, decode_unstructured
from trainop.runtime.objects.resource import CONFIG_MAPS, PODS, SECRETS, SERVICES

__all__ = ["NetworkMode", "Node", "NodeOptions", "SandboxError", "Timing"]

_DNS_PORT = 53

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """`network` None takes namespaces where the kernel lets this user have them."""

    network: NetworkMode | None = None
    timing: Timing = field(default_factory=Timing)
    outside: Outside | None = None
    """What pods in namespaces reach beyond the cluster; None is what this process reaches."""


class Node:
    """One node of the embedded cluster. `run` serves until it is cancelled; no process of a pod outlives it."""

    def __init__(
        self,
        client: Client,
        name: str,
        directory: Path,
        *,
        clock: Clock | None = None,
        options: NodeOptions | None = None,
    ) -> None:
        """`directory` (made if missing) holds volumes and logs of pods; `name` is the Node object's name."""
        self.name = name
        self._client = client
        self._directory = directory.absolute()
        self._clock = clock or SystemClock()
        self._options = options or NodeOptions()
        self._machine: Machine | None = None
        self._ready = asyncio.Event()
        self._roster: Roster | None = None
        self._logs = LogShelf(self._directory)
        self._cache = Cache(client, clock=self._clock)
        self._pods = self._cache.informer(PODS, decode_unstructured, indices={"namespace": by_namespace})
        self._services = self._cache.informer(SERVICES, decode_unstructured)
        self._names = NameSpace(
            service=lambda namespace, name: self._services.store.get(Key(namespace, name)),
            pod=lambda namespace, name: self._pods.store.get(Key(namespace, name)),
            pods=lambda namespace: self._pods.store.by_index("namespace", namespace),
        )

    @property
    def network(self) -> NetworkMode:
        """The mode in use; known once the node is prepared."""
        if self._machine is None:
            raise RuntimeError("the node is not prepared")
        return self._machine.network

    async def prepare(self) -> Machine:
        """Starts what starts processes, once; `run` does it if nobody did.

        Raises `SandboxError`, an `OSError`, if the network mode that was asked for cannot be had.
        """
        if self._machine is None:
            self._machine = await Machine.start(self._options.network)
        return self._machine

    async def wait_ready(self) -> None:
        """Returns when the Node object is registered and pods can start."""
        await self._ready.wait()

    async def run(self) -> None:
        """Registers the Node, binds and runs pods; when cancelled kills every pod's processes, then returns.

        Raises `SandboxError` as `prepare` does, and if what starts processes has ended.
        """
        machine = await self.prepare()
        sentence = registration.describe_network(machine.network, machine.why)
        log.info("node started", node=self.name, network=machine.network, meaning=sentence)
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._serve(machine, tasks)
        finally:
            self._ready.clear()
            await machine.close()

    async def _serve(self, machine: Machine, tasks: asyncio.TaskGroup) -> None:
        kubelet = Recorder(self._client, "kubelet", self._clock)
        scheduler = Recorder(self._client, "default-scheduler", self._clock)
        book = AddressBook(machine.network, seed=os.getpid())
        kit = self._make_kit(machine, kubelet, book)
        host_ip = HUB_ADDRESS if machine.network == "namespaces" else "127.0.0.1"
        node = registration.node_object(self.name, machine.network, machine.why, host_ip, self._clock.now())
        await insist(lambda: registration.register(self._client, node), self._clock)
        roster = self._roster = Roster(kit, self.name, host_ip, book, scheduler)
        roster.open(tasks)
        if machine.network == "namespaces":
            await self._serve_network(machine, tasks)
        else:
            roster.on_change = self._publish_ready_addresses
        self._pods.add_handler(roster)
        for kind, resource in (("configmap", CONFIG_MAPS), ("secret", SECRETS)):
            follower = _Follower(kind, roster)
            self._cache.informer(resource, decode_unstructured).add_handler(follower)
        for runner in (kubelet, scheduler, self._cache):
            tasks.create_task(runner.run())
        tasks.create_task(_end_with(machine))
        await self._cache.wait_synced()
        self._logs.sweep({pod.metadata.uid for pod in self._pods.store.list()})
        self._ready.set()

    async def _serve_network(self, machine: Machine, tasks: asyncio.TaskGroup) -> None:
        """DNS and the way out, on sockets of the pods' network."""
        outside = self._options.outside or HostNetwork()

        async def lookup(name: str) -> list[str] | None:
            found = resolve(name, self._names)
            return found if found or belongs_to_cluster(name, self._names) else await outside.resolve(name)

        udp = await machine.make_socket("udp", HUB_ADDRESS, _DNS_PORT)
        tcp = await machine.make_socket("tcp", HUB_ADDRESS, _DNS_PORT)
        tasks.create_task(DnsServer(lookup).serve(udp, tcp), name="dns")
        gateway = Gateway(outside, NETWORK)
        for port in ports_to_carry(os.environ):
            listening = await machine.make_socket("tcp", "0.0.0.0", port)  # noqa: S104  # in the pods' own network
            tasks.create_task(gateway.serve(listening), name=f"gateway {port}")

    def _make_kit(self, machine: Machine, recorder: Recorder, book: AddressBook) -> Kit:
        private.make_folder(self._directory)
        shims = self._directory / "bin"
        registration.write_shims(shims)
        loopback = LoopbackNames(self._names, book)
        return Kit(
            machine=machine,
            client=self._client,
            clock=self._clock,
            timing=self._options.timing,
            recorder=recorder,
            logs=self._logs,
            directory=self._directory,
            environment=registration.container_environment(
                os.environ, shims, machine.network, self._directory / "ready-addresses"
            ),
            working_directory=str(Path.cwd()),
            allocatable=registration.allocatable(),
            common_mounts=registration.common_mounts(self._directory / "etc"),
            address_of=loopback.address_of,
        )

    def _publish_ready_addresses(self) -> None:
        text = ready_addresses(self._pods.store.list())
        (self._directory / "ready-addresses").write_text(text)

    def begin_stop(self) -> tuple[int, float]:
        """Ends pods as a node that shuts down does, and starts no more: how many run, their longest grace period."""
        return self._roster.close() if self._roster is not None else (0, 0.0)

    def kill_pods(self) -> None:
        """Takes from pods that are being stopped what is left of their grace period."""
        if self._roster is not None:
            self._roster.kill()

    async def pods_ended(self) -> None:
        """After `begin_stop`: returns when nothing of a pod runs and their statuses say so."""
        if self._roster is not None:
            await self._roster.ended()

    def log_file(self, namespace: str, pod: str, container: str) -> Path | None:
        """The file of the latest run, as long as the pod is there: see `logs`."""
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
        """The log of one container, in chunks; raises `ApiError` (400, 404) at once, in the words of kubelet."""
        found = self._pods.store.get(Key(namespace, pod))
        if found is None:
            raise _refusal(404, "NotFound", f'pods "{pod}" not found')
        log_file = self._logs.find(found.raw["metadata"], container, previous=previous)
        if log_file is None:
            raise _refusal(400, "BadRequest", _why_no_log(found, container, previous=previous))
        options = LogOptions(follow, tail_lines, since, timestamps, limit_bytes)
        return read_log(log_file, options)


class _Follower:
    """Tells the roster of changed ConfigMaps or Secrets."""

    def __init__(self, kind: str, roster: Roster) -> None:
        self._kind = kind
        self._roster = roster

    def add(self, obj: Unstructured, initial: bool) -> None:
        if not initial:
            self._tell(obj)

    def update(self, old: Unstructured, new: Unstructured) -> None:
        self._tell(new)

    def delete(self, obj: Unstructured | None, key: Key, final_state_unknown: bool) -> None:
        """Running containers keep what they have."""

    def _tell(self, obj: Unstructured) -> None:
        kind = "configmap" if self._kind == "configmap" else "secret"
        self._roster.refresh(Reference(kind, obj.metadata.name), obj.metadata.namespace)  # type: ignore[arg-type]  # one of two


async def _end_with(machine: Machine) -> None:
    await machine.lost
    raise SandboxError("the supervisor of the pods' processes has ended, and all pods with it")


def _refusal(code: int, reason: str, message: str) -> ApiError:
    return error_of_status({"code": code, "reason": reason, "message": message, "status": "Failure"}, code)


def _why_no_log(pod: Unstructured, container: str, *, previous: bool) -> str:
    name, spec = pod.metadata.name, pod.raw["spec"]
    everyone = [one["name"] for one in [*(spec.get("initContainers") or ()), *spec["containers"]]]
    if container not in everyone:
        return f"container {container} is not valid for pod {name}"
    if previous:
        return f'previous terminated container "{container}" in pod "{name}" not found'
    status = pod.raw.get("status") or {}
    known = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    state: Json = next((one["state"] for one in known if one["name"] == container), {})
    reason = (state.get("waiting") or {}).get("reason") or "ContainerCreating"
    return f'container "{container}" in pod "{name}" is waiting to start: {reason}'
