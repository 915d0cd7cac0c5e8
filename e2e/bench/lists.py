"""What a first list of pods and Services costs kube-apiserver and the client, streamed and in pages.

python -m e2e.bench.lists [--jobs 250] [--times 3]      some minutes

The operator creates the jobs, of eight pods with a Service each, and ends. Then informers with the operator's decoders
list what is there, in turns; for comparison, the list in protobuf is read and not decoded. CPU times are medians, in ms
per 2,000 objects. TRAINOP_KUBERNETES chooses the release of the API server.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import uvloop

from e2e.bench.harness import Harness, open_harness
from e2e.bench.operators import OPERATORS
from e2e.bench.processes import cancel_on_sigterm, own_seconds
from trainop.engine.children import TRAINING_CHILDREN
from trainop.runtime.cache.informer import Informer
from trainop.runtime.client.auth import load_config
from trainop.runtime.client.client import Client, list_request
from trainop.runtime.client.http import HttpTransport
from trainop.runtime.client.paging import PAGE_SIZE
from trainop.runtime.objects.metadata import NAMESPACES, PODS, SERVICES, Decoder, Resource

WORKERS = 7
PROTOBUF = "application/vnd.kubernetes.protobuf"
UNIT = 2000
LONGEST = 512 * 1024 * 1024
SETTLE_SECONDS = 0.5
"""Seconds after a list in which the API server's work for it ends."""
DECODERS: dict[Resource, Decoder[Any]] = {
    PODS: TRAINING_CHILDREN.decode_pod,
    SERVICES: TRAINING_CHILDREN.decode_service,
}


async def list_by_informer(client: Client, resource: Resource, *, streamed: bool) -> int:
    """The number of objects."""
    selector = TRAINING_CHILDREN.watch
    informer = Informer(client, resource, DECODERS[resource], label_selector=selector, streamed=streamed)
    task = asyncio.create_task(informer.run())
    await informer.wait_synced()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return len(informer.store)


async def read_protobuf(client: Client, resource: Resource) -> int:
    """The number of bytes of the whole list: the token of a page is not known without decoding."""
    request = list_request(resource, None, {"labelSelector": TRAINING_CHILDREN.watch}, accept=PROTOBUF)
    answer = await client.request(msgspec.structs.replace(request, max_answer=LONGEST))
    return len(answer.body)


MODES: dict[str, Callable[[Client, Resource], Awaitable[int]]] = {
    "streamed": partial(list_by_informer, streamed=True),
    f"pages of {PAGE_SIZE}": partial(list_by_informer, streamed=False),
    "all in protobuf, not decoded": read_protobuf,
}


async def measure(harness: Harness, mode: str, resource: Resource, objects: int) -> tuple[float, float, float]:
    """CPU of the API server and of this process in ms per `UNIT` objects, and seconds."""
    transport = HttpTransport(load_config(str(harness.cluster.kubeconfig)))
    client = Client(transport)
    try:
        await client.get(NAMESPACES, "default")  # connects
        server, own, began = harness.cluster.cpu()["apiserver"], own_seconds(), time.monotonic()
        await MODES[mode](client, resource)
        own, took = own_seconds() - own, time.monotonic() - began
    finally:
        await transport.close()
    await asyncio.sleep(SETTLE_SECONDS)
    server = harness.cluster.cpu()["apiserver"] - server
    return 1000 * server * UNIT / objects, 1000 * own * UNIT / objects, took


async def compare(jobs: int, times: int) -> None:
    cancel_on_sigterm()
    found: dict[tuple[str, str], list[tuple[float, float, float]]] = defaultdict(list)
    objects = jobs * (WORKERS + 1)
    async with open_harness(OPERATORS["trainop"]) as harness:
        names = [f"job-{number}" for number in range(jobs)]
        await harness.jobs.post(names, WORKERS)
        await harness.wait_until("all counted", lambda: harness.jobs.all_counted(names, WORKERS + 1))
        await harness.wait_idle()
        harness.program.stop()
        for task in harness.tasks:
            task.cancel()
        await harness.cluster.wait_idle()
        for _ in range(times):
            for resource in (PODS, SERVICES):
                for mode in MODES:
                    found[resource.plural, mode].append(await measure(harness, mode, resource, objects))
    print(f"| per {UNIT} objects of {objects} | API server, ms | client, ms | all, s |\n|---|---|---|---|")
    for (plural, mode), rows in found.items():
        print(f"| {plural}, {mode} | {median(rows, 0):.0f} | {median(rows, 1):.0f} | {median(rows, 2):.2f} |")


def median(rows: Sequence[tuple[float, ...]], column: int) -> float:
    return statistics.median(row[column] for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=250)
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args()
    uvloop.run(compare(options.jobs, options.times))


if __name__ == "__main__":
    main()
