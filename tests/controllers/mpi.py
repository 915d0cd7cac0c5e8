"""MPIJobs under the shared controller, on the embedded API server and in virtual time. The tests play Job controller
and kubelet."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.controllers.test_shell_operator import Stage, running, stage
from trainop.controllers.counters import JobMetrics
from trainop.controllers.wiring import ControllerDependencies, build_controller
from trainop.engine.seen import Options
from trainop.kinds.mpi.crd import mpi_crd
from trainop.kinds.mpi.kinds import mpi_kinds
from trainop.kinds.mpi.transport import LAUNCHER_JOBS, MPI_V1, MPI_V2
from trainop.runtime import PODS, Cache, Client, Json, Manager, Recorder
from trainop.runtime.objects.metadata import CUSTOM_RESOURCE_DEFINITIONS, Resource


def mpi_job(
    workers: int = 2, *, name: str = "foo", version: Resource = MPI_V2, run: Json | None = None, **spec: Any
) -> Json:
    def replicas(count: int, **container: Any) -> Json:
        return {"replicas": count, "template": {"spec": {"containers": [{"name": "c", "image": "i", **container}]}}}

    specs = {"Launcher": replicas(1, command=["mpirun"])} | ({"Worker": replicas(workers)} if workers else {})
    policy = {"runPolicy": run} if run is not None else {}
    return {
        "apiVersion": version.api_version,
        "kind": "MPIJob",
        "metadata": {"name": name, "namespace": "ns"},
        "spec": {"mpiReplicaSpecs": specs, **policy, **spec},
    }


class MpiStage:
    """Both controllers of MPIJob with one API server."""

    def __init__(self, stage: Stage, metrics: JobMetrics | None = None) -> None:
        self.stage = stage
        self.metrics = metrics or JobMetrics()
        self.client = stage.client
        self.writes = stage.transport.writes
        self.pause = 3.0
        """Seconds after each step."""

    async def submit(self, job: Json) -> None:
        version = MPI_V1 if job["apiVersion"] == MPI_V1.api_version else MPI_V2
        await self.client.create(version, job, namespace="ns")
        await self.settle()

    async def settle(self, seconds: float | None = None) -> None:
        await asyncio.sleep(self.pause if seconds is None else seconds)

    async def patch(self, patch: Json, name: str = "foo", version: Resource = MPI_V2) -> None:
        await self.client.patch(version, name, "ns", patch)
        await self.settle()

    async def names(self, resource: Resource) -> list[str]:
        return await self.stage.names(resource)

    async def get(self, resource: Resource, name: str) -> Json:
        return await self.client.get(resource, name, "ns")

    async def job(self, name: str = "foo") -> Json:
        return await self.client.get(MPI_V2, name, "ns")

    async def conditions(self, name: str = "foo") -> list[tuple[str, str]]:
        status = (await self.job(name)).get("status") or {}
        return [(each["type"], each["status"]) for each in status.get("conditions", [])]

    async def run(self, *pods: str, ready: bool = True) -> None:
        """The kubelet has started the pods."""
        condition = {"type": "Ready", "status": "True" if ready else "False"}
        for pod in pods:
            await self.stage.set_status(pod, {"phase": "Running", "conditions": [condition]})
        await self.settle()

    async def launch(self, name: str = "foo-launcher") -> str:
        """The Job controller has created the launcher's pod, which runs."""
        pod = await self.create_launcher_pod(name)
        await self.job_status({"active": 1, "startTime": "2026-01-01T00:00:00Z"}, name)
        await self.run(pod)
        return pod

    async def create_launcher_pod(self, name: str = "foo-launcher") -> str:
        """The pod that the Job controller creates, pending."""
        job = await self.get(LAUNCHER_JOBS, name)
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": name,
            "uid": job["metadata"]["uid"],
            "controller": True,
        }
        template = job["spec"]["template"]
        pod = f"{name}-x1"
        metadata = {"name": pod, "labels": template["metadata"]["labels"], "ownerReferences": [owner]}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        await self.client.create(PODS, body, namespace="ns")
        return pod

    async def job_status(self, status: Json, name: str = "foo-launcher") -> None:
        await self.client.patch(LAUNCHER_JOBS, name, "ns", {"status": status}, subresource="status")
        await self.settle()

    async def end_launcher_of(self, name: str, type_: str) -> None:
        await self.job_status({"conditions": [{"type": type_, "status": "True"}]}, f"{name}-launcher")

    async def end_launcher(self, type_: str = "Complete", **condition: Any) -> None:
        moment = "2026-01-01T00:10:00Z"
        status = {"conditions": [{"type": type_, "status": "True", **condition}], "active": None}
        await self.job_status(status | ({"completionTime": moment} if type_ == "Complete" else {}))

    async def events(self, reason: str) -> list[str]:
        return [event["message"] for event in await self.stage.events(reason)]


def only_version(name: str) -> Json:
    """The CRD of one of the Go operators, which serves a single version."""
    definition = mpi_crd()
    (version,) = (each for each in definition["spec"]["versions"] if each["name"] == name)
    definition["spec"]["versions"] = [version | {"storage": True}]
    return definition


@asynccontextmanager
async def operated(
    options: Options | None = None,
    *,
    definition: Json | None = None,
    before: Callable[[MpiStage], Awaitable[None]] | None = None,
) -> AsyncIterator[MpiStage]:
    """An operator with both transports, and our CRD. `before` runs before the operator starts."""
    async with stage(crds=False, run=False) as here:
        await here.client.create(CUSTOM_RESOURCE_DEFINITIONS, definition or mpi_crd())
        if before is not None:
            await before(MpiStage(here))
        client = Client(here.transport, clock=here.clock)
        rng, metrics = random.Random(1), JobMetrics()
        cache = Cache(client, clock=here.clock, rng=rng, guarded=True)
        manager = Manager(clock=here.clock, signals=False)
        manager.add_cache(cache)
        needs = ControllerDependencies(
            client=client, cache=cache, clock=here.clock, rng=rng, metrics=metrics, options=options or Options()
        )
        for kind in mpi_kinds(needs.options):
            recorder = Recorder(client, kind.component or kind.controller, here.clock, rng=rng)
            manager.add_recorder(recorder)
            manager.add_controller(build_controller(kind, needs, recorder))
        async with running(manager):
            await asyncio.sleep(1)
            yield MpiStage(here, metrics)
