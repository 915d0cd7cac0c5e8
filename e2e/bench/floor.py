"""The lower bound: a bare client creates the same objects as the operator, and the node runs the pods.

A mode has a floor of its own, because an operator with fewer objects has less to do.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple, TypeAlias

from e2e.bench.cluster import ENDPOINT_SLICES, NAMESPACE, BenchCluster, open_cluster
from e2e.bench.kinds import MPI_SSH, JobKind
from e2e.bench.kinds import PYTORCH as PYTORCH_JOB
from e2e.bench.node import SimulatedNode, SimulatedPod
from e2e.bench.scenarios import cpu_used, percentile
from tests.engine.builders import manifest_of, replica_created
from tests.kinds.mpi_world import MpiWorld
from trainop.engine.actions import Action, Ensure
from trainop.engine.plan import plan
from trainop.engine.seen import Options, Snapshot
from trainop.kinds.mpi.transport import TRANSPORT
from trainop.kinds.pytorch import PYTORCH
from trainop.runtime.objects.metadata import Json, Resource, Unstructured

CONCURRENCY = 32

Objects: TypeAlias = Sequence[tuple[Resource, Json]]


def objects(jobs: int, workers: int, mode: str = "replica") -> Iterator[tuple[Resource, Json]]:
    """The pods and services that our operator creates for these PyTorchJobs, without the jobs and their statuses."""
    for number in range(jobs):
        job = _stored(PYTORCH_JOB, number, workers)
        snapshot = Snapshot(Unstructured(job), (), (), datetime.now(UTC), Options(service_mode=mode))
        for action in plan(PYTORCH, snapshot).actions:
            if replica_created(action):
                yield action.resource, manifest_of(action)


def _stored(kind: JobKind, number: int, workers: int) -> Json:
    job = kind.make(f"job-{number}", workers, "")
    job["metadata"] |= {"namespace": NAMESPACE, "uid": f"{number:036}", "generation": 1, "resourceVersion": "1"}
    return job


class _Recorder(MpiWorld):
    """A toy cluster that keeps what the operator creates in it."""

    def __init__(self, job: Json) -> None:
        super().__init__(job)
        self.created: dict[tuple[Resource, str], Json] = {}

    def _act(self, action: Action) -> None:
        if isinstance(action, Ensure) and (action.resource, action.name) not in self.created:
            content = action.content.fill() if action.content is not None else {}
            self.created[action.resource, action.name] = {**manifest_of(action), **content}
        super()._act(action)


def objects_over_ssh(jobs: int, workers: int) -> Iterator[tuple[Resource, Json]]:
    """The same for MPIJobs with transport ssh: Service, ConfigMap, Secret, the workers' pods, and the launcher's Job,
    for which kube-controller-manager creates the pod."""
    for number in range(jobs):
        job = _stored(MPI_SSH, number, workers)
        job["metadata"]["annotations"] = {TRANSPORT: "ssh"}
        world, before = _Recorder(job), -1
        while len(world.created) > before:
            before = len(world.created)
            world.step()
        yield from ((resource, body) for (resource, _), body in world.created.items())


class Floor(NamedTuple):
    kind: JobKind
    objects: Callable[[int, int], Iterator[tuple[Resource, Json]]]


def _of_mode(mode: str) -> Floor:
    return Floor(PYTORCH_JOB, lambda jobs, workers: objects(jobs, workers, mode))


FLOORS: Mapping[str, Floor] = {
    "floor": _of_mode("replica"),
    "floor-leader": _of_mode("leader"),
    "floor-job": _of_mode("job"),
    "floor-ssh": Floor(MPI_SSH, objects_over_ssh),
}
"""By the name under which it takes turns with the operators."""


async def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # the node only counts; there is no event to wait for
        await asyncio.sleep(0.005)


def median_job(pods: Iterable[SimulatedPod], start: float) -> float:
    """Seconds from `start`, when all jobs were due, until all pods of the median job ran."""
    ran: dict[str, float] = defaultdict(float)
    for pod in pods:
        ran[pod.job] = max(ran[pod.job], pod.ran)
    return percentile(list(ran.values()), 0.5) - start


async def measure_floor(name: str, jobs: int, workers: int, *, endpoints: bool) -> Json:
    """The figures have the names of those of an operator in `scenarios.burst`."""
    kind = FLOORS[name].kind
    controllers = (*kind.controllers, *((ENDPOINT_SLICES,) if endpoints else ()))
    async with open_cluster(controllers=controllers) as cluster:
        node = SimulatedNode(cluster.client, NAMESPACE, kind.container, binds=endpoints)
        running = asyncio.create_task(node.run())
        todo = list(FLOORS[name].objects(jobs, workers))
        gc.collect()
        gc.disable()
        try:
            cpu_before, start = cluster.cpu(), time.monotonic()
            await _create(cluster, todo)
            created = time.monotonic() - start
            await wait_until(lambda: node.written >= jobs * (workers + 1))
            all_running = time.monotonic() - start
        finally:
            gc.enable()
            running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return {
            "created": created,
            "all_running": all_running,
            "running_p50": median_job(node.pods.values(), start),
            "cpu": cpu_used(cpu_before, cluster.cpu()),
        }


async def _create(cluster: BenchCluster, bodies: Objects) -> None:
    todo = iter(bodies)

    async def work() -> None:
        for resource, body in todo:
            await cluster.client.create(resource, body, namespace=NAMESPACE, metadata_only=True)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(CONCURRENCY):
            tasks.create_task(work())
