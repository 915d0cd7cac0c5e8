"""What the admission webhooks cost: the server alone, the API server's requests, and hostile jobs.

python -m e2e.bench.webhooks [rate] [latency] [hostile]        about two minutes; exit code 1 if a target is missed

`rate` sends AdmissionReviews over TLS to a server process and divides their number by the CPU time of that process.
`latency` creates a job of 100 KB as a dry run on a kube-apiserver, in turns with and without the webhook. `hostile`
measures, in CPU time, the longest step of a review that cannot be interrupted, for jobs of maximum size.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import aiohttp
import msgspec
import structlog
import uvloop
import yaml

from e2e.bench.operators import ROOT
from e2e.bench.processes import Program, cpu_seconds, exit_on_sigterm
from e2e.bench.shapes import SHAPES, Json, pytorch, with_container
from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import DIE_WITH_PARENT, free_ports
from e2e.cluster.places import default_data
from trainop.controllers.admission import build_handler, webhooks_of
from trainop.engine.kind import kind_of
from trainop.manifests.webhook import webhook_configurations
from trainop.programs.schemes import FRAMEWORKS
from trainop.runtime.client.auth import load_config
from trainop.runtime.client.client import Client
from trainop.runtime.client.http import HttpTransport
from trainop.runtime.objects.metadata import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, SERVICES
from trainop.runtime.serving.certificate_folder import ServingCertificate
from trainop.runtime.serving.server import Address
from trainop.runtime.webhook.admission import answer_crowded, becomes_too_deep, decode_review, encode_review
from trainop.runtime.webhook.certificates import issue, make_authority
from trainop.runtime.webhook.injection import VALIDATING_WEBHOOK_CONFIGURATIONS
from trainop.runtime.webhook.server import WebhookServer

MIN_RATE = 500.0
"""Reviews per CPU second, of an ordinary job."""
MAX_LATENCY = 15.0
"""Milliseconds of the p99 beyond the API server's own."""
MAX_STEP = 100.0
"""Milliseconds."""
CONNECTIONS, REVIEWS, REPETITIONS = 4, 2000, 3
CALLS, ROUNDS = 100, 2
PATH = "/validate-kubeflow-org-v1-pytorchjob"


def large_job() -> Json:
    """A job of 100 KB."""
    return with_container(2, env=[{"name": f"VARIABLE_{number:04}", "value": "x" * 20} for number in range(1600)])


def review_of(job: Json, old: Json | None = None) -> bytes:
    metadata = {"name": "j", "namespace": "default", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    request = {
        "uid": "b4b8f9ee-2f4c-4b6a-8f0c-0b5f3a3a9f43",
        "kind": {"group": "kubeflow.org", "version": "v1", "kind": job["kind"]},
        "operation": "CREATE" if old is None else "UPDATE",
        "userInfo": {"username": "kubernetes-admin", "groups": ["system:masters", "system:authenticated"]},
        "object": {**job, "metadata": {**job.get("metadata", {}), **metadata}},
        "oldObject": old,
    }
    return msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})


# Reviews per CPU second -----------------------------------------------------------------------------------------------


async def serve(port: int) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    now = datetime.now(UTC)
    pair = issue(make_authority("bench", "bench", now), ["localhost"], now)
    certificate = ServingCertificate()
    certificate.load(pair.certificate, pair.key)
    server = WebhookServer(certificate, address=Address("127.0.0.1", port))
    for webhook in webhooks_of(map(kind_of, FRAMEWORKS.values())):
        server.register(webhook.path, webhook.handler)
    await server.bind()
    await server.run()


@contextlib.contextmanager
def run_server() -> Any:
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "e2e.bench.webhooks", "--serve", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, preexec_fn=DIE_WITH_PARENT)  # noqa: PLW1509  # see there
    try:
        yield process.pid, f"https://127.0.0.1:{port}{PATH}"
    finally:
        process.terminate()
        process.wait()


async def send_reviews(url: str, body: bytes, count: int) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context, limit=CONNECTIONS)) as session:

        async def send_some() -> None:
            for _ in range(count // CONNECTIONS):
                async with session.post(f"{url}?timeout=10s", data=body, headers=headers) as answer:
                    assert (await answer.json())["response"]["allowed"]

        for _ in range(600):  # until the server listens
            with contextlib.suppress(aiohttp.ClientConnectionError):
                await session.get(url)
                break
            await asyncio.sleep(0.1)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(CONNECTIONS):
                tasks.create_task(send_some())


async def measure_rate() -> bool:
    print("| job | bytes of a review | reviews per CPU second |\n|---|---|---|")
    met = True
    small = with_container(2, env=[{"name": f"VARIABLE_{number}", "value": "x" * 20} for number in range(50)])
    for name, job, count in (("ordinary", small, REVIEWS), ("100 KB", large_job(), REVIEWS // 4)):
        body, rates = review_of(job), []
        with run_server() as (pid, url):
            await send_reviews(url, body, 100)
            for _ in range(REPETITIONS):
                before = cpu_seconds(pid)
                await send_reviews(url, body, count)
                rates.append(count / (cpu_seconds(pid) - before))
        print(f"| {name} | {len(body):,} | {max(rates):,.0f} |", flush=True)
        met &= name != "ordinary" or max(rates) >= MIN_RATE
    return met


# Latency of a create --------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def run_operator(folder: Path) -> AsyncIterator[tuple[ControlPlane, Program]]:
    """A kube-apiserver that calls an operator for jobs in the namespace `reviewed`, and not in `plain`."""
    plane = ControlPlane(default_data(f"bench-{folder.name}"), die_with_parent=True)
    await asyncio.to_thread(plane.up)
    metrics, probes, port = free_ports(3)
    flags = [
        f"--kubeconfig={plane.kubeconfig}",
        f"--metrics-bind-address=127.0.0.1:{metrics}",
        f"--health-probe-bind-address=127.0.0.1:{probes}",
        f"--webhook-server-port={port}",
        "--zap-devel=false",
    ]
    surroundings = {**os.environ, "MY_POD_NAMESPACE": "default"}
    transport = HttpTransport(load_config(str(plane.kubeconfig)))
    program = None
    try:
        client = Client(transport)
        for path in sorted((ROOT / "manifests" / "crds").glob("*jobs*.yaml")):
            await client.create(CUSTOM_RESOURCE_DEFINITIONS, yaml.safe_load(path.read_text()))
        for name in ("plain", "reviewed"):
            await client.create(NAMESPACES, {"metadata": {"name": name}})
        alias = {"type": "ExternalName", "externalName": "localhost"}
        await client.create(
            SERVICES, {"metadata": {"name": "training-operator", "namespace": "default"}, "spec": alias}
        )
        (configuration,) = (
            each for each in webhook_configurations() if each["kind"] == VALIDATING_WEBHOOK_CONFIGURATIONS.kind
        )
        for webhook in configuration["webhooks"]:
            webhook["clientConfig"]["service"]["port"] = port
            webhook["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": "reviewed"}}
            webhook["failurePolicy"] = "Fail"
        await client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, configuration)
        program = Program([sys.executable, "-m", "trainop", "operator", *flags], folder / "log", surroundings)
        yield plane, program
    finally:
        if program is not None:
            program.stop()
        await transport.close()
        await asyncio.to_thread(plane.down)


async def measure_latency() -> bool:
    body = msgspec.json.encode({**large_job(), "metadata": {"name": "j"}})
    headers = {"Content-Type": "application/json"}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        plane, program = await stack.enter_async_context(run_operator(folder))
        connector = aiohttp.TCPConnector(ssl=plane.api.context)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))

        async def create(namespace: str) -> tuple[int, float]:
            url = f"https://127.0.0.1:{plane.plan.port}/apis/kubeflow.org/v1/namespaces/{namespace}/pytorchjobs"
            began = time.monotonic()
            async with session.post(f"{url}?dryRun=All", data=body, headers=headers) as answer:
                await answer.read()
                return answer.status, (time.monotonic() - began) * 1000

        for _ in range(600):  # until the webhook has its certificate
            if (await create("reviewed"))[0] == 201:
                break
            await asyncio.sleep(0.1)
        print(f"\noperator with webhooks at rest: {program.memory().rss:.0f} MiB")
        server = plane.daemons.running("kube-apiserver") or 0
        rounds = [await _compare(create, lambda: cpu_seconds(server) + program.cpu()) for _ in range(ROUNDS)]
    plain, reviewed = min(rounds)
    print("\n| create of a job of 100 KB, dry run | p50, ms | p99, ms | CPU of API server and operator, ms |")
    print("|---|---|---|---|")
    for name, row in (("without the webhook", plain), ("with it", reviewed)):
        print(f"| {name} | {row.median:.1f} | {row.tail:.1f} | {row.cpu:.1f} |")
    beyond = reviewed.tail - plain.tail
    print(f"\np99 beyond the API server's own, in the calmest of {ROUNDS} rounds: {beyond:.1f} ms")
    return beyond < MAX_LATENCY


Call: TypeAlias = Callable[[str], Awaitable[tuple[int, float]]]
"""Namespace -> status and milliseconds of a create."""


class Costs(NamedTuple):
    """Milliseconds of one create."""

    tail: float
    median: float
    cpu: float


async def _compare(create: Call, cpu: Callable[[], float]) -> tuple[Costs, Costs]:
    """The costs of creates without and with the webhook, made in turns of 20."""
    times: dict[str, list[float]] = {"plain": [], "reviewed": []}
    used = dict.fromkeys(times, 0.0)
    for _ in range(CALLS // 20):
        for namespace, row in times.items():
            before = cpu()
            for _ in range(20):
                status, took = await create(namespace)
                assert status == 201
                row.append(took)
            used[namespace] += (cpu() - before) * 1000
    plain, reviewed = (
        Costs(statistics.quantiles(row, n=100)[98], statistics.median(row), used[name] / len(row))
        for name, row in times.items()
    )
    return plain, reviewed


# Hostile jobs ---------------------------------------------------------------------------------------------------------


def hostile_jobs() -> dict[str, Json]:
    bad = {"name": "pytorch", "image": "i", "ports": [{"containerPort": 0}] * 200}
    return {
        **{name: shape.job() for name, shape in SHAPES.items()},
        "10,000 containers": pytorch({"containers": [{"name": f"c{n}", "image": "i"} for n in range(10_000)]}),
        "200 bad ports in each of 200 containers": pytorch({"containers": [bad] * 200}),
        "1,000,000 lists": pytorch({"x": [[]] * 1_000_000}),
        "3 MiB of text": pytorch({"x": "x" * (3 << 20)}),
        "10,000 levels": pytorch({"x": msgspec.Raw(b"[" * 10_000 + b"]" * 10_000)}),
    }


async def review_in_steps(body: bytes, kind: str) -> list[float]:
    """Milliseconds of CPU time of the steps of one review, as `WebhookServer` makes them."""
    steps = []

    def timed(work: Callable[[], Any]) -> Any:
        began = time.thread_time()
        result = work()
        steps.append((time.thread_time() - began) * 1000)
        return result

    if timed(lambda: answer_crowded(body)) is not None:
        return steps
    began = time.thread_time()
    _, request = await decode_review(body)
    steps[0] += (time.thread_time() - began) * 1000
    if timed(lambda: becomes_too_deep(request)):
        return steps
    handler = build_handler(kind_of(FRAMEWORKS[kind]).admit)
    timed(lambda: encode_review(handler(request), request.uid))  # type: ignore[arg-type]  # not awaitable
    return steps


async def measure_hostile() -> bool:
    worst: dict[str, float] = {}
    for name, job in hostile_jobs().items():
        old = {**job, "spec": {**job["spec"], "old": True}}
        for label, body in ((name, review_of(job)), (f"{name}, updated", review_of(job, old))):
            runs = [await review_in_steps(body, job["kind"]) for _ in range(REPETITIONS)]
            worst[label] = min(max(steps) for steps in runs)
    print(f"\nlongest step of {len(worst)} hostile reviews, in CPU time:\n\n| job | ms |\n|---|---|")
    for label in sorted(worst, key=lambda label: -worst[label])[:8]:
        print(f"| {label} | {worst[label]:.1f} |")
    return max(worst.values()) < MAX_STEP


PARTS = {"rate": measure_rate, "latency": measure_latency, "hostile": measure_hostile}


def main(arguments: Sequence[str]) -> int:
    gc.freeze()
    gc.set_threshold(20_000, 5, 80)  # as the operator
    if arguments[:1] == ["--serve"]:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as in the image
            runner.run(serve(int(arguments[1])))
        return 0
    exit_on_sigterm()
    results = [asyncio.run(PARTS[name]()) for name in arguments or PARTS]
    print("\ntargets are met" if all(results) else "\na target is missed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
