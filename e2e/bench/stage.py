"""One arena, one operator, one simulated node: what every scenario plays on."""

from __future__ import annotations

import asyncio
import base64
import gc
import os
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from e2e.bench.arena import HOME, NAMESPACE, Arena, Cpu, open_arena
from e2e.bench.jobs import Jobs
from e2e.bench.node import Node
from e2e.bench.operators import ROOT, Operator
from e2e.bench.processes import Program
from e2e.cluster.certificates import Authority
from e2e.cluster.daemons import free_ports
from trainop.runtime.objects.resource import PODS, SECRETS

CERTIFICATES = Path("/tmp/k8s-webhook-server/serving-certs")
"""Where training-operator looks for its webhook's certificate; it has no flag for that."""

LINGER = 1.0
"""Seconds after a phase in which requests and CPU still count for it."""


class BenchError(Exception):
    """A run came to nothing."""


class Stage:
    def __init__(self, arena: Arena, operator: Operator, node: Node, jobs: Jobs) -> None:
        self.arena, self.operator, self.node, self.jobs = arena, operator, node, jobs
        self.program: Program
        self.metrics_port = 0
        self.tasks: list[asyncio.Task[None]] = []
        self.marks: list[int] = []
        """Places in the audit log between phases."""

    def start(self) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
        environment["PYTHONPATH"] = str(ROOT)
        self.metrics_port, probes = free_ports(2)
        command = self.operator.command(self.arena.kubeconfig, self.metrics_port, probes)
        self.program = Program(command, self.arena.folder / "operator.log", environment)

    async def until(self, what: str, condition: Callable[[], bool], within: float = 900) -> float:
        """Wait until it holds; returns when it was seen to, monotonic."""
        end = time.monotonic() + within
        while not condition():
            await asyncio.sleep(0.005)
            if failed := next((task for task in self.tasks if task.done()), None):
                failed.result()
            if not self.program.alive:
                raise BenchError(f"the operator ended before {what}: {self.program.tail()}")
            if time.monotonic() > end:
                raise BenchError(f"in vain: {what}; {self.node.added} pods, conditions {dict(self.jobs.totals)}")
        return time.monotonic()

    async def at_rest(self, limit: float = 120.0) -> float:
        """Until the operator used less than 5 % of a core for 2 s; returns when that began."""
        end, calm = time.monotonic() + limit, 0
        while time.monotonic() < end and calm < 8:
            before = self.program.cpu()
            await asyncio.sleep(0.25)
            calm = calm + 1 if self.program.cpu() - before <= 0.0125 else 0
        return time.monotonic() - 2.0

    def cpu(self) -> Cpu:
        return self.arena.cpu(self.program)

    def mark(self) -> None:
        """Here one phase of requests ends, and the next begins."""
        self.marks.append(self.arena.audit_log.stat().st_size if self.arena.audit_log.exists() else 0)

    async def metrics(self) -> dict[str, float]:
        """The operator's own counts of reconciles and requests."""
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
        """One small job in another namespace: the operator works before the clock starts."""
        resource = self.jobs.kind.resource
        body = self.jobs.kind.make("warm-up", 1, "")
        await self.arena.client.create(resource, body, namespace=HOME)
        end = time.monotonic() + 60
        while len(pods := (await self.arena.client.list(PODS, HOME)).items) < 2:
            if time.monotonic() > end or not self.program.alive:
                raise BenchError(f"the operator does not work: {self.program.tail()}")
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.5)
        await self.arena.client.delete(resource, "warm-up", HOME)
        await asyncio.sleep(0.5)
        for pod in pods:
            await self.arena.client.delete(PODS, pod["metadata"]["name"], HOME)
        await asyncio.sleep(1.0)


@asynccontextmanager
async def open_stage(operator: Operator, *, audit: bool = False, warm: bool = True) -> AsyncIterator[Stage]:
    kind = operator.kind
    async with open_arena(operator.crd_files(), audit=audit, job_controller=kind.needs_job_controller) as arena:
        node = Node(arena.client, NAMESPACE, kind.container)
        stage = Stage(arena, operator, node, Jobs(arena.client, kind, NAMESPACE))
        if operator.peer:
            await _bring_certificates(arena)
        stage.start()
        try:
            stage.tasks = [asyncio.create_task(node.run()), asyncio.create_task(stage.jobs.run())]
            if warm:
                await stage.warm_up()
            await arena.settle()
            gc.collect()
            gc.disable()
            yield stage
        finally:
            gc.enable()
            for task in stage.tasks:
                task.cancel()
            await asyncio.gather(*stage.tasks, return_exceptions=True)
            stage.program.stop()


async def _bring_certificates(arena: Arena) -> None:
    """What training-operator's cert-controller and its Secret's mount would do together."""
    authority = Authority(CERTIFICATES)
    authority.issue("tls", "training-operator.kubeflow.svc", hosts=["training-operator.kubeflow.svc"])
    names = ("ca.crt", "ca.key", "tls.crt", "tls.key")
    data = {name: base64.b64encode((CERTIFICATES / name).read_bytes()).decode() for name in names}
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "training-operator-webhook-cert"}, "data": data}
    await arena.client.create(SECRETS, body, namespace=HOME)
