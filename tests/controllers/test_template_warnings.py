"""What becomes of the API server's warnings about pods: jobs of every kind on the embedded API server, in virtual
time."""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.controllers.kinds import KINDS, make
from tests.controllers.mpi import mpi_job
from tests.controllers.test_shell_operator import QUIET, Stage, running, stage
from tests.kinds.dijob_world import dijob
from tests.runtime.virtual_time import virtual_time
from trainop.kinds.mpi.transport import MPI_V1, MPI_V2
from trainop.programs import schemes
from trainop.runtime import PODS, Json
from trainop.runtime.objects.metadata import CUSTOM_RESOURCE_DEFINITIONS, EVENTS, Resource

MORE: dict[str, Any] = {"MXJob": {"jobMode": "MXTrain"}}
JOBS: dict[str, Json] = {
    **{kind: make(kind, **MORE.get(kind, {})) for kind in KINDS},
    "MPIJob v1": mpi_job(version=MPI_V1),
    "MPIJob v2beta1": mpi_job(version=MPI_V2),
    "DIJob": dijob(),
}
START = "Pods run without fields that the API server does not know: "
SETTINGS = replace(QUIET, schemes=tuple(schemes.KINDS))


def test_every_kind_has_a_job_here():
    assert {job["kind"] for job in JOBS.values()} == {kind.resource.kind for kind in schemes.all_kinds()}


def templates(value: Any, path: str) -> Iterator[tuple[str, Json]]:
    for name, member in value.items() if isinstance(value, dict) else ():
        if name == "template":
            yield f"{path}.template", member
        else:
            yield from templates(member, f"{path}.{name}")


def job_of(name: str, *, misspelt: bool = True) -> tuple[Resource, Json, list[str]]:
    """The job, whose containers have a field `resource` if it is `misspelt`, and the messages about them."""
    job = copy.deepcopy(JOBS[name]) | {"metadata": {"name": "j"}}
    resources = {(kind.resource.kind, kind.resource.api_version): kind.resource for kind in schemes.all_kinds()}
    texts = []
    for path, template in templates(job["spec"], "spec"):
        if misspelt:
            template["spec"]["containers"][0]["resource"] = {"limits": {"nvidia.com/gpu": 8}}
        texts.append(f'{path}.spec.containers[0].resource: unknown field, did you mean "resources"?')
    return resources[job["kind"], job["apiVersion"]], job, sorted(texts)


@asynccontextmanager
async def stage_of_all_kinds() -> AsyncIterator[Stage]:
    """Without an operator."""
    async with stage(crds=False, run=False) as here:
        for definition in schemes.crds():
            await here.client.create(CUSTOM_RESOURCE_DEFINITIONS, definition)
        yield here


async def run_job(here: Stage, resource: Resource, job: Json) -> None:
    """The pods run within a second, so that Created and Running share one write of the status."""
    await here.client.create(resource, job, namespace="ns")
    await asyncio.sleep(0.5)
    for pod in await here.names(PODS):
        await here.set_status(pod, {"phase": "Running"})
    await asyncio.sleep(30)


async def conditions(here: Stage, resource: Resource) -> list[Json]:
    found: list[Json] = (await here.client.get(resource, "j", "ns"))["status"]["conditions"]
    return found


@pytest.mark.parametrize("name", JOBS)
@virtual_time
async def test_dropped_fields_are_one_event_and_a_condition(name: str):
    resource, job, texts = job_of(name)
    async with stage_of_all_kinds() as here, running(here.operator(SETTINGS)):
        await run_job(here, resource, job)
        first, *others = await conditions(here, resource)
        text = START + "; ".join(texts)
        assert (first["type"], first["status"], first["reason"]) == ("TemplateValid", "False", "UnknownFields")
        assert first["message"] == text
        assert others[0]["type"] == "Created"
        events = await here.events("UnknownFields")
        assert [(each["type"], each["message"], each.get("count", 1)) for each in events] == [("Warning", text, 1)]
        assert events[0]["involvedObject"]["name"] == "j"


@pytest.mark.parametrize("name", JOBS)
@virtual_time
async def test_they_cost_an_event_and_no_write_of_the_status(name: str):
    """A job that is spelt well costs nothing. The status of a DIJob is written before its first pod, so that the
    condition is one write more."""
    writes = []
    for misspelt in (False, True):
        resource, job, _ = job_of(name, misspelt=misspelt)
        async with stage_of_all_kinds() as here, running(here.operator(SETTINGS)):
            await run_job(here, resource, job)
            assert (await conditions(here, resource))[0]["type"] == ("TemplateValid" if misspelt else "Created")
            writes.append(Counter(here.transport.writes))
    plain, warned = writes
    extra = warned - plain
    status = resource.path("ns", "j", "status")
    more = {f"PUT {status}": 1} if name == "DIJob" else {}
    assert extra == {f"POST {EVENTS.path('ns')}": 1, **more}


@virtual_time
async def test_the_condition_outlives_the_operator_and_ends_with_a_corrected_template():
    resource, job, (master, worker) = job_of("PyTorchJob")
    for role in job["spec"]["pytorchReplicaSpecs"].values():
        role["restartPolicy"] = "OnFailure"

    async def fail(pod: str) -> None:
        """It is replaced."""
        await here.set_status(pod, {"phase": "Failed"})
        await asyncio.sleep(60)
        await here.set_status(pod, {"phase": "Running"})
        await asyncio.sleep(60)

    async def correct(role: str) -> None:
        container = {"name": "pytorch", "image": "img"}
        change = {role: {"template": {"spec": {"containers": [container]}}}}
        await here.client.patch(resource, "j", "ns", {"spec": {"pytorchReplicaSpecs": change}})
        await asyncio.sleep(5)

    async def said() -> list[str]:
        return [each["message"] for each in await conditions(here, resource) if each["type"] == "TemplateValid"]

    async with stage_of_all_kinds() as here:
        async with running(here.operator(SETTINGS)):
            await run_job(here, resource, job)
            assert await said() == [f"{START}{master}; {worker}"]
        async with running(here.operator(SETTINGS)):
            await fail("j-worker-0")
            assert await said() == [f"{START}{master}; {worker}"]
            assert len(await here.events("UnknownFields")) == 1
            await correct("Worker")
            assert await said() == [f"{START}{master}; {worker}"]  # as the pods that run
        async with running(here.operator(SETTINGS)):
            await fail("j-worker-0")
            assert await said() == [START + master]
            await correct("Master")
            await fail("j-master-0")
            assert await said() == []
            assert [each["type"] for each in await conditions(here, resource)] == ["Created", "Running"]
