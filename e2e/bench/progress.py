"""What reports of progress cost the operator beside a real kube-apiserver.

python -m e2e.bench.progress [--jobs 1000] [--every 5] [--seconds 60]   some minutes; exit code 1 if a limit is exceeded

Each job has one running pod, which reports every `--every` seconds as the clients do: over a connection of its own and
with its own token, so that each report costs a TLS handshake. CPU is that of the operator's process, beyond what it
used without reports; beside it stands that of a bare TLS server (`e2e.bench.tls_floor`) for the same connections.
Writes are counted by the operator. Latency is that of a whole report, with its connection, as a client sees it while
this program, kube-apiserver and etcd share the machine with the operator.

Then all pods report as fast as they can over 64 connections (`flood`), while a small job is created beside them: what a
mistake in ten thousand trainers looks like.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import ssl
import sys
import time
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import aiohttp
import yaml

from e2e.bench.processes import busy_seconds, cpu_seconds, exit_on_sigterm, own_seconds
from e2e.bench.scenarios import percentile
from e2e.clients import on_an_api_server
from e2e.cluster.certificates import Authority
from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import DIE_WITH_PARENT
from tests.server.process import OPERATORS
from tests.server.test_progress import ANNOTATION, Access, Installation
from tests.server.world import CORE, JOBS, Json, replicas

ROOT = Path(__file__).parents[2]
MOST_CPU, MOST_WRITES, MOST_MEBIBYTES, MOST_MILLISECONDS = 0.15, 20.0, 15.0, 50.0
"""Of one core; per second; beyond the operator that has reviewed all tokens; of 99 of 100 reports."""
FLOOD_SECONDS, FLOOD_CONNECTIONS, MOST_WAIT, MOST_FLOOD_MEBIBYTES = 15.0, 64, 10.0, 50.0
THREADS = 8
KIND = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"}
WRITTEN = 'trainop_progress_writes_total{result="written"}'
CONFLICTS = 'trainop_progress_writes_total{result="conflict"}'


class Sample(NamedTuple):
    """The operator at one moment."""

    at: float
    cpu: float
    memory: float
    """MiB."""
    written: float
    conflicts: float


class Server(NamedTuple):
    """Where reports are sent, on loopback."""

    port: int
    context: ssl.SSLContext
    host: str
    """The name in its certificate."""


class Bench:
    """The operator, and jobs whose pods may report."""

    def __init__(self, installation: Installation, accesses: Sequence[Access]) -> None:
        self.installation = installation
        self._accesses = accesses
        context = ssl.create_default_context(cadata=accesses[0].authority)
        self.server = Server(installation.port, context, installation.host)
        self._numbers = itertools.count()
        self.latencies: list[float] = []
        self.answers: Counter[int | str] = Counter()

    def sample(self) -> Sample:
        operator = self.installation.operator
        assert operator.process is not None
        memory, cpu = operator.resident_mib(), cpu_seconds(operator.process.pid)
        return Sample(time.monotonic(), cpu, memory, operator.metric(WRITTEN) or 0, operator.metric(CONFLICTS) or 0)

    async def report(self, session: aiohttp.ClientSession, access: Access) -> None:
        """One report; counts its answer, and how long it took."""
        number = next(self._numbers)
        names = ("current_step", "total_steps", "loss", "learning_rate", "grad_norm")
        said = {
            "progressPercentage": number // 1000 % 101,
            "estimatedRemainingSeconds": 3600,
            "metrics": [{"name": name, "value": str(number)} for name in names],
            "lastUpdatedTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        url = f"https://127.0.0.1:{self.server.port}/apis/{access.url.split('/apis/', 1)[1]}"
        headers = {"Authorization": f"Bearer {access.token}", "Content-Type": "application/json"}
        body = json.dumps({"trainerStatus": said})
        began = time.monotonic()
        try:
            async with session.post(url, data=body, headers=headers, server_hostname=self.server.host) as answer:
                await answer.read()
                self.answers[answer.status] += 1
        except aiohttp.ClientError as error:
            self.answers[type(error).__name__] += 1
        self.latencies.append(time.monotonic() - began)

    async def report_regularly(self, every: float, seconds: float) -> None:
        """Each job reports every so many seconds, the jobs spread evenly."""
        connector = aiohttp.TCPConnector(ssl=self.server.context, force_close=True, limit=0)
        async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as tasks:
            began, pause = time.monotonic(), every / len(self._accesses)
            for number, access in enumerate(itertools.cycle(self._accesses)):
                at = began + number * pause
                if at > began + seconds:
                    break
                await asyncio.sleep(max(0.0, at - time.monotonic()))
                tasks.create_task(self.report(session, access))

    async def flood(self, seconds: float) -> None:
        """All report as fast as they can."""
        end, turns = time.monotonic() + seconds, itertools.cycle(self._accesses)

        async def one(session: aiohttp.ClientSession) -> None:
            while time.monotonic() < end:
                await self.report(session, next(turns))

        connector = aiohttp.TCPConnector(ssl=self.server.context, limit=0)
        async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as tasks:
            for _ in range(FLOOD_CONNECTIONS):
                tasks.create_task(one(session))


def prepare(plane: ControlPlane, folder: Path, count: int) -> Bench:
    """An operator with so many running jobs."""
    crd = yaml.safe_load((ROOT / "manifests" / "crds" / "pytorchjobs.kubeflow.org.yaml").read_text(encoding="utf-8"))
    answer = plane.api("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
    assert answer.status == 201, answer
    installation = Installation(plane, folder / "operator.log", "--enable-scheme=PyTorchJob")
    installation.operator.start()

    world = installation.world

    def make(number: int) -> None:
        metadata = {"name": f"j{number}", "annotations": {ANNOTATION: "true"}}
        spec = {"pytorchReplicaSpecs": {"Master": replicas(1)}}
        world.ask("POST", JOBS, {**KIND, "metadata": metadata, "spec": spec})

    def start(pod: Json) -> Access:
        world.set_pod(pod["metadata"]["name"], {"phase": "Running"})
        return installation.access(pod)

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(make, range(count)))
        world.wait(lambda: len(world.pods()) == count, "the pods")
        return Bench(installation, list(threads.map(start, world.pods().values())))


class Load(NamedTuple):
    """What a load has cost."""

    before: Sample
    after: Sample
    latencies: list[float]
    answers: Counter[int | str]
    others: float
    """Share of the machine that other programs used: they are not part of the benchmark."""

    @property
    def seconds(self) -> float:
        return self.after.at - self.before.at

    @property
    def cpu(self) -> float:
        return (self.after.cpu - self.before.cpu) / self.seconds

    @property
    def writes(self) -> float:
        return (self.after.written - self.before.written) / self.seconds

    @property
    def memory(self) -> float:
        return self.after.memory - self.before.memory


async def measure(bench: Bench, work: Callable[[], Awaitable[object]]) -> Load:
    bench.latencies, bench.answers = [], Counter()
    before, busy, own = bench.sample(), busy_seconds(), own_seconds()
    await work()
    after = bench.sample()
    used = busy_seconds() - busy - (own_seconds() - own) - (after.cpu - before.cpu)
    share = used / (after.at - before.at) / (os.cpu_count() or 1)
    return Load(before, after, list(bench.latencies), bench.answers, share)


async def measure_floor(bench: Bench, folder: Path, every: float, seconds: float) -> float:
    """The CPU, of one core, of a bare TLS server that gets the reports instead of the operator."""
    authority, before = Authority(folder / "floor"), bench.server
    cert, key = authority.issue("floor", "floor", hosts=["floor.example"])
    program = (sys.executable, "-m", "e2e.bench.tls_floor", str(cert), str(key))
    server = await asyncio.create_subprocess_exec(
        *program, cwd=ROOT, stdin=PIPE, stdout=PIPE, preexec_fn=DIE_WITH_PARENT
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        port = int(await server.stdout.readline())
        bench.server = Server(port, ssl.create_default_context(cafile=str(authority.cert)), "floor.example")
        bench.answers, began, used = Counter(), time.monotonic(), cpu_seconds(server.pid)
        await bench.report_regularly(every, seconds)
        assert set(bench.answers) == {200}, bench.answers
        return (cpu_seconds(server.pid) - used) / (time.monotonic() - began)
    finally:
        bench.server = before
        server.stdin.close()
        await server.wait()


async def run(bench: Bench, folder: Path, every: float, seconds: float) -> int:
    """Measures and prints; the number of limits that were exceeded."""
    await bench.report_regularly(every, every)  # the tokens are reviewed once
    await asyncio.sleep(15)
    idle = await measure(bench, lambda: asyncio.sleep(10))
    load = await measure(bench, lambda: bench.report_regularly(every, seconds))
    slow = percentile(load.latencies, 0.99) * 1000
    floor = await measure_floor(bench, folder, every, seconds)
    rate = len(load.latencies) / load.seconds
    print(f"{rate:.0f} reports per second for {load.seconds:.0f} s, answers {dict(load.answers)}")
    print(f"a bare TLS server takes {floor:.1%} of one core for these connections")
    print(f"kube-apiserver, etcd and programs outside the benchmark used {load.others:.0%} of the machine")
    rows = [
        ("CPU of the operator, of one core", load.cpu - idle.cpu, MOST_CPU, ".1%"),
        ("writes per second", load.writes, MOST_WRITES + 0.5, ".1f"),
        ("conflicts per second", (load.after.conflicts - load.before.conflicts) / load.seconds, 1.0, ".2f"),
        ("memory, MiB beyond idle", load.memory, MOST_MEBIBYTES, ".1f"),
        ("latency, ms, median", percentile(load.latencies, 0.5) * 1000, MOST_MILLISECONDS, ".1f"),
        ("latency, ms, 99 of 100", slow, MOST_MILLISECONDS, ".1f"),
        ("reports that failed", sum(load.answers.values()) - load.answers[200], 0, ".0f"),
    ]
    return show(rows) + show(await flood(bench))


async def flood(bench: Bench) -> list[tuple[str, float, float, str]]:
    """The rows of the table about a flood, and the job beside it."""
    waited = 0.0

    async def both() -> None:
        nonlocal waited
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(bench.flood(FLOOD_SECONDS))
            await asyncio.sleep(FLOOD_SECONDS / 3)
            waited = await asyncio.to_thread(time_of_a_job, bench)

    load = await measure(bench, both)
    print(f"flood: {len(load.latencies) / load.seconds:.0f} reports per second, answers {dict(load.answers)}")
    return [
        ("flood: CPU of the operator, of one core", load.cpu, 1.5, ".0%"),
        ("flood: writes per second", load.writes, MOST_WRITES + 0.5, ".1f"),
        ("flood: memory, MiB", load.memory, MOST_FLOOD_MEBIBYTES, ".1f"),
        ("flood: from a new job to its pod, s", waited, MOST_WAIT, ".2f"),
    ]


def time_of_a_job(bench: Bench) -> float:
    """Seconds from the creation of a job to its pod."""
    began = time.monotonic()
    world = bench.installation.world
    spec = {"pytorchReplicaSpecs": {"Master": replicas(1)}}
    world.ask("POST", JOBS, {**KIND, "metadata": {"name": "beside"}, "spec": spec})
    world.wait(lambda: world.try_to("GET", f"{CORE}/pods/beside-master-0").status == 200, "its pod")
    return time.monotonic() - began


def show(rows: Sequence[tuple[str, float, float, str]]) -> int:
    """Prints the table; the number of limits that were exceeded."""
    for name, found, most, form in rows:
        met = "" if found <= most else "   EXCEEDED"
        print(f"{name:42} {found:>10{form}}   at most {most:{form}}{met}", flush=True)
    return sum(found > most for _, found, most, _ in rows)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.bench.progress", description="What reports cost.")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two reports of a job (5)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of load (60)")
    options = parser.parse_args()

    def work(plane: ControlPlane, folder: Path) -> int:
        try:
            bench = prepare(plane, folder, options.jobs)
            return min(1, asyncio.run(run(bench, folder, options.every, options.seconds)))
        finally:
            for operator in filter(lambda each: each.running, OPERATORS):
                operator.end()

    exit_on_sigterm()

    return on_an_api_server("bench-progress", work)


if __name__ == "__main__":
    sys.exit(main())
