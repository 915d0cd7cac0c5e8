"""The controller of DIJobs on the embedded API server, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from tests.controllers.dijob import DiStage, di_stage
from tests.kinds.dijob_world import LABELS, template
from tests.runtime.virtual_time import virtual_time
from trainop.controllers.observe import observe_live
from trainop.engine.seen import Options
from trainop.kinds.dijob.crd import dijob_crd
from trainop.kinds.dijob.kind import DIJOB
from trainop.kinds.dijob.names import DIJOBS, Role
from trainop.kinds.dijob.seen import DiPod
from trainop.runtime import PODS, SERVICES
from trainop.runtime.objects.metadata import CUSTOM_RESOURCE_DEFINITIONS, Unstructured


@virtual_time
async def test_a_job_runs_through_with_few_writes() -> None:
    async with di_stage() as here:
        await here.submit(replicas=True)
        assert await here.pods() == await here.services() == ["a-coordinator"]
        await here.set_phase("a-coordinator", "Running")
        assert await here.phase() == "Running"
        name = await here.add(Role.COLLECTOR, "aaaaa")
        assert await here.services() == [name, "a-coordinator"]
        await here.set_phase("a-coordinator", "Succeeded")
        assert (await here.phase(), await here.pods(), await here.services()) == ("Succeeded", ["a-coordinator"], [])
        written = [each for each in here.writes if "/events" not in each]
        assert len(written) <= 2 + 1 + 3 + 1 + 2, written  # children, their deletion, and statuses
        created, succeeded = await here.stage.events("DIJobCreated"), await here.stage.events("DIJobSucceeded")
        assert [each["source"]["component"] for each in (*created, *succeeded)] == ["di-orchestrator"] * 2
        assert [each["message"] for each in succeeded] == ["DIJob a succeeded because coordinator succeeded"]


@pytest.mark.case("di-orchestrator-7", "a")
@virtual_time
async def test_a_coordinator_that_the_api_server_refuses() -> None:
    """The API server validates the image as it validates the amount of GPUs."""
    async with di_stage() as here:
        await here.submit(coordinator=template({"name": "di-container", "image": ""}))
        assert (await here.phase(), await here.pods(), await here.services()) == ("Created", [], [])
        (event,) = await here.stage.events("FailedCreate")
        assert event["type"] == "Warning"
        assert event["message"].startswith("Failed to create pod: a-coordinator error: ")
        before = _creates(here)
        await here.settle(300)
        assert before < _creates(here) < before + 10
        assert len(await here.stage.events("FailedCreate")) == 1
        good = {"spec": {"coordinator": {"template": template()}}}
        await here.client.patch(DIJOBS, "a", "ns", good)
        await here.settle()
        assert await here.pods() == ["a-coordinator"]


def _creates(here: DiStage) -> int:
    return sum(each.startswith("POST") and each.endswith("/pods") for each in here.writes)


@pytest.mark.case("di-orchestrator-12", "ab")
@virtual_time
async def test_a_restarted_operator_writes_nothing() -> None:
    async with di_stage(run=False) as here:
        async with here.operator():
            await here.submit("a")
            await here.set_phase("a-coordinator", "Running")
            await here.submit("b", cleanPodPolicy="All")
            await here.set_phase("b-coordinator", "Succeeded")
            assert await here.pods() == ["a-coordinator"]
        before = len(here.writes)
        async with here.operator():
            await here.settle(60)
            assert here.writes[before:] == []
            assert [await here.phase("a"), await here.phase("b")] == ["Running", "Succeeded"]
            assert len(await here.stage.events("DIJobCreated")) == 2


@pytest.mark.case("di-orchestrator-13", "ab")
@virtual_time
async def test_a_deleted_coordinator_comes_back() -> None:
    async with di_stage() as here:
        await here.submit()
        await here.set_phase("a-coordinator", "Running")
        uid = (await here.client.get(PODS, "a-coordinator", "ns"))["metadata"]["uid"]
        await here.client.delete(PODS, "a-coordinator", "ns", grace_seconds=0)
        await here.settle()
        assert (await here.client.get(PODS, "a-coordinator", "ns"))["metadata"]["uid"] != uid
        assert (await here.phase(), await here.services()) == ("Running", ["a-coordinator"])


@pytest.mark.case("di-orchestrator-14", "ab")
@virtual_time
async def test_services_are_created_again_and_follow_their_pods() -> None:
    async with di_stage() as here:
        await here.submit(replicas=True)
        name = await here.add(Role.COLLECTOR, "aaaaa")
        ports = (await here.client.get(SERVICES, name, "ns"))["spec"]["ports"]
        await here.client.delete(SERVICES, name, "ns")
        await here.settle()
        assert (await here.client.get(SERVICES, name, "ns"))["spec"]["ports"] == ports
        await here.client.delete(PODS, name, "ns", grace_seconds=0)
        await here.settle()
        assert await here.pods() == await here.services() == ["a-coordinator"]


@pytest.mark.case("di-orchestrator-15", "a")
@virtual_time
async def test_a_pod_without_owner_changes_nothing() -> None:
    async with di_stage() as here:
        await here.submit()
        labels = {**LABELS, "replica-type": "coordinator", "pod-name": "x"}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "labels": labels}, **template()}
        await here.client.create(PODS, body, namespace="ns")
        before = len(here.writes)
        await here.set_phase("x", "Failed")
        assert here.writes[before:] == []
        await here.set_phase("a-coordinator", "Running")
        assert (await here.phase(), await here.services()) == ("Running", ["a-coordinator"])


@pytest.mark.case("di-orchestrator-16", "a")
@virtual_time
async def test_the_coordinator_of_a_former_job_is_waited_for() -> None:
    async with di_stage() as here:
        await here.submit()
        await here.set_phase("a-coordinator", "Running")
        await here.client.patch(PODS, "a-coordinator", "ns", {"metadata": {"finalizers": ["test/slow"]}})
        await here.client.delete(DIJOBS, "a", "ns")
        await here.settle()
        job = await here.submit()
        assert await here.phase() == "Created"
        old = await here.client.get(PODS, "a-coordinator", "ns")
        assert "deletionTimestamp" in old["metadata"]
        await here.client.patch(PODS, "a-coordinator", "ns", {"metadata": {"finalizers": None}})
        await here.settle(35)
        (owner,) = (await here.client.get(PODS, "a-coordinator", "ns"))["metadata"]["ownerReferences"]
        assert owner["uid"] == job["metadata"]["uid"]
        assert await here.services() == ["a-coordinator"]
        assert await here.stage.events("FailedCreate") == []


@virtual_time
async def test_a_foreign_pod_with_the_name_of_the_coordinator_is_reported_once() -> None:
    async with di_stage() as here:
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a-coordinator"}, **template()}
        await here.client.create(PODS, body, namespace="ns")
        await here.submit()
        await here.settle(120)
        (event,) = await here.stage.events("FailedCreate")
        assert "already exists" in event["message"]
        assert await here.phase() == "Created"
        await here.client.delete(PODS, "a-coordinator", "ns", grace_seconds=0)
        await here.settle(60)
        assert await here.services() == ["a-coordinator"]


@pytest.mark.case("di-orchestrator-17", "a")
@virtual_time
async def test_no_pod_is_created_for_a_job_that_is_deleted_in_the_foreground() -> None:
    async with di_stage() as here:
        await here.submit()
        await here.client.patch(DIJOBS, "a", "ns", {"metadata": {"finalizers": ["test/slow"]}})
        before = _creates(here)
        await here.client.delete(DIJOBS, "a", "ns", propagation="Foreground")
        await here.client.delete(PODS, "a-coordinator", "ns", grace_seconds=0)
        await here.settle(60)
        assert (await here.pods(), _creates(here)) == ([], before)
        assert "deletionTimestamp" in (await here.job())["metadata"]


@virtual_time
async def test_a_service_whose_pod_the_cache_does_not_show_is_kept() -> None:
    """A pod that was changed so that the caches lose it, such as by another label, is still there."""
    async with di_stage() as here:
        await here.submit(replicas=True)
        name = await here.add(Role.COLLECTOR, "aaaaa")
        await here.client.patch(PODS, name, "ns", {"metadata": {"labels": {"group-name": "other"}}})
        await here.settle()
        assert await here.services() == [name, "a-coordinator"]


@virtual_time
async def test_the_operator_waits_for_the_crd() -> None:
    async with di_stage(crd=False) as here:
        await here.client.create(CUSTOM_RESOURCE_DEFINITIONS, dijob_crd())
        await here.settle(60)
        await here.submit()
        assert await here.pods() == ["a-coordinator"]


@virtual_time
async def test_many_replicas_get_their_services() -> None:
    async with di_stage() as here:
        await here.submit(replicas=True)
        await asyncio.gather(*(here.add(Role.COLLECTOR, f"{number:05}") for number in range(60)))
        await here.settle()
        assert len(await here.services()) == 61


@virtual_time
async def test_a_live_snapshot_has_the_children_by_their_labels() -> None:
    """What the reconciler reads if the caches have missed an event."""
    async with di_stage() as here:
        await here.submit()
        job = Unstructured(await here.job())
        seen = await observe_live(here.client, DIJOB, job, here.stage.clock.now(), Options())
        (pod,), (service,) = seen.pods, seen.services
        assert isinstance(pod, DiPod)
        assert (pod.metadata.name, pod.restart_policy, service.metadata.name) == (
            "a-coordinator",
            "Never",
            "a-coordinator",
        )
