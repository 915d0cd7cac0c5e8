"""Clients of di-server: the coordinators of DIJobs, and users with the `ding` CLI.

A client repeats a request whose connection breaks, as DI-engine's does. It may also leave in the middle.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec

from tests.simulation.di_server import LEASES_IN, Connection, DiServerReplica
from tests.simulation.facts import finished, owner_of, phase, terminating
from tests.simulation.loop import Pause
from tests.simulation.oracle.di import Ask
from tests.simulation.oracle.di_observer import DiObserver
from tests.simulation.script import NAMESPACE, Step
from tests.simulation.wire import at_once
from trainop.kinds.dijob.crd import aggregator_config_crd
from trainop.kinds.dijob.names import AGGREGATOR_CONFIGS, LEASES_OF_REQUESTS
from trainop.local.api.registry.crds import kinds_of_crd
from trainop.local.api.storage.versioned_store import Stored
from trainop.runtime.objects.metadata import LEASES, NAMESPACES, NODES, PODS, Json

if TYPE_CHECKING:
    from tests.simulation.world import World

METHODS = {"post": "POST", "remove": "DELETE", "replace": "POST"}
ACTS = {*METHODS, "finish"}
OF_SERVERS = {"kill server", "stop server", "freeze server"}
ATTEMPTS = 5
TIMEOUT = 60.0
"""Seconds after which a client gives an attempt up."""


class DiSide:
    """The di-servers of a cluster and their clients."""

    def __init__(self, world: World, servers: int) -> None:
        self._world = world
        self._rng = random.Random(f"{world.script.seed}/di/clients")
        self.servers = [DiServerReplica(world, f"di{number + 1}") for number in range(servers)]
        self._open = 0
        """Requests in progress."""

    def set_up(self) -> None:
        """A namespace for di-server, the AggregatorConfig, and a node with GPUs."""
        world, client = self._world, self._world.users.client
        for served in kinds_of_crd(aggregator_config_crd()):
            world.server._backend.registry.add(served)
        name = {"metadata": {"name": LEASES_IN}}
        at_once(client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", **name}))
        template = {"spec": {"containers": [{"name": "di-container", "image": "agg"}]}}
        config = {"metadata": {"name": "aggregator-config"}, "spec": {"aggregator": {"template": template}}}
        kind = {"apiVersion": AGGREGATOR_CONFIGS.api_version, "kind": AGGREGATOR_CONFIGS.kind}
        at_once(client.create(AGGREGATOR_CONFIGS, {**kind, **config}, namespace=LEASES_IN))
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpus"}}
        made = at_once(client.create(NODES, node))
        status = {"capacity": {"nvidia.com/gpu": "4"}, "allocatable": {"nvidia.com/gpu": "4"}}
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        world.store.put(str(NODES), ("", "gpus"), {**made, "status": status | ready})
        for number, server in enumerate(self.servers):
            world.loop.outside(0.4 * number, server.start)

    def recover(self) -> None:
        for server in self.servers:
            server.recover()

    def end(self) -> None:
        for server in self.servers:
            server.end()

    @property
    def rests(self) -> bool:
        """No request is in progress, none is left to be ended, and all servers run."""
        leases = at_once(self._world.users.client.list(LEASES, LEASES_IN, label_selector=LEASES_OF_REQUESTS)).items
        return not self._open and not leases and all(server.stands for server in self.servers)

    # Fate -------------------------------------------------------------------------------------------------------------

    def strike_server(self, step: Step) -> None:
        server = next(each for each in self.servers if each.name == step.subject)
        if not server.runs:
            return
        match step.act:
            case "kill server":
                server.kill(step.value)
            case "stop server":
                server.stop()
            case "freeze server":
                server.freeze(step.value)

    def strike(self, step: Step, rng: random.Random) -> bool:
        """A client sends a request, or a coordinator ends; returns False if there is no coordinator yet."""
        pods = self._pods(step.subject)
        coordinator = next((pod for pod in pods if pod.key[1].endswith("-coordinator")), None)
        if coordinator is None:
            return False
        if step.act == "finish":
            self._world.nodes.end(coordinator, step.value, code=0 if step.value == "Succeeded" else 1)
            return True
        ask = self._ask(step, coordinator, pods, rng)
        if ask is None:
            return False
        self._open += 1
        self._world.happened += 2
        observer = self._world.observer
        assert isinstance(observer, DiObserver), "of a world with DIJobs"
        observer.asked(ask)
        self._world.loop.create_task(self._send(ask), name="client")
        return True

    def _pods(self, job: str) -> list[Stored]:
        """The running pods of a job that has not ended."""
        found = []
        for stored in self._world.store.table(str(PODS)).objects.values():
            owner = self._world.job_of(stored.value)
            if owner is not None and owner["metadata"]["name"] == job and not finished(owner):
                found.append(stored)
        living = [pod for pod in found if phase(pod.value) == "Running" and not terminating(pod.value)]
        return sorted(living, key=lambda pod: pod.key)

    def _ask(self, step: Step, coordinator: Stored, pods: list[Stored], rng: random.Random) -> Ask | None:
        name, uid = coordinator.key[1], (owner_of(coordinator.value) or {})["uid"]
        body: Json = {"namespace": NAMESPACE, "coordinator": name}
        if step.act != "replace":
            return Ask(step.act, uid, {**body, **step.value})
        names: dict[str, list[str]] = {"collectors": [], "learners": []}
        for pod in rng.sample(pods, min(len(pods), rng.randint(1, 2))):
            role = pod.value["metadata"]["labels"].get("replica-type")
            if role in {"collector", "learner", "aggregator"}:
                names["collectors" if role == "collector" else "learners"].append(pod.key[1])
        return Ask(step.act, uid, {**body, **names}) if any(names.values()) else None

    # One request ------------------------------------------------------------------------------------------------------

    async def _send(self, ask: Ask) -> None:
        world, rng = self._world, self._rng
        try:
            for _ in range(ATTEMPTS):
                servers = [server for server in self.servers if server.runs]
                if servers and await self._attempt(rng.choice(servers), ask):
                    break
                await Pause(world.loop, rng.uniform(0.1, 1.5))
        finally:
            ask.done = True
            self._open -= 1
            world.note("client", f"{ask.kind}: {ask.status} {ask.data}")

    async def _attempt(self, server: DiServerReplica, ask: Ask) -> bool:
        """Returns whether there is an answer."""
        world, rng = self._world, self._rng
        await Pause(world.loop, rng.uniform(0.0, 0.02))
        if not server.runs:
            return False
        path = "/v1alpha1/replicas" + ("/failed" if ask.kind == "replace" else "")
        connection = Connection("10.0.0.1", world.loop.create_future())
        world.note("client", f"{ask.kind} {ask.body} to {server.name}")
        leaves = rng.uniform(0.0, 0.1) if rng.random() < 0.3 and not world.calm else TIMEOUT
        timer = world.loop.outside(leaves, connection.abort)
        server.open(METHODS[ask.kind], path, msgspec.json.encode(ask.body), connection)
        found = await connection.answer
        timer.cancel()
        if found is None:
            world.note("client", f"gets no answer of {server.name}")
            return False
        ask.status, ask.data = found[0], msgspec.json.decode(found[1]).get("data")
        return True
