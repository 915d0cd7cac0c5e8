"""Scalability: cost of our operator, as a separate process, against the number of pods.

python -m e2e.bench.scale [--pods 1000,5000,10000,25000,50000] [--out FILE]
python -m e2e.bench.scale --pods 100000 --record FILE         one size and a tenth of it, for the report of `make bench`

The first FILE keeps one row per size, so sizes can be measured separately.

kube-apiserver would be the bottleneck, so `plain.PlainServer` in the harness process takes its place. Only the
operator's own figures are meaningful: CPU, memory, reconcile times, stalls of its event loop (measured by polling its
health probe), the time from a pod's failure to the new pod, and that from a restart to the first pod of a new job. The
last lines fit cost = a * pods^b; b = 1 means that the cost grows linearly.
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

from e2e.bench.cluster import NAMESPACE
from e2e.bench.harness import BenchError
from e2e.bench.jobs import Jobs
from e2e.bench.node import SimulatedNode, SimulatedPod
from e2e.bench.operators import HERE, OPERATORS, ROOT, Operator
from e2e.bench.plain import PlainServer
from e2e.bench.processes import Program, busy_seconds, cancel_on_sigterm, own_seconds
from e2e.bench.scenarios import percentile
from e2e.cluster.daemons import free_ports
from trainop.runtime.client.client import Client
from trainop.runtime.objects.metadata import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, Json

PODS_PER_JOB = 10
"""Pods per job."""
FAILURES = 200
TOKEN = "scale"
HISTORY = 100_000
"""Changes per table that the API server keeps, so that no watch has to relist."""
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
    "restart_first_pod": "restart until a new job's first pod, s",
}


class ScaleHarness:
    """The embedded API server with a simulated node and user, and the operator as a process."""

    def __init__(self, server: PlainServer, folder: Path, operator: Operator) -> None:
        client = Client(server)
        self.server, self.client, self.folder, self.operator = server, client, folder, operator
        self.node = SimulatedNode(client, NAMESPACE, operator.kind.container)
        self.jobs = Jobs(client, operator.kind, NAMESPACE)
        self.metrics_port, self.probe_port = free_ports(2)
        self.http = aiohttp.ClientSession()
        self.program: Program
        self.stalls: list[float] = []

    async def start(self) -> None:
        await self.client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        for crd in self.operator.crds():
            await self.client.create(CUSTOM_RESOURCE_DEFINITIONS, crd)
        (self.folder / "kubeconfig").write_text(json.dumps(await self.server.serve(TOKEN)))
        self.start_operator()

    def start_operator(self) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = self.operator.command(self.folder / "kubeconfig", self.metrics_port, self.probe_port)
        self.program = Program(command, self.folder / "operator.log", environment)

    async def wait_ready(self) -> None:
        async with asyncio.timeout(60):
            while await self.probe("/readyz") is None:  # noqa: ASYNC110  # another process: polling is the only way
                await asyncio.sleep(0.05)

    async def probe(self, path: str) -> float | None:
        """Seconds until the response with status 200; None for any other outcome."""
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

    async def wait_until(self, what: str, within: float, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + within
        while not condition():
            if time.monotonic() > end or not self.program.alive:
                raise BenchError(f"failed or timed out waiting until {what}; {self.program.tail()}")
            await asyncio.sleep(0.02)

    async def watch_stalls(self) -> None:
        """Polls the operator's health probe: a response is delayed as long as the operator's event loop is blocked.

        The harness' own event loop can be late too; responses during such a delay are discarded.
        """
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

    async def add_pods(self, pods: int) -> None:
        """Creates jobs with `pods` more pods in total; returns when all of them run and are counted."""
        first = len(self.jobs.posted)
        names = [f"job-{first + number}" for number in range(pods // PODS_PER_JOB)]
        await self.jobs.post(names, PODS_PER_JOB - 1, "ExitCode")
        await self.wait_until("all pods are counted", 1800, lambda: self.jobs.all_counted(names, PODS_PER_JOB))

    async def fail_pods(self) -> list[float]:
        """Fails `FAILURES` pods one after another; returns the seconds from each failure to the new pod."""
        found: dict[str, float] = {}

        def on_added(pod: SimulatedPod) -> None:
            found[pod.name] = pod.added

        self.node.on_added = on_added
        waits = []
        workers = [pod for pod in self.node.pods.values() if not pod.role]
        for victim in random.Random(1).sample(workers, min(FAILURES, len(workers))):
            failed = await self.node.fail(victim, 137)
            await self.wait_until("there is a new pod", 60, partial(found.__contains__, victim.name))
            waits.append(found.pop(victim.name) - failed)
            await asyncio.sleep(0.05)
        self.node.on_added = None
        return waits

    async def restart(self) -> float:
        """Restarts the operator and creates a job at the same moment; seconds from its start to the job's first pod."""
        self.program.stop()
        first: list[float] = []
        self.node.on_added = lambda pod: first.append(pod.added)
        began = time.monotonic()
        self.start_operator()
        await self.jobs.post(["probe"], PODS_PER_JOB - 1)
        await self.wait_until("a new job has a pod", 300, lambda: bool(first))
        self.node.on_added = None
        return first[0] - began


def reconciles(text: str) -> dict[float, float]:
    """The reconcile duration histogram: cumulative counts by upper bound in seconds."""
    counts: dict[float, float] = {}
    for line in text.splitlines():
        if line.startswith("controller_runtime_reconcile_time_seconds_bucket") and "pytorchjob-controller" in line:
            bound = line.split('le="')[1].split('"')[0]
            counts[float(bound.replace("+Inf", "inf"))] = float(line.rsplit(" ", 1)[1])
    return counts


def quantile_bound(share: float, before: Mapping[float, float], after: Mapping[float, float]) -> float:
    """The upper bound in ms of the histogram bucket that contains the quantile `share` of the new observations."""
    counts = {bound: count - before.get(bound, 0.0) for bound, count in sorted(after.items())}
    return 1000 * next(bound for bound, count in counts.items() if count >= share * counts[math.inf])


@asynccontextmanager
async def open_scale_harness(operator: Operator) -> AsyncIterator[ScaleHarness]:
    """Starts API server, simulated node and user, and the operator; yields when the operator is ready."""
    with tempfile.TemporaryDirectory() as folder:
        harness = ScaleHarness(PlainServer(TABLES, HISTORY), Path(folder), operator)
        await harness.start()
        background = [asyncio.create_task(work) for work in (harness.node.run(), harness.jobs.run())]
        try:
            await harness.wait_ready()
            gc.collect()
            gc.disable()  # in this process a collection of all API objects takes a second
            yield harness
        finally:
            gc.enable()
            for task in background:
                task.cancel()
            harness.program.stop()  # first: another cancellation would interrupt what follows
            await asyncio.gather(*background, return_exceptions=True)
            await harness.http.close()
            await harness.server.close()


async def measure(pods: int) -> Json:
    cancel_on_sigterm()
    async with open_scale_harness(OPERATORS["trainop"]) as harness, asyncio.TaskGroup() as tasks:
        idle, cpu, own, start = harness.program.memory().rss, harness.program.cpu(), own_seconds(), time.monotonic()
        busy = busy_seconds()
        watching = tasks.create_task(harness.watch_stalls())
        await harness.add_pods(pods)
        held = time.monotonic() - start
        used, ours = harness.program.cpu() - cpu, own_seconds() - own
        other = busy_seconds() - busy - used - ours
        building = percentile(harness.stalls, 1.0)
        await asyncio.sleep(3)
        built = reconciles(await harness.metrics())
        harness.stalls.clear()
        waits = await harness.fail_pods()
        memory, ended = harness.program.memory(), reconciles(await harness.metrics())
        watching.cancel()
        restart = await harness.restart()
    return {
        "pods": pods,
        "seconds": held,
        "operator_cpu": used,
        "cpu_ms_per_pod": 1000 * used / pods,
        "harness_cpu": ours,
        "rss": memory.rss,
        "held": memory.rss - idle,
        "kib_per_pod": 1024 * (memory.rss - idle) / pods,
        "reconcile_building_p99_ms": quantile_bound(0.99, {}, built),
        "reconcile_p99_ms": quantile_bound(0.99, built, ended),
        "reaction_p50_ms": 1000 * percentile(waits, 0.5),
        "reaction_p99_ms": 1000 * percentile(waits, 0.99),
        "stall_building_ms": 1000 * building,
        "stall_after_ms": 1000 * percentile(harness.stalls, 1.0),
        "stall_ms": 1000 * max(building, percentile(harness.stalls, 1.0)),
        "restart_first_pod": restart,
        "cpu": {"other": other, "t": held},
    }


def measure_growth(pods: int) -> Json:
    """The figures with `pods`, and as `tenth_…` those with a tenth of them."""
    tenth, whole = (uvloop.run(measure(each)) for each in (pods // 10, pods))
    return whole | {f"tenth_{name}": tenth[name] for name in COLUMNS}


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The exponent b of cost = a · size^b, by least squares on logarithms."""
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
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    if options.record:
        options.record.write_bytes(msgspec.json.encode(measure_growth(int(options.pods))))
        return
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows: dict[int, Json] = {}
    if options.out.exists():
        rows = {row["pods"]: row for row in msgspec.json.decode(options.out.read_bytes())}
    for pods in map(int, options.pods.split(",")):
        rows[pods] = uvloop.run(measure(pods))
        print({name: round(rows[pods][name], 2) for name in COLUMNS}, flush=True)
        options.out.write_bytes(msgspec.json.format(msgspec.json.encode([rows[size] for size in sorted(rows)])))
    print(table([rows[size] for size in sorted(rows)]))


if __name__ == "__main__":
    main()
