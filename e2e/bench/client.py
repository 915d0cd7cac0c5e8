"""Compares the CPU time of a request by the runtime's client with one by aiohttp alone.

python -m e2e.bench.client [--profile FILE]        half a minute; --profile: cProfile of our client

Both create the same pods against a server process that answers each request with the same bytes, with 32 requests in
flight, on uvloop and without TLS. They alternate in one process. The ratio is that of the fastest rounds, because other
processes may use the machine. Our client has what it has in the operator: metrics, a gate, a token, decoding.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import aiohttp
import msgspec
import uvloop

from e2e.bench.floor import objects
from e2e.cluster.daemons import DIE_WITH_PARENT
from trainop.runtime.client.client import Client
from trainop.runtime.client.cluster import ClusterConfig
from trainop.runtime.client.credentials import StaticCredentials
from trainop.runtime.client.http import HttpTransport
from trainop.runtime.metrics.metrics import Metrics
from trainop.runtime.objects.metadata import PODS
from trainop.runtime.process import tune_garbage_collector

REQUESTS = 1000
ROUNDS = 40
IN_FLIGHT = 32
METADATA = {
    "name": "job-1-worker-1",
    "namespace": "default",
    "uid": "00000000-0000-0000-0000-000000000001",
    "resourceVersion": "1234",
    "creationTimestamp": "2026-01-01T00:00:00Z",
}
BODY = msgspec.json.encode({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": METADATA})
HEADERS = (
    "HTTP/1.1 201 Created\r\n"
    "Audit-Id: 00000000-0000-0000-0000-000000000002\r\n"
    "Cache-Control: no-cache, private\r\n"
    "Content-Type: application/json\r\n"
    "X-Kubernetes-Pf-Flowschema-Uid: 00000000-0000-0000-0000-000000000003\r\n"
    "X-Kubernetes-Pf-Prioritylevel-Uid: 00000000-0000-0000-0000-000000000004\r\n"
    "Date: Thu, 01 Jan 2026 00:00:00 GMT\r\n"
    f"Content-Length: {len(BODY)}\r\n\r\n"
)
ANSWER = HEADERS.encode() + BODY
"""As a kube-apiserver answers the creation of a pod."""

Create = Callable[[bytes], Awaitable[object]]


class Answering(asyncio.Protocol):
    """Answers each complete request with the same bytes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._held = b""

    def data_received(self, data: bytes) -> None:
        self._held += data
        while (end := self._held.find(b"\r\n\r\n")) >= 0:
            head = self._held[:end].lower()
            _, _, length = head.partition(b"content-length:")
            size = end + 4 + int(length.split(b"\r\n", 1)[0])
            if len(self._held) < size:
                return
            self._held = self._held[size:]
            self._transport.write(ANSWER)


async def serve() -> None:
    """Prints the port, and serves until stdin is closed."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Answering, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


def ours(server: str) -> tuple[Create, Callable[[], Awaitable[None]]]:
    """Creation with the runtime's client, as in the operator; and what closes it."""
    transport = HttpTransport(ClusterConfig(server, credentials=StaticCredentials.token("t" * 900)))
    client = Client(transport, metrics=Metrics(), host=transport.host, gate=lambda: None)

    async def create(body: bytes) -> object:
        return await client.create(PODS, msgspec.Raw(body), namespace="default", metadata_only=True)

    return create, transport.close


def bare(server: str) -> tuple[Create, Callable[[], Awaitable[None]]]:
    """The same request and decoded answer with aiohttp alone."""
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=IN_FLIGHT),
        timeout=aiohttp.ClientTimeout(total=30),
        cookie_jar=aiohttp.DummyCookieJar(),
    )
    headers = {"authorization": f"Bearer {'t' * 900}", "content-type": "application/json", "user-agent": "bare"}
    url = f"{server}/api/v1/namespaces/default/pods?fieldManager=bare&timeout=30s"

    async def create(body: bytes) -> object:
        async with session.post(url, data=body, headers=headers) as response:
            return msgspec.json.decode(await response.read())

    return create, session.close


async def measure(create: Create, bodies: list[bytes], profiler: cProfile.Profile | None) -> float:
    """Microseconds of CPU time per request."""
    todo = iter(bodies)

    async def work() -> None:
        for body in todo:
            await create(body)

    gc.collect()
    if profiler is not None:
        profiler.enable()
    before = time.process_time()
    await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
    spent = time.process_time() - before
    if profiler is not None:
        profiler.disable()
    return 1e6 * spent / len(bodies)


async def compare(profile: Path | None) -> None:
    bodies = [msgspec.json.encode(body) for resource, body in objects(REQUESTS // 8, 7) if resource is PODS]
    command = [sys.executable, "-m", "e2e.bench.client", "--serve"]
    pipe = asyncio.subprocess.PIPE
    server = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, preexec_fn=DIE_WITH_PARENT)
    assert server.stdout
    address = f"http://127.0.0.1:{int(await server.stdout.readline())}"
    profiler = cProfile.Profile() if profile else None
    tune_garbage_collector()
    found: dict[str, list[float]] = {"ours": [], "aiohttp": []}
    made = {"ours": ours(address), "aiohttp": bare(address)}
    try:
        for number in range(ROUNDS):
            for name, (create, _) in made.items():
                spent = await measure(create, bodies, profiler if number and name == "ours" else None)
                if number:  # the first round opens the connections
                    found[name].append(spent)
    finally:
        for _, close in made.values():
            await close()
        assert server.stdin
        server.stdin.close()
        await server.wait()
    if profiler and profile:
        profiler.dump_stats(profile)
    report(found)


def report(found: dict[str, list[float]]) -> None:
    for name, values in found.items():
        print(
            f"{name:8} {min(values):6.1f} us of CPU time per request at least, {statistics.median(values):6.1f} median"
        )
    one, other = found.values()
    ratios = (choose(one) / choose(other) for choose in (min, statistics.median))
    print("ratio    {:6.2f}                                    {:6.2f}".format(*ratios))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    uvloop.run(serve() if options.serve else compare(options.profile))


if __name__ == "__main__":
    main()
