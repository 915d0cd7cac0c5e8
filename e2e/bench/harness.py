"""The harness of one run: a cluster, one operator, a simulated node and a simulated user. Scenarios use it."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp

from e2e.bench.admission import install_certificates, install_webhook, wait_for_webhook
from e2e.bench.cluster import ENDPOINT_SLICES, NAMESPACE, BenchCluster, Cpu, open_cluster
from e2e.bench.gang import GangScheduler
from e2e.bench.jobs import Jobs
from e2e.bench.node import SimulatedNode
from e2e.bench.operators import NAMESPACE as OPERATOR_NAMESPACE
from e2e.bench.operators import ROOT, Operator
from e2e.bench.processes import Program
from e2e.cluster.daemons import free_ports
from trainop.runtime.objects.metadata import PODS

DRAIN_SECONDS = 1.0
"""Seconds after a phase during which requests and CPU still belong to it."""


class BenchError(Exception):
    """A run failed."""


class Harness:
    def __init__(self, cluster: BenchCluster, operator: Operator, node: SimulatedNode, jobs: Jobs) -> None:
        self.cluster, self.operator, self.node, self.jobs = cluster, operator, node, jobs
        self.program: Program
        self.metrics_port = 0
        (self.webhook_port,) = free_ports(1)
        self.tasks: list[asyncio.Task[None]] = []
        self.marks: list[int] = []
        """Offsets in the audit log that separate phases."""

    def start(self) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
        environment["PYTHONPATH"] = str(ROOT)
        self.metrics_port, probes = free_ports(2)
        command = self.operator.command(self.cluster.kubeconfig, self.metrics_port, probes)
        if self.operator.webhooks:
            environment["MY_POD_NAMESPACE"] = OPERATOR_NAMESPACE  # ours serves webhooks only if it knows its Service
            command.append(f"--webhook-server-port={self.webhook_port}")
        self.program = Program(command, self.cluster.folder / "operator.log", environment)

    async def wait_until(self, what: str, condition: Callable[[], bool], within: float = 900) -> float:
        """Polls `condition`; returns the monotonic time at which it held. Raises `BenchError`."""
        end = time.monotonic() + within
        while not condition():
            await asyncio.sleep(0.005)
            if failed := next((task for task in self.tasks if task.done()), None):
                failed.result()
            if not self.program.alive:
                raise BenchError(f"the operator exited before: {what}; {self.program.tail()}")
            if time.monotonic() > end:
                raise BenchError(f"timed out: {what}; {self.node.added} pods, conditions {dict(self.jobs.totals)}")
        return time.monotonic()

    async def wait_idle(self, limit: float = 120.0) -> float:
        """Waits until the operator has used less than 5 % of a core for 2 s; returns the start of these 2 s."""
        return await _wait_idle(self.program.cpu, limit)

    async def drain(self) -> float:
        """Waits until nothing is left to do for the last phase: requests that nobody waits for, and the controllers of
        the cluster. Returns the monotonic time since which they have been idle."""
        await asyncio.sleep(DRAIN_SECONDS)
        if not self.cluster.has_controllers:
            return time.monotonic() - DRAIN_SECONDS
        return await _wait_idle(lambda: self.cluster.cpu()["kcm"], 120.0)

    def cpu(self) -> Cpu:
        return self.cluster.cpu(self.program)

    def mark(self) -> None:
        """Ends one phase of audited requests and starts the next."""
        self.marks.append(self.cluster.audit_log.stat().st_size if self.cluster.audit_log.exists() else 0)

    async def metrics(self) -> dict[str, float]:
        """The operator's metrics of reconciles, requests and cached objects, by series."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.metrics_port}/metrics") as answer,
        ):
            text = await answer.text()
        pattern = (
            r"^((?:controller_runtime_reconcile_total|rest_client_requests_total|trainop_informer_objects)\S*) (\S+)$"
        )
        return {found[1]: float(found[2]) for found in re.finditer(pattern, text, re.MULTILINE)}

    async def warm_up(self) -> None:
        """Runs one small job in another namespace, so that the operator is warm before the measurement."""
        resource = self.jobs.kind.resource
        body = self.jobs.kind.make("warm-up", 1, "")
        await self.cluster.client.create(resource, body, namespace=OPERATOR_NAMESPACE)
        end = time.monotonic() + 60
        while len(pods := (await self.cluster.client.list(PODS, OPERATOR_NAMESPACE)).items) < 2:
            if time.monotonic() > end or not self.program.alive:
                raise BenchError(f"the operator does not work: {self.program.tail()}")
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.5)
        await self.cluster.client.delete(resource, "warm-up", OPERATOR_NAMESPACE)
        await asyncio.sleep(0.5)
        for pod in pods:
            await self.cluster.client.delete(PODS, pod["metadata"]["name"], OPERATOR_NAMESPACE)
        await asyncio.sleep(1.0)


async def _wait_idle(cpu: Callable[[], float], limit: float) -> float:
    """Waits until `cpu` has grown by less than 5 % of a core for 2 s; returns the start of these 2 s."""
    end, idle_samples = time.monotonic() + limit, 0
    while time.monotonic() < end and idle_samples < 8:
        before = cpu()
        await asyncio.sleep(0.25)
        idle_samples = idle_samples + 1 if cpu() - before <= 0.0125 else 0
    return time.monotonic() - 2.0


@asynccontextmanager
async def open_harness(operator: Operator, *, audit: bool = False, endpoints: bool = False) -> AsyncIterator[Harness]:
    """A new cluster with this operator, warmed up. With `endpoints`, pods are bound, and their addresses written to
    EndpointSlices."""
    kind = operator.kind
    controllers = (*kind.controllers, ENDPOINT_SLICES) if endpoints else kind.controllers
    async with open_cluster(operator.crds(), audit=audit, controllers=controllers) as cluster:
        node = SimulatedNode(cluster.client, NAMESPACE, kind.container, binds=endpoints)
        harness = Harness(cluster, operator, node, Jobs(cluster.client, kind, NAMESPACE))
        if operator.needs_certificate:
            await install_certificates(cluster)
        if operator.webhooks:
            await install_webhook(cluster, kind.resource, harness.webhook_port)
        harness.start()
        try:
            harness.tasks = [asyncio.create_task(node.run()), asyncio.create_task(harness.jobs.run())]
            if operator.gang:
                harness.tasks.append(asyncio.create_task(GangScheduler(cluster.client).run()))
            if operator.webhooks:
                probe = kind.make("probe", 1, "")
                await wait_for_webhook(cluster, kind.resource, probe, mounted=operator.needs_certificate)
            await harness.warm_up()
            await cluster.wait_idle()
            gc.collect()
            gc.disable()
            yield harness
        finally:
            gc.enable()
            for task in harness.tasks:
                task.cancel()
            harness.program.stop()  # first: another cancellation would interrupt what follows
            await asyncio.gather(*harness.tasks, return_exceptions=True)
