"""TrainJobs with the whole operator on the embedded API server, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.controllers.shell import JOBS, pytorch_job
from tests.controllers.test_shell_operator import QUIET, Stage, stage
from tests.runtime.virtual_time import virtual_time
from trainop.controllers.train_jobs import TRAINER_WEBHOOKS
from trainop.engine.schema.crd import crd
from trainop.kinds.jax import JAX
from trainop.kinds.mpi.crd import mpi_crd
from trainop.kinds.mpi.transport import LAUNCHER_JOBS
from trainop.kinds.trainjob.crd import train_job_crds
from trainop.kinds.trainjob.names import CLUSTER_RUNTIMES, RUNTIMES, TRAIN_JOBS
from trainop.kinds.trainjob.runtimes import shipped_runtimes
from trainop.runtime.errors import ApiError, InvalidError
from trainop.runtime.objects.metadata import CUSTOM_RESOURCE_DEFINITIONS, PODS, Json
from trainop.runtime.webhook.injection import VALIDATING_WEBHOOK_CONFIGURATIONS

TORCH, JAX_RUNTIME, *MPI = shipped_runtimes()
WITH_TRAIN_JOBS = replace(QUIET, schemes=("trainjob",))


@asynccontextmanager
async def world(*, schemes: tuple[str, ...] = ("trainjob",), foreign: bool = False) -> AsyncIterator[Stage]:
    """The operator with the CRDs of TrainJobs and the runtimes; with `foreign`, the CRDs are those of Kubeflow
    Trainer."""
    async with stage(replace(QUIET, schemes=schemes), run=False) as here:
        await here.client.create(CUSTOM_RESOURCE_DEFINITIONS, crd(JAX))
        for each in train_job_crds():
            names = {name: value for name, value in each["spec"]["names"].items() if name != "categories"}
            theirs = {**each, "spec": {**each["spec"], "names": names}}
            await here.client.create(CUSTOM_RESOURCE_DEFINITIONS, theirs if foreign else each)
        for runtime in (TORCH, JAX_RUNTIME):
            await here.client.create(CLUSTER_RUNTIMES, runtime)
        running = asyncio.create_task(here.manager.run())
        await asyncio.sleep(1)
        yield here
        here.manager.stop()
        assert await running == 0


async def submit(here: Stage, name: str = "t", runtime: str = "torch-distributed", **spec: Any) -> Json:
    reference = spec.pop("runtimeRef", {"name": runtime})
    made = await here.client.create(
        TRAIN_JOBS,
        {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"name": name, "namespace": "ns"},
            "spec": {"runtimeRef": reference, **spec},
        },
    )
    await asyncio.sleep(5)
    return made


async def change(here: Stage, **spec: Any) -> None:
    await here.client.patch(TRAIN_JOBS, "t", "ns", {"spec": spec})
    await asyncio.sleep(5)


async def status(here: Stage, name: str = "t") -> Json:
    found: Json = (await here.client.get(TRAIN_JOBS, name, "ns")).get("status", {})
    return found


async def conditions(here: Stage, name: str = "t") -> list[tuple[str, str, str]]:
    return [(c["type"], c["status"], c["reason"]) for c in (await status(here, name)).get("conditions", [])]


async def end_pods(here: Stage, phase: str) -> None:
    for name in await here.names(PODS):
        await here.set_status(name, {"phase": phase})
    await asyncio.sleep(5)


@virtual_time
async def test_from_creation_to_the_end_of_all_nodes() -> None:
    async with world() as here:
        await submit(here, trainer={"numNodes": 2})
        assert await here.names(PODS) == ["t-worker-0", "t-worker-1"]
        await end_pods(here, "Running")
        found = await status(here)
        assert found["jobsStatus"] == [
            {"name": "node", "active": 1, "failed": 0, "ready": 1, "succeeded": 0, "suspended": 0}
        ]
        assert not found.get("conditions")
        await here.set_status("t-worker-0", {"phase": "Succeeded"})
        await asyncio.sleep(5)
        assert await conditions(here) == []
        await here.set_status("t-worker-1", {"phase": "Succeeded"})
        await asyncio.sleep(5)
        assert await conditions(here) == [("Complete", "True", "AllJobsCompleted")]
        (created,) = await here.events("SuccessfulCreate")
        assert created["message"] == "Created PyTorchJob: t"
        before = len(here.transport.writes)
        await asyncio.sleep(600)
        assert here.transport.writes[before:] == []


@virtual_time
async def test_the_deletion_takes_everything_along() -> None:
    async with world() as here:
        await submit(here)
        await here.client.delete(TRAIN_JOBS, "t", "ns")
        await asyncio.sleep(60)
        assert await here.names(JOBS) == []
        assert await here.names(TRAIN_JOBS) == []


@virtual_time
async def test_a_failure_is_shown_with_its_cause() -> None:
    async with world() as here:
        await here.client.patch(CLUSTER_RUNTIMES, "torch-distributed", None, _backoff(0))
        await submit(here)
        await end_pods(here, "Failed")
        (failed,) = (await status(here))["conditions"]
        assert (failed["type"], failed["reason"]) == ("Failed", "FailedJobs")
        assert "worker-0" in failed["message"]


def _backoff(limit: int) -> Json:
    (job,) = TORCH["spec"]["template"]["spec"]["replicatedJobs"]
    pod = {"spec": {**job["template"]["spec"]["template"]["spec"], "restartPolicy": "Never"}}
    template = {**job["template"], "spec": {"backoffLimit": limit, "template": pod}}
    return {"spec": {"template": {"spec": {"replicatedJobs": [{**job, "template": template}]}}}}


@virtual_time
async def test_suspend_passes_through_and_a_suspended_job_may_be_changed() -> None:
    async with world() as here:
        await submit(here, suspend=True)
        assert await here.names(PODS) == []
        assert await conditions(here) == [("Suspended", "True", "Suspended")]
        await change(here, trainer={"numNodes": 3})
        await change(here, suspend=False)
        assert await here.names(PODS) == ["t-worker-0", "t-worker-1", "t-worker-2"]
        assert await conditions(here) == [("Suspended", "False", "Resumed")]
        await end_pods(here, "Running")
        await change(here, suspend=True)
        assert await here.names(PODS) == []
        assert (await status(here))["jobsStatus"][0]["suspended"] == 1


@virtual_time
async def test_a_job_that_runs_stays_as_it_was_made() -> None:
    async with world() as here:
        await submit(here)
        await change(here, trainer={"numNodes": 3})
        await here.client.delete(CLUSTER_RUNTIMES, "torch-distributed")
        await change(here, trainer={"numNodes": 4})
        assert await here.names(PODS) == ["t-worker-0"]
        (told,) = await here.events("ChangeIgnored")
        assert "the job runs as it was made: set spec.suspend to true and back to false" in told["message"]
        await change(here, suspend=True)
        assert await here.names(PODS) == []


@virtual_time
async def test_a_change_that_has_an_effect_or_none_is_not_called_ignored() -> None:
    async with world() as here:
        await submit(here, suspend=True, trainer={"numNodes": 1})
        await change(here, trainer={"numNodes": 2})
        await change(here, suspend=False)
        await change(here, trainer={"numNodes": 3}, suspend=True)
        await change(here, suspend=False)
        assert await here.names(PODS) == ["t-worker-0", "t-worker-1", "t-worker-2"]
        await end_pods(here, "Running")
        assert await here.events("ChangeIgnored") == []


@virtual_time
async def test_what_another_controller_does_to_suspend_is_left_to_it() -> None:
    """Kueue suspends the PyTorchJob, which has its queue."""
    async with world() as here:
        await submit(here)
        await here.client.patch(JOBS, "t", "ns", {"spec": {"runPolicy": {"suspend": True}}})
        await asyncio.sleep(5)
        assert await here.names(PODS) == []
        await change(here, trainer={"numNodes": 2})
        assert await here.names(PODS) == []
        await here.client.patch(JOBS, "t", "ns", {"spec": {"runPolicy": {"suspend": False}}})
        await asyncio.sleep(5)
        assert await here.names(PODS) == ["t-worker-0", "t-worker-1"]


@virtual_time
async def test_a_runtime_of_the_namespace_and_one_that_comes_later() -> None:
    async with world() as here:
        await submit(here, runtimeRef={"name": "mine", "kind": "TrainingRuntime"})
        (failed,) = (await status(here))["conditions"]
        assert failed["reason"] == "TrainingRuntimeNotSupported"
        assert failed["message"] == (
            "spec.runtimeRef.name: there is no TrainingRuntime mine in namespace ns;"
            " kubectl get trainingruntimes lists them"
        )
        (event,) = await here.events("TrainJobRefused")
        assert event["message"] == failed["message"]
        mine = {**TORCH, "kind": "TrainingRuntime", "metadata": {"name": "mine", "namespace": "ns"}}
        await here.client.create(RUNTIMES, mine)
        await asyncio.sleep(60)
        assert await here.names(PODS) == ["t-worker-0"]
        assert await conditions(here) == []
        assert len(await here.events("TrainJobRefused")) == 1


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"runtimeRef": {"name": "x", "kind": "Other"}}, "spec.runtimeRef: Unsupported value"),
        ({"runtimeRef": {"name": "x", "apiGroup": "other"}}, "spec.runtimeRef: Unsupported value"),
        ({"initializer": {"model": {"storageUri": "hf://x"}}}, "spec.initializer: Forbidden: not supported"),
        ({"runtime": "jax-distributed"}, "spec.runtimeRef: this runtime needs JAXJobs: add --enable-scheme=JAXJob"),
    ],
)
@virtual_time
async def test_what_cannot_be_run_is_refused_with_a_reason(spec: Json, text: str) -> None:
    async with world(schemes=("TrainJob", "PyTorchJob")) as here:
        await submit(here, **spec)
        (failed,) = (await status(here))["conditions"]
        assert (failed["type"], failed["status"]) == ("Failed", "True")
        assert failed["message"].startswith(text)
        assert await here.names(PODS) == []
        await asyncio.sleep(300)
        assert len(await here.events("TrainJobRefused")) == 1


@virtual_time
async def test_a_job_of_somebody_else_keeps_its_name() -> None:
    async with world() as here:
        theirs = pytorch_job()
        theirs["metadata"] = {"name": "t"}
        made = await here.submit(theirs)
        await submit(here)
        (failed,) = (await status(here))["conditions"]
        assert failed["message"] == "metadata.name: there is another PyTorchJob ns/t: choose another name"
        assert (await here.job("t"))["metadata"]["uid"] == made["metadata"]["uid"]


@virtual_time
async def test_a_job_that_the_api_server_refuses_fails_with_its_message() -> None:
    async with world() as here:
        await here.client.patch(
            CLUSTER_RUNTIMES,
            "torch-distributed",
            None,
            {"spec": {"template": {"metadata": {"labels": {"not a label": "x"}}}}},
        )
        await submit(here)
        (failed,) = (await status(here))["conditions"]
        assert failed["message"].startswith("the API server refuses the PyTorchJob made of this TrainJob: ")
        assert "not a label" in failed["message"]


@virtual_time
async def test_a_job_of_multikueue_is_not_touched() -> None:
    async with world() as here:
        await submit(here, managedBy="kueue.x-k8s.io/multikueue")
        assert await status(here) == {}
        assert await here.names(JOBS) == []


@virtual_time
async def test_nothing_is_done_without_the_scheme() -> None:
    async with world(schemes=()) as here:
        await submit(here)
        assert await status(here) == {}
        assert await here.names(JOBS) == []


@pytest.mark.parametrize("found", ["crds", "webhooks"])
@virtual_time
async def test_nothing_is_done_where_kubeflow_trainer_is_installed(found: str) -> None:
    async with world(foreign=found == "crds") as here:
        if found == "webhooks":
            about = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
            await here.client.create(
                VALIDATING_WEBHOOK_CONFIGURATIONS, {**about, "metadata": {"name": TRAINER_WEBHOOKS}}
            )
        await submit(here)
        assert await status(here) == {}
        assert await here.names(JOBS) == []
        (event,) = await here.events("NotManaged")
        assert "Kubeflow Trainer" in event["message"]
        if found == "webhooks":
            await here.client.delete(VALIDATING_WEBHOOK_CONFIGURATIONS, TRAINER_WEBHOOKS)
            await asyncio.sleep(60)
            assert await here.names(PODS) == ["t-worker-0"]


@virtual_time
async def test_what_kubeflow_trainer_holds_immutable_is_refused_by_the_crd() -> None:
    async with world() as here:
        await submit(here)
        for spec in ({"runtimeRef": {"name": "jax-distributed"}}, {"managedBy": "kueue.x-k8s.io/multikueue"}):
            with pytest.raises(InvalidError, match="is immutable"):
                await here.client.patch(TRAIN_JOBS, "t", "ns", {"spec": spec})
        with pytest.raises(ApiError, match="managedBy must be"):
            await submit(here, "other", managedBy="me")


@virtual_time
async def test_progress_passes_through() -> None:
    async with world() as here:
        await submit(here)
        report = {"progressPercentage": 30, "metrics": [{"name": "loss", "value": "0.5"}]}
        await here.client.patch(JOBS, "t", "ns", {"status": {"trainerStatus": report}}, subresource="status")
        await asyncio.sleep(5)
        assert (await status(here))["trainerStatus"] == report


@virtual_time
async def test_a_deleted_job_is_made_again() -> None:
    async with world() as here:
        await submit(here)
        with contextlib.suppress(ApiError):
            await here.client.delete(JOBS, "t", "ns")
        await asyncio.sleep(30)
        assert await here.names(PODS) == ["t-worker-0"]


@virtual_time
async def test_a_new_job_waits_for_the_end_of_the_one_before_of_its_name() -> None:
    async with world() as here:
        await submit(here)
        await here.client.patch(JOBS, "t", "ns", {"metadata": {"finalizers": ["example.com/stay"]}})
        await here.client.delete(TRAIN_JOBS, "t", "ns")
        await asyncio.sleep(5)
        before = (await here.job("t"))["metadata"]["uid"]
        await submit(here)
        assert await conditions(here) == []
        await here.client.patch(JOBS, "t", "ns", {"metadata": {"finalizers": None}})
        await asyncio.sleep(30)
        assert (await here.job("t"))["metadata"]["uid"] != before


@virtual_time
async def test_the_runtimes_of_mpi_become_mpi_jobs_over_ssh() -> None:
    async with world() as here:
        await here.client.create(CUSTOM_RESOURCE_DEFINITIONS, mpi_crd())
        await asyncio.sleep(120)  # the operator discovers kinds whose CRD was missing
        for runtime in MPI:
            await here.client.create(CLUSTER_RUNTIMES, runtime)
        await submit(here, runtime="deepspeed-distributed", trainer={"numNodes": 3, "command": ["mpirun"]})
        assert await here.names(PODS) == ["t-worker-0", "t-worker-1"]
        assert await here.names(LAUNCHER_JOBS) == ["t-launcher"]
        parts = [(each["name"], each["active"]) for each in (await status(here))["jobsStatus"]]
        assert parts == [("launcher", 1), ("node", 1)]
        await change(here, suspend=True)
        assert await here.names(PODS) == []
        assert await conditions(here) == [("Suspended", "True", "Suspended")]
