"""The physical limit: a bare client creates the objects that an operator would, and the node runs the pods."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator

from e2e.bench.arena import NAMESPACE, open_arena
from e2e.bench.kinds import container
from e2e.bench.node import Node
from e2e.bench.scenarios import spent
from trainop.runtime.objects import Json, owner_reference
from trainop.runtime.resource import PODS, SERVICES, Resource

LABELS = "training.kubeflow.org/"
AT_ONCE = 32


def objects(jobs: int, workers: int) -> Iterator[tuple[Resource, Json]]:
    """What training-operator writes for these jobs, jobs and their statuses left out."""
    for number in range(jobs * (workers + 1)):
        job, index = divmod(number, workers + 1)
        labels = {
            f"{LABELS}job-name": f"job-{job}",
            f"{LABELS}replica-type": "worker",
            f"{LABELS}replica-index": str(index),
            f"{LABELS}operator-name": "pytorchjob-controller",
        }
        owner = owner_reference("kubeflow.org/v1", "PyTorchJob", f"job-{job}", "0" * 36)
        metadata = {"name": f"p-{number}", "namespace": NAMESPACE, "labels": labels, "ownerReferences": [owner]}
        wait = ["sh", "-c", f"until nslookup job-{job}-master-0; do sleep 2; done"]
        init = container("init-pytorch") | {"command": wait}
        spec: Json = {"containers": [container("pytorch")], "initContainers": [init], "restartPolicy": "Never"}
        yield PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        port = {"name": "pytorchjob-port", "port": 23456}
        spec = {"clusterIP": "None", "selector": labels, "ports": [port]}
        yield SERVICES, {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


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
