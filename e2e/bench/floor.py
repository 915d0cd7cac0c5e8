"""The physical limit: a bare client creates the very objects that the operator does, and the node runs the pods."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from e2e.bench.arena import NAMESPACE, open_arena
from e2e.bench.kinds import PYTORCH as PYTORCH_JOB
from e2e.bench.node import Node
from e2e.bench.scenarios import spent
from trainop.engine.actions import CreatePod, CreateService
from trainop.engine.plan import plan
from trainop.engine.seen import Snapshot
from trainop.kinds.pytorch import PYTORCH
from trainop.runtime.objects.metadata import Json, Unstructured
from trainop.runtime.objects.resource import PODS, SERVICES, Resource

AT_ONCE = 32


def objects(jobs: int, workers: int) -> Iterator[tuple[Resource, Json]]:
    """The pods and services of these jobs, as our operator makes them; jobs and their statuses left out."""
    for number in range(jobs):
        job = PYTORCH_JOB.make(f"job-{number}", workers, "")
        job["metadata"] |= {"namespace": NAMESPACE, "uid": f"{number:036}"}
        for action in plan(PYTORCH, Snapshot(Unstructured(job), (), (), datetime.now(UTC))).actions:
            if isinstance(action, CreatePod | CreateService):
                yield PODS if isinstance(action, CreatePod) else SERVICES, json.loads(action.encode())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # the node counts and tells nobody
        await asyncio.sleep(0.005)


async def measure_floor(jobs: int, workers: int) -> Json:
    async with open_arena() as arena:
        node = Node(arena.client, NAMESPACE, "pytorch")
        running = asyncio.create_task(node.run())
        todo = iter(list(objects(jobs, workers)))
        gc.collect()
        gc.disable()

        async def work() -> None:
            for resource, body in todo:
                await arena.client.create(resource, body)

        try:
            began, start = arena.cpu(), time.monotonic()
            async with asyncio.TaskGroup() as tasks:
                for _ in range(AT_ONCE):
                    tasks.create_task(work())
            created = time.monotonic() - start
            await until(lambda: node.written >= jobs * (workers + 1))
            all_running = time.monotonic() - start
        finally:
            gc.enable()
            running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return {"created": created, "all_running": all_running, "cpu": spent(began, arena.cpu())}
