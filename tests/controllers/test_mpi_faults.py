"""MPIJobs over ssh on the embedded API server: requests per job, and children that others delete or change."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.controllers.mpi import MpiStage, mpi_job, operated
from tests.runtime.virtual_time import virtual_time
from trainop.engine.framework import JOB_NAME, OPERATOR_NAME
from trainop.engine.gang_scheduler import PLUGIN_GROUPS, choose_scheduler
from trainop.engine.seen import Options
from trainop.kinds.mpi.ssh.annotations import REPLACE_FAILED
from trainop.kinds.mpi.ssh.finish import FINISH
from trainop.kinds.mpi.ssh.keys import are_usable
from trainop.kinds.mpi.transport import LAUNCHER_JOBS, MPI_V2, TRANSPORT
from trainop.runtime import PODS, Json
from trainop.runtime.errors import NotFoundError
from trainop.runtime.objects.metadata import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    SECRETS,
    SERVICES,
    Resource,
    owner_reference,
)

EXPIRING = {"ttlSecondsAfterFinished": 3600}


async def exists(here: MpiStage, resource: Resource, name: str) -> bool:
    try:
        await here.get(resource, name)
    except NotFoundError:
        return False
    return True


# Requests -------------------------------------------------------------------------------------------------------------


@virtual_time
async def test_the_requests_of_a_job_of_eight_workers() -> None:
    async with operated() as here:
        transport = here.stage.transport
        transport.reads.clear()
        transport.writes.clear()
        await here.submit(mpi_job(8))
        workers = [f"foo-worker-{index}" for index in range(8)]
        # The annotation, four objects, and the status with Created.
        written = [each for each in here.writes if "/events" not in each]
        assert len(written) == 8 + 6
        for name in [*workers, await here.create_launcher_pod()]:
            await here.stage.set_status(name, {"phase": "Running"})
        await here.settle()
        assert await here.conditions() == [("Created", "True"), ("Running", "True")]
        written = [each for each in here.writes if "/events" not in each]
        assert len(written) <= 16  # and the list of hosts, and the status with Running
        await here.end_launcher()
        assert (await here.conditions())[-1] == ("Succeeded", "True")
        assert len([each for each in here.writes if "/events" not in each]) <= 17
        assert transport.reads == []
        assert len(here.writes) <= 20  # with three events


@virtual_time
async def test_metrics_of_mpi_operator() -> None:
    async with operated() as here:
        value = here.metrics.registry.get_sample_value
        info = ("mpi_operator_job_info", {"launcher": "foo-launcher", "namespace": "ns"})
        await here.submit(mpi_job(1))
        assert value("mpi_operator_jobs_created_total") == 1
        assert value(*info) == 1
        await here.launch()
        await here.end_launcher()
        await here.submit(mpi_job(1, name="bad"))
        await here.end_launcher_of("bad", "Failed")
        assert value("mpi_operator_jobs_successful_total") == value("mpi_operator_jobs_failed_total") == 1
        await here.client.delete(MPI_V2, "foo", "ns")
        await here.settle()
        assert value(*info) is None
        assert value("mpi_operator_jobs_created_total") == 2


@virtual_time
async def test_a_worker_that_cannot_be_created() -> None:
    async with operated() as here:
        here.stage.transport.unavailable = "/pods"
        await here.submit(mpi_job(1))
        (text, *_) = await here.events("MPIJobFailed")
        assert text.startswith("worker pod created failed: ")
        here.stage.transport.unavailable = "nothing"
        await here.settle(60)
        assert await here.names(PODS) == ["foo-worker-0"]
        assert await here.conditions() == [("Created", "True")]


async def _with_groups(here: MpiStage) -> None:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": PLUGIN_GROUPS.version, "served": True, "storage": True, "schema": schema}
    names = {"plural": "podgroups", "singular": "podgroup", "kind": "PodGroup", "listKind": "PodGroupList"}
    spec = {"group": PLUGIN_GROUPS.group, "scope": "Namespaced", "names": names, "versions": [version]}
    definition = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "spec": spec}
    name = f"podgroups.{PLUGIN_GROUPS.group}"
    await here.client.create(CUSTOM_RESOURCE_DEFINITIONS, definition | {"metadata": {"name": name}})


@virtual_time
async def test_no_launcher_before_the_pod_group() -> None:
    """The Job controller would create its pod, which the group is to hold back."""
    async with operated(Options(gang=choose_scheduler("scheduler-plugins")), before=_with_groups) as here:
        here.stage.transport.unavailable = "/podgroups"
        await here.submit(mpi_job(1))
        await here.settle(60)
        assert await here.names(PLUGIN_GROUPS) == []
        assert await here.names(LAUNCHER_JOBS) == []
        assert await here.names(PODS) == []
        here.stage.transport.unavailable = "nothing"
        await here.settle(60)
        assert await here.names(PLUGIN_GROUPS) == ["foo"]
        assert await here.names(LAUNCHER_JOBS) == ["foo-launcher"]
        assert await here.names(PODS) == ["foo-worker-0"]


# The finalizer of the launcher's Job ----------------------------------------------------------------------------------


async def _expired_while_the_operator_was_away(here: MpiStage) -> None:
    """The launcher's Job has succeeded and its time to live is over, but its end is in no status."""
    job = await here.client.create(MPI_V2, mpi_job(1, run=EXPIRING), namespace="ns")
    await here.client.patch(MPI_V2, "foo", "ns", {"metadata": {"annotations": {TRANSPORT: "ssh"}}})
    status = {"conditions": [{"type": "Created", "status": "True", "reason": "MPIJobCreated", "message": ""}]}
    await here.client.patch(MPI_V2, "foo", "ns", {"status": status}, subresource="status")
    owner = owner_reference("kubeflow.org/v2beta1", "MPIJob", "foo", job["metadata"]["uid"])
    labels = {OPERATOR_NAME: "mpi-operator", JOB_NAME: "foo"}
    metadata = {"name": "foo-launcher", "labels": labels, "ownerReferences": [owner], "finalizers": [FINISH]}
    container = {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"}
    body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": {"spec": container}}}
    await here.client.create(LAUNCHER_JOBS, body, namespace="ns")
    await here.end_launcher()
    await here.client.delete(LAUNCHER_JOBS, "foo-launcher", "ns")
    assert await exists(here, LAUNCHER_JOBS, "foo-launcher")


@virtual_time
async def test_a_launcher_that_expired_while_the_operator_was_away_does_not_run_again() -> None:
    async with operated(before=_expired_while_the_operator_was_away) as here:
        await here.settle(10)
        assert (await here.conditions())[-1] == ("Succeeded", "True")
        assert (await here.job())["status"]["completionTime"] == "2026-01-01T00:10:00Z"
        assert not await exists(here, LAUNCHER_JOBS, "foo-launcher")
        assert not any("/jobs" in each and each.startswith("POST") for each in here.writes)


@pytest.mark.parametrize("propagation", ["Background", "Foreground", "Orphan"])
def test_a_deleted_job_leaves_no_finalizer(propagation: str) -> None:
    @virtual_time
    async def run() -> None:
        async with operated() as here:
            await here.submit(mpi_job(1, run=EXPIRING))
            assert (await here.get(LAUNCHER_JOBS, "foo-launcher"))["metadata"]["finalizers"] == [FINISH]
            await here.client.delete(MPI_V2, "foo", "ns", propagation=propagation)
            await here.settle(30)
            assert not await exists(here, MPI_V2, "foo")
            if propagation == "Orphan":
                assert "finalizers" not in (await here.get(LAUNCHER_JOBS, "foo-launcher"))["metadata"]
                await here.client.delete(LAUNCHER_JOBS, "foo-launcher", "ns")
                await here.settle()
            assert not await exists(here, LAUNCHER_JOBS, "foo-launcher")

    run()


async def _deleted_while_the_operator_was_away(here: MpiStage) -> None:
    await _expired_while_the_operator_was_away(here)
    await here.client.delete(MPI_V2, "foo", "ns")
    await here.settle()
    assert await exists(here, LAUNCHER_JOBS, "foo-launcher")


@virtual_time
async def test_a_launcher_whose_job_was_deleted_while_the_operator_was_away() -> None:
    async with operated(before=_deleted_while_the_operator_was_away) as here:
        await here.settle()
        assert not await exists(here, LAUNCHER_JOBS, "foo-launcher")


@virtual_time
async def test_a_launcher_that_a_user_deletes_is_created_again() -> None:
    async with operated() as here:
        await here.submit(mpi_job(1, run=EXPIRING))
        first = (await here.get(LAUNCHER_JOBS, "foo-launcher"))["metadata"]["uid"]
        await here.client.delete(LAUNCHER_JOBS, "foo-launcher", "ns")
        await here.settle(10)
        second = (await here.get(LAUNCHER_JOBS, "foo-launcher"))["metadata"]
        assert second["uid"] != first
        assert second["finalizers"] == [FINISH]
        assert await here.conditions() == [("Created", "True")]


@virtual_time
async def test_a_job_deletes_itself_after_its_time_to_live_on_request() -> None:
    async with operated(Options(mpi_job_ttl=True)) as here:
        await here.submit(mpi_job(1, run={"ttlSecondsAfterFinished": 60}))
        await here.launch()
        job: Json = await here.get(LAUNCHER_JOBS, "foo-launcher")
        assert job["spec"]["ttlSecondsAfterFinished"] == 60
        await here.job_status({"conditions": [{"type": "Failed", "status": "True", "reason": "r", "message": "m"}]})
        await here.settle(50)
        assert await exists(here, MPI_V2, "foo")
        await here.settle(20)
        assert not await exists(here, MPI_V2, "foo")
        assert not await exists(here, LAUNCHER_JOBS, "foo-launcher")
        assert len(await here.events("SuccessfulDeleteJob")) == 1


@pytest.mark.case("mpi-v2beta1-29", "a")
@virtual_time
async def test_a_resume_that_fails_is_retried() -> None:
    async with operated() as here:
        await here.submit(mpi_job(1, run={"suspend": True}))
        transport = here.stage.transport
        transport.unavailable = "/jobs/foo-launcher"
        await here.patch({"spec": {"runPolicy": {"suspend": False}}})
        assert (await here.get(LAUNCHER_JOBS, "foo-launcher"))["spec"]["suspend"] is True
        errors = "controller_runtime_reconcile_errors_total"
        assert (here.metrics.registry.get_sample_value(errors, {"controller": "mpi-operator"}) or 0) >= 1
        assert await here.names(PODS) == ["foo-worker-0"]
        transport.unavailable = "nothing"
        await here.settle(60)
        assert (await here.get(LAUNCHER_JOBS, "foo-launcher"))["spec"]["suspend"] is False


# Keys, names, files ---------------------------------------------------------------------------------------------------


@virtual_time
async def test_a_deleted_key_is_made_anew_for_the_next_worker() -> None:
    async with operated() as here:
        await here.submit(mpi_job(2))
        await here.run("foo-worker-0", "foo-worker-1")
        await here.client.delete(SECRETS, "foo-ssh", "ns")
        await here.settle(40)
        assert not await exists(here, SECRETS, "foo-ssh")  # nobody needs it
        await here.client.delete(PODS, "foo-worker-1", "ns", grace_seconds=0)
        await here.settle(40)
        assert await here.names(PODS) == ["foo-worker-0", "foo-worker-1"]
        assert are_usable(await here.get(SECRETS, "foo-ssh"))


@virtual_time
async def test_a_hostfile_that_others_edit_is_restored() -> None:
    async with operated() as here:
        await here.submit(mpi_job(1))
        before = (await here.get(CONFIG_MAPS, "foo-config"))["data"]["hostfile"]
        await here.client.patch(CONFIG_MAPS, "foo-config", "ns", {"data": {"hostfile": "evil\n"}})
        await here.settle()
        assert (await here.get(CONFIG_MAPS, "foo-config"))["data"]["hostfile"] == before
        await here.client.delete(CONFIG_MAPS, "foo-config", "ns")
        await here.settle()
        assert (await here.get(CONFIG_MAPS, "foo-config"))["data"]["hostfile"] == before


@pytest.mark.case("mpi-v2beta1-17", "a")
@pytest.mark.parametrize(
    ("resource", "name", "content"),
    [
        (SERVICES, "foo", {"spec": {"clusterIP": "None"}}),
        (CONFIG_MAPS, "foo-config", {"data": {"hostfile": "theirs"}}),
        (SECRETS, "foo-ssh", {"data": {"ssh-privatekey": "dGhlaXJz"}}),
        (LAUNCHER_JOBS, "foo-launcher", {}),
        (PODS, "foo-worker-0", {"spec": {"containers": [{"name": "c", "image": "i"}]}}),
    ],
)
def test_foreign_objects_are_never_changed(resource: Resource, name: str, content: dict[str, Any]) -> None:
    @virtual_time
    async def run() -> None:
        template = {"spec": {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"}}
        spec = content or {"spec": {"template": template}}

        async def occupy(here: MpiStage) -> None:
            body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}, **spec}
            await here.client.create(resource, body, namespace="ns")

        async with operated(before=occupy) as here:
            before = await here.get(resource, name)
            await here.submit(mpi_job(1))
            await here.settle(60)
            assert await here.get(resource, name) == before
            text = f'Resource "{name}" of Kind "{resource.kind}" already exists and is not managed by MPIJob'
            assert await here.events("ErrResourceExists") == [text]
            await here.client.delete(resource, name, "ns")
            await asyncio.sleep(60)
            assert (await here.get(LAUNCHER_JOBS, "foo-launcher"))["metadata"]["labels"][JOB_NAME] == "foo"

    run()


@virtual_time
async def test_failed_workers_are_replaced_while_the_launcher_retries() -> None:
    async with operated() as here:
        job = mpi_job(2)
        job["metadata"]["annotations"] = {REPLACE_FAILED: "true"}
        await here.submit(job)
        await here.launch()
        await here.run("foo-worker-0", "foo-worker-1")
        before = (await here.get(PODS, "foo-worker-1"))["metadata"]["uid"]
        await here.settle(30)
        await here.stage.set_status("foo-worker-1", {"phase": "Failed"})
        await here.settle(60)
        found = await here.get(PODS, "foo-worker-1")
        assert found["metadata"]["uid"] != before
        assert found["status"]["phase"] == "Pending"
        assert await here.events("WorkersReplaced") == ["Replacing failed workers: foo-worker-1"]
        await here.run("foo-worker-1")
        assert (await here.job())["status"]["replicaStatuses"]["Worker"] == {"active": 2}
