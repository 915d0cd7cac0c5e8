"""The whole operator with `--kueue` on the embedded API server, in virtual time; the test decides for Kueue."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.controllers.kinds import KINDS, make
from tests.controllers.test_shell_operator import QUIET, Stage, running, stage
from tests.engine.queue_world import QUEUE
from tests.runtime.virtual_time import virtual_time
from trainop.engine.kueue import FLAVORS, WORKLOAD_CLASSES, WORKLOADS
from trainop.engine.schema.crd import crd
from trainop.errors import StartError
from trainop.programs.queues import QUEUED, with_queues
from trainop.programs.schemes import FRAMEWORKS
from trainop.runtime.client.transport import Request, Stream
from trainop.runtime.objects.metadata import CUSTOM_RESOURCE_DEFINITIONS, PODS, Json, Resource

SETTINGS = replace(QUIET, queued=QUEUED)
NOW = "2026-01-01T00:00:00Z"


def kueue_crd(resource: Resource) -> Json:
    """Without the schema of Kueue's own, which KUEUE_CRDS may name: `config/components/crd/bases` of its module."""
    if folder := os.environ.get("KUEUE_CRDS"):
        found: Json = yaml.safe_load(Path(folder, f"kueue.x-k8s.io_{resource.plural}.yaml").read_text("utf-8"))
        found["spec"]["versions"] = [each for each in found["spec"]["versions"] if each["name"] == resource.version]
        return found | {"status": {}}
    anything: Json = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema: Json = {
        "type": "object",
        "properties": {"spec": anything, "status": anything, "value": {"type": "integer"}},
    }
    version = {
        "name": resource.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
    }
    names = {"plural": resource.plural, "kind": resource.kind, "singular": resource.kind.lower()}
    scope = "Namespaced" if resource.namespaced else "Cluster"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{resource.group}"},
        "spec": {"group": resource.group, "names": names, "scope": scope, "versions": [version]},
    }


class Queue:
    """Kueue's part."""

    def __init__(self, here: Stage) -> None:
        self.here = here

    async def install(self) -> None:
        for resource in (WORKLOADS, FLAVORS, WORKLOAD_CLASSES):
            await self.here.client.create(CUSTOM_RESOURCE_DEFINITIONS, kueue_crd(resource))
        spec = {"nodeLabels": {"pool": "spot"}, "tolerations": [{"key": "spot", "operator": "Exists"}]}
        flavor = {"apiVersion": FLAVORS.api_version, "kind": FLAVORS.kind, "metadata": {"name": "spot"}, "spec": spec}
        await self.here.client.create(FLAVORS, flavor)

    async def workload(self) -> Json:
        (found,) = (await self.here.client.list(WORKLOADS, "ns")).items
        return found

    async def said(self) -> dict[str, tuple[str, str]]:
        found = (await self.workload())["status"]["conditions"]
        return {each["type"]: (each["status"], each["reason"]) for each in found}

    async def say(self, message: str = "", status: Json | None = None, **conditions: tuple[str, str]) -> None:
        found = await self.workload()
        known = {each["type"]: each for each in found.get("status", {}).get("conditions", ())}
        for type_, (value, reason) in conditions.items():
            new = {"type": type_, "status": value, "reason": reason, "message": message}
            known[type_] = {**new, "lastTransitionTime": NOW}
        body = {"status": {**(status or {}), "conditions": list(known.values())}}
        await self.here.client.patch(WORKLOADS, found["metadata"]["name"], "ns", body, subresource="status")
        await asyncio.sleep(5)

    async def admit(self) -> None:
        sets = (await self.workload())["spec"]["podSets"]
        assigned = [
            {"name": each["name"], "flavors": {"cpu": "spot"}, "count": each["count"], "resourceUsage": {"cpu": "1"}}
            for each in sets
        ]
        admission = {"clusterQueue": "cq", "podSetAssignments": assigned}
        reserved, admitted = ("True", "QuotaReserved"), ("True", "Admitted")
        await self.say("", {"admission": admission}, QuotaReserved=reserved, Admitted=admitted)


def queued(kind: str, **fields: Any) -> Json:
    job = make(kind, policy="Never", **fields)
    job["metadata"] = {"name": "j", "namespace": "ns", "labels": {QUEUE: "q"}}
    return job


@pytest.mark.parametrize("kind", KINDS)
@virtual_time
async def test_job_of_a_queue_from_its_creation_to_its_end(kind: str) -> None:
    resource = FRAMEWORKS[kind].resource
    async with stage(SETTINGS, crds=False, run=False) as here:
        queue = Queue(here)
        await queue.install()
        await here.client.create(CUSTOM_RESOURCE_DEFINITIONS, crd(FRAMEWORKS[kind]))
        fields = {"jobMode": "MXTrain"} if kind == "MXJob" else {}
        async with running(here.manager):
            await here.client.create(resource, queued(kind, **fields), namespace="ns")
            await asyncio.sleep(5)
            assert await here.names(PODS) == []
            job = await here.client.get(resource, "j", "ns")
            assert job["spec"]["runPolicy"]["suspend"] is True
            await queue.admit()
            names = await here.names(PODS)
            assert len(names) == sum(each["count"] for each in (await queue.workload())["spec"]["podSets"])
            for each in (await here.client.list(PODS, "ns")).items:
                assert each["spec"]["nodeSelector"] == {"pool": "spot"}
        async with running(here.operator(SETTINGS)):  # a restart of the operator changes nothing
            await asyncio.sleep(5)
            assert await here.names(PODS) == names
            for name in names:
                await here.set_status(name, {"phase": "Running"})
            await asyncio.sleep(5)
            assert (await queue.said())["PodsReady"] == ("True", "Started")
            await queue.say("make room", Evicted=("True", "Preempted"))
            await asyncio.sleep(60)
            assert await here.names(PODS) == []
            assert (await queue.said())["QuotaReserved"][0] == "False"
            assert "admission" not in (await queue.workload())["status"]
            job = await here.client.get(resource, "j", "ns")
            assert job["spec"]["runPolicy"]["suspend"] is True
            await queue.say(Evicted=("False", "QuotaReserved"))
            await queue.admit()
            assert await here.names(PODS) == names
            for name in names:
                await here.set_status(name, succeeded(kind))
            await asyncio.sleep(10)
            assert (await queue.said())["Finished"] == ("True", "Succeeded")
            await here.client.delete(resource, "j", "ns")
            await asyncio.sleep(60)
            assert await here.names(WORKLOADS) == []


def succeeded(kind: str) -> Json:
    state = {"terminated": {"exitCode": 0, "reason": "Completed"}}
    return {"phase": "Succeeded", "containerStatuses": [{"name": FRAMEWORKS[kind].container, "state": state}]}


@virtual_time
async def test_crds_of_kueue_may_come_later() -> None:
    resource = FRAMEWORKS["MXJob"].resource
    async with stage(SETTINGS, crds=False, run=False) as here:
        queue = Queue(here)
        await here.client.create(CUSTOM_RESOURCE_DEFINITIONS, crd(FRAMEWORKS["MXJob"]))
        async with running(here.manager):
            await here.client.create(resource, queued("MXJob", jobMode="MXTrain"), namespace="ns")
            await asyncio.sleep(30)
            job = await here.client.get(resource, "j", "ns")
            (shown,) = (each for each in job["status"]["conditions"] if each["type"] == "Admitted")
            assert shown["reason"] == "WorkloadUnavailable"
            assert await here.names(PODS) == []
            await queue.install()
            await asyncio.sleep(200)
            await queue.admit()
            assert await here.names(PODS)


@pytest.mark.parametrize("names", [(), ("PyTorchJob",)])
@virtual_time
async def test_a_kind_without_the_flag_is_as_without_kueue(names: tuple[str, ...]) -> None:
    """Its job starts at once, whatever label it has, and without the flag nothing of Kueue is asked for."""
    resource = FRAMEWORKS["MXJob"].resource
    async with stage(crds=False, run=False) as here:
        await Queue(here).install()
        await here.client.create(CUSTOM_RESOURCE_DEFINITIONS, crd(FRAMEWORKS["MXJob"]))
        opened, opening = list[str](), here.transport.open

        async def open_watch(request: Request) -> Stream:
            opened.append(request.path)
            return await opening(request)

        here.transport.open = open_watch  # type: ignore[method-assign]  # recorded
        async with running(here.operator(replace(QUIET, queued=names))):
            await here.client.create(resource, queued("MXJob", jobMode="MXTrain"), namespace="ns")
            await asyncio.sleep(120)
            assert len(await here.names(PODS)) == 4
            assert await here.names(WORKLOADS) == []
        asked = [each for each in (*opened, *here.transport.reads, *here.transport.writes) if "kueue" in each]
        assert any("/mxjobs" in each for each in opened)
        assert bool(asked) is bool(names), asked


def test_flag_names_only_kinds_that_can_be_queued() -> None:
    with pytest.raises(StartError, match="--kueue: CronJob, Job cannot be queued; kinds: TFJob, "):
        with_queues([], ("mxjob", "Job", "CronJob"))
