"""The three figures of di-server, on a kube-apiserver and etcd of their own.

python -m e2e.bench.diserver [--pods 10000] [--record FILE]     two minutes; exit code 1 if a target is missed

1. POST of 1,000 collectors, in turns with a client that creates the same pods as fast as it can.
2. GET of the replicas of one job while 100 clients poll once per second, with `pods` pods in the cluster: half of
   them of that job, half of others.
3. Resident memory of the server with these pods.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import msgspec
import uvloop

from e2e.bench.operators import ROOT
from e2e.bench.processes import busy_seconds, cancel_on_sigterm, cpu_seconds, own_seconds
from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import DIE_WITH_PARENT, free_ports
from e2e.cluster.places import default_data
from trainop.diserver.writer import each
from trainop.kinds.dijob.crd import aggregator_config_crd, dijob_crd
from trainop.kinds.dijob.names import DIJOBS, OUR_PODS, SUFFIX_CHARACTERS, Role
from trainop.kinds.dijob.pods import JobFacts, PodOptions, build_pod, read_job
from trainop.runtime.client.auth import load_config
from trainop.runtime.client.client import Client
from trainop.runtime.client.http import HttpTransport
from trainop.runtime.objects.metadata import CUSTOM_RESOURCE_DEFINITIONS, PODS, Json

MAX_RATIO, MAX_GET, MAX_P99, MAX_MEMORY = 1.3, 20.0, 50.0, 70.0
"""Ratio to the raw client; milliseconds of one GET alone, and of the p99 with clients; MiB."""
BATCH, ROUNDS, CLIENTS, SECONDS = 1000, 3, 100, 10
CONCURRENCY = 32
TEMPLATE: Json = {
    "spec": {
        "containers": [
            {
                "name": "di-container",
                "image": "registry.example.com/di-engine:v0.5",
                "command": ["/bin/sh", "-c", "ding -m dist --module collector -p k8s"],
                "env": [{"name": f"SETTING_{number}", "value": "x" * 40} for number in range(20)],
                "resources": {"limits": {"cpu": "1", "memory": "2Gi"}},
            }
        ]
    }
}
RNG = random.Random(1)


def suffix() -> str:
    return "".join(RNG.choices(SUFFIX_CHARACTERS, k=8))


class Bench:
    """The control plane with its clients, and the server."""

    def __init__(self, client: Client, url: str, process: int) -> None:
        self.client = client
        self.url = url
        self.process = process

    async def make_job(self, name: str) -> JobFacts:
        roles = {role: {"template": TEMPLATE} for role in ("coordinator", "collector", "learner")}
        body = {"apiVersion": DIJOBS.api_version, "kind": DIJOBS.kind, "metadata": {"name": name}, "spec": roles}
        facts = read_job(await self.client.create(DIJOBS, body, namespace="default"))
        await self.client.create(PODS, build_pod(facts, Role.COORDINATOR, TEMPLATE, PodOptions("s")))
        return facts

    async def create_raw(self, job: JobFacts, count: int) -> None:
        """What a client does that wants nothing but the pods."""

        async def create(_number: int) -> None:
            pod = build_pod(job, Role.COLLECTOR, TEMPLATE, PodOptions("s"), suffix=suffix())
            await self.client.create(PODS, pod, metadata_only=True)

        await each(range(count), create, CONCURRENCY)

    async def post(self, job: JobFacts, count: int) -> None:
        body = {"namespace": "default", "coordinator": f"{job.name}-coordinator", "collectors": {"replicas": count}}
        async with aiohttp.ClientSession() as session, session.post(self.url, json=body) as response:
            answer = await response.json()
            if response.status != 200 or len(answer["data"]["collectors"]) != count:
                raise SystemExit(f"POST failed: {response.status} {answer['message']}")

    async def get(self, session: aiohttp.ClientSession, job: JobFacts) -> tuple[float, int]:
        """Milliseconds, and the number of replicas."""
        began = time.perf_counter()
        query = {"namespace": "default", "coordinator": f"{job.name}-coordinator"}
        async with session.get(self.url, params=query) as response:
            body = await response.read()
        return (time.perf_counter() - began) * 1e3, body.count(b":22270")

    async def wait_listed(self, job: JobFacts, count: int) -> None:
        async with aiohttp.ClientSession() as session:
            while (await self.get(session, job))[1] != count:  # noqa: ASYNC110  # the server is another process
                await asyncio.sleep(0.2)

    async def delete_collectors(self) -> None:
        selector = f"{OUR_PODS},replica-type=collector"
        await self.client.delete_collection(PODS, "default", label_selector=selector, grace_seconds=0)

    def memory(self) -> float:
        status = Path(f"/proc/{self.process}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024


async def seconds(work: Callable[[], Awaitable[None]]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


async def measure_post(bench: Bench) -> tuple[float, float]:
    """Seconds of a POST, and of the raw client."""
    job = await bench.make_job("posted")
    raw, posted = [], []
    await bench.create_raw(job, 200)  # warm up
    await bench.post(job, 200)
    for _ in range(ROUNDS):
        await bench.delete_collectors()
        await bench.wait_listed(job, 0)
        raw.append(await seconds(lambda: bench.create_raw(job, BATCH)))
        await bench.delete_collectors()
        await bench.wait_listed(job, 0)
        posted.append(await seconds(lambda: bench.post(job, BATCH)))
    await bench.delete_collectors()
    ratio = statistics.median(posted) / statistics.median(raw)
    times = " ".join(f"{each:.2f}/{other:.2f}" for each, other in zip(posted, raw, strict=True))
    print(f"POST of {BATCH} collectors: {ratio:.2f} times the raw client (seconds: {times})")
    return statistics.median(posted), statistics.median(raw)


async def measure_get(bench: Bench, pods: int) -> tuple[float, float]:
    job = await bench.make_job("polled")
    await bench.create_raw(job, pods // 2)
    for number in range(10):
        await bench.create_raw(await bench.make_job(f"other-{number}"), pods // 20)
    await bench.wait_listed(job, pods // 2)
    connector = aiohttp.TCPConnector(limit=CLIENTS)
    async with aiohttp.ClientSession(connector=connector) as session:
        alone = [(await bench.get(session, job))[0] for _ in range(20)]
        others: list[float] = []

        async def poll(number: int) -> None:
            await asyncio.sleep(number / CLIENTS)
            end = time.perf_counter() + SECONDS
            while time.perf_counter() < end:
                took, _ = await bench.get(session, job)
                others.append(took)
                await asyncio.sleep(1 - took / 1e3)

        await asyncio.gather(*(poll(number) for number in range(CLIENTS)))
    p99 = statistics.quantiles(others, n=100)[98]
    print(
        f"GET of {pods // 2} replicas among {pods} pods: {statistics.median(alone):.1f} ms alone;"
        f" with {CLIENTS} clients p50 {statistics.median(others):.1f} ms, p99 {p99:.1f} ms"
    )
    return statistics.median(alone), p99


@asynccontextmanager
async def started(plane: ControlPlane, folder: Path) -> AsyncIterator[Bench]:
    (port,) = free_ports(1)
    flags = [
        f"--kubeconfig={plane.kubeconfig}",
        f"--server-bind-address=127.0.0.1:{port}",
        "--lease-lock-namespace=default",
        "--caller-check=off",
        "--caller-qps=0",
        "--zap-log-level=info",
    ]
    transport = HttpTransport(load_config(str(plane.kubeconfig)))
    client = Client(transport)
    for crd in (dijob_crd(), aggregator_config_crd()):
        await client.create(CUSTOM_RESOURCE_DEFINITIONS, crd)
    with (folder / "di-server.log").open("wb") as log:
        command = [sys.executable, "-m", "trainop", "di-server", *flags]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, preexec_fn=DIE_WITH_PARENT
        )
        try:
            await wait_ready(f"http://127.0.0.1:{port}/readyz")
            yield Bench(client, f"http://127.0.0.1:{port}/v1alpha1/replicas", process.pid)
        finally:
            process.terminate()
            await process.wait()
            await transport.close()


async def wait_ready(url: str) -> None:
    async with asyncio.timeout(60), aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(url) as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)


async def run(pods: int, plane: ControlPlane, folder: Path) -> Json:
    print(f"{datetime.now(UTC):%Y-%m-%d}, Python {sys.version.split()[0]}")
    cancel_on_sigterm()
    async with started(plane, folder) as bench:
        print(f"memory without pods: {bench.memory():.0f} MiB")
        before = foreign_cpu(plane, bench)
        posted, raw = await measure_post(bench)
        alone, p99 = await measure_get(bench, pods)
        memory = bench.memory()
        print(f"memory with {pods} pods: {memory:.0f} MiB")
        cpu = {name: value - before[name] for name, value in foreign_cpu(plane, bench).items()}
    return {"post": posted, "raw": raw, "get": alone, "get_p99": p99, "rss": memory, "cpu": cpu}


def foreign_cpu(plane: ControlPlane, bench: Bench) -> dict[str, float]:
    """CPU seconds of processes outside this measurement so far, and the time."""
    processes = (plane.daemons.running("etcd") or 0, plane.daemons.running("kube-apiserver") or 0, bench.process)
    used = sum(map(cpu_seconds, processes)) + own_seconds()
    return {"other": busy_seconds() - used, "t": time.monotonic()}


def meets_targets(found: Json) -> bool:
    limits = {"get": MAX_GET, "get_p99": MAX_P99, "rss": MAX_MEMORY}
    return found["post"] <= MAX_RATIO * found["raw"] and all(found[name] <= most for name, most in limits.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plane = ControlPlane(default_data(f"bench-{folder.name}"), die_with_parent=True)
        plane.up()
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                found = runner.run(run(options.pods, plane, folder))
        finally:
            plane.down()
    if options.record:
        options.record.write_bytes(msgspec.json.encode(found))
    sys.exit(0 if meets_targets(found) else 1)


if __name__ == "__main__":
    main()
