"""The reconciler: the order of writes in a pass, expectations, own writes, early ends, and time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.controllers.shell import JOBS, KEY, Shell, api_error, merge, pytorch_job
from tests.runtime.virtual_time import virtual_time
from trainop.controllers.job_state import MAX_OBSERVED
from trainop.controllers.observe import JobClock
from trainop.controllers.reconciler import STALE_CACHE_RETRY
from trainop.controllers.report import MAX_NOTICES
from trainop.engine import plan as engine
from trainop.engine.actions import Count, Ensure, Event, Notice, Plan, Remove
from trainop.engine.seen import Options, Snapshot
from trainop.runtime.cache.scope import Scope
from trainop.runtime.clock import timestamp
from trainop.runtime.controller.reconcile import DONE, Result
from trainop.runtime.errors import ApiError
from trainop.runtime.objects.mergepatch import merge_patch_between
from trainop.runtime.objects.metadata import LAST_APPLIED, PODS, SERVICES, Json, Key, Unstructured

CREATED = {"type": "Created", "status": "True"}
COMES_BACK = Result(requeue_after=STALE_CACHE_RETRY)


def shell_with_job(job: Json | None = None, **options: Any) -> Shell:
    shell = Shell(**options)
    shell.client.put(JOBS, job or pytorch_job())
    shell.show()
    return shell


def follow(monkeypatch: pytest.MonkeyPatch, *plans: Plan) -> list[Snapshot]:
    """Let the engine return these plans in order, repeating the last one; returns the snapshots that it received."""
    seen: list[Snapshot] = []
    left = list(plans)

    def answer(_framework: object, snapshot: Snapshot) -> Plan:
        seen.append(snapshot)
        return left.pop(0) if len(left) > 1 else left[0]

    monkeypatch.setattr(engine, "plan", answer)
    return seen


def writes(shell: Shell) -> list[str]:
    return [f"{call.verb} {call.resource.plural}" for call in shell.client.calls]


# The order ------------------------------------------------------------------------------------------------------------


@virtual_time
async def test_a_missing_job_needs_no_actions() -> None:
    shell = Shell()
    assert await shell.look() == DONE
    assert shell.client.calls == []


@pytest.mark.parametrize(
    ("status_first", "order"),
    [
        (False, ["patch merge pytorchjobs", "create pods", "put status pytorchjobs"]),
        (True, ["patch merge pytorchjobs", "put status pytorchjobs", "create pods"]),
    ],
)
def test_annotations_come_first_and_the_status_where_the_plan_says(
    monkeypatch: pytest.MonkeyPatch, status_first: bool, order: list[str]
) -> None:
    actions = (Ensure(PODS, "x", lambda: b'{"metadata":{"name":"x"}}'),)
    follow(monkeypatch, Plan({"a": "1"}, {"conditions": [CREATED]}, status_first=status_first, actions=actions))

    @virtual_time
    async def run() -> None:
        shell = shell_with_job()
        await shell.look()
        assert writes(shell) == order
        assert shell.job()["metadata"]["annotations"] == {"a": "1"}
        assert shell.conditions() == [("Created", "True")]

    run()


def test_annotations_are_merged_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    follow(monkeypatch, Plan({"old": None, "new": "1"}))

    @virtual_time
    async def run() -> None:
        job = pytorch_job()
        job["metadata"]["annotations"] = {"old": "1", "kept": "1"}
        shell = shell_with_job(job)
        await shell.look()
        assert shell.job()["metadata"]["annotations"] == {"kept": "1", "new": "1"}

    run()


def test_the_end_of_a_job_does_not_depend_on_its_annotations(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy may refuse every change of a job's metadata; its status is a separate subresource."""
    follow(monkeypatch, Plan({"a": "1"}, {"conditions": [CREATED]}, status_first=True, annotations_required=False))

    @virtual_time
    async def run() -> None:
        shell = shell_with_job()
        shell.client.fail("patch merge", JOBS, api_error(422, "Invalid"))
        await shell.look()
        assert "annotations" not in shell.job()["metadata"]
        assert shell.conditions() == [("Created", "True")]

    run()


@pytest.mark.parametrize("verb", ["patch merge", "put status"])
def test_a_conflict_causes_a_silent_requeue(monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    reported = (Event("Normal", "Said", "it"), Count("successful"))
    follow(monkeypatch, Plan({"a": "1"}, {"conditions": [CREATED]}, transitions=reported))

    @virtual_time
    async def run() -> None:
        shell = shell_with_job()
        shell.client.fail(verb, JOBS, api_error(409, "Conflict"))
        assert await shell.look() == Result(requeue=True)
        assert shell.events == [], "nothing was written, so no event is recorded"
        assert await shell.look() == Result(requeue_after=5.0), (
            "the cache still shows the version that caused the conflict"
        )
        shell.client.put(JOBS, shell.job())
        shell.show()
        assert await shell.woken()
        await shell.look()
        assert shell.events == [("Normal", "Said", "it")]
        assert shell.counted("training_operator_jobs_successful_total", job_namespace="ns", framework="pytorch") == 1

    run()


def test_a_conflict_of_the_first_status_keeps_clean_up_from_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    follow(monkeypatch, Plan(status={"conditions": []}, status_first=True, actions=(Remove(PODS, "x", "u"),)))

    @virtual_time
    async def run() -> None:
        shell = shell_with_job()
        shell.client.fail("put status", JOBS, api_error(409, "Conflict"))
        await shell.look()
        assert shell.client.names("delete", PODS) == []

    run()


def test_a_job_that_is_gone_meanwhile_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    follow(monkeypatch, Plan(status={"conditions": [CREATED]}, transitions=(Event("Normal", "Said", "it"),)))

    @virtual_time
    async def run() -> None:
        shell = shell_with_job()
        del shell.client.objects[JOBS, KEY]
        assert await shell.look() == COMES_BACK
        assert shell.events == []

    run()


def test_the_plan_decides_when_to_requeue(monkeypatch: pytest.MonkeyPatch) -> None:
    follow(monkeypatch, Plan(requeue_after=7.0), Plan(requeue_after=0.0), Plan())

    @virtual_time
    async def run() -> None:
        shell = shell_with_job()
        assert await shell.look() == Result(requeue_after=7.0)
        soon = (await shell.look()).requeue_after
        assert soon is not None
        assert 0 < soon < 0.1, "due now, without a hot loop"
        assert await shell.look() == DONE

    run()


def test_notices_are_reported_once_per_identity_and_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def say(message: str) -> Plan:
        return Plan(notices=(Notice("pod x", Event("Warning", "Bad", message)),))

    follow(monkeypatch, say("a"), say("a"), say("b"), say("b"))

    @virtual_time
    async def run() -> None:
        shell = shell_with_job()
        for _ in range(4):
            await shell.look()
        assert shell.events.of("Bad") == ["a", "b"]

    run()


@virtual_time
async def test_remembered_notices_are_bounded_and_forgotten_with_the_job() -> None:
    shell = shell_with_job()
    report = shell.reconciler._report
    job = Unstructured(shell.job())
    notices = [Notice(f"pod {n}", Event("Warning", "Bad", "x")) for n in range(MAX_NOTICES + 5)]
    report.notices(job, notices)
    assert len(report._states.find("job-uid").notices) == MAX_NOTICES
    await shell.look()
    del shell.client.objects[JOBS, KEY]
    shell.show()
    await shell.look()
    assert len(report._states) == 0
    assert shell.reconciler._states._uids == {}


@virtual_time
async def test_an_unknown_counter_is_a_mistake() -> None:
    shell = shell_with_job()
    with pytest.raises(KeyError):
        shell.reconciler._report.count(Unstructured(shell.job()), Count("nonsense"))


# Expectations ---------------------------------------------------------------------------------------------------------


@pytest.mark.case("runtime-35", "ab")
@pytest.mark.case("job-engine-36", "ab")
@virtual_time
async def test_created_children_are_awaited_and_not_created_twice() -> None:
    """Expectations are by identity instead of the counts of job-engine-36; as there, all kinds of children are
    awaited."""
    shell = shell_with_job()
    shell.client.fail("create", PODS, api_error(500, "InternalError"), name="j-worker-1")
    with pytest.raises(ApiError):
        await shell.look()
    shell.show(JOBS)
    result = await shell.look()
    assert result.requeue_after == pytest.approx(300)
    assert len(shell.client.names("create", PODS)) == 3
    shell.show(SERVICES)
    assert (await shell.look()).requeue_after, "the pods are still awaited"
    shell.show(PODS)
    await shell.look()
    assert shell.client.names("create", PODS)[3:] == ["j-worker-1"], "the failed creation is not awaited"
    shell.show()
    assert await shell.look() == DONE


@virtual_time
async def test_a_pass_that_creates_children_requeues_in_case_they_are_never_observed() -> None:
    """No event might ever arrive, and the job would wait for its pod for ever."""
    shell = shell_with_job()
    assert (await shell.look()).requeue_after == pytest.approx(300)
    shell.show()
    assert (await shell.look()).requeue_after is None, "nothing is awaited afterwards"


@pytest.mark.case("runtime-35", "c")
@pytest.mark.case("job-engine-36", "c")
@virtual_time
async def test_unobserved_children_are_listed_live_after_five_minutes() -> None:
    shell = shell_with_job()
    await shell.look()
    shell.show(JOBS)
    assert (await shell.look()).requeue_after
    del shell.client.objects[PODS, Key("ns", "j-worker-1")]
    await shell.clock.sleep(301)
    shell.client.calls.clear()
    with capture_logs() as logs:
        await shell.look()
    assert ("warning", "expectations expired, listing children") in [(e["log_level"], e["event"]) for e in logs]
    labels = "training.kubeflow.org/operator-name=pytorchjob-controller,training.kubeflow.org/job-name=j"
    assert shell.client.names("list", PODS) == shell.client.names("list", SERVICES) == [labels]
    assert shell.client.names("create", PODS) == ["j-worker-1"], "the other children were found"
    expired = shell.counted("trainop_expectations_expired_total", controller="pytorchjob-controller")
    assert expired == 6


@pytest.mark.case("runtime-35", "e")
@virtual_time
async def test_a_deletion_is_observed_by_its_timestamp_or_by_absence_after_a_relist() -> None:
    shell = shell_with_job()
    await shell.settle()
    job = shell.job()
    job["spec"]["runPolicy"] = {"suspend": True}
    shell.client.put(JOBS, job)
    shell.show()
    await shell.look()
    expectations = shell.reconciler._states.expectations
    shell.show(JOBS)
    assert (await shell.look()).requeue_after
    shell.show(PODS, SERVICES)
    assert await shell.look() == DONE
    assert len(expectations) == 0


@pytest.mark.case("runtime-35", "f")
@virtual_time
async def test_a_job_of_the_same_name_inherits_no_expectation() -> None:
    shell = shell_with_job()
    await shell.look()
    for resource, key in list(shell.client.objects):
        del shell.client.objects[resource, key]
    shell.client.put(JOBS, pytorch_job(uid="second"))
    shell.show(JOBS)
    await shell.look()
    assert shell.pods() == ["j-master-0", "j-worker-0", "j-worker-1"]
    assert {obj["metadata"]["ownerReferences"][0]["uid"] for (kind, _), obj in shell.client.objects.items()
            if kind == PODS} == {"second"}  # fmt: skip
    assert len(shell.reconciler._states.expectations) == 1


# Own writes -----------------------------------------------------------------------------------------------------------


@virtual_time
async def test_a_pass_waits_until_the_cache_shows_its_own_status() -> None:
    shell = shell_with_job()
    await shell.look()
    shell.show(PODS, SERVICES)
    assert await shell.look() == Result(requeue_after=5.0)
    await shell.clock.sleep(2)
    assert (await shell.look()).requeue_after == pytest.approx(3.0)
    await shell.woken()
    shell.show(JOBS)
    assert await shell.woken(), "the awaited update enqueues the job"
    assert await shell.look() == DONE


@virtual_time
async def test_pods_that_start_together_cause_one_status_write() -> None:
    shell = shell_with_job()
    await shell.look()
    for name in ("j-master-0", "j-worker-0"):
        shell.set_phase(name, "Running")
    shell.show()
    assert (await shell.look()).requeue_after == pytest.approx(2.0), "one pod has not started"
    shell.set_phase("j-worker-1", "Running")
    shell.show()
    assert (await shell.look()).requeue_after == pytest.approx(0.2), "all pods have started"
    await shell.clock.sleep(0.2)
    await shell.look()
    assert shell.client.names("put status", JOBS) == ["j", "j"]
    assert shell.job()["status"]["replicaStatuses"]["Worker"]["active"] == 2


@virtual_time
async def test_running_pods_are_reported_although_one_never_starts() -> None:
    shell = shell_with_job()
    await shell.look()
    shell.set_phase("j-master-0", "Running")
    shell.show()
    assert (await shell.look()).requeue_after == pytest.approx(2.0)
    await shell.clock.sleep(1.0)
    assert (await shell.look()).requeue_after == pytest.approx(1.0), (
        "the delay counts from the first change, not from the last"
    )
    await shell.clock.sleep(1.0)
    await shell.look()
    assert ("Running", "True") in shell.conditions()


@virtual_time
async def test_pods_that_end_together_cause_one_status_write() -> None:
    shell = shell_with_job()
    await shell.look()
    for name in ("j-master-0", "j-worker-0", "j-worker-1"):
        shell.set_phase(name, "Running")
    shell.show()
    await shell.clock.sleep(60.0)
    await shell.look()
    shell.set_phase("j-worker-0", "Succeeded")
    shell.show()
    assert (await shell.look()).requeue_after == pytest.approx(2.0)
    shell.set_phase("j-master-0", "Succeeded")
    shell.show()
    await shell.look()
    assert ("Succeeded", "True") in shell.conditions(), "at once"
    assert shell.client.names("put status", JOBS) == ["j"] * 3


@virtual_time
async def test_after_five_seconds_the_job_is_read_itself() -> None:
    shell = shell_with_job()
    await shell.look()
    shell.show(PODS, SERVICES)
    await shell.clock.sleep(6)
    shell.client.calls.clear()
    assert await shell.look() == DONE
    assert shell.client.names("get", JOBS) == ["j"]
    assert [call.verb for call in shell.client.calls] == ["get"], "after a live read there is nothing to do"


@virtual_time
async def test_a_job_deleted_while_the_cache_lags_is_done() -> None:
    shell = shell_with_job()
    await shell.look()
    del shell.client.objects[JOBS, KEY]
    await shell.clock.sleep(6)
    assert await shell.look() == COMES_BACK


@virtual_time
async def test_a_successor_is_left_alone_while_the_cache_shows_its_predecessor() -> None:
    shell = shell_with_job()
    await shell.look()
    for key in [key for key in shell.client.objects if key[0] != JOBS]:
        del shell.client.objects[key]
    shell.show(PODS, SERVICES)
    shell.client.put(JOBS, pytorch_job(uid="other-uid"))
    await shell.clock.sleep(6)
    for _ in range(3):
        shell.client.calls.clear()
        assert await shell.look() == COMES_BACK
        assert [call.verb for call in shell.client.calls] == ["get"], "pods are created for neither job"
    await shell.settle()
    pods = [obj for (resource, _), obj in shell.client.objects.items() if resource == PODS]
    assert {pod["metadata"]["ownerReferences"][0]["uid"] for pod in pods} == {"other-uid"}


@virtual_time
async def test_no_child_is_recreated_for_a_garbage_collected_job() -> None:
    """The watch of jobs may lag behind that of their children by minutes."""
    shell = shell_with_job()
    await shell.settle()
    del shell.client.objects[JOBS, KEY]
    for name in [*shell.pods(), *shell.services()]:
        for resource in (PODS, SERVICES):
            shell.client.objects.pop((resource, Key("ns", name)), None)
    shell.show(PODS, SERVICES)
    for _ in range(3):
        shell.client.calls.clear()
        assert await shell.look() == COMES_BACK
        assert [call.verb for call in shell.client.calls] == ["get"]


@virtual_time
async def test_a_new_leader_has_observed_garbage_collection_on_standby() -> None:
    leader, standby = shell_with_job(), Shell()
    await leader.settle()
    standby.client.objects = leader.client.objects
    standby.show()
    standby.client.objects.clear()
    standby.show(PODS, SERVICES)
    assert await standby.look() == COMES_BACK
    assert [call.verb for call in standby.client.calls] == ["get"]


@pytest.mark.parametrize("leads", [False, True])
@virtual_time
async def test_the_number_of_jobs_in_doubt_is_bounded_by_forgetting_the_oldest(leads: bool) -> None:
    """A standby may forget that a job needs a live read. The leader, which reconciles the job, does not."""
    leader, standby = shell_with_job(), Shell()
    await leader.settle()
    standby.client.objects = leader.client.objects
    standby.show()
    shell = leader if leads else standby
    del shell.client.objects[PODS, Key("ns", shell.pods()[-1])]
    shell.show()
    owner = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "other", "controller": True}
    for number in range(MAX_OBSERVED):
        child = {"metadata": {"name": "x", "uid": "y", "ownerReferences": [owner | {"uid": str(number)}]}}
        shell.reconciler._applier._owner_check.observe_deleted(Unstructured(child), KEY)
    assert len(shell.reconciler._states) == MAX_OBSERVED + leads
    shell.client.calls.clear()
    await shell.look()
    assert shell.client.names("get", JOBS) == ["j"] * leads


@virtual_time
async def test_a_vanished_child_is_recreated_after_a_live_read_of_the_job() -> None:
    shell = shell_with_job()
    await shell.settle()
    name = shell.pods()[-1]
    for _ in range(2):
        del shell.client.objects[PODS, Key("ns", name)]
        shell.show()
        shell.client.calls.clear()
        await shell.look()
        assert [(call.verb, call.name) for call in shell.client.calls[:2]] == [("get", "j"), ("create", name)]
        shell.show()
    shell.client.calls.clear()
    await shell.look()
    assert shell.client.names("get", JOBS) == []


@virtual_time
async def test_our_own_deletions_cause_no_live_read() -> None:
    """Other children that vanish at the same time do."""
    shell = shell_with_job()
    await shell.settle()
    for vanished in ([], ["j-worker-1"]):
        shell.set_phase("j-worker-0", "Failed")
        shell.show()
        await shell.look()
        assert "j-worker-0" not in shell.pods()
        for name in vanished:
            del shell.client.objects[PODS, Key("ns", name)]
        shell.show()
        shell.client.calls.clear()
        await shell.clock.sleep(60)
        await shell.look()
        assert shell.client.names("create", PODS) == ["j-worker-0", *vanished]
        assert shell.client.names("get", JOBS) == ["j"] * len(vanished)
        await shell.settle()


@virtual_time
async def test_a_job_that_changed_gets_no_children_before_the_cache_shows_the_change() -> None:
    shell = shell_with_job()
    await shell.settle()
    del shell.client.objects[PODS, Key("ns", shell.pods()[-1])]
    shell.show(PODS)
    shell.client.put(JOBS, merge(shell.job(), {"spec": {"runPolicy": {"suspend": True}}}))
    shell.client.calls.clear()
    assert await shell.look() == COMES_BACK
    assert [call.verb for call in shell.client.calls] == ["get"]
    await shell.settle()
    assert shell.conditions()[-1] == ("Suspended", "True")


@virtual_time
async def test_a_failed_live_read_leaves_the_job_in_doubt() -> None:
    shell = shell_with_job()
    await shell.settle()
    del shell.client.objects[PODS, Key("ns", shell.pods()[-1])]
    shell.show()
    shell.client.fail("get", JOBS, api_error(500, "InternalError"))
    with pytest.raises(ApiError):
        await shell.look()
    shell.client.mark_deleted(JOBS, "j")
    shell.client.calls.clear()
    assert await shell.look() == COMES_BACK
    assert [call.verb for call in shell.client.calls] == ["get"]


@virtual_time
async def test_lower_versions_of_a_restored_backup_are_accepted_after_a_live_read() -> None:
    shell = shell_with_job()
    await shell.look()
    shell.show(PODS, SERVICES)
    shell.client.objects[JOBS, KEY]["metadata"]["resourceVersion"] = "7"
    informer = shell.view.jobs
    informer.put(Unstructured(shell.job()), listing=True, initial=False)
    await shell.clock.sleep(6)
    await shell.look()
    assert shell.client.names("get", JOBS) == ["j"]
    assert await shell.look() == DONE
    assert shell.client.names("get", JOBS) == ["j"], "read live only once"


@virtual_time
async def test_the_echo_of_our_status_causes_no_pass_but_foreign_changes_do() -> None:
    shell = shell_with_job()
    await shell.woken()
    await shell.look()
    shell.show(JOBS)
    assert not await shell.woken()
    job = shell.job()
    changes: tuple[Json, ...] = (
        {"metadata": job["metadata"] | {"annotations": {"a": "1"}}},
        {"metadata": job["metadata"] | {"generation": 2}},
        {"metadata": job["metadata"] | {"ownerReferences": [OWNER]}},
        {"metadata": job["metadata"]},
        {"status": {"conditions": []}},
    )
    for change in changes:
        shell.client.put(JOBS, shell.job() | change)
        shell.show(JOBS)
        assert await shell.woken(), change


# Early ends -----------------------------------------------------------------------------------------------------------

OWNER = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Workload", "name": "w", "uid": "w"}


def lose_pod(shell: Shell) -> None:
    del shell.client.objects[PODS, Key("ns", shell.pods()[-1])]
    shell.show(PODS)


def own_status_not_shown(shell: Shell) -> None:
    written = shell.reconciler._writes._ensure(Unstructured(shell.job()))
    written.at, written.version = shell.clock.monotonic(), str(shell.client.version + 1)


async def job_gone_behind_a_lagging_cache(shell: Shell) -> None:
    own_status_not_shown(shell)
    del shell.client.objects[JOBS, KEY]
    await shell.clock.sleep(6)


async def successor_behind_a_lagging_cache(shell: Shell) -> None:
    own_status_not_shown(shell)
    shell.client.put(JOBS, pytorch_job(uid="other-uid"))
    await shell.clock.sleep(6)


def child_not_shown(shell: Shell) -> None:
    shell.reconciler._states.expectations.expect_create("job-uid", PODS, Key("ns", "x"))


def job_gone_in_doubt(shell: Shell) -> None:
    lose_pod(shell)
    del shell.client.objects[JOBS, KEY]


def job_changed_in_doubt(shell: Shell) -> None:
    lose_pod(shell)
    shell.client.put(JOBS, merge(shell.job(), {"metadata": {"ownerReferences": [OWNER]}}))


def job_gone_at_the_write(shell: Shell) -> None:
    shell.set_phase("j-master-0", "Succeeded")
    shell.show(PODS)
    del shell.client.objects[JOBS, KEY]


def conflict(shell: Shell) -> None:
    shell.set_phase("j-master-0", "Succeeded")
    shell.show(PODS)
    shell.client.fail("put status", JOBS, api_error(409, "Conflict"))


def progress_that_can_wait(shell: Shell) -> None:
    shell.set_phase("j-master-0", "Running")
    shell.show(PODS)


EARLY_ENDS = [
    own_status_not_shown,
    job_gone_behind_a_lagging_cache,
    successor_behind_a_lagging_cache,
    child_not_shown,
    job_gone_in_doubt,
    job_changed_in_doubt,
    job_gone_at_the_write,
    conflict,
    progress_that_can_wait,
]
"""Cases in which a pass ends before it has done all that its job needs."""


@pytest.mark.parametrize("happens", EARLY_ENDS, ids=lambda happens: happens.__name__)
@virtual_time
async def test_a_pass_that_ends_early_requeues_the_job(happens: Callable[[Shell], Awaitable[None] | None]) -> None:
    """The pass does not rely on an event, because the cache may have delivered it before."""
    shell = shell_with_job()
    await shell.settle()
    if (waiting := happens(shell)) is not None:
        await waiting
    shell.client.calls.clear()
    result = await shell.look()
    assert result.requeue or (result.requeue_after or 1000) <= 300
    assert not [call for call in shell.client.calls if call.verb in {"create", "delete"}]


@virtual_time
async def test_a_pod_that_vanishes_during_a_write_of_the_jobs_owners_is_recreated() -> None:
    """Only the queue triggers passes, so neither the pending live read nor the event of that write may be lost."""
    shell = shell_with_job()
    await shell.settle()
    while await shell.woken():
        pass
    job_changed_in_doubt(shell)
    assert await shell.woken()
    result = await shell.look()
    assert "j-worker-1" not in shell.pods()
    assert result.requeue_after is not None, "requeued even if no event arrives"
    shell.show(JOBS)
    assert await shell.woken(), "the event is not the echo of our status"
    await shell.look()
    assert "j-worker-1" in shell.pods()


@virtual_time
async def test_no_copy_of_a_status_is_kept_once_the_cache_shows_it() -> None:
    """It would take 2.5 KiB of each idle job of 8 pods."""
    shell = shell_with_job()
    await shell.settle()
    last = shell.reconciler._states.find("job-uid").last_write
    assert last.status is None
    shell.set_phase("j-master-0", "Succeeded")
    shell.show(PODS)
    await shell.look()
    assert last.status == shell.job()["status"], "the watch may be late"
    shell.show()
    assert last.status is None


@virtual_time
async def test_a_status_that_another_client_brings_back_is_no_echo() -> None:
    shell = shell_with_job()
    await shell.settle()
    ours = shell.job()["status"]
    while await shell.woken():
        pass
    for status in (ours | {"conditions": []}, ours):
        shell.client.put(JOBS, shell.job() | {"status": status})
        shell.show(JOBS)
        assert await shell.woken()


@virtual_time
async def test_a_status_that_was_not_written_has_no_echo() -> None:
    shell = shell_with_job()
    shell.client.fail("put status", JOBS, ConnectionError("gone"))
    with pytest.raises(ConnectionError):
        await shell.look()
    await shell.woken()
    shell.client.put(JOBS, shell.job() | {"status": {"conditions": []}})
    shell.show(JOBS)
    assert await shell.woken()


@virtual_time
async def test_a_status_is_sent_without_a_spec() -> None:
    """The API server takes the ownership of metadata that the body lacks from their managers."""
    job = pytorch_job()
    kept = {"labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["x/y"], "ownerReferences": [OWNER]}
    shell = shell_with_job(job | {"metadata": job["metadata"] | kept | {"managedFields": [{"manager": "m"}]}})
    version = shell.job()["metadata"]["resourceVersion"]
    await shell.look()
    (sent,) = (call.body for call in shell.client.calls if call.verb == "put status")
    assert sent | {"status": None} == {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "j", "namespace": "ns", "uid": "job-uid", "resourceVersion": version, **kept},
        "status": None,
    }


@pytest.mark.parametrize("first_status", [0.0, 1.0])
@virtual_time
async def test_the_status_of_a_job_by_kubectl_apply_is_patched(first_status: float) -> None:
    """The cache lacks the annotation of `kubectl apply`, whose manager must keep it."""
    job = pytorch_job()
    job["metadata"]["annotations"] = {LAST_APPLIED: "{}"}
    shell = shell_with_job(job | {"status": {"extra": 1}}, first_status=first_status)
    await shell.look()
    assert shell.client.names("patch status", JOBS) == ["j"] * (not first_status)
    for name in ("j-master-0", "j-worker-0", "j-worker-1"):
        shell.set_phase(name, "Running")
    shell.show()
    await shell.clock.sleep(0.5)
    await shell.look()
    assert shell.client.names("put status", JOBS) == []
    assert shell.conditions() == [("Created", "True"), ("Running", "True")]
    assert shell.job()["status"]["extra"] == 1
    assert shell.job()["status"]["replicaStatuses"]["Worker"]["active"] == 2


@virtual_time
async def test_fields_of_the_status_that_others_have_written_stay() -> None:
    """A newer version of the operator, or another controller, has fields of its own."""
    shell = shell_with_job()
    await shell.settle()
    status = shell.job()["status"]
    quota = {"type": "QuotaReserved", "status": "True", "by": "Kueue"}
    created = status["conditions"][0] | {"observed": 3}
    shell.client.put(JOBS, shell.job() | {"status": status | {"conditions": [created, quota], "extra": {"a": [1]}}})
    for name in ("j-master-0", "j-worker-0", "j-worker-1"):
        shell.set_phase(name, "Running")
    shell.show()
    await shell.clock.sleep(10)
    await shell.look()
    status = shell.job()["status"]
    assert status["conditions"][:2] == [created, quota]
    assert status["conditions"][2]["type"] == "Running"
    assert status["extra"] == {"a": [1]}


@pytest.mark.parametrize(
    ("old", "new", "patch"),
    [
        ({}, {"a": 1}, {"a": 1}),
        ({"a": 1}, {}, {"a": None}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "d": 3}}, {"a": {"c": None, "d": 3}}),
        ({"a": [1, 2]}, {"a": [2]}, {"a": [2]}),
        ({"a": {"b": {}}}, {"a": {"b": {}}}, {}),
        ({}, {"a": {}}, {"a": {}}),
        ({"a": 1}, {"a": {"b": 1}}, {"a": {"b": 1}}),
    ],
)
def test_a_merge_patch_leads_from_old_to_new(old: Json, new: Json, patch: Json) -> None:
    assert merge_patch_between(old, new) == patch


# Jobs of other managers
# -----------------------------------------------------------------------------------------------------


@pytest.mark.case("job-engine-20", "abd")
@virtual_time
async def test_a_job_that_another_manages_is_left_alone() -> None:
    policy = {"managedBy": "kueue.x-k8s.io/multikueue", "suspend": True}
    shell = shell_with_job(pytorch_job(runPolicy=policy))
    assert await shell.look() == DONE
    shell.client.put(JOBS, pytorch_job(runPolicy=policy | {"suspend": False}))
    shell.show()
    assert await shell.look() == DONE
    assert shell.client.calls == []
    assert shell.events == []
    shell.client.put(JOBS, pytorch_job(runPolicy={"managedBy": "kubeflow.org/training-operator"}))
    shell.show()
    await shell.look()
    assert len(shell.pods()) == 3


@virtual_time
async def test_a_child_of_another_kind_enqueues_no_job() -> None:
    shell = shell_with_job()
    await shell.woken()
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "b", "controller": True}
    labels = {"training.kubeflow.org/operator-name": "tfjob-controller", "training.kubeflow.org/job-name": "j"}
    shell.client.put(PODS, {"metadata": {"name": "a", "namespace": "ns", "ownerReferences": [owner]}})
    shell.client.put(PODS, {"metadata": {"name": "b", "namespace": "ns", "labels": labels}})
    shell.show()
    assert not await shell.woken()


@virtual_time
async def test_the_back_off_of_a_quota_resets_after_a_success() -> None:
    shell = shell_with_job()
    quota = api_error(403, "Forbidden", "exceeded quota: q")
    shell.client.fail("create", PODS, quota, times=3)
    waits = []
    for _ in range(4):
        shell.show()
        waits.append((await shell.look()).requeue_after or 0.0)
    assert waits[2] > 3
    shell.show()
    await shell.look()
    for name in ("j-master-0", "j-worker-0", "j-worker-1"):
        del shell.client.objects[PODS, Key("ns", name)]
    shell.client.fail("create", PODS, quota)
    shell.show()
    assert ((await shell.look()).requeue_after or 9.0) < 1.5


@virtual_time
async def test_a_foreign_write_of_the_status_that_we_could_not_write_enqueues_the_job() -> None:
    shell = shell_with_job()
    shell.client.fail("put status", JOBS, ConnectionError("gone"))
    with pytest.raises(ConnectionError):
        await shell.look()
    (sent,) = (call.body for call in shell.client.calls if call.verb == "put status")
    await shell.woken()
    shell.client.put(JOBS, shell.job() | {"status": sent["status"]})
    shell.show(JOBS)
    assert await shell.woken()


# Time -----------------------------------------------------------------------------------------------------------------

HOUR = 3600.0


def restart_operator(shell: Shell) -> Shell:
    """A new operator process with the existing objects."""
    fresh = Shell()
    fresh.client.objects, fresh.client.version = shell.client.objects, shell.client.version
    fresh.clock = shell.clock
    fresh.reconciler._observer._job_clock = JobClock(fresh.reconciler._states, shell.clock)
    fresh.show()
    return fresh


@pytest.mark.case("runtime-30", "d")
@pytest.mark.parametrize("step", [-HOUR, -20.0, 20.0, HOUR])
@virtual_time
async def test_a_wall_clock_jump_moves_no_deadline(step: float) -> None:
    shell = shell_with_job(pytorch_job(runPolicy={"activeDeadlineSeconds": 15, "ttlSecondsAfterFinished": 30}))
    await shell.settle()
    await shell.clock.sleep(5)
    shell.clock.jump(step)
    assert (await shell.settle()).requeue_after == pytest.approx(10, abs=1)
    await shell.clock.sleep(9)
    await shell.settle()
    assert "Failed" not in dict(shell.conditions())
    await shell.clock.sleep(2)
    await shell.settle()
    assert dict(shell.conditions())["Failed"] == "True"
    shell.clock.jump(step)
    await shell.clock.sleep(25)
    await shell.settle()
    assert (JOBS, KEY) in shell.client.objects
    await shell.clock.sleep(6)
    await shell.settle()
    assert (JOBS, KEY) not in shell.client.objects, "the time to live does not move either"


@virtual_time
async def test_a_wall_clock_jump_ends_no_back_off() -> None:
    shell = shell_with_job(pytorch_job(workers=1))
    for _ in range(4):
        await shell.settle()
        while "j-worker-0" not in shell.pods():
            await shell.clock.sleep(1)
            await shell.settle()
        born = {"creationTimestamp": timestamp(shell.clock.now())}
        shell.client.put(PODS, merge(shell.client.objects[PODS, Key("ns", "j-worker-0")], {"metadata": born}))
        await shell.clock.sleep(1)
        shell.set_phase("j-worker-0", "Failed")
    await shell.settle()
    shell.clock.jump(-HOUR)
    await shell.settle()
    assert "j-worker-0" not in shell.pods(), "the fourth restart waits for 4 s"
    await shell.clock.sleep(2)
    shell.clock.jump(2 * HOUR)
    await shell.settle()
    assert "j-worker-0" not in shell.pods()
    await shell.clock.sleep(3)
    await shell.settle()
    assert "j-worker-0" in shell.pods()


@virtual_time
async def test_whether_a_pod_is_stuck_is_judged_by_the_clock_as_it_is() -> None:
    """Its deletionTimestamp comes from the API server's clock, to which the wrong wall clock is corrected."""
    shell = Shell(Options(force_delete_after=60))
    shell.clock.jump(HOUR)
    shell.client.put(JOBS, pytorch_job())
    shell.show()
    await shell.settle()
    shell.clock.jump(-HOUR)
    shell.client.mark_deleted(PODS, "j-worker-0")
    due = timestamp(shell.clock.now() + timedelta(seconds=30))
    dying = shell.client.objects[PODS, Key("ns", "j-worker-0")]
    shell.client.put(PODS, merge(dying, {"metadata": {"deletionTimestamp": due}}))
    for seconds, deleted in ((0, []), (85, []), (10, ["j-worker-0"])):
        await shell.clock.sleep(seconds)
        await shell.settle()
        assert shell.client.names("delete", PODS) == deleted


@virtual_time
async def test_times_are_those_of_the_clock_as_it_is_when_a_job_starts_or_is_resumed() -> None:
    shell = shell_with_job(pytorch_job(runPolicy={"suspend": True, "activeDeadlineSeconds": 15}))
    await shell.settle()
    shell.clock.jump(HOUR)
    shell.client.put(JOBS, merge(shell.job(), {"spec": {"runPolicy": {"suspend": False}}}))
    await shell.settle()
    assert shell.job()["status"]["startTime"] == timestamp(shell.clock.now())
    await shell.clock.sleep(5)
    assert (await shell.settle()).requeue_after == pytest.approx(10, abs=1)


@virtual_time
async def test_after_a_restart_of_the_operator_only_the_wall_clock_is_available() -> None:
    shell = shell_with_job(pytorch_job(runPolicy={"activeDeadlineSeconds": 15}))
    await shell.settle()
    shell.clock.jump(-5)
    shell = restart_operator(shell)
    assert (await shell.settle()).requeue_after == pytest.approx(20, abs=1)
    shell.clock.jump(HOUR)
    assert (await shell.settle()).requeue_after == pytest.approx(20, abs=1), "afterwards the monotonic clock is used"


@virtual_time
async def test_a_deadline_does_not_wait_for_children_that_the_cache_does_not_show() -> None:
    shell = shell_with_job(pytorch_job(runPolicy={"activeDeadlineSeconds": 15}))
    await shell.look()
    shell.show(JOBS)
    result = await shell.look()
    assert result.requeue_after == pytest.approx(15, abs=1), "it does not wait for five minutes"
    await shell.clock.sleep(16)
    await shell.look()
    assert dict(shell.conditions())["Failed"] == "True"
    assert shell.pods() == []


@virtual_time
async def test_a_deadline_does_not_wait_for_a_back_off() -> None:
    shell = shell_with_job(pytorch_job(runPolicy={"activeDeadlineSeconds": 15}))
    await shell.settle()
    await shell.clock.sleep(5)
    assert shell.reconciler.seconds_to_due(KEY) == pytest.approx(10, abs=1)
    controller = shell.controller
    while await shell.woken():
        pass
    for _ in range(14):
        delay = controller._schedule_retry(KEY)
    assert delay <= 11, "fourteen consecutive failures would otherwise delay it by a minute"
    await shell.clock.sleep(11)
    assert await shell.woken()


@virtual_time
async def test_back_off_does_not_grow_during_an_outage() -> None:
    shell = shell_with_job()
    await shell.settle()
    shell.client.recovery.failed()
    controller = shell.controller
    assert max(controller._schedule_retry(KEY) for _ in range(30)) <= 2
    shell.client.recovery.succeeded()
    assert controller._schedule_retry(KEY) < 0.1, "the first failure after the outage"


@pytest.mark.parametrize("kind", ["pods", "services", "pytorchjobs"])
@virtual_time
async def test_a_job_whose_children_may_not_be_listed_is_left_alone(kind: str) -> None:
    """What the cache shows of them is not to be relied on."""
    shell = Shell()
    shell.client.put(JOBS, pytorch_job())
    shell.show()
    informer = next(each for each in shell.view.needed if each.resource.plural == kind)
    informer.denied(Scope())
    while await shell.woken():
        pass
    before = shell.client.version
    await shell.look()
    await shell.look()
    assert shell.client.version == before
    (message,) = shell.events.of("NoPermission")
    assert message.startswith("The operator does nothing for this job, because it has no permission to list and watch")
    assert kind in message
    informer.listed(set(informer.store.keys()), Scope())
    assert await shell.woken()
    await shell.settle()
    assert shell.pods() == ["j-master-0", "j-worker-0", "j-worker-1"]
