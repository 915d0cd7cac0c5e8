"""MPIJobs under both controllers, on the embedded API server and in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.controllers.mpi import MpiStage, mpi_job, only_version, operated
from tests.runtime.virtual_time import virtual_time
from trainop.engine.framework import JOB_NAME
from trainop.engine.seen import Options
from trainop.kinds.mpi.transport import LAUNCHER_JOBS, MPI_V1, MPI_V2, TRANSPORT
from trainop.runtime import PODS, Json
from trainop.runtime.client.transport import Request, Stream
from trainop.runtime.objects.metadata import CONFIG_MAPS, SECRETS, SERVICES, Resource, owner_reference


def requests_of(here: MpiStage) -> Counter[str]:
    """The operator's requests since the last call, but for initial lists: method and resource -> number."""
    transport = here.stage.transport
    found = Counter(request.split("?")[0] for request in (*transport.reads, *transport.writes))
    transport.reads.clear()
    transport.writes.clear()
    counted: Counter[str] = Counter()
    for request, count in found.items():
        method, path = request.split(" ")
        _, _, below = path.partition("/namespaces/ns/")
        if below:
            resource, *rest = below.split("/")
            counted[f"{method} {resource}{'/status' if rest[1:] == ['status'] else ''}"] += count
    return counted


@virtual_time
async def test_a_job_with_transport_ssh_costs_few_requests() -> None:
    """mpi-operator v0.8.0 needs 20 for 7 workers."""
    async with operated() as here:
        requests_of(here)
        here.pause = 0.1
        await here.submit(mpi_job(7))
        await here.launch()
        await here.run(*(f"foo-worker-{index}" for index in range(7)))
        await here.settle(3)
        assert await here.conditions() == [("Created", "True"), ("Running", "True")]
        until_running = requests_of(here)
        await here.end_launcher()
        await here.settle(3)
        assert (await here.conditions())[-1] == ("Succeeded", "True")
        then = requests_of(here)
        children = {"POST services": 1, "POST configmaps": 1, "POST secrets": 1, "POST jobs": 1, "POST pods": 7}
        hosts = {"PATCH configmaps": 1}
        assert until_running.pop("PUT mpijobs/status") == 1
        assert until_running == {**children, **hosts, "PATCH mpijobs": 1, "POST events": 2}
        assert then == {"PUT mpijobs/status": 1, "POST events": 1}


@virtual_time
async def test_a_job_with_transport_exec_costs_few_requests() -> None:
    """training-operator v1.9.2 needs 33 for 7 workers."""
    async with operated() as here:
        requests_of(here)
        here.pause = 0.1
        await here.submit(mpi_job(7, version=MPI_V1))
        await here.run("foo-launcher", *(f"foo-worker-{index}" for index in range(7)))
        await here.settle(3)
        assert ("Running", "True") in await here.conditions()
        until_running = requests_of(here)
        await here.stage.set_status("foo-launcher", {"phase": "Succeeded"})
        await here.settle(3)
        then = requests_of(here)
        roles = {"POST serviceaccounts": 1, "POST roles": 1, "POST rolebindings": 1}
        children = {**roles, "POST configmaps": 1, "POST pods": 8, "PATCH configmaps": 1}
        assert until_running == {**children, "PATCH mpijobs": 1, "PUT mpijobs/status": 1, "POST events": 1}
        withdrawal = {"PATCH roles": 1}  # no other write takes rights away
        assert then == {"PUT mpijobs/status": 1, "POST events": 1, **withdrawal}


@virtual_time
async def test_a_job_with_transport_exec_runs_through() -> None:
    async with operated() as here:
        await here.submit(mpi_job(version=MPI_V1))
        pods = ["foo-launcher", "foo-worker-0", "foo-worker-1"]
        assert await here.names(PODS) == pods
        assert await here.names(LAUNCHER_JOBS) == []
        await here.run(*pods)
        await here.stage.set_status("foo-launcher", {"phase": "Succeeded"})
        await here.settle()
        assert (await here.conditions())[-1] == ("Succeeded", "True")
        events = await here.stage.events("MPIJobSucceeded")
        assert [each["involvedObject"]["apiVersion"] for each in events] == ["kubeflow.org/v1"]


async def _leave_as_mpi_operator(here: MpiStage) -> None:
    """A running job as mpi-operator leaves it: only the pods have the labels of our caches."""
    job = await here.client.create(MPI_V2, mpi_job(1), namespace="ns")
    status = {"conditions": [{"type": "Created", "status": "True", "reason": "MPIJobCreated", "message": ""}]}
    await here.client.patch(MPI_V2, "foo", "ns", {"status": status}, subresource="status")
    owner = owner_reference("kubeflow.org/v2beta1", "MPIJob", "foo", job["metadata"]["uid"])

    async def leave(resource: Resource, name: str, labels: dict[str, str], **content: Any) -> None:
        metadata = {"name": name, "labels": labels, "ownerReferences": [owner]}
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **content}
        await here.client.create(resource, body, namespace="ns")

    app = {"app": "foo"}
    container = {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"}
    prefix = "training.kubeflow.org/"
    labels = {f"{prefix}operator-name": "mpi-operator", f"{prefix}job-name": "foo", f"{prefix}job-role": "worker"}
    await leave(SERVICES, "foo", app, spec={"clusterIP": "None"})
    await leave(CONFIG_MAPS, "foo-config", app, data={"hostfile": "old\n"})
    await leave(SECRETS, "foo-ssh", app, data={"ssh-privatekey": "a2V5", "ssh-publickey": "a2V5"})
    await leave(PODS, "foo-worker-0", labels | {f"{prefix}replica-index": "1"}, spec=container)
    template = {"metadata": {"labels": labels | {f"{prefix}job-role": "launcher"}}, "spec": container}
    await leave(LAUNCHER_JOBS, "foo-launcher", app, spec={"template": template})


@virtual_time
async def test_a_running_job_of_mpi_operator_is_continued() -> None:
    async with operated(before=_leave_as_mpi_operator) as here:
        before = {name: (await here.get(PODS, name))["metadata"]["uid"] for name in await here.names(PODS)}
        launcher = (await here.get(LAUNCHER_JOBS, "foo-launcher"))["metadata"]["uid"]
        await here.settle(10)
        assert (await here.job())["metadata"]["annotations"][TRANSPORT] == "ssh"
        after = {name: (await here.get(PODS, name))["metadata"]["uid"] for name in await here.names(PODS)}
        assert after == before
        found = (await here.get(LAUNCHER_JOBS, "foo-launcher"))["metadata"]
        assert (found["uid"], found["labels"][JOB_NAME]) == (launcher, "foo")
        assert (await here.get(SECRETS, "foo-ssh"))["data"]["ssh-privatekey"] == "a2V5"
        assert "foo-worker-0.foo.ns.svc" in (await here.get(CONFIG_MAPS, "foo-config"))["data"]["hostfile"]
        await here.end_launcher()
        assert (await here.conditions())[-1] == ("Succeeded", "True")


def delay_watch(here: MpiStage, plural: str, seconds: float = 1) -> None:
    """What the operator watches of a resource arrives late."""
    transport = here.stage.transport
    open_now = transport.open

    async def open_late(request: Request) -> Stream:
        stream = await open_now(request)
        if request.path.split("?")[0].endswith(f"/{plural}"):
            chunks = stream.chunks

            async def late_chunks() -> AsyncIterator[bytes]:
                async for chunk in chunks():
                    await asyncio.sleep(seconds)
                    yield chunk

            stream.chunks = late_chunks  # type: ignore[method-assign]  # of this stream only
        return stream

    transport.open = open_late  # type: ignore[method-assign]  # of this transport only


@virtual_time
async def test_the_objects_of_mpi_operator_are_taken_over_in_one_pass() -> None:
    """The next pass waits until the caches hold them: it would miss the launcher."""

    async def leave(here: MpiStage) -> None:
        await _leave_as_mpi_operator(here)
        here.writes.clear()
        delay_watch(here, LAUNCHER_JOBS.plural)

    async with operated(before=leave) as here:
        await here.settle(10)
        taken = [write.split("?")[0] for write in here.writes if write.startswith("PATCH") and "/mpijobs/" not in write]
        namespace = "/api/v1/namespaces/ns"
        objects = [f"{namespace}/services/foo", f"{namespace}/configmaps/foo-config"]
        assert taken == [f"PATCH {path}" for path in (*objects, "/apis/batch/v1/namespaces/ns/jobs/foo-launcher")]
        assert [write for write in here.writes if write.startswith("POST") and "/jobs" in write] == []


@pytest.mark.parametrize(("version", "child"), [("v1", "foo-launcher"), ("v2beta1", "foo-worker-0")])
def test_either_crd_of_the_go_operators_will_do(version: str, child: str) -> None:
    @virtual_time
    async def run() -> None:
        resource = MPI_V1 if version == "v1" else MPI_V2
        async with operated(Options(mpi_version=version), definition=only_version(version)) as here:
            await here.client.create(resource, mpi_job(version=resource), namespace="ns")
            await here.settle()
            assert child in await here.names(PODS)
            status = (await here.get(resource, "foo"))["status"]
            assert [each["type"] for each in status["conditions"]] == ["Created"]

    run()


@pytest.mark.case("mpi-v2beta1-11", "e")
@virtual_time
async def test_a_key_that_was_removed_is_made_anew_with_the_next_pod() -> None:
    async with operated() as here:
        await here.submit(mpi_job(1))
        before: Json = (await here.get(SECRETS, "foo-ssh"))["data"]
        await here.client.patch(SECRETS, "foo-ssh", "ns", {"data": {"ssh-publickey": None}})
        await here.client.delete(PODS, "foo-worker-0", "ns", grace_seconds=0)
        await here.settle(10)
        after: Json = (await here.get(SECRETS, "foo-ssh"))["data"]
        assert after.keys() == before.keys()
        assert all(after[name] != before[name] for name in before)
