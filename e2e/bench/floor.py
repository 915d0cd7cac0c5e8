"""The lower bound: a bare client creates the same pods and services as the operator, and the node runs the pods."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from e2e.bench.cluster import ENDPOINT_SLICES, NAMESPACE, open_cluster
from e2e.bench.kinds import PYTORCH as PYTORCH_JOB
from e2e.bench.node import SimulatedNode
from e2e.bench.scenarios import cpu_used
from tests.engine.builders import manifest_of, replica_created
from trainop.engine.plan import plan
from trainop.engine.seen import Snapshot
from trainop.kinds.pytorch import PYTORCH
from trainop.runtime.objects.metadata import Json, Resource, Unstructured

CONCURRENCY = 32


def objects(jobs: int, workers: int) -> Iterator[tuple[Resource, Json]]:
    """The pods and services that our operator creates for these jobs, without the jobs and their statuses."""
    for number in range(jobs):
        job = PYTORCH_JOB.make(f"job-{number}", workers, "")
        job["metadata"] |= {"namespace": NAMESPACE, "uid": f"{number:036}"}
        for action in plan(PYTORCH, Snapshot(Unstructured(job), (), (), datetime.now(UTC))).actions:
            if replica_created(action):
                yield action.resource, manifest_of(action)


async def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # the node only counts; there is no event to wait for
        await asyncio.sleep(0.005)


async def measure_floor(jobs: int, workers: int, *, endpoints: bool) -> Json:
    controllers = (ENDPOINT_SLICES,) if endpoints else ()
    async with open_cluster(controllers=controllers) as cluster:
        node = SimulatedNode(cluster.client, NAMESPACE, "pytorch", binds=endpoints)
        running = asyncio.create_task(node.run())
        todo = iter(list(objects(jobs, workers)))
        gc.collect()
        gc.disable()

        async def work() -> None:
            for resource, body in todo:
                await cluster.client.create(resource, body, metadata_only=True)

        try:
            cpu_before, start = cluster.cpu(), time.monotonic()
            async with asyncio.TaskGroup() as tasks:
                for _ in range(CONCURRENCY):
                    tasks.create_task(work())
            created = time.monotonic() - start
            await wait_until(lambda: node.written >= jobs * (workers + 1))
            all_running = time.monotonic() - start
        finally:
            gc.enable()
            running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return {"created": created, "all_running": all_running, "cpu": cpu_used(cpu_before, cluster.cpu())}
