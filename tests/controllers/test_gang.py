"""Gang scheduling in the controllers: writes of the PodGroup, refusals, and the events that enqueue the job."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from tests.controllers.kinds import KINDS, make
from tests.controllers.shell import JOBS, KEY, Shell, api_error, pytorch_job
from tests.engine.builders import NOW
from tests.engine.world import World
from tests.runtime.virtual_time import virtual_time
from trainop.controllers.gang import PRIORITY_CLASSES, CrdCheck
from trainop.engine.gang_scheduler import PLUGIN_GROUPS, VOLCANO_GROUPS, choose_scheduler
from trainop.engine.seen import Options
from trainop.programs.schemes import FRAMEWORKS
from trainop.runtime.cache.scope import Scope
from trainop.runtime.client.decoding import ObjectDecoder
from trainop.runtime.controller.reconcile import Result
from trainop.runtime.errors import ApiError, DecodeError
from trainop.runtime.objects.metadata import SERVICES, Json, Resource

VOLCANO = Options(gang=choose_scheduler("volcano"))
PLUGINS = Options(gang=choose_scheduler("my-sched"))
KUBE = Options(gang=choose_scheduler("kube-scheduler"))
EACH = pytest.mark.parametrize("options", [VOLCANO, PLUGINS, KUBE], ids=["volcano", "scheduler-plugins", "kube"])
OWNER = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "j", "uid": "job-uid", "controller": True}
WORKERS = ["j-worker-0", "j-worker-1"]


def groups(shell: Shell) -> Resource:
    assert shell.view.gang is not None
    return shell.view.gang.groups.resource


def gang_shell(options: Options = PLUGINS, **job: Any) -> Shell:
    shell = Shell(options)
    shell.client.put(JOBS, pytorch_job(0, 2, **job))
    return shell


def group(shell: Shell) -> Json:
    return shell.client.objects[groups(shell), KEY]


def set_phase(shell: Shell, phase: str, **status: Any) -> None:
    shell.client.put(groups(shell), group(shell) | {"status": {"phase": phase, **status}})


def change_policy(shell: Shell, **policy: Any) -> None:
    spec = shell.job()["spec"] | {"runPolicy": {"schedulingPolicy": policy}}
    metadata = shell.job()["metadata"] | {"generation": shell.job()["metadata"].get("generation", 1) + 1}
    shell.client.put(JOBS, shell.job() | {"spec": spec, "metadata": metadata})


def writes(shell: Shell) -> list[str]:
    """The verbs and plurals of all writes."""
    return [f"{call.verb} {call.resource.plural}" for call in shell.client.calls if call.verb not in ("get", "list")]


async def settle(shell: Shell) -> Result:
    """Run passes until nothing is left to write, including status updates that are delayed."""
    await shell.settle()
    await asyncio.sleep(3)
    return await shell.settle()


async def started(options: Options = PLUGINS, **job: Any) -> Shell:
    shell = gang_shell(options, **job)
    await settle(shell)
    if options is VOLCANO:
        set_phase(shell, "Inqueue")
        await settle(shell)
    assert shell.pods() == WORKERS
    return shell


async def run_pods(shell: Shell) -> None:
    for name in WORKERS:
        shell.set_phase(name, "Running")
    await settle(shell)


# Creation -------------------------------------------------------------------------------------------------------------


@virtual_time
async def test_without_the_flag_nothing_is_watched() -> None:
    shell = Shell()
    assert shell.view.gang is None
    sources: Any = shell.controller._sources
    assert len(sources) == 4, "jobs, pods, services, autoscalers"
    assert len(gang_shell().controller._sources) == 6


@pytest.mark.case("job-engine-27", "cd")
@virtual_time
async def test_pods_follow_the_phase_of_volcano() -> None:
    shell = gang_shell(VOLCANO)
    result = await settle(shell)
    assert (shell.pods(), result.requeue_after) == ([], 10)
    assert "startTime" not in shell.job()["status"]
    before = writes(shell)
    for phase in ("", "Pending"):
        set_phase(shell, phase)
        await settle(shell)
    assert writes(shell) == before, "nothing is written while the job waits"
    set_phase(shell, "Inqueue")
    await settle(shell)
    assert shell.pods() == WORKERS
    assert "startTime" in shell.job()["status"]


@pytest.mark.case("job-engine-29", "b")
@virtual_time
async def test_pods_of_scheduler_plugins_follow_in_the_same_pass() -> None:
    shell = gang_shell()
    shell.show()
    await shell.look()
    assert shell.pods() == WORKERS
    created = [call.resource.plural for call in shell.client.calls if call.verb == "create"]
    assert created[0] == "podgroups"
    assert shell.counted("created_pod_groups_total") == 1


@EACH
@virtual_time
async def test_a_gang_costs_at_most_two_writes(options: Options) -> None:
    plain = Shell()
    plain.client.put(JOBS, pytorch_job(0, 2))
    await plain.settle()
    await run_pods(plain)
    shell = await started(options)
    await run_pods(shell)
    assert ("Running", "True") in shell.conditions()
    workload = 1 if options is KUBE else 0
    assert len(writes(shell)) <= len(writes(plain)) + 2 + workload
    assert writes(shell).count("create podgroups") == 1


FAILURES = [
    pytest.param(api_error(500, "InternalError"), id="error"),
    pytest.param(api_error(403, "Forbidden", "podgroups is forbidden: exceeded quota: q"), id="quota"),
    pytest.param(api_error(403, "Forbidden", 'User "x" cannot create resource "podgroups"'), id="rbac"),
    pytest.param(api_error(422, "Invalid", "no such queue"), id="webhook"),
    pytest.param(api_error(404, "NotFound", "no such kind"), id="not served"),
    pytest.param(TimeoutError("too slow"), id="timeout"),
]


@pytest.mark.parametrize("error", FAILURES)
@virtual_time
async def test_no_pod_without_its_group(error: Exception) -> None:
    shell = gang_shell()
    shell.client.fail("create", PLUGIN_GROUPS, error, times=1)
    shell.show()
    with contextlib.suppress(ApiError, TimeoutError):
        await shell.look()
    assert shell.pods() == []
    assert "startTime" not in shell.job().get("status", {}), "the deadline does not run"
    assert shell.services() == WORKERS
    for _ in range(20):  # once the cause is gone, the job goes on
        await asyncio.sleep(100)
        await settle(shell)
    assert shell.pods() == WORKERS
    assert shell.conditions() == [("Waiting", "True"), ("Created", "True")], "its pods are pending"


@virtual_time
async def test_the_group_that_a_former_process_has_made_is_ours() -> None:
    """The cache does not show it yet."""
    shell = gang_shell()
    shell.client.put(PLUGIN_GROUPS, {"metadata": {"name": "j", "namespace": "ns", "ownerReferences": [OWNER]}})
    shell.show(JOBS)
    await shell.look()
    assert shell.pods() == WORKERS
    assert shell.counted("created_pod_groups_total") == 0


OF_ANOTHER = OWNER | {"uid": "other", "name": "o"}


@pytest.mark.parametrize(
    "change",
    [{"ownerReferences": []}, {"ownerReferences": [OF_ANOTHER]}, {"deletionTimestamp": "2026-01-01T00:00:00Z"}],
)
@virtual_time
async def test_a_group_that_is_not_ours_holds_up_the_pods(change: Json) -> None:
    shell = gang_shell()
    metadata = {"name": "j", "namespace": "ns", "ownerReferences": [OWNER], **change}
    theirs = shell.client.put(PLUGIN_GROUPS, {"metadata": metadata})
    shell.show(JOBS)
    result = await shell.look()
    assert (shell.pods(), result.requeue_after) == ([], 30)
    for _ in range(3):
        await settle(shell)
    assert group(shell) == theirs
    assert len(shell.events.of("FailedCreatePodGroup")) == (0 if "deletionTimestamp" in change else 1)


@virtual_time
async def test_a_group_that_goes_in_between_is_tried_again() -> None:
    shell = gang_shell()
    shell.client.fail("create", PLUGIN_GROUPS, api_error(409, "AlreadyExists"))
    shell.show()
    assert (await shell.look()).requeue_after == 1
    assert shell.pods() == []
    shell.client.fail("create", PLUGIN_GROUPS, api_error(409, "AlreadyExists"))
    shell.client.fail("get", PLUGIN_GROUPS, api_error(500, "InternalError"))
    shell.show()
    with pytest.raises(ApiError):
        await shell.look()
    await settle(shell)
    assert shell.pods() == WORKERS


# Refusals -------------------------------------------------------------------------------------------------------------


def refusal(shell: Shell) -> Json | None:
    conditions = shell.job()["status"]["conditions"]
    assert conditions[-1]["type"] != "GangReady"
    return next((each for each in conditions if each["type"] == "GangReady"), None)


@virtual_time
async def test_a_refusal_is_shown_and_retried_slowly() -> None:
    shell = gang_shell()
    shell.client.fail("create", PLUGIN_GROUPS, api_error(422, "Invalid", "no such queue"), times=3)
    result = await settle(shell)
    assert shell.events.of("FailedCreatePodGroup") == ["Error creating: no such queue"]
    condition = refusal(shell)
    assert condition is not None
    assert (condition["status"], condition["reason"]) == ("False", "PodGroupRefused")
    assert condition["message"] == "The API server refuses the PodGroup: no such queue"
    assert shell.client.names("create", PLUGIN_GROUPS) == ["j"]
    assert result.requeue_after is not None
    assert 30 <= result.requeue_after <= 90
    written = len(writes(shell))
    waits = []
    while shell.pods() == []:
        waits.append(result.requeue_after or 0)
        await asyncio.sleep(waits[-1])
        result = await settle(shell)
    assert waits == sorted(waits)
    assert len(waits) == 3
    assert writes(shell)[written:].count("create podgroups") == 3
    assert shell.events.of("FailedCreatePodGroup") == ["Error creating: no such queue"]
    assert refusal(shell) is None
    assert ("Failed", "True") not in shell.conditions()


@virtual_time
async def test_an_edited_job_is_tried_at_once() -> None:
    shell = gang_shell()
    shell.client.fail("create", PLUGIN_GROUPS, api_error(422, "Invalid", "no such queue"))
    await settle(shell)
    assert shell.pods() == []
    change_policy(shell, minAvailable=1)
    await settle(shell)
    assert shell.pods() == WORKERS
    assert group(shell)["spec"]["minMember"] == 1


@virtual_time
async def test_a_refused_update_is_an_event_and_the_job_runs_on() -> None:
    shell = await started()
    await run_pods(shell)
    shell.client.fail("patch merge", PLUGIN_GROUPS, api_error(403, "Forbidden", "admission webhook denied"), times=2)
    change_policy(shell, minAvailable=1)
    await settle(shell)
    assert shell.events.of("FailedUpdatePodGroup") == ["Error updating: admission webhook denied"]
    assert refusal(shell) is not None
    assert shell.conditions()[-1] == ("Running", "True")
    for _ in range(10):
        await asyncio.sleep(200)
        await settle(shell)
    assert group(shell)["spec"]["minMember"] == 1
    assert refusal(shell) is None


@virtual_time
async def test_a_passing_failure_of_an_update_is_raised() -> None:
    shell = await started()
    shell.client.fail("patch merge", PLUGIN_GROUPS, api_error(503, "ServiceUnavailable"))
    change_policy(shell, minAvailable=1)
    shell.show()
    with pytest.raises(ApiError):
        await shell.look()
    await settle(shell)
    assert group(shell)["spec"]["minMember"] == 1


@virtual_time
async def test_a_webhook_that_does_not_answer_is_one_event() -> None:
    """It is no refusal: the job goes on soon after the webhook is back."""
    shell = gang_shell()
    text = 'failed calling webhook "mutatepodgroup.volcano.sh": connection refused'
    shell.client.fail("create", PLUGIN_GROUPS, api_error(500, "InternalError", text), times=3)
    for _ in range(3):
        shell.show()
        with pytest.raises(ApiError):
            await shell.look()
    assert shell.events.of("FailedCreatePodGroup") == [f"Error creating: {text}"]
    await settle(shell)
    assert shell.pods() == WORKERS


@virtual_time
async def test_a_job_in_a_terminating_namespace_waits_quietly() -> None:
    shell = gang_shell()
    causes = [{"reason": "NamespaceTerminating"}]
    shell.client.fail("create", PLUGIN_GROUPS, api_error(403, "Forbidden", "being terminated", causes), times=9)
    shell.client.fail("create", SERVICES, api_error(403, "Forbidden", "being terminated", causes), times=9)
    shell.show()
    result = await shell.look()
    assert result.requeue_after is not None
    assert shell.pods() == []
    assert not shell.events


# Disputes -------------------------------------------------------------------------------------------------------------


async def play(shell: Shell, seconds: float, undo: Callable[[], object]) -> None:
    """Run the job's passes for some time, each followed by another client."""
    until = shell.clock.monotonic() + seconds
    while shell.clock.monotonic() < until:
        shell.show()
        result = await shell.look()
        undo()
        await asyncio.sleep(min(result.requeue_after or 1, 0.2))


def edit(shell: Shell, **fields: Any) -> None:
    changed = group(shell) | {"spec": group(shell)["spec"] | fields}
    if changed != group(shell):
        shell.client.put(groups(shell), changed)


@EACH
@virtual_time
async def test_another_client_that_edits_the_group_starts_no_write_war(options: Options) -> None:
    """Such as a second operator: each write of one is an event for the other."""
    shell = await started(options)
    before = len(shell.client.calls)
    assert options.gang is not None
    shape = options.gang.shape
    await play(shell, 3600, lambda: edit(shell, **shape({"minMember": 7})))
    written = [call.verb for call in shell.client.calls[before:] if call.verb not in ("get", "list")]
    assert 10 <= len(written) <= 30
    (message,) = shell.events.of("FailedUpdatePodGroup")
    assert "another client keeps undoing this" in message
    assert shell.pods() == WORKERS
    await asyncio.sleep(400)
    await settle(shell)
    assert shape({"minMember": 2}).items() <= group(shell)["spec"].items(), "the last word is ours"


@virtual_time
async def test_a_group_that_is_deleted_over_and_over() -> None:
    shell = await started()
    before = len(shell.client.calls)
    await play(shell, 3600, lambda: shell.client.objects.pop((PLUGIN_GROUPS, KEY), None))
    assert 10 <= [call.verb for call in shell.client.calls[before:]].count("create") <= 30
    assert len(shell.events.of("FailedCreatePodGroup")) == 1
    await asyncio.sleep(400)
    await settle(shell)
    assert group(shell)


@virtual_time
async def test_an_edit_of_the_job_is_no_dispute() -> None:
    shell = await started()
    for least in (1, 2, 1, 2, 1, 2):
        change_policy(shell, minAvailable=least)
        shell.show()
        await shell.look()
        shell.show()
        await shell.look()
        assert group(shell)["spec"]["minMember"] == least
    assert shell.events.of("FailedUpdatePodGroup") == []


@virtual_time
async def test_a_dispute_is_forgotten_after_a_calm_time() -> None:
    shell = await started()
    for _ in range(10):
        await asyncio.sleep(1000)
        edit(shell, minMember=7)
        shell.show()
        await shell.look()
        assert group(shell)["spec"]["minMember"] == 2
    assert shell.events.of("FailedUpdatePodGroup") == []


# Updates and take-over ------------------------------------------------------------------------------------------------


@virtual_time
async def test_a_conflict_is_another_look() -> None:
    shell = await started()
    change_policy(shell, minAvailable=1)
    shell.show()
    shell.client.put(PLUGIN_GROUPS, group(shell) | {"status": {"phase": "Running"}})  # not yet in the cache
    assert (await shell.look()).requeue_after == 1
    assert group(shell)["spec"]["minMember"] == 2
    await settle(shell)
    assert group(shell)["spec"]["minMember"] == 1
    assert group(shell)["status"] == {"phase": "Running"}


@pytest.mark.case("job-engine-28", "ab")
@virtual_time
async def test_a_group_of_a_former_operator_is_continued_without_a_write() -> None:
    shell = gang_shell(VOLCANO)
    spec = {"minMember": 2, "queue": "q1", "minTaskMember": {"worker": 2}}
    metadata = {"name": "j", "namespace": "ns", "ownerReferences": [OWNER]}
    theirs = shell.client.put(VOLCANO_GROUPS, {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}})
    await settle(shell)
    assert shell.pods() == WORKERS
    assert group(shell) == theirs
    change_policy(shell, queue="q2", minAvailable=1)
    await settle(shell)
    assert group(shell)["spec"] == spec | {"minMember": 1}


@virtual_time
async def test_a_group_deleted_by_hand_is_made_again_if_the_job_still_exists() -> None:
    shell = await started()
    await run_pods(shell)
    first = group(shell)["metadata"]["uid"]
    del shell.client.objects[PLUGIN_GROUPS, KEY]
    while await shell.woken():
        pass
    shell.show(PLUGIN_GROUPS)
    assert await shell.woken()
    await settle(shell)
    assert group(shell)["metadata"]["uid"] != first
    assert shell.client.names("get", JOBS) == ["j"]
    assert shell.conditions()[-1] == ("Running", "True")


# Events and caches ----------------------------------------------------------------------------------------------------


@virtual_time
async def test_which_changes_of_a_group_enqueue_the_job() -> None:
    shell = await started(VOLCANO)
    while await shell.woken():
        pass
    set_phase(shell, "Running")
    shell.show(VOLCANO_GROUPS)
    await asyncio.sleep(1)
    assert await shell.woken()
    set_phase(shell, "Running", running=1)
    shell.show(VOLCANO_GROUPS)
    await asyncio.sleep(1)
    assert not await shell.woken()
    owner = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "j", "uid": "x", "controller": True}
    shell.client.put(VOLCANO_GROUPS, {"metadata": {"name": "other", "namespace": "ns", "ownerReferences": [owner]}})
    shell.show(VOLCANO_GROUPS)
    await asyncio.sleep(1)
    assert not await shell.woken()


@virtual_time
async def test_a_phase_that_flaps_enqueues_the_job_at_most_five_times_a_second() -> None:
    shell = await started(VOLCANO)
    while await shell.woken():
        pass
    passes = 0
    for number in range(1000):
        set_phase(shell, "Pending" if number % 2 else "Inqueue")
        shell.show(VOLCANO_GROUPS)
        await asyncio.sleep(0.01)
        passes += await shell.woken()
    assert 10 <= passes <= 51
    written = len(writes(shell))
    await settle(shell)
    assert len(writes(shell)) == written


@virtual_time
async def test_ten_thousand_foreign_groups_enqueue_nothing() -> None:
    shell = await started(VOLCANO)
    while await shell.woken():
        pass
    informer, decode = shell._cache_of(VOLCANO_GROUPS)
    for number in range(20_000):
        metadata: Json = {"name": f"g{number % 10_000}", "namespace": "ns", "uid": "u", "resourceVersion": f"{number}"}
        if number % 2:
            owner = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "j", "uid": "x"}
            metadata["ownerReferences"] = [owner | {"controller": True}]
        raw = {"metadata": metadata, "status": {"phase": "Pending" if number < 10_000 else "Running"}}
        informer.put(decode(msgspec.json.encode(raw)), listing=True, initial=number < 10_000)
    await asyncio.sleep(1)
    assert not await shell.woken()


@virtual_time
async def test_a_watch_that_is_forbidden_later_holds_up_new_pods_only() -> None:
    shell = await started()
    await run_pods(shell)
    assert shell.view.gang is not None
    groups = shell.view.gang.groups
    groups.listed(set(groups.store.keys()), Scope())
    groups.denied(Scope())
    await settle(shell)
    assert shell.conditions() == [("GangReady", "False"), ("Created", "True"), ("Running", "True")]
    while await shell.woken():
        pass
    groups.watching(Scope())
    assert await shell.woken()
    await settle(shell)
    assert shell.conditions() == [("Created", "True"), ("Running", "True")]
    groups.denied(Scope())
    await finish(shell)
    assert shell.conditions()[-1] == ("Succeeded", "True")
    assert (PLUGIN_GROUPS, KEY) not in shell.client.objects


@pytest.mark.parametrize("status", [None, 7, {"conditions": 7}, {"conditions": []}, {"conditions": [7]}])
@virtual_time
async def test_a_garbled_status_waits_for_nothing(status: Any) -> None:
    shell = gang_shell()
    shell.client.put(JOBS, shell.job() | {"status": status})
    shell.show()
    while await shell.woken():
        pass
    informer: Any = shell.view.gang.groups if shell.view.gang else None
    informer._unavailable.add(Scope())
    informer.listed((), Scope())
    assert not await shell.woken()


@virtual_time
async def test_late_loss_of_the_permission_for_priority_classes_changes_nothing() -> None:
    shell = gang_shell()
    template = shell.job()["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    template["priorityClassName"] = "high"
    shell.client.put(PRIORITY_CLASSES, {"metadata": {"name": "high", "namespace": ""}, "value": 1000})
    await settle(shell)
    assert shell.view.gang is not None
    shell.view.gang.classes.denied(Scope())
    job = shell.view.job(KEY)
    assert job is not None
    assert shell.view.snapshot(job, NOW, VOLCANO).gang.priorities == {"high": 1000}


@virtual_time
async def test_priority_classes_are_read() -> None:
    shell = gang_shell()
    template = shell.job()["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    template["priorityClassName"] = "high"
    change_policy(shell, minAvailable=1)
    shell.client.put(PRIORITY_CLASSES, {"metadata": {"name": "high", "namespace": ""}, "value": 1000})
    await settle(shell)
    assert shell.events.of("UnknownPriorityClass") == []
    assert shell.view.gang is not None
    job = shell.view.job(KEY)
    assert job is not None
    assert shell.view.snapshot(job, NOW, VOLCANO).gang.priorities == {"high": 1000}


@virtual_time
async def test_without_permission_to_read_priority_classes_all_count_as_zero() -> None:
    shell = gang_shell()
    assert shell.view.gang is not None
    classes = shell.view.gang.classes
    classes.denied(Scope())
    assert classes.synced
    template = shell.job()["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    template["priorityClassName"] = "high"
    change_policy(shell, minAvailable=1)
    await settle(shell)
    assert shell.pods() == WORKERS
    assert shell.events.of("UnknownPriorityClass") == []


@pytest.mark.case("job-engine-33", "a")
@pytest.mark.parametrize("cause", ["forbidden", "not served"])
@virtual_time
async def test_jobs_wait_while_groups_cannot_be_read(cause: str) -> None:
    shell = gang_shell()
    caches = shell.view.gang
    assert caches is not None
    informer: Any = caches.groups
    if cause == "forbidden":
        informer.denied(Scope())
        words = "the operator has no permission to list and watch podgroups.scheduling.x-k8s.io"
    else:
        informer._served = False
        kind = "scheduling.x-k8s.io/v1alpha1 PodGroup"
        words = f"the CustomResourceDefinition podgroups.scheduling.x-k8s.io ({kind}) is not installed"
    await settle(shell)
    assert shell.pods() == []
    condition = refusal(shell)
    assert condition is not None
    assert condition["message"] == f"Pods wait for their PodGroup: {words}"
    assert shell.client.names("create", PLUGIN_GROUPS) == []
    while await shell.woken():
        pass
    informer._served = informer._unavailable.add(Scope())
    informer.listed((), Scope())
    assert await shell.woken()
    await settle(shell)
    assert shell.pods() == WORKERS
    assert refusal(shell) is None


@virtual_time
async def test_a_group_that_cannot_be_decoded_holds_up_the_pods() -> None:
    shell = gang_shell()
    informer, decode = shell._cache_of(PLUGIN_GROUPS)
    metadata = {"name": "j", "namespace": "ns", "uid": "u", "resourceVersion": "1", "ownerReferences": [OWNER]}
    raw = {"metadata": metadata, "spec": {"minMember": "two"}}
    with pytest.raises(DecodeError) as caught:
        ObjectDecoder(PLUGIN_GROUPS, decode)(msgspec.json.encode(raw))
    informer.reject(KEY, caught.value, listing=False)
    shell.show(JOBS)
    await shell.look()
    assert shell.pods() == []
    assert len(shell.events.of("UnreadablePodGroup")) == 1


@virtual_time
async def test_what_the_cache_lost_is_read_live() -> None:
    shell = gang_shell(VOLCANO)
    shell.show()
    await shell.look()
    set_phase(shell, "Inqueue")
    shell.show(JOBS)
    await asyncio.sleep(400)
    await shell.look()
    assert shell.client.names("get", VOLCANO_GROUPS) == ["j"]
    assert shell.pods() == WORKERS


@pytest.mark.parametrize("content", [None, {"spec": 7}])
@virtual_time
async def test_a_live_read_of_no_group_or_an_unreadable_one(content: Json | None) -> None:
    shell = gang_shell()
    if content is not None:
        shell.client.put(PLUGIN_GROUPS, {"metadata": {"name": "j", "namespace": "ns"}, **content})
    shell.show(JOBS)
    assert shell.view.gang is not None
    job = shell.view.job(KEY)
    assert job is not None
    seen = await shell.view.gang.show_live(shell.client, shell.view.snapshot(job, NOW, PLUGINS))
    assert seen.companions[PLUGIN_GROUPS] == ()
    assert bool(seen.gang.fault) is (content is not None)


# The end --------------------------------------------------------------------------------------------------------------


async def finish(shell: Shell) -> None:
    for name in WORKERS:
        shell.set_phase(name, "Succeeded")
    await settle(shell)


@pytest.mark.case("job-engine-32", "ab")
@virtual_time
async def test_the_group_is_deleted_once_with_its_events() -> None:
    shell = await started()
    await run_pods(shell)
    uid = group(shell)["metadata"]["uid"]
    await finish(shell)
    assert (PLUGIN_GROUPS, KEY) not in shell.client.objects
    deleted = [call.body["uid"] for call in shell.client.calls if call[:2] == ("delete", PLUGIN_GROUPS)]
    assert deleted == [uid]
    status_at = max(place for place, word in enumerate(writes(shell)) if word == "put status pytorchjobs")
    assert writes(shell).index("delete podgroups") > status_at
    assert shell.events.of("JobTerminated") == ["Job has been terminated. Deleting PodGroup"]
    assert shell.events.of("SuccessfulDeletePodGroup") == ["Deleted PodGroup: j"]
    assert shell.counted("deleted_pod_groups_total") == 1
    await settle(shell)
    assert len(shell.events.of("JobTerminated")) == 1


@virtual_time
async def test_a_failed_deletion_is_reported_once_and_repeated() -> None:
    shell = await started()
    await run_pods(shell)
    shell.client.fail("delete", PLUGIN_GROUPS, api_error(503, "ServiceUnavailable", "later"), times=2)
    for _ in range(2):
        with pytest.raises(ApiError):
            await finish(shell)
    assert shell.events.of("FailedDeletePodGroup") == ["Error deleting: later"]
    assert shell.events.of("JobTerminated") == []
    await settle(shell)
    assert (PLUGIN_GROUPS, KEY) not in shell.client.objects


@pytest.mark.parametrize("error", [api_error(404, "NotFound"), api_error(409, "Conflict")])
@virtual_time
async def test_no_events_if_there_was_nothing_to_delete(error: ApiError) -> None:
    shell = await started()
    await run_pods(shell)
    shell.client.fail("delete", PLUGIN_GROUPS, error)
    for name in WORKERS:
        shell.set_phase(name, "Succeeded")
    shell.show()
    await shell.look()
    del shell.client.objects[PLUGIN_GROUPS, KEY]
    await settle(shell)
    assert shell.events.of("JobTerminated") == shell.events.of("SuccessfulDeletePodGroup") == []


@virtual_time
async def test_suspension_deletes_the_group_and_resumption_makes_another() -> None:
    shell = await started(VOLCANO)
    for suspend in (True, False):
        shell.client.put(JOBS, shell.job() | {"spec": shell.job()["spec"] | {"runPolicy": {"suspend": suspend}}})
        await settle(shell)
        assert ((VOLCANO_GROUPS, KEY) in shell.client.objects) is not suspend
    assert shell.pods() == []
    set_phase(shell, "Inqueue")
    await settle(shell)
    assert shell.pods() == WORKERS


# The start ------------------------------------------------------------------------------------------------------------


async def log_of_check(shell: Shell, *, served: bool) -> Sequence[Any]:
    caches = shell.view.gang
    assert caches is not None
    informer: Any = caches.groups
    with capture_logs() as lines:
        check = asyncio.create_task(CrdCheck(caches).run())
        await asyncio.sleep(1)
        assert lines == []
        informer._served = served
        informer._synced.set()
        await asyncio.sleep(1)
        assert not check.done()
        check.cancel()
    return lines


@pytest.mark.case("job-engine-33", "a")
@virtual_time
async def test_a_missing_kind_is_reported_at_the_start() -> None:
    (line,) = await log_of_check(gang_shell(VOLCANO), served=False)
    assert line["event"] == "crd might be missing, please install crd"
    assert (line["apiVersion"], line["kind"]) == ("scheduling.volcano.sh/v1beta1", "PodGroup")
    assert list(await log_of_check(gang_shell(VOLCANO), served=True)) == []


@virtual_time
async def test_a_missing_gate_is_reported_at_the_start() -> None:
    (line,) = await log_of_check(gang_shell(KUBE), served=False)
    assert "feature gate GenericWorkload" in line["event"]
    assert (line["apiVersion"], line["kind"]) == ("scheduling.k8s.io/v1beta1", "PodGroup")


@pytest.mark.parametrize("kind", KINDS)
@EACH
def test_no_job_of_a_gang_that_is_never_complete_counts_as_running(kind: str, options: Options) -> None:
    job = make(kind, run={"schedulingPolicy": {"minAvailable": 10}})
    world = World(job, framework=FRAMEWORKS[kind], options=options)
    world.step()
    assert world.group is not None
    assert options.gang is not None
    assert options.gang.shape({"minMember": 10}).items() <= world.group["spec"].items()
    world.group["status"] = {"phase": "Inqueue"}
    world.settle()
    assert {pod["status"]["phase"] for pod in world.pods.values()} == {"Pending"}
    found = {each["type"]: each["status"] for each in world.status["conditions"]}
    assert found == {"GangReady": "False", "Created": "True"}
