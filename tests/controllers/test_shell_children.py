"""Applying the actions of a plan: creation, deletion, adoption and release, and errors of each."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import msgspec
import pytest

from tests.controllers.shell import JOBS, KEY, Shell, api_error, pytorch_job
from tests.runtime.virtual_time import virtual_time
from trainop.controllers.api_errors import CreateFailure, classify
from trainop.controllers.observe import CACHE_DELAY
from trainop.engine.actions import Ensure, Remove
from trainop.engine.children import decode_pod, decode_service
from trainop.engine.gang_scheduler import choose_scheduler
from trainop.engine.seen import Options
from trainop.runtime.client.decoding import ObjectDecoder
from trainop.runtime.errors import ApiError, DecodeError, ReconcileError
from trainop.runtime.objects.metadata import PODS, SERVICES, Json, Key, Resource, Unstructured, owner_reference

LABELS = {
    "training.kubeflow.org/operator-name": "pytorchjob-controller",
    "training.kubeflow.org/job-name": "j",
    "training.kubeflow.org/replica-type": "worker",
    "training.kubeflow.org/replica-index": "0",
}


def shell_with_job(**options: Any) -> Shell:
    shell = Shell(**options)
    shell.client.put(JOBS, pytorch_job())
    shell.show()
    return shell


def pod(name: str = "j-worker-0", *, uid: str = "p1", owner: str | None = None, **metadata: Any) -> Json:
    owners = [owner_reference("kubeflow.org/v1", "PyTorchJob", "j", owner)] if owner else []
    facts = {"name": name, "namespace": "ns", "uid": uid, "labels": LABELS, "ownerReferences": owners}
    facts["creationTimestamp"] = "2026-01-01T00:00:00Z"
    return {"metadata": facts | metadata, "spec": {}, "status": {"phase": "Running"}}


@virtual_time
async def test_a_new_job_gets_its_pods_and_services_and_created() -> None:
    shell = shell_with_job()
    await shell.look()
    assert shell.pods() == shell.services() == ["j-master-0", "j-worker-0", "j-worker-1"]
    assert shell.conditions() == [("Created", "True")]
    assert shell.counted("training_operator_jobs_created_total", job_namespace="ns", framework="pytorch") == 1
    assert shell.counted("created_pods_total") == 3
    assert shell.counted("succeeded_service_creation_total") == 3
    assert shell.events == []


@virtual_time
async def test_pod_events_are_recorded_only_if_enabled() -> None:
    shell = shell_with_job(pod_events=True)
    await shell.look()
    assert sorted(shell.events.of("SuccessfulCreatePod")) == [
        "Created pod: j-master-0",
        "Created pod: j-worker-0",
        "Created pod: j-worker-1",
    ]
    assert len(shell.events.of("SuccessfulCreateService")) == 3
    job = shell.client.objects[JOBS, KEY]
    job["spec"]["runPolicy"] = {"suspend": True}
    shell.client.put(JOBS, job)
    shell.show()
    await shell.look()
    assert len(shell.events.of("SuccessfulDeletePod")) == 3
    assert "Deleted service: j-master-0" in shell.events.of("SuccessfulDeleteService")


@virtual_time
async def test_the_second_pass_writes_nothing() -> None:
    shell = shell_with_job()
    await shell.settle()
    shell.client.calls.clear()
    await shell.look()
    assert shell.client.calls == []


@virtual_time
async def test_a_big_job_is_made_in_growing_batches_and_several_passes() -> None:
    shell = Shell(most=100)
    shell.client.put(JOBS, pytorch_job(masters=0, workers=150))
    shell.show()
    result = await shell.look()
    assert result.requeue
    first = {f"j-worker-{index}" for index in range(50)}
    assert set(shell.services()) == set(shell.pods()) == first
    shell.show(JOBS)
    assert (await shell.look()).requeue_after == CACHE_DELAY, "its children have to be observed first"
    for _ in range(10):
        shell.show()
        if not (await shell.look()).requeue:
            break
    assert len(shell.pods()) == len(shell.services()) == 150
    assert len(shell.client.names("create", PODS)) == 150


@virtual_time
async def test_the_first_pod_of_a_large_job_is_among_the_first_requests() -> None:
    """It waits for no service but its own, and no request is repeated."""
    shell = Shell()
    shell.client.put(JOBS, pytorch_job(masters=0, workers=2000))
    shell.show()
    while (await shell.look()).requeue:
        shell.show()
    created = [(call.resource, call.name) for call in shell.client.calls if call.verb == "create"]
    assert (PODS, "j-worker-0") in created[:4]
    for place in range(0, len(created), 500):
        pods, services = (
            {name for resource, name in created[place : place + 500] if resource == kind} for kind in (PODS, SERVICES)
        )
        assert pods == services
    everyone = {f"j-worker-{index}" for index in range(2000)}
    assert len(created) == 4000
    assert set(created) == {(kind, name) for kind in (PODS, SERVICES) for name in everyone}


@virtual_time
async def test_a_failing_create_stops_the_batch() -> None:
    shell = Shell()
    shell.client.put(JOBS, pytorch_job(masters=0, workers=40))
    shell.show()
    shell.client.fail("create", PODS, api_error(500, "InternalError", "etcd is away"), times=40)
    with pytest.raises(ApiError, match="etcd is away"):
        await shell.look()
    assert len(shell.client.names("create", PODS)) == 1
    assert shell.events == [("Warning", "FailedCreatePod", "Error creating: etcd is away")]
    assert len(shell.services()) == 40, "services are not affected"
    assert shell.conditions() == [("Created", "True")], "the status is not affected"


@virtual_time
async def test_errors_of_one_batch_are_reported_together() -> None:
    shell = Shell()
    shell.client.put(JOBS, pytorch_job(masters=0, workers=3))
    shell.show()
    for name in ("j-worker-1", "j-worker-2"):
        shell.client.fail("create", PODS, ConnectionError(f"no {name}"), name=name)
    with pytest.raises(ExceptionGroup) as caught:
        await shell.look()
    assert [str(each) for each in caught.value.exceptions] == ["no j-worker-1", "no j-worker-2"]
    shell.show()
    await shell.look()
    assert len(shell.pods()) == 3


# Name conflicts -------------------------------------------------------------------------------------------------------


@pytest.mark.case("runtime-38", "b")
@virtual_time
async def test_a_pod_whose_post_ended_with_a_reset_is_found_by_name_and_not_created_twice() -> None:
    """The controller's part; a test of the client proves that it sends no POST twice."""
    shell = shell_with_job()
    create = shell.client.create

    async def create_and_reset(resource: Any, body: Any, *, namespace: str | None = None, **how: Any) -> Json:
        answer = await create(resource, body, namespace=namespace)
        if answer["metadata"]["name"] == "j-worker-1" and resource == PODS:
            raise ConnectionError("reset by peer")
        return answer

    shell.client.create = create_and_reset  # type: ignore[method-assign]  # the answer is lost
    with pytest.raises(ConnectionError):
        await shell.look()
    shell.client.create = create  # type: ignore[method-assign]  # as before
    uid = shell.client.objects[PODS, Key("ns", "j-worker-1")]["metadata"]["uid"]
    shell.show(JOBS, SERVICES)  # the caches do not show the pods yet
    shell.reconciler._states.expectations.forget("job-uid")
    await shell.look()
    assert shell.client.objects[PODS, Key("ns", "j-worker-1")]["metadata"]["uid"] == uid
    assert not [event for event in shell.events if "already exists" in event[2]]
    assert (await shell.look()).requeue_after, "the pod is expected in the cache"
    shell.show()
    shell.client.calls.clear()
    await shell.look()
    assert shell.client.calls == []


@pytest.mark.case("job-engine-38", "ab")
@pytest.mark.parametrize("state", ["terminating", "not yet"])
@virtual_time
async def test_a_predecessors_pod_is_waited_for_without_an_event(state: str) -> None:
    shell = Shell()
    shell.client.put(JOBS, pytorch_job())
    shell.client.put(PODS, pod(owner="older-uid"))
    if state == "terminating":
        shell.client.mark_deleted(PODS, "j-worker-0")
    shell.show()
    result = await shell.look()
    assert result.requeue_after
    assert result.requeue_after <= 30
    assert shell.events == []
    assert "j-worker-1" in shell.pods(), "pods with free names are created"
    await shell.woken()
    del shell.client.objects[PODS, Key("ns", "j-worker-0")]
    shell.show()
    assert await shell.woken(), "the deletion of the predecessor's pod enqueues the job"
    await shell.look()
    assert shell.client.objects[PODS, Key("ns", "j-worker-0")]["metadata"]["ownerReferences"][0]["uid"] == "job-uid"


@virtual_time
async def test_a_foreign_object_of_the_same_name_is_reported_once_and_retried_later() -> None:
    shell = Shell()
    shell.client.put(JOBS, pytorch_job())
    shell.client.put(PODS, pod() | {"metadata": {"name": "j-worker-0", "namespace": "ns", "uid": "x"}})
    shell.show()
    for _ in range(3):
        shell.show()
        result = await shell.look()
        assert (result.requeue, result.requeue_after) == (False, 30.0)
    assert shell.events.of("FailedCreatePod") == ['Error creating: pods "j-worker-0" already exists']
    assert shell.pods() == ["j-master-0", "j-worker-0", "j-worker-1"]


@virtual_time
async def test_our_pod_without_labels_blocks_its_name_and_is_reported() -> None:
    shell = Shell()
    shell.client.put(JOBS, pytorch_job())
    shell.client.put(PODS, pod(owner="job-uid", labels={}))
    shell.show(JOBS)
    assert (await shell.look()).requeue_after
    assert shell.events.of("FailedCreatePod") == ['Error creating: pods "j-worker-0" already exists']


@pytest.mark.parametrize(
    ("fault", "wait"), [(api_error(404, "NotFound"), 1.0), (api_error(500, "InternalError", "no answer"), None)]
)
@virtual_time
async def test_the_holder_of_a_name_may_be_unknown(fault: ApiError, wait: float | None) -> None:
    shell = Shell()
    shell.client.put(JOBS, pytorch_job())
    shell.client.put(PODS, pod(owner="older-uid"))
    shell.show(JOBS)
    shell.client.fail("get", PODS, fault)
    if wait is None:
        with pytest.raises(ApiError, match="no answer"):
            await shell.look()
    else:
        assert (await shell.look()).requeue_after == wait
    assert shell.events == []


# Refusals by the API server ------------------------------------------------------------------------------------------

QUOTA = 'pods "j-worker-0" is forbidden: exceeded quota: q, requested: pods=1, used: pods=3, limited: pods=3'


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (api_error(422, "Invalid", "spec.containers[0].image: Required value"), CreateFailure.REFUSED),
        (api_error(400, "BadRequest", "unknown field"), CreateFailure.REFUSED),
        (api_error(413, "RequestEntityTooLarge", "too large"), CreateFailure.REFUSED),
        (api_error(403, "Forbidden", 'violates PodSecurity "restricted:latest"'), CreateFailure.REFUSED),
        (api_error(403, "Forbidden", 'admission webhook "x" denied the request: no'), CreateFailure.REFUSED),
        (api_error(403, "Forbidden", QUOTA), CreateFailure.QUOTA),
        (
            api_error(403, "Forbidden", 'pods is forbidden: User "x" cannot create resource "pods" in API group ""'),
            CreateFailure.NOT_PERMITTED,
        ),
        (
            api_error(403, "Forbidden", "error looking up service account ns/default: not found"),
            CreateFailure.RETRIABLE,
        ),
        (
            api_error(403, "Forbidden", "terminating", [{"reason": "NamespaceTerminating"}]),
            CreateFailure.NAMESPACE_TERMINATING,
        ),
        (api_error(401, "Unauthorized"), CreateFailure.RETRIABLE),
        (api_error(404, "NotFound", 'namespaces "ns" not found'), CreateFailure.RETRIABLE),
        (api_error(409, "Conflict"), CreateFailure.RETRIABLE),
        (api_error(429, "TooManyRequests"), CreateFailure.RETRIABLE),
        (api_error(500, "InternalError", "failed calling webhook"), CreateFailure.RETRIABLE),
        (api_error(500, "", "etcdserver: request is too large"), CreateFailure.REFUSED),
        (
            api_error(
                500, "", "rpc error: code = ResourceExhausted desc = trying to send message larger than max (3 vs. 2)"
            ),
            CreateFailure.REFUSED,
        ),
        (ConnectionError("reset"), CreateFailure.RETRIABLE),
        (TimeoutError(), CreateFailure.RETRIABLE),
    ],
)
def test_the_error_of_a_post_decides_about_the_job(error: Exception, failure: CreateFailure) -> None:
    assert classify(error) is failure


@virtual_time
async def test_a_refused_template_fails_the_job_with_the_servers_message_in_the_same_pass() -> None:
    shell = shell_with_job()
    words = 'Pod "j-master-0" is invalid: spec.containers[0].resources: Invalid value'
    shell.client.fail("create", PODS, api_error(422, "Invalid", words), times=9)
    await shell.look()
    assert shell.conditions() == [("Created", "True"), ("Failed", "True")]
    assert words in shell.job()["status"]["conditions"][-1]["message"]
    assert shell.events.of("FailedCreatePod") == [f"Error creating: {words}"]
    assert shell.job()["status"]["completionTime"]
    assert len(shell.client.names("create", PODS)) == 1
    await shell.settle()
    assert shell.pods() == []


@virtual_time
async def test_restarts_that_cannot_be_recorded_fail_the_job_with_the_servers_message() -> None:
    """The annotations of an object are limited to 256 KiB in total."""
    shell = shell_with_job()
    await shell.settle()
    failed = shell.client.objects[PODS, Key("ns", "j-worker-0")]
    shell.client.put(PODS, failed | {"status": {"phase": "Failed"}})
    shell.show()
    words = "metadata.annotations: Too long: may not be more than 262144 bytes"
    shell.client.fail("patch merge", JOBS, api_error(422, "Invalid", words), times=9)
    await shell.look()
    assert shell.conditions()[-1] == ("Failed", "True")
    text = f"PyTorchJob failed validation because its restarts cannot be noted: {words}"
    assert shell.job()["status"]["conditions"][-1]["message"] == text
    assert shell.events.of("PyTorchJobFailedValidation") == [text]
    assert shell.pods() == ["j-worker-0"], "running pods are cleaned up"
    shell.client.calls.clear()
    await shell.settle()
    assert not shell.client.names("patch merge", JOBS)


REFUSALS = {
    "policy": api_error(422, "Invalid", "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no"),
    "limits": api_error(403, "Forbidden", 'pods "j-worker-0" is forbidden: minimum cpu usage per Container is 1'),
    "security": api_error(403, "Forbidden", 'pods "j-worker-0" is forbidden: violates PodSecurity "restricted:latest"'),
    "priority": api_error(403, "Forbidden", 'pods "j-worker-0" is forbidden: no PriorityClass with name x was found'),
}


async def lose(shell: Shell, *names: str) -> None:
    """Another client deletes the running pods."""
    await shell.settle()
    for name in shell.pods():
        shell.set_phase(name, "Running")
    await shell.clock.sleep(60)
    await shell.settle()
    for name in names:
        del shell.client.objects[PODS, Key("ns", name)]
    shell.show()
    shell.client.calls.clear()
    shell.events.clear()


@pytest.mark.parametrize("words", REFUSALS)
@virtual_time
async def test_a_refused_replacement_does_not_fail_the_job_and_is_retried_with_back_off(words: str) -> None:
    shell = shell_with_job()
    await lose(shell, "j-worker-0", "j-worker-1")
    shell.client.fail("create", PODS, REFUSALS[words], name="j-worker-0", times=3)
    started = shell.clock.monotonic()
    tries: list[float] = []
    while "j-worker-0" not in shell.pods() and len(tries) < 50:
        before = len(shell.client.names("create", PODS))
        result = await shell.look()
        if "j-worker-0" in shell.client.names("create", PODS)[before:]:
            tries.append(shell.clock.monotonic() - started)
        assert result.requeue_after is not None
        shell.show()
        await shell.look()  # other events enqueue the job meanwhile
        await shell.clock.sleep(result.requeue_after)
        shell.show()
    pauses = [later - sooner for sooner, later in itertools.pairwise(tries)]
    assert len(pauses) == 3
    assert 50 <= pauses[0] < pauses[1] < pauses[2] < 300
    assert shell.pods() == ["j-master-0", "j-worker-0", "j-worker-1"], (
        "the other pod was recreated, and the master continued"
    )
    assert shell.client.names("create", PODS).count("j-worker-1") == 1
    assert shell.events.of("FailedCreatePod") == [f"Error creating: {REFUSALS[words]}"], "reported once"
    assert "Failed" not in dict(shell.conditions())
    assert shell.client.names("delete", PODS) == []


@pytest.mark.parametrize(
    "edit", [{"annotations": {"try": "1"}}, {"generation": 2}, {"annotations": {"trainop.kubeflow.org/restarts": "{}"}}]
)
@virtual_time
async def test_an_edited_job_retries_refused_pods_at_once(edit: Json) -> None:
    """The operator's own annotation is no edit."""
    shell = shell_with_job()
    await lose(shell, "j-worker-0")
    shell.client.fail("create", PODS, REFUSALS["policy"])
    await shell.settle()
    await shell.look()
    assert shell.client.names("create", PODS) == ["j-worker-0"]
    job = shell.job()
    shell.client.put(JOBS, job | {"metadata": job["metadata"] | edit})
    shell.show()
    await shell.look()
    own = "trainop.kubeflow.org/restarts" in edit.get("annotations", {})
    assert shell.client.names("create", PODS) == ["j-worker-0"] * (1 if own else 2)


@virtual_time
async def test_refused_pods_are_retried_a_few_per_second() -> None:
    shell = Shell()
    shell.client.put(JOBS, pytorch_job(workers=12))
    await lose(shell, *(f"j-worker-{index}" for index in range(12)))
    for index in range(8):
        shell.client.fail("create", PODS, REFUSALS["policy"], name=f"j-worker-{index}", times=100)
    result = await shell.look()
    assert len(shell.client.names("create", PODS)) < 8
    assert result.requeue_after == pytest.approx(1.0)
    for _ in range(20):
        shell.show()
        result = await shell.look()
        await shell.clock.sleep(1)
    assert shell.pods() == ["j-master-0", *sorted(f"j-worker-{index}" for index in range(8, 12))]
    tried = shell.client.names("create", PODS)
    assert len(tried) == len(set(tried)) == 12, "each pod is tried once within twenty seconds"
    assert len(shell.events.of("FailedCreatePod")) == 1


@pytest.mark.parametrize(
    "status",
    [
        {"replicaStatuses": {"Worker": {"active": 1}}},
        {"replicaStatuses": {"Worker": {"failed": 1}}},
        {"conditions": [{"type": "Running", "status": "False", "reason": "PyTorchJobSuspended"}]},
        {"conditions": [{"type": "Restarting", "status": "True", "reason": "PyTorchJobRestarting"}]},
        {"annotation": '{"job":"job-uid","disruptions":1}'},
        {},
        {"startTime": "2026-01-01T00:00:00Z"},
        {"annotation": '{"job":"other","disruptions":1}'},
    ],
)
@virtual_time
async def test_a_job_that_had_pods_is_recognized_after_a_restart_of_the_operator(status: Json) -> None:
    """`startTime` is no proof, because a quota may have refused the first pod."""
    job = pytorch_job()
    note = status.pop("annotation", None)
    job["metadata"]["annotations"] = {"trainop.kubeflow.org/restarts": note} if note else {}
    shell = Shell()
    shell.client.put(JOBS, job | {"status": status})
    shell.show()
    shell.client.fail("create", PODS, REFUSALS["policy"], times=100)
    await shell.look()
    had_pods = status.keys() - {"startTime"} or (note is not None and "job-uid" in note)
    assert ("Failed" in dict(shell.conditions())) is not bool(had_pods)


@virtual_time
async def test_a_policy_that_refuses_the_jobs_annotations_does_not_fail_the_job() -> None:
    shell = shell_with_job()
    await shell.settle()
    failed = shell.client.objects[PODS, Key("ns", "j-worker-0")]
    shell.client.put(PODS, failed | {"status": {"phase": "Failed"}})
    shell.show()
    shell.client.fail("patch merge", JOBS, REFUSALS["policy"])
    with pytest.raises(ReconcileError, match="denied request"):
        await shell.look()
    await shell.settle()
    assert shell.conditions()[-1] == ("Restarting", "True")
    assert shell.pods() == ["j-master-0", "j-worker-0", "j-worker-1"]


@virtual_time
async def test_an_exhausted_quota_is_reported_and_retried_with_back_off() -> None:
    shell = shell_with_job()
    shell.client.fail("create", PODS, api_error(403, "Forbidden", QUOTA), times=4)
    waits = []
    for _ in range(4):
        shell.show()
        waits.append((await shell.look()).requeue_after or 0.0)
    assert all(1.5 * a < b for a, b in itertools.pairwise(waits)), waits
    assert shell.conditions() == [("Created", "True")]
    assert set(shell.events.of("FailedCreatePod")) == {f"Error creating: {QUOTA}"}
    shell.show()
    await shell.look()
    assert len(shell.pods()) == 3
    shell.show()
    assert (await shell.look()).requeue_after is None


@virtual_time
async def test_a_refused_service_is_reported_once_and_the_pods_still_run() -> None:
    shell = shell_with_job()
    shell.client.fail("create", SERVICES, api_error(422, "Invalid", "must be no more than 63 characters"), times=99)
    for _ in range(3):
        shell.show()
        result = await shell.look()
        assert result.requeue_after
        assert result.requeue_after > 50
    assert len(shell.pods()) == 3
    messages = shell.events.of("FailedCreateService")
    assert set(messages) == {"Error creating: must be no more than 63 characters"}
    assert len(messages) <= 3
    assert shell.counted("failed_service_creation_total") > 0


@virtual_time
async def test_a_terminating_namespace_is_not_reported() -> None:
    shell = shell_with_job()
    ending = api_error(403, "Forbidden", "terminating", [{"reason": "NamespaceTerminating"}])
    shell.client.fail("create", PODS, ending, times=9)
    shell.client.fail("create", SERVICES, ending, times=9)
    assert (await shell.look()).requeue_after == 30.0
    assert shell.events == []


# Deletion -------------------------------------------------------------------------------------------------------------


async def suspended(shell: Shell) -> None:
    await shell.settle()
    job = shell.job()
    job["spec"]["runPolicy"] = {"suspend": True}
    shell.client.put(JOBS, job)
    shell.show()


@virtual_time
async def test_deletions_carry_the_uid_that_was_seen() -> None:
    shell = shell_with_job()
    await suspended(shell)
    uids = {obj["metadata"]["uid"] for (resource, _), obj in shell.client.objects.items() if resource == PODS}
    await shell.look()
    assert {call.body["uid"] for call in shell.client.calls if call[:2] == ("delete", PODS)} == uids
    assert shell.pods() == shell.services() == []
    assert shell.counted("deleted_pods_total") == 3


@virtual_time
async def test_a_successor_of_the_same_name_is_not_hit() -> None:
    shell = shell_with_job()
    await suspended(shell)
    shell.client.put(PODS, pod(uid="successor"))
    await shell.look()
    assert shell.pods() == ["j-worker-0"]
    assert shell.events.of("FailedDeletePod") == []


@virtual_time
async def test_a_failed_deletion_is_reported_and_retried() -> None:
    shell = shell_with_job()
    await suspended(shell)
    shell.client.fail("delete", PODS, api_error(500, "InternalError", "no"), name="j-worker-0")
    with pytest.raises(ApiError):
        await shell.look()
    assert shell.events.of("FailedDeletePod") == ["Error deleting: no"]
    shell.show()
    await shell.look()
    assert shell.pods() == []


@virtual_time
async def test_a_failed_deletion_does_not_block_creations() -> None:
    shell = shell_with_job()
    labels = LABELS | {"training.kubeflow.org/replica-index": "7"}
    shell.client.put(PODS, pod("j-worker-7", owner="job-uid", labels=labels))
    shell.show()
    shell.client.fail("delete", PODS, api_error(500, "InternalError", "no"))
    with pytest.raises(ApiError, match="no"):
        await shell.look()
    assert shell.pods() == ["j-master-0", "j-worker-0", "j-worker-1", "j-worker-7"]


@pytest.mark.case("job-engine-25", "gh")
@virtual_time
async def test_a_job_past_its_time_to_live_is_deleted_and_counted() -> None:
    shell = shell_with_job()
    job = pytorch_job(runPolicy={"ttlSecondsAfterFinished": 0})
    finished = {"type": "Succeeded", "status": "True", "reason": "PyTorchJobSucceeded", "message": "done"}
    status = {"conditions": [finished], "completionTime": "2025-12-31T00:00:00Z", "startTime": "2025-12-30T00:00:00Z"}
    shell.client.put(JOBS, job | {"status": status})
    shell.show()
    await shell.look()
    assert (JOBS, KEY) not in shell.client.objects
    assert shell.events == [("Normal", "SuccessfulDeletePod", "Deleted job: j")]
    assert shell.counted("training_operator_jobs_deleted_total", job_namespace="ns", framework="pytorch") == 1


@virtual_time
async def test_a_failed_deletion_of_a_job_is_reported() -> None:
    shell = shell_with_job()
    job = pytorch_job(runPolicy={"ttlSecondsAfterFinished": 0})
    finished = {"type": "Succeeded", "status": "True", "reason": "PyTorchJobSucceeded", "message": "done"}
    shell.client.put(JOBS, job | {"status": {"conditions": [finished], "completionTime": "2025-12-31T00:00:00Z"}})
    shell.show()
    shell.client.fail("delete", JOBS, api_error(403, "Forbidden", "may not"))
    with pytest.raises(ApiError):
        await shell.look()
    assert shell.events == [("Warning", "FailedDeletePod", "Error deleting: may not")]


# Adoption and release -------------------------------------------------------------------------------------------------


@pytest.mark.case("job-engine-35", "d")
@virtual_time
async def test_an_orphan_is_adopted_after_one_look_at_the_job() -> None:
    """The controller's part; tests of the engine prove which pods are orphans."""
    shell = shell_with_job()
    for index in (0, 1):
        labels = LABELS | {"training.kubeflow.org/replica-index": str(index)}
        shell.client.put(PODS, pod(f"j-worker-{index}", uid=f"p{index}", labels=labels))
    await shell.woken()
    shell.show()
    assert await shell.woken(), "an orphan enqueues the job that its labels name"
    await shell.look()
    assert shell.client.names("get", JOBS) == ["j"]
    patches = [call.body for call in shell.client.calls if call.verb == "patch strategic"]
    owner = owner_reference("kubeflow.org/v1", "PyTorchJob", "j", "job-uid")
    assert patches == [{"metadata": {"ownerReferences": [owner], "uid": f"p{index}"}} for index in (0, 1)]


@pytest.mark.case("job-engine-35", "g")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"uid": "new"}, "original Job ns/j is gone: got uid new, wanted job-uid"),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, "ns/j has just been deleted at 2026-01-01T00:00:00Z"),
        (None, "can't recheck DeletionTimestamp: "),
    ],
)
@virtual_time
async def test_a_terminating_job_adopts_nothing(change: Json | None, words: str) -> None:
    shell = shell_with_job()
    shell.client.put(PODS, pod())
    shell.show()
    if change is None:
        shell.client.fail("get", JOBS, ConnectionError("away"))
    else:
        job = pytorch_job()
        shell.client.objects[JOBS, KEY] = job | {"metadata": job["metadata"] | {"resourceVersion": "101"} | change}
    shell.client.fail("put status", JOBS, api_error(422, "Invalid"))  # it does not hide the error by one of its own
    with pytest.raises(ReconcileError) as caught:
        await shell.look()
    assert str(caught.value).startswith(f"can't adopt Pod ns/j-worker-0 (p1): {words}")
    assert not [call for call in shell.client.calls if call.verb == "patch strategic"]


@pytest.mark.case("job-engine-35", "b")
@virtual_time
async def test_a_child_that_stopped_matching_is_released() -> None:
    shell = shell_with_job()
    labels = {"training.kubeflow.org/operator-name": "pytorchjob-controller"}
    shell.client.put(PODS, pod("stray", owner="job-uid", labels=labels))
    shell.show()
    await shell.look()
    patches = [call for call in shell.client.calls if call.verb == "patch strategic"]
    assert [(call.name, call.body) for call in patches] == [
        ("stray", {"metadata": {"ownerReferences": [{"$patch": "delete", "uid": "job-uid"}], "uid": "p1"}})
    ]


@pytest.mark.parametrize("code", [(404, "NotFound"), (409, "Conflict"), (422, "Invalid")])
@virtual_time
async def test_a_child_that_is_gone_needs_no_release(code: tuple[int, str]) -> None:
    shell = shell_with_job()
    labels = {"training.kubeflow.org/operator-name": "pytorchjob-controller"}
    shell.client.put(PODS, pod("stray", owner="job-uid", labels=labels))
    shell.show()
    shell.client.fail("patch strategic", PODS, api_error(*code))
    await shell.look()
    assert len(shell.pods()) == 4


@pytest.mark.parametrize("labelled", [True, False])
@virtual_time
async def test_a_failed_claim_is_retried(labelled: bool) -> None:
    shell = shell_with_job()
    labels = LABELS if labelled else {"training.kubeflow.org/operator-name": "pytorchjob-controller"}
    shell.client.put(PODS, pod(labels=labels, owner=None if labelled else "job-uid"))
    shell.show()
    shell.client.fail("patch strategic", PODS, api_error(500, "InternalError", "not now"))
    with pytest.raises(ApiError, match="not now"):
        await shell.look()
    shell.show()
    await shell.look()
    assert len(shell.client.names("patch strategic", PODS)) == 2


@virtual_time
async def test_an_orphan_that_was_replaced_is_not_adopted() -> None:
    shell = shell_with_job()
    shell.client.put(PODS, pod())
    shell.show()
    shell.client.put(PODS, pod(uid="successor"))
    await shell.look()
    assert not shell.client.objects[PODS, Key("ns", "j-worker-0")]["metadata"]["ownerReferences"]


@virtual_time
async def test_a_job_deleted_by_another_client_is_not_reported() -> None:
    shell = shell_with_job()
    job = pytorch_job(runPolicy={"ttlSecondsAfterFinished": 0})
    finished = {"type": "Succeeded", "status": "True", "reason": "PyTorchJobSucceeded", "message": "done"}
    shell.client.put(JOBS, job | {"status": {"conditions": [finished], "completionTime": "2025-12-31T00:00:00Z"}})
    shell.show()
    del shell.client.objects[JOBS, KEY]
    await shell.look()
    assert shell.events == []


@virtual_time
async def test_a_cancelled_pass_leaves_no_expectation() -> None:
    """A reconcile that timed out is cancelled; the next one finds the created pod by its name."""
    shell = shell_with_job()
    applier = shell.reconciler._applier
    job = Unstructured(shell.job())

    async def hang(*_args: Any, **_kwargs: Any) -> Json:
        raise TimeoutError

    shell.client.create = hang  # type: ignore[method-assign]  # no answer
    outcome = await applier.carry_out(job, [Ensure(PODS, "x", lambda: b'{"metadata":{"name":"x"}}')])
    assert [type(error) for error in outcome.errors] == [TimeoutError]
    assert shell.reconciler._states.expectations.satisfied(job.metadata.uid, shell.view.look)


@virtual_time
async def test_concurrency_doubles_to_four_without_errors() -> None:
    shell = Shell()
    shell.client.put(JOBS, pytorch_job(masters=0, workers=20))
    shell.show()
    flying, batches = 0, []
    create = shell.client.create

    async def count_and_create(resource: Any, body: Any, *, namespace: str | None = None, **how: Any) -> Json:
        nonlocal flying
        flying += resource == PODS
        await asyncio.sleep(1)  # all requests of one batch have started by then
        if resource == PODS:
            if flying:
                batches.append(flying)
            flying = 0
        return await create(resource, body, namespace=namespace)

    shell.client.create = count_and_create  # type: ignore[method-assign]  # spies
    await shell.look()
    assert batches == [1, 2, 4, 4, 4, 4, 1]


@virtual_time
async def test_our_terminating_pod_is_waited_for() -> None:
    """The cache shows its deletion before the API server has freed the name."""
    shell = shell_with_job()
    shell.client.put(PODS, pod(owner="job-uid"))
    shell.client.mark_deleted(PODS, "j-worker-0")
    shell.show(JOBS)
    assert (await shell.look()).requeue_after == 30.0
    assert shell.events == []
    shell.show()
    await shell.look()
    assert len(shell.reconciler._states.expectations) == 0, "the terminating pod does not count as the new one"


@virtual_time
async def test_a_pod_is_deleted_by_force_only_if_the_plan_says_so() -> None:
    shell = shell_with_job()
    job = Unstructured(shell.job())
    for force, grace in ((False, None), (True, 0)):
        shell.client.put(PODS, pod())
        await shell.reconciler._applier.carry_out(job, [Remove(PODS, "j-worker-0", "p1", force)])
        assert shell.client.calls[-1].body == {"uid": "p1", "grace": grace}


@virtual_time
async def test_a_deleted_service_enqueues_its_job() -> None:
    shell = shell_with_job()
    await shell.settle()
    await shell.woken()
    del shell.client.objects[SERVICES, Key("ns", "j-worker-0")]
    shell.show()
    assert await shell.woken()
    await shell.look()
    assert len(shell.services()) == 3


@virtual_time
async def test_a_pod_created_and_deleted_between_two_passes_was_observed() -> None:
    shell = shell_with_job()
    await shell.look()
    gone = shell.client.objects[PODS, Key("ns", "j-worker-0")]
    shell.show()
    del shell.client.objects[PODS, Key("ns", "j-worker-0")]
    shell.show()
    assert gone["metadata"]["uid"]
    shell.client.calls.clear()
    await shell.look()
    assert shell.client.names("create", PODS) == ["j-worker-0"], "it is recreated at once"


# Children that cannot be read ----------------------------------------------------------------------------------------

GARBLED: list[Json] = [{"phase": 5}, {"containerStatuses": "x"}, {"conditions": [[]]}, {"reason": {}}]


def garble(shell: Shell, name: str, **fields: Any) -> Json:
    """Give an object fields of an unexpected type."""
    found = shell.client.objects[PODS, Key("ns", name)]
    return shell.client.put(PODS, found | fields)


async def running_job(gang: str = "") -> Shell:
    shell = shell_with_job(options=Options(gang=choose_scheduler(gang), waiting_after=0))
    await shell.settle()
    for name in shell.pods():
        shell.set_phase(name, "Running")
    await calm_down(shell)
    assert active_workers(shell) == 2
    return shell


async def calm_down(shell: Shell) -> None:
    """Run reconciles until a delayed status is written as well."""
    await shell.settle()
    await shell.clock.sleep(10)
    await shell.settle()


def active_workers(shell: Shell) -> int:
    active: int = shell.job()["status"]["replicaStatuses"]["Worker"].get("active", 0)
    return active


@pytest.mark.parametrize("status", GARBLED)
@pytest.mark.parametrize("live", [False, True], ids=["cached", "listed"])
@virtual_time
async def test_a_pod_with_an_unreadable_status_keeps_its_slot_and_is_not_counted(status: Json, live: bool) -> None:
    shell = await running_job()
    garble(shell, "j-worker-0", status=status)
    await wait_in_doubt(shell, live=live)
    shell.client.calls.clear()
    for _ in range(3):
        shell.show()
        await shell.look()
        await shell.clock.sleep(10)
    assert shell.client.names("create", PODS) == shell.client.names("delete", PODS) == []
    assert active_workers(shell) == 1
    (message,) = shell.events.of("UnreadablePod")
    assert message.startswith("Pod j-worker-0 cannot be read: Expected `")
    shell.set_phase("j-worker-0", "Running")
    await calm_down(shell)
    assert active_workers(shell) == 2


@virtual_time
async def test_a_pod_with_an_unreadable_status_is_deleted_with_its_job() -> None:
    shell = await running_job()
    garble(shell, "j-worker-0", status={"phase": 5})
    shell.client.put(JOBS, shell.job() | {"spec": shell.job()["spec"] | {"runPolicy": {"suspend": True}}})
    await shell.settle()
    assert shell.pods() == []


async def wait_in_doubt(shell: Shell, *, live: bool) -> None:
    """Update the caches; or else let the expectation expire, so that the next pass lists from the API server."""
    shell.show()
    if live:
        expectations = shell.reconciler._states.expectations
        expectations.expect_create("job-uid", PODS, Key("ns", "lost"))
        await shell.clock.sleep(301)


@pytest.mark.parametrize("resource", [PODS, SERVICES], ids=str)
@pytest.mark.parametrize("label", ["operator-name", "job-name"])
@pytest.mark.parametrize("live", [False, True], ids=["cached", "listed"])
@pytest.mark.parametrize("gang", ["", "my-sched"])
@virtual_time
async def test_a_child_whose_labels_name_another_job_is_released(
    resource: Resource, label: str, gang: str, live: bool
) -> None:
    """No list by the labels of the job returns it."""
    shell = await running_job(gang)
    found = shell.client.objects[resource, Key("ns", "j-worker-0")]
    labels = found["metadata"]["labels"] | {f"training.kubeflow.org/{label}": "x"}
    shell.client.put(resource, found | {"metadata": found["metadata"] | {"labels": labels}})
    await wait_in_doubt(shell, live=live)
    await shell.look()
    owners = shell.client.objects[resource, Key("ns", "j-worker-0")]["metadata"]["ownerReferences"]
    assert owners == [{"$patch": "delete", "uid": "job-uid"}], "the patch, which this client does not apply"


@pytest.mark.parametrize(("resource", "kind"), [(PODS, "Pod"), (SERVICES, "Service")])
@pytest.mark.parametrize("live", [False, True], ids=["cached", "listed"])
@virtual_time
async def test_a_child_with_only_a_readable_name_keeps_its_slot(resource: Resource, kind: str, live: bool) -> None:
    shell = await running_job()
    key = Key("ns", "j-worker-0")
    found = shell.client.objects[resource, key]
    wrong = shell.client.put(resource, found | {"metadata": found["metadata"] | {"ownerReferences": "x"}})
    informer, _ = shell._cache_of(resource)
    with pytest.raises(DecodeError) as caught:
        ObjectDecoder(resource, decode_pod if resource == PODS else decode_service)(msgspec.json.encode(wrong))
    informer.reject(key, caught.value, listing=False)
    if live:
        shell.reconciler._states.expectations.expect_create("job-uid", PODS, Key("ns", "lost"))
        await shell.clock.sleep(301)
    shell.client.calls.clear()
    for _ in range(3):
        assert (await shell.look()).requeue_after is not None, "its deletion may cause no event"
        await shell.clock.sleep(31)
    assert {call.verb for call in shell.client.calls} <= {"list", "get", "put status"}
    fault = "metadata.ownerReferences: Expected `array`, got `str` - at `$.ownerReferences`"
    assert shell.events.of(f"Unreadable{kind}") == [f"{kind} j-worker-0 cannot be read: {fault}"]
    del shell.client.objects[resource, key]
    informer.forget(key)
    await shell.settle()
    assert key.name in (shell.pods() if resource == PODS else shell.services())


@virtual_time
async def test_a_child_that_exists_already_and_cannot_be_read_is_an_error_that_is_retried() -> None:
    shell = shell_with_job()
    shell.client.put(PODS, pod() | {"metadata": pod()["metadata"] | {"labels": 5}})
    with pytest.raises(DecodeError):
        await shell.look()
    assert shell.pods() == ["j-master-0", "j-worker-0", "j-worker-1"]


@pytest.mark.parametrize(
    ("conditions", "ready"),
    [
        ([{"type": "Ready", "status": "True"}], True),
        ([{"type": "Ready", "status": "False"}], False),
        ([{"type": "ContainersReady", "status": "True"}], False),
        ([], False),
    ],
)
def test_readiness_is_that_of_the_condition(conditions: list[Json], ready: bool):
    """It is kept although routine conditions are dropped to save memory."""
    status = {"phase": "Running", "conditions": conditions, "containerStatuses": [{"name": "mpi", "state": {}}]}
    found = decode_pod(msgspec.json.encode({"metadata": {"name": "j-worker-0"}, "status": status}))
    assert (found.status.ready, found.status.conditions) == (ready, ())


@pytest.mark.parametrize(("at_once", "most"), [(True, 16), (False, 4)])
@virtual_time
async def test_pods_that_save_together_are_deleted_together(at_once: bool, most: int) -> None:
    shell = shell_with_job()
    job = Unstructured(shell.job())
    flying, seen, graces = 0, [], set()

    async def delete(*_args: Any, grace_seconds: int | None = None, **_how: Any) -> None:
        nonlocal flying
        flying += 1
        await asyncio.sleep(0.2)
        seen.append(flying)
        flying -= 1
        graces.add(grace_seconds)

    shell.client.delete = delete  # type: ignore[method-assign]  # spies
    began = asyncio.get_running_loop().time()
    removals = [Remove(PODS, f"p{index}", f"u{index}", grace=300, at_once=at_once) for index in range(64)]
    await shell.reconciler._applier.carry_out(job, removals)
    assert (len(seen), max(seen), graces) == (64, most, {300})
    assert (asyncio.get_running_loop().time() - began < 1) == at_once
