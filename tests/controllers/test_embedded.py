"""All kinds and their companion objects with the whole operator on the embedded API server, in virtual time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.controllers.kinds import KINDS, last, line, make
from tests.controllers.test_shell_operator import Stage, running, stage
from tests.runtime.virtual_time import virtual_time
from trainop.engine.extensions import RESTART_SCOPE
from trainop.engine.framework import JOB_ROLE
from trainop.engine.schema.crd import crd
from trainop.kinds import tf_config
from trainop.programs.schemes import FRAMEWORKS
from trainop.runtime.client.transport import Request
from trainop.runtime.objects.metadata import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    HORIZONTAL_POD_AUTOSCALERS,
    PODS,
    SERVICES,
    Json,
)


async def submit(here: Stage, kind: str, *args: Any, **fields: Any) -> Json:
    framework = FRAMEWORKS[kind]
    await here.client.create(CUSTOM_RESOURCE_DEFINITIONS, crd(framework))
    await asyncio.sleep(120)  # the operator discovers kinds whose CRD was missing
    job = make(kind, *args, **fields)
    job["metadata"] = {"name": "j", "namespace": "ns", "annotations": job["metadata"]["annotations"]}
    await here.client.create(framework.resource, job, namespace="ns")
    await asyncio.sleep(5)
    return await here.client.get(framework.resource, "j", "ns")


async def state(here: Stage, kind: str) -> list[str]:
    job = await here.client.get(FRAMEWORKS[kind].resource, "j", "ns")
    return [condition["type"] for condition in job["status"]["conditions"] if condition["status"] == "True"]


async def run_pods(here: Stage) -> None:
    for name in await here.names(PODS):
        await here.set_status(name, {"phase": "Running"})
    await asyncio.sleep(5)


@pytest.mark.parametrize("kind", KINDS)
@virtual_time
async def test_a_whole_job_restarts_also_across_a_restart_of_the_operator(kind: str) -> None:
    fields = {"jobMode": "MXTrain"} if kind == "MXJob" else {}
    async with stage(crds=False, run=False) as here:
        async with running(here.manager):
            await submit(here, kind, policy="OnFailure", annotations={RESTART_SCOPE: "job"}, **fields)
            before = {pod["metadata"]["uid"] for pod in (await here.client.list(PODS, "ns")).items}
            assert await here.names(PODS) == await here.names(SERVICES)
            await run_pods(here)
            assert await state(here, kind) == ["Created", "Running"]
        # a finalizer keeps the first pod while the operator is stopped
        names = await here.names(PODS)
        await here.client.patch(PODS, names[0], "ns", {"metadata": {"finalizers": ["example.com/stay"]}})
        await here.set_status(last(kind), {"phase": "Failed"})
        async with running(here.operator()):
            await asyncio.sleep(90)
            assert await here.names(PODS) == names[:1]
            assert await state(here, kind) == ["Created", "Restarting"]
        async with running(here.operator()):
            await asyncio.sleep(5)
            await here.client.patch(PODS, names[0], "ns", {"metadata": {"finalizers": None}})
            await asyncio.sleep(5)
            assert await here.names(PODS) == names
            await run_pods(here)
            assert await state(here, kind) == ["Created", "Running"]
        after = {pod["metadata"]["uid"] for pod in (await here.client.list(PODS, "ns")).items}
        assert not before & after
        job = await here.client.get(FRAMEWORKS[kind].resource, "j", "ns")
        assert json.loads(job["metadata"]["annotations"]["trainop.kubeflow.org/restarts"])["failures"] == 1
        assert len(await here.events(f"{kind}Restarting")) == 1


@pytest.mark.case("frameworks-v1-32", "abcde")
@virtual_time
async def test_a_jax_job_from_its_coordinator_to_its_scale() -> None:
    async with stage(crds=False) as here:
        await submit(here, "JAXJob", {"Worker": 3})
        pods = {pod["metadata"]["name"]: pod for pod in (await here.client.list(PODS, "ns")).items}
        assert line(pods["j-worker-2"]) == (
            "PYTHONUNBUFFERED=1 COORDINATOR_PORT=6666 COORDINATOR_ADDRESS=j-worker-0 NUM_PROCESSES=3 PROCESS_ID=2"
        )
        ports = [service["spec"]["ports"] for service in (await here.client.list(SERVICES, "ns")).items]
        assert [[(port["name"], port["port"]) for port in each] for each in ports] == [[("jaxjob-port", 6666)]] * 3
        assert [name for name, pod in pods.items() if JOB_ROLE in pod["metadata"]["labels"]] == ["j-worker-0"]
        await run_pods(here)
        for name in ("j-worker-0", "j-worker-1"):
            await here.set_status(name, {"phase": "Succeeded"})
        await asyncio.sleep(5)
        assert await state(here, "JAXJob") == ["Created", "Running"]
        path = FRAMEWORKS["JAXJob"].resource.path("ns", "j", "scale")
        scale = json.loads((await here.client.request(Request("GET", path))).body)
        assert (scale["spec"], scale["status"]["replicas"]) == ({"replicas": 3}, 1)
        assert scale["status"]["selector"] == (
            "training.kubeflow.org/job-name=j,training.kubeflow.org/operator-name=jaxjob-controller,"
            "training.kubeflow.org/replica-type=worker"
        )
        await here.set_status("j-worker-2", {"phase": "Succeeded"})
        await asyncio.sleep(5)
        job = await here.client.get(FRAMEWORKS["JAXJob"].resource, "j", "ns")
        assert job["status"]["conditions"][-1]["message"] == "JAXJob ns/j successfully completed."


@virtual_time
async def test_an_autoscaler_comes_and_goes_with_the_job() -> None:
    metrics = [{"type": "Resource", "resource": {"name": "cpu"}}]
    async with stage(crds=False) as here:
        job = await submit(here, "PyTorchJob", {"Worker": 2}, elasticPolicy={"maxReplicas": 3, "metrics": metrics})
        (made,) = (await here.client.list(HORIZONTAL_POD_AUTOSCALERS, "ns")).items
        assert (made["metadata"]["name"], made["spec"]["minReplicas"], made["spec"]["maxReplicas"]) == ("j", 3, 3)
        assert made["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
        writes = len(here.transport.writes)
        await run_pods(here)
        await asyncio.sleep(600)
        assert not any("autoscaling" in write for write in here.transport.writes[writes:])
        for name in await here.names(PODS):
            await here.set_status(name, {"phase": "Succeeded"})
        await asyncio.sleep(5)
        assert (await here.client.list(HORIZONTAL_POD_AUTOSCALERS, "ns")).items == []


@virtual_time
async def test_a_large_tf_config_is_shared_and_goes_with_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf_config, "MAX_CLUSTER_IN_ENVIRONMENT", 60)
    async with stage(crds=False) as here:
        await submit(here, "TFJob", {"Worker": 3})
        (shared,) = (await here.client.list(CONFIG_MAPS, "ns")).items
        assert json.loads(shared["data"]["cluster.json"]) == {"worker": [f"j-worker-{i}.ns.svc:2222" for i in range(3)]}
        specs = {"Worker": {"replicas": 4}}
        await here.client.patch(FRAMEWORKS["TFJob"].resource, "j", "ns", {"spec": {"tfReplicaSpecs": specs}})
        await asyncio.sleep(5)
        (shared,) = (await here.client.list(CONFIG_MAPS, "ns")).items
        assert len(json.loads(shared["data"]["cluster.json"])["worker"]) == 4
        await here.client.delete(FRAMEWORKS["TFJob"].resource, "j", "ns")
        await asyncio.sleep(60)
        assert (await here.client.list(CONFIG_MAPS, "ns")).items == []
