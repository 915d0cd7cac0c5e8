"""Cost against size: our operator, as a process of its own, holds ever more pods.

python -m e2e.bench.scale [--pods 1000,5000,10000,25000,50000] [--out FILE]

FILE keeps a row for each size, so sizes may be measured one by one.

The API server is a plain one over the embedded store, in the harness' process, for kube-apiserver would be the limit.
So only what the operator itself uses is of interest here: its CPU and memory, its reconciles, how long its event loop
stands still (told by its health probe, asked all the time), and how long it takes from a pod's failure to the new pod.
The last lines fit cost = a * pods^b: b is 1 for a cost that grows with size and no faster.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import math
import os
import random
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import aiohttp
import msgspec
import structlog
import uvloop
import yaml

from e2e.bench.arena import NAMESPACE
from e2e.bench.jobs import Jobs
from e2e.bench.node import Node, SimulatedPod
from e2e.bench.operators import HERE, OPERATORS, ROOT, Operator
from e2e.bench.plain import PlainServer
from e2e.bench.processes import Program, end_on_sigterm, own_seconds
from e2e.bench.scenarios import percentile
from e2e.bench.stage import BenchError
from e2e.cluster.daemons import free_ports
from trainop.runtime.client.client import Client
from trainop.runtime.objects.metadata import Json
from trainop.runtime.objects.resource import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES

EACH = 10
"""Pods of a job."""
FAILURES = 200
TOKEN = "scale"
HISTORY = 100_000
"""Changes of a table that the API server remembers, so that no watch has to start anew."""
TABLES = {"pods", "services", "events", "pytorchjobs.kubeflow.org"}

COLUMNS = {
    "pods": "pods",
    "operator_cpu": "operator CPU, s",
    "cpu_ms_per_pod": "ms of CPU per pod",
    "harness_cpu": "the harness' CPU, s",
    "rss": "RSS, MiB",
    "kib_per_pod": "KiB per pod beyond idle",
    "reconcile_building_p99_ms": "reconcile p99 while building, at most ms",
    "reconcile_p99_ms": "when one pod fails, at most ms",
    "reaction_p50_ms": "failure to new pod p50, ms",
    "reaction_p99_ms": "p99, ms",
    "stall_building_ms": "longest stall while building, ms",
    "stall_after_ms": "at rest, ms",
    "seconds": "until all held, s",
}


class World:
    """The embedded API server with a node, and the operator beside it."""

    def __init__(self, server: PlainServer, folder: Path, operator: Operator) -> None:
        client = Client(server)
        self.server, self.client, self.folder, self.operator = server, client, folder, operator
        self.node = Node(client, NAMESPACE, operator.kind.container)
        self.jobs = Jobs(client, operator.kind, NAMESPACE)
        self.metrics_port, self.probe_port = free_ports(2)
        self.http = aiohttp.ClientSession()
        self.program: Program
        self.stalls: list[float] = []

    async def begin(self) -> None:
        await self.client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        for path in self.operator.crd_files():
            await self.client.create(CUSTOM_RESOURCE_DEFINITIONS, yaml.safe_load(path.read_text()))
        kubeconfig = self.folder / "kubeconfig"
        kubeconfig.write_text(json.dumps(await self.server.serve(TOKEN)))
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = self.operator.command(kubeconfig, self.metrics_port, self.probe_port)
        self.program = Program(command, self.folder / "operator.log", environment)

    async def ready(self) -> None:
        async with asyncio.timeout(60):
            while await self.probe("/readyz") is None:  # noqa: ASYNC110  # another process: there is nothing to wait for
                await asyncio.sleep(0.05)

    async def probe(self, path: str) -> float | None:
        """Seconds until the answer 200; None if there was none."""
        url, began = f"http://127.0.0.1:{self.probe_port}{path}", time.monotonic()
        try:
            async with self.http.get(url) as answer:
                return time.monotonic() - began if answer.status == 200 else None
        except aiohttp.ClientError:
            return None

    async def metrics(self) -> str:
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        async with self.http.get(url) as answer:
            return await answer.text()

    async def until(self, what: str, within: float, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + within
        while not condition():
            if time.monotonic() > end or not self.program.alive:
                raise BenchError(f"in vain: {what}; {self.program.tail()}")
            await asyncio.sleep(0.02)

    async def watch_stalls(self) -> None:
        """Asks the operator's probe all the time: the answer waits as long as its event loop stands still. Ours serves
        everybody else, so answers that came while it was late itself tell nothing."""
        loop, late = asyncio.get_running_loop(), 0.0

        def tick(due: float) -> None:
            nonlocal late
            late = max(late, loop.time() - due)
            loop.call_later(0.005, tick, loop.time() + 0.005)

        tick(loop.time())
        while True:
            await asyncio.sleep(0.02)
            late = 0.0
            took = await self.probe("/healthz")
            if took is not None and late < 0.02:
                self.stalls.append(took)

    async def hold(self, pods: int) -> None:
        """So many more; returns when all of them run and are counted."""
        first = len(self.jobs.posted)
        names = [f"job-{first + number}" for number in range(pods // EACH)]
        await self.jobs.post(names, EACH - 1, "ExitCode")
        await self.until("all pods are counted", 1800, lambda: self.jobs.whole(names, EACH))

    async def fail_some(self) -> list[float]:
        """Seconds from the end of a pod to its successor, one after another."""
        found: dict[str, float] = {}

        def look(pod: SimulatedPod) -> None:
            found[pod.name] = pod.added

        self.node.on_added = look
        waits = []
        workers = [pod for pod in self.node.pods.values() if not pod.role]
        for victim in random.Random(1).sample(workers, FAILURES):
            failed = await self.node.fail(victim, 137)
            await self.until("a new pod", 60, partial(found.__contains__, victim.name))
            waits.append(found.pop(victim.name) - failed)
            await asyncio.sleep(0.05)
        self.node.on_added = None
        return waits


def reconciles(text: str) -> dict[float, float]:
    """From the upper bound of a bucket, in seconds, to how many reconciles took no longer."""
    counts: dict[float, float] = {}
    for line in text.splitlines():
        if line.startswith("controller_runtime_reconcile_time_seconds_bucket") and "pytorchjob-controller" in line:
            bound = line.split('le="')[1].split('"')[0]
            counts[float(bound.replace("+Inf", "inf"))] = float(line.rsplit(" ", 1)[1])
    return counts


def bound_of(share: float, before: Mapping[float, float], after: Mapping[float, float]) -> float:
    """The upper bound, in ms, of the bucket in which that share of what came in between is reached."""
    counts = {bound: count - before.get(bound, 0.0) for bound, count in sorted(after.items())}
    return 1000 * next(bound for bound, count in counts.items() if count >= share * counts[math.inf])


@asynccontextmanager
async def open_world(operator: Operator) -> AsyncIterator[World]:
    """The operator is ready; its node and the one who watches jobs are at work."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(PlainServer(TABLES, HISTORY), Path(folder), operator)
        await world.begin()
        background = [asyncio.create_task(work) for work in (world.node.run(), world.jobs.run())]
        try:
            await world.ready()
            gc.collect()
            gc.disable()  # ours: looking through all objects of the API server takes a second
            yield world
        finally:
            gc.enable()
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            world.program.stop()
            await world.http.close()
            await world.server.close()


async def measure(pods: int) -> Json:
    end_on_sigterm()
    async with open_world(OPERATORS["trainop"]) as world, asyncio.TaskGroup() as tasks:
        idle, cpu, own, start = world.program.memory().rss, world.program.cpu(), own_seconds(), time.monotonic()
        watching = tasks.create_task(world.watch_stalls())
        await world.hold(pods)
        held = time.monotonic() - start
        used, ours = world.program.cpu() - cpu, own_seconds() - own
        building = percentile(world.stalls, 1.0)
        await asyncio.sleep(3)
        built = reconciles(await world.metrics())
        world.stalls.clear()
        waits = await world.fail_some()
        memory, ended = world.program.memory(), reconciles(await world.metrics())
        watching.cancel()
    return {
        "pods": pods,
        "seconds": held,
        "operator_cpu": used,
        "cpu_ms_per_pod": 1000 * used / pods,
        "harness_cpu": ours,
        "rss": memory.rss,
        "held": memory.rss - idle,
        "kib_per_pod": 1024 * (memory.rss - idle) / pods,
        "reconcile_building_p99_ms": bound_of(0.99, {}, built),
        "reconcile_p99_ms": bound_of(0.99, built, ended),
        "reaction_p50_ms": 1000 * percentile(waits, 0.5),
        "reaction_p99_ms": 1000 * percentile(waits, 0.99),
        "stall_building_ms": 1000 * building,
        "stall_after_ms": 1000 * percentile(world.stalls, 1.0),
    }


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """b of cost = a · size^b, by least squares of the logarithms."""
    xs, ys = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


def table(rows: Sequence[Json]) -> str:
    lines = ["| " + " | ".join(COLUMNS.values()) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(f"{row[name]:.4g}" for name in COLUMNS) + " |" for row in rows]
    if len(rows) > 1:
        sizes = [row["pods"] for row in rows]
        costs = {"CPU": [row["operator_cpu"] for row in rows], "Memory": [row["held"] for row in rows]}
        lines += ["", *(f"{what} grows with pods^{exponent(sizes, found):.2f}." for what, found in costs.items())]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", default="1000,5000,10000,25000,50000")
    parser.add_argument("--out", type=Path, default=HERE / "report" / "results" / "scale.json")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows: dict[int, Json] = {}
    if options.out.exists():
        rows = {row["pods"]: row for row in msgspec.json.decode(options.out.read_bytes())}
    for pods in map(int, options.pods.split(",")):
        rows[pods] = uvloop.run(measure(pods))
        print({name: round(value, 2) for name, value in rows[pods].items()}, flush=True)
        options.out.write_bytes(msgspec.json.format(msgspec.json.encode([rows[size] for size in sorted(rows)])))
    print(table([rows[size] for size in sorted(rows)]))


if __name__ == "__main__":
    main()
