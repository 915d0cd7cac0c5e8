"""Writing companion objects: server-side apply, never over a foreign object, and the effect of refusals."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.controllers.shell import JOBS, KEY, Shell, api_error, pytorch_job
from tests.engine.builders import apply
from tests.runtime.virtual_time import virtual_time
from trainop.controllers.outcome import FIRST_RETRY
from trainop.runtime.errors import ApiError
from trainop.runtime.objects.metadata import HORIZONTAL_POD_AUTOSCALERS as HPAS
from trainop.runtime.objects.metadata import Json, Key, Unstructured

METRICS: list[Json] = [{"type": "Resource", "resource": {"name": "cpu"}}]
APPLY = "patch apply"


def elastic_job(**policy: Any) -> Json:
    return pytorch_job(0, 2, elasticPolicy={"minReplicas": 1, "maxReplicas": 3, "metrics": METRICS, **policy})


async def started(**policy: Any) -> Shell:
    shell = Shell()
    shell.client.put(JOBS, elastic_job(**policy))
    await shell.settle()
    return shell


@pytest.mark.case("frameworks-v1-17", "bc")
@virtual_time
async def test_an_autoscaler_is_applied_once_and_removed_with_suspension() -> None:
    shell = await started()
    assert shell.client.names(APPLY, HPAS) == ["j"]
    uid = shell.client.objects[HPAS, KEY]["metadata"]["uid"]
    shell.client.put(JOBS, shell.job() | {"spec": shell.job()["spec"] | {"runPolicy": {"suspend": True}}})
    await shell.settle()
    assert (HPAS, KEY) not in shell.client.objects
    (deleted,) = [call for call in shell.client.calls if call[:2] == ("delete", HPAS)]
    assert deleted.body["uid"] == uid
    shell.client.put(JOBS, shell.job() | {"spec": shell.job()["spec"] | {"runPolicy": {"suspend": False}}})
    await shell.settle()
    assert (HPAS, KEY) in shell.client.objects


@pytest.mark.case("frameworks-v1-17", "d")
@virtual_time
async def test_a_change_of_the_policy_names_the_object_that_it_changes() -> None:
    shell = await started()
    uid = shell.client.objects[HPAS, KEY]["metadata"]["uid"]
    spec = shell.job()["spec"]
    shell.client.put(JOBS, shell.job() | {"spec": spec | {"elasticPolicy": spec["elasticPolicy"] | {"maxReplicas": 5}}})
    await shell.settle()
    last = [call for call in shell.client.calls if call[:2] == (APPLY, HPAS)][-1]
    assert last.body["metadata"]["uid"] == uid
    assert shell.client.objects[HPAS, KEY]["spec"]["maxReplicas"] == 5
    assert len(shell.client.names("get", HPAS)) == 1


@virtual_time
async def test_its_events_enqueue_the_job_and_the_next_pass_waits_for_it() -> None:
    shell = Shell()
    shell.client.put(JOBS, elastic_job())
    shell.show()
    await shell.look()
    assert len(shell.reconciler._states.expectations) == 1
    await shell.settle()
    while await shell.woken():
        pass
    assert shell.client.names(APPLY, HPAS) == ["j"]
    del shell.client.objects[HPAS, KEY]
    shell.show(HPAS)
    assert await shell.woken()
    await shell.settle()
    assert shell.client.names(APPLY, HPAS) == ["j", "j"]


@virtual_time
async def test_what_the_cache_lost_is_read_live() -> None:
    shell = Shell()
    shell.client.put(JOBS, elastic_job())
    shell.show()
    await shell.look()
    shell.show(JOBS)
    await asyncio.sleep(400)
    await shell.look()
    assert shell.client.names("list", HPAS) == [
        "training.kubeflow.org/operator-name=pytorchjob-controller,training.kubeflow.org/job-name=j"
    ]
    assert shell.client.names(APPLY, HPAS) == ["j"]


@virtual_time
async def test_ours_without_labels_is_taken_over() -> None:
    """An object of an earlier operator has no labels of ours, so the watch does not show it."""
    shell = Shell()
    shell.client.put(JOBS, elastic_job())
    owner = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "j", "uid": "job-uid", "controller": True}
    before = shell.client.put(HPAS, {"metadata": {"name": "j", "namespace": "ns", "ownerReferences": [owner]}})
    shell.show(JOBS)
    await shell.look()
    await shell.settle()
    found = shell.client.objects[HPAS, KEY]
    assert found["metadata"]["uid"] == before["metadata"]["uid"]
    assert found["spec"]["maxReplicas"] == 3


@virtual_time
async def test_a_foreign_object_is_left_alone() -> None:
    shell = Shell()
    shell.client.put(JOBS, elastic_job())
    shell.client.put(HPAS, {"metadata": {"name": "j", "namespace": "ns"}, "spec": {"mine": 1}})
    shell.show(JOBS)
    for _ in range(3):
        result = await shell.look()
        shell.show()
    assert shell.client.objects[HPAS, KEY]["spec"] == {"mine": 1}
    assert shell.events.of("FailedCreateHorizontalPodAutoscaler") == [
        "Error creating: HorizontalPodAutoscaler j already exists and does not belong to PyTorchJob j"
    ]
    assert result.requeue_after == 30
    assert shell.pods() == ["j-worker-0", "j-worker-1"]


def refused(code: int, reason: str) -> ApiError:
    return api_error(code, reason, "wrong")


@virtual_time
@pytest.mark.parametrize(("code", "reason"), [(422, "Invalid"), (404, "NotFound"), (403, "Forbidden")])
async def test_a_refused_autoscaler_does_not_stop_the_job(code: int, reason: str) -> None:
    shell = Shell()
    shell.client.put(JOBS, elastic_job())
    shell.client.fail(APPLY, HPAS, refused(code, reason), times=9)
    result = await shell.settle()
    assert shell.pods() == ["j-worker-0", "j-worker-1"]
    assert result.requeue_after == pytest.approx(FIRST_RETRY, rel=0.2)
    shell.client.calls.clear()
    await shell.look()
    assert shell.client.calls == [], "no event of the job brings the next attempt forward"
    assert shell.events.of("FailedCreateHorizontalPodAutoscaler") == ["Error creating: wrong"]
    assert ("Failed", "True") not in shell.conditions()


@virtual_time
async def test_a_passing_failure_is_retried_with_back_off() -> None:
    shell = Shell()
    shell.client.put(JOBS, elastic_job())
    shell.show()
    shell.client.fail(APPLY, HPAS, refused(500, "InternalError"))
    with pytest.raises(ApiError):
        await shell.look()
    await shell.settle()
    assert (HPAS, KEY) in shell.client.objects


@virtual_time
async def test_a_conflict_causes_another_reconcile() -> None:
    shell = Shell()
    shell.client.put(JOBS, elastic_job())
    shell.show()
    shell.client.fail(APPLY, HPAS, refused(409, "Conflict"))
    assert (await shell.look()).requeue_after == 1
    assert shell.events.of("FailedCreateHorizontalPodAutoscaler") == []


@virtual_time
async def test_a_refused_essential_companion_fails_the_job() -> None:
    shell = await started()
    job = Unstructured(shell.job())
    manifest = {"metadata": {"name": "x"}}
    shell.client.fail(APPLY, HPAS, refused(422, "Invalid"))
    outcome = await shell.reconciler._applier.carry_out(job, [apply(HPAS, manifest, essential=True)])
    assert outcome.refused == "wrong"
    assert (HPAS, Key("ns", "x")) not in shell.client.objects
