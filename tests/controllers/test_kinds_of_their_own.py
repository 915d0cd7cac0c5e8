"""Kinds with a custom plan under the shared controller, on the embedded API server, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.controllers.test_shell_operator import Stage, running, stage
from tests.controllers.toys import BATCH, BATCH_JOBS, PAIR
from tests.runtime.virtual_time import virtual_time
from trainop.controllers.counters import JobMetrics
from trainop.controllers.wiring import ControllerDependencies, build_controller
from trainop.engine.framework import selector
from trainop.engine.kind import Kind
from trainop.engine.seen import Options
from trainop.runtime import PODS, Cache, Client, Json, Manager, Recorder
from trainop.runtime.objects.metadata import CUSTOM_RESOURCE_DEFINITIONS


def crd(kind: Kind) -> Json:
    resource = kind.resource
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": resource.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": resource.kind, "plural": resource.plural, "singular": resource.kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": str(resource)},
        "spec": {
            "group": resource.group,
            "names": {**names, "listKind": f"{resource.kind}List"},
            "scope": "Namespaced",
            "versions": [version | {"subresources": {"status": {}}}],
        },
    }


@asynccontextmanager
async def operated(kind: Kind, spec: Json) -> AsyncIterator[Stage]:
    """A job of the kind under an operator that runs only this kind."""
    async with stage(crds=False, run=False) as here:
        await here.client.create(CUSTOM_RESOURCE_DEFINITIONS, crd(kind))
        client = Client(here.server.transport(), clock=here.clock)
        rng, metrics = random.Random(1), JobMetrics()
        cache = Cache(client, clock=here.clock, rng=rng)
        recorder = Recorder(client, kind.controller, here.clock, rng=rng)
        needs = ControllerDependencies(
            client=client, cache=cache, clock=here.clock, rng=rng, metrics=metrics, options=Options()
        )
        manager = Manager(clock=here.clock, signals=False)
        manager.add_cache(cache)
        manager.add_recorder(recorder)
        manager.add_controller(build_controller(kind, needs, recorder))
        async with running(manager):
            resource = kind.resource
            body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": "j"}, "spec": spec}
            await here.client.create(resource, body, namespace="ns")
            await asyncio.sleep(5)
            yield here


async def conditions(here: Stage, kind: Kind) -> list[str]:
    await asyncio.sleep(5)
    job = await here.client.get(kind.resource, "j", "ns")
    return [condition["type"] for condition in job.get("status", {}).get("conditions", [])]


@virtual_time
async def test_a_kind_with_a_plan_and_names_of_its_own() -> None:
    async with operated(PAIR, {"image": "i"}) as here:
        assert await here.names(PODS) == ["j-left", "j-right"]
        await here.client.delete(PODS, "j-left", "ns")
        await asyncio.sleep(5)
        assert await here.names(PODS) == ["j-left", "j-right"]
        for name in await here.names(PODS):
            await here.set_status(name, {"phase": "Succeeded"})
        assert await conditions(here, PAIR) == ["Succeeded"]


@virtual_time
async def test_the_kind_decides_about_refusals_of_the_api_server() -> None:
    async with operated(PAIR, {"image": ""}) as here:
        assert await conditions(here, PAIR) == ["Failed"]


@virtual_time
async def test_a_kind_whose_child_is_a_batch_job_that_owns_the_pods() -> None:
    """The pods are found by their labels, and their events enqueue the job although another object controls them."""
    async with operated(
        BATCH, {"template": {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"}}
    ) as here:
        (job,) = (await here.client.list(BATCH_JOBS.resource, "ns")).items
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": "j",
            "uid": job["metadata"]["uid"],
            "controller": True,
        }
        metadata = {"name": "j-x1", "labels": selector(BATCH, "j"), "ownerReferences": [owner]}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": job["spec"]["template"]["spec"]}
        await here.client.create(PODS, body, namespace="ns")
        assert await conditions(here, BATCH) == []
        await here.set_status("j-x1", {"phase": "Running"})
        assert await conditions(here, BATCH) == ["Running"]
        patch = {"status": {"succeeded": 1}}
        await here.client.patch(BATCH_JOBS.resource, "j", "ns", patch, subresource="status")
        assert await conditions(here, BATCH) == ["Running", "Succeeded"]
