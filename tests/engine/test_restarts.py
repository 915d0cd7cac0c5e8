"""Failed, deleted and lost pods: restarts, failures, counts and pauses."""

import json
from datetime import timedelta

import pytest

from tests.engine.builders import (
    CREATED,
    NOW,
    RUNNING,
    UID,
    condition,
    conditions_of,
    make_job,
    make_pod,
    make_service,
    names,
    plan_for,
    pod_created,
    pod_deleted,
    service_created,
    stamp,
    status_of,
    written,
)
from tests.engine.world import World
from tests.upstream import Upstream
from trainop.engine.actions import Count, Event
from trainop.engine.extensions import RESTART_SCOPE
from trainop.engine.failures import disrupted, may_restart
from trainop.engine.job import Role
from trainop.engine.restart_history import RESTARTS, RestartHistory
from trainop.engine.seen import Pod
from trainop.runtime.objects.metadata import Json

RESTARTING_TEXT = Upstream("job j is restarting because Worker replica(s) failed.")
EXIT_TEXT = Upstream('job "j" is failing because "Worker" replica(s) failed.')


def started(policy: str = "OnFailure", run: Json | None = None, worker: int = 1) -> World:
    """A job with a master, running."""
    world = World(make_job(1, worker, policy=policy, run=run))
    world.settle()
    world.run()
    world.settle()
    assert world.is_true("Running")
    return world


def test_a_retryable_exit_code_restarts_the_pod():
    pods = [make_pod("master"), make_pod(phase="Failed", exit_code=130)]
    made = plan_for(make_job(1, 1, policy="ExitCode", status=status_of(CREATED, RUNNING)), pods)
    assert names(made, pod_deleted) == ["j-worker-0"]
    assert not made.status_first
    assert conditions_of(made.status) == [
        ("Created", "True", "PyTorchJobCreated"),
        ("Restarting", "True", "PyTorchJobRestarting"),
    ]
    assert written(made)["conditions"][-1]["message"] == RESTARTING_TEXT
    assert Event("Warning", "PyTorchJobRestarting", RESTARTING_TEXT) in made.transitions
    assert Count("restarted") in made.transitions
    assert Count("failed_pods") in made.transitions
    assert [notice.event for notice in made.notices] == [
        Event("Normal", "ExitedWithCode", "Pod: ns.j-worker-0 exited with code 130")
    ]
    assert json.loads(made.annotations[RESTARTS] or "")["failures"] == 1


def test_the_pod_is_recreated_once_its_name_is_free():
    world = started("ExitCode")
    world.end("j-worker-0", 130)
    world.settle()
    assert world.conditions[-1] == ("Restarting", "True", "PyTorchJobRestarting")
    assert world.living() == ["j-master-0"]
    world.reap()
    world.settle()
    assert world.living() == ["j-master-0", "j-worker-0"]
    assert world.counts["restarted"] == 1
    assert world.event_messages("PyTorchJobRestarting") == [RESTARTING_TEXT]


@pytest.mark.case("job-engine-7", "d")
@pytest.mark.case("frameworks-v1-21", "ab")
def test_a_permanent_exit_code_fails_the_job():
    world = started("ExitCode", run={"ttlSecondsAfterFinished": 5})
    world.end("j-worker-0", 1)
    made = world.step()
    assert made.status_first
    assert world.conditions == [
        ("Created", "True", "PyTorchJobCreated"),
        ("Running", "False", "PyTorchJobRunning"),
        ("Failed", "True", "PyTorchJobFailed"),
    ]
    assert world.status["conditions"][-1]["message"] == EXIT_TEXT
    assert world.status["completionTime"]
    assert [t for t in made.transitions if isinstance(t, Event)] == [Event("Warning", "PyTorchJobFailed", EXIT_TEXT)]
    assert Count("failed") in made.transitions
    assert made.requeue_after == 5
    assert world.event_messages("PyTorchJobRestarting") == []
    world.settle()
    assert world.living() == ["j-master-0", "j-worker-0"]
    world.pass_time(5)
    world.settle()
    assert world.job is None


def test_a_permanent_exit_code_beside_a_retryable_one_is_the_end_and_nothing_restarts():
    world = started("ExitCode", worker=2)
    world.end("j-worker-0", 137)
    world.end("j-worker-1", 1)
    world.settle()
    assert world.conditions[-1] == ("Failed", "True", "PyTorchJobFailed")
    assert [event.message for event in world.events if event.type == "Warning"] == [EXIT_TEXT]
    assert world.living() == ["j-master-0", "j-worker-0", "j-worker-1"]
    assert world.counts == {"created": 1, "failed": 1, "failed_pods": 2}


@pytest.mark.case("job-engine-8", "b")
def test_without_an_exit_code_the_pod_was_not_at_fault():
    made = plan_for(
        make_job(1, 1, policy="ExitCode", status=status_of(CREATED, RUNNING)),
        [make_pod("master"), make_pod(phase="Failed", reason="Evicted")],
    )
    assert names(made, pod_deleted) == ["j-worker-0"]
    assert conditions_of(made.status)[-1] == ("Restarting", "True", "PyTorchJobRestarting")
    noted = json.loads(made.annotations[RESTARTS] or "")
    assert (noted["job"], noted["disruptions"]) == (UID, 1)
    assert "failures" not in noted


@pytest.mark.case("job-engine-9", "b")
def test_an_evicted_pod_is_restarted():
    made = plan_for(
        make_job(1, 1, policy="OnFailure", status=status_of(CREATED, RUNNING)),
        [make_pod("master"), make_pod(phase="Failed", reason="Evicted")],
    )
    assert names(made, pod_deleted) == ["j-worker-0"]
    assert conditions_of(made.status)[-1] == ("Restarting", "True", "PyTorchJobRestarting")


@pytest.mark.case("job-engine-10", "ab")
@pytest.mark.parametrize(
    ("code", "retry"),
    [(0, False), (1, False), (2, False), (3, False), (127, False), (128, True), (130, True), (138, True), (255, True)],
)
def test_exit_codes_from_128_are_retryable(code: int, retry: bool):
    pod = make_pod(phase="Failed", exit_code=code)
    assert may_restart(Role("Worker", 1, "ExitCode", {}, container="pytorch"), pod) is retry


DISRUPTED = [{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}]


@pytest.mark.parametrize("code", [0, 1, 137, 143])
@pytest.mark.parametrize(
    ("reason", "conditions"),
    [("Terminated", []), ("Evicted", []), ("NodeLost", []), ("Preempting", []), ("", DISRUPTED)],
)
def test_under_policy_exit_code_a_disrupted_pod_restarts_whatever_its_code(
    code: int, reason: str, conditions: list[Json]
):
    """A program that handles SIGTERM may exit with 0 or 1 when its node shuts down; the node caused that."""
    lost = make_pod(phase="Failed", exit_code=code, reason=reason, status={"conditions": conditions})
    job = make_job(1, 1, policy="ExitCode", run={"backoffLimit": 0}, status=status_of(CREATED, RUNNING))
    made = plan_for(job, [make_pod("master"), lost])
    assert names(made, pod_deleted) == ["j-worker-0"]
    assert conditions_of(made.status)[-1] == ("Restarting", "True", "PyTorchJobRestarting")
    history = RestartHistory(UID, {RESTARTS: made.annotations[RESTARTS] or ""})
    assert (history.failures, history.disruptions) == (0, 1)


@pytest.mark.parametrize("conditions", [[], [DISRUPTED[0] | {"status": "False"}]])
def test_under_policy_exit_code_an_undisturbed_pod_ends_the_job_by_its_code(conditions: list[Json]):
    failed = make_pod(phase="Failed", exit_code=1, status={"conditions": conditions})
    made = plan_for(make_job(1, 1, policy="ExitCode", status=status_of(CREATED, RUNNING)), [make_pod("master"), failed])
    assert conditions_of(made.status)[-1] == ("Failed", "True", "PyTorchJobFailed")


@pytest.mark.parametrize(("policy", "retry"), [("Always", True), ("OnFailure", True), ("Never", False)])
def test_other_policies_do_not_look_at_the_exit_code(policy: str, retry: bool):
    pod = make_pod(phase="Failed", exit_code=1)
    assert may_restart(Role("Worker", 1, policy, {}), pod) is retry


@pytest.mark.case("frameworks-v1-20", "ab")
def test_restarting_lasts_until_the_replica_is_back():
    world = started("OnFailure")
    world.end("j-worker-0", 1)
    world.settle()
    assert world.conditions[-1] == ("Restarting", "True", "PyTorchJobRestarting")
    world.reap()
    world.step()
    assert world.conditions[-1][0] == "Restarting"
    world.run()
    world.settle()
    assert world.conditions == [
        ("Created", "True", "PyTorchJobCreated"),
        ("Running", "True", "PyTorchJobRunning"),
    ]


@pytest.mark.case("frameworks-v1-20", "c")
def test_under_policy_never_a_failed_worker_fails_the_job():
    world = started("Never", worker=2)
    world.end("j-worker-1", 1)
    world.settle()
    text = Upstream("PyTorchJob j is failed because 1 Worker replica(s) failed.")
    assert world.conditions[1:] == [("Running", "False", "PyTorchJobRunning"), ("Failed", "True", "PyTorchJobFailed")]
    assert world.status["conditions"][-1]["message"] == text
    assert Event("Normal", "PyTorchJobFailed", text) in world.events
    assert world.status["completionTime"]
    assert world.counts == {"created": 1, "failed": 1, "failed_pods": 1}
    assert world.status["replicaStatuses"]["Worker"]["failed"] == 1


def test_a_failed_worker_beside_a_succeeded_master_does_not_matter_any_more():
    world = started("Never")
    world.end("j-worker-0", 1)
    world.end("j-master-0", 0)
    world.settle()
    assert world.conditions[-1] == ("Succeeded", "True", "PyTorchJobSucceeded")
    assert not world.is_true("Failed")


def test_the_leaders_failure_is_reported_first():
    world = started("Never")
    world.end("j-worker-0", 1)
    world.end("j-master-0", 1)
    world.settle()
    assert world.status["conditions"][-1]["message"] == Upstream(
        "PyTorchJob j is failed because 1 Master replica(s) failed."
    )
    assert world.counts["failed_pods"] == 2


@pytest.mark.case("job-engine-38", "cd")
def test_a_running_pod_deleted_by_another_client_is_recreated():
    world = started("OnFailure")
    world.delete("j-worker-0")
    world.settle()
    assert world.conditions[-1] == ("Restarting", "True", "PyTorchJobRestarting")
    assert world.status["replicaStatuses"]["Worker"].keys() == {"selector"}
    world.end("j-worker-0", 143)  # its exit code does not matter
    world.settle()
    assert world.counts["restarted"] == 1
    world.reap()
    world.settle()
    world.run()
    world.settle()
    assert world.conditions[-1] == ("Running", "True", "PyTorchJobRunning")
    assert world.created_pods == 3
    assert "failed" not in world.counts


def test_a_pending_pod_deleted_by_another_client_is_recreated_silently():
    world = World(make_job(1, 1))
    world.settle()
    world.run("j-master-0")
    world.delete("j-worker-0")
    world.settle()
    assert world.conditions[-1] == ("Running", "True", "PyTorchJobRunning")
    world.reap()
    world.settle()
    assert world.living() == ["j-master-0", "j-worker-0"]
    assert "restarted" not in world.counts


@pytest.mark.parametrize("policy", ["OnFailure", "ExitCode", "Never"])
def test_a_deleted_pod_of_which_nothing_has_run_is_recreated_silently(policy: str):
    """Its image may be missing. The kubelet reports such a pod as Failed when it is deleted."""
    world = World(make_job(1, 1, policy=policy))
    world.settle()
    world.run("j-master-0")
    world.delete("j-worker-0")
    lost = {"exitCode": 137, "reason": "ContainerStatusUnknown", "startedAt": None, "finishedAt": None}
    state = {"name": "pytorch", "restartCount": 0, "state": {"terminated": lost}}
    world.set_pod("j-worker-0", "Failed", containerStatuses=[state])
    world.settle()
    assert world.conditions[-1] == ("Running", "True", "PyTorchJobRunning")
    world.reap()
    world.settle()
    assert world.living() == ["j-master-0", "j-worker-0"]
    assert not world.counts.keys() & {"restarted", "disrupted", "failed_pods"}
    assert world.event_messages("ExitedWithCode") == []


@pytest.mark.parametrize(
    "states",
    [
        [("ContainerStatusUnknown", 1)],
        [("ContainerStatusUnknown", 0), ("Error", 0)],
        [],
    ],
    ids=["it was restarted before", "one container has run", "nothing is known"],
)
def test_under_policy_never_a_deleted_pod_that_may_have_run_fails_the_job(states: list[tuple[str, int]]):
    world = World(make_job(1, 1, policy="Never"))
    world.settle()
    world.run("j-master-0")
    world.delete("j-worker-0")
    found = [
        {"name": f"c{place}", "restartCount": count, "state": {"terminated": {"exitCode": 137, "reason": reason}}}
        for place, (reason, count) in enumerate(states)
    ]
    world.set_pod("j-worker-0", "Failed", containerStatuses=found)
    world.settle()
    assert world.conditions[-1] == ("Failed", "True", "PyTorchJobFailed")


def test_under_policy_never_a_deleted_pod_fails_the_job_once_it_has_gone():
    world = started("Never")
    world.delete("j-worker-0")
    world.settle()
    assert world.conditions[-1] == ("Running", "True", "PyTorchJobRunning")
    world.reap()
    world.settle()
    assert world.conditions[-1] == ("Failed", "True", "PyTorchJobFailed")
    assert world.living() == ["j-master-0"]
    assert world.status["conditions"][-1]["message"] == Upstream(
        "PyTorchJob j is failed because 1 Worker replica(s) failed."
    )


def test_under_policy_never_a_deleted_pod_fails_the_job_when_it_fails():
    world = started("Never")
    world.delete("j-worker-0")
    world.settle()
    world.end("j-worker-0", 143)
    world.settle()
    assert world.conditions[-1] == ("Failed", "True", "PyTorchJobFailed")
    assert world.status["conditions"][-1]["message"] == Upstream(
        "PyTorchJob j is failed because 1 Worker replica(s) failed."
    )


def test_under_policy_never_a_deleted_pod_may_still_succeed():
    world = started("Never")
    world.delete("j-worker-0")
    world.settle()
    world.end("j-worker-0", 0)
    world.settle()
    assert world.status["replicaStatuses"]["Worker"]["succeeded"] == 1
    world.reap()
    world.settle()
    assert not world.is_true("Failed")


def test_a_pod_that_succeeds_while_terminating_without_having_been_missed_counts():
    world = started("Never")
    world.end("j-worker-0", 0)
    world.delete("j-worker-0")
    world.settle()
    assert world.status["replicaStatuses"]["Worker"]["succeeded"] == 1
    assert world.step().annotations == {}


@pytest.mark.case("job-engine-38", "ab")
def test_the_pod_of_an_earlier_job_is_waited_for():
    leaving = make_pod(owner="older", dying=True)
    made = plan_for(make_job(1, 1), [leaving], [])
    assert names(made, pod_created) == ["j-master-0"]
    assert names(made, service_created) == ["j-master-0", "j-worker-0"]
    assert made.notices == ()
    assert made.requeue_after == 30
    made = plan_for(make_job(1, 1, status=status_of(CREATED)), [make_pod("master")], [make_service("master")])
    assert names(made, pod_created) == ["j-worker-0"]


def test_the_living_pod_of_an_earlier_job_is_waited_for_too():
    made = plan_for(make_job(1, 1), [make_pod(owner="older")])
    assert names(made, pod_created) == ["j-master-0"]
    assert names(made, service_created) == ["j-master-0"]
    assert made.notices == ()


def test_a_foreign_object_of_our_name_is_reported():
    foreign = [{"apiVersion": "v1", "kind": "Other", "name": "x", "uid": "x", "controller": True}]
    made = plan_for(make_job(1, 1), [make_pod(ownerReferences=foreign)])
    assert names(made, pod_created) == ["j-master-0"]
    told_of = [notice.event.reason for notice in made.notices]
    assert told_of == ["UnexpectedPods", "UnexpectedServices", "FailedCreateService", "FailedCreatePod"]
    assert made.notices[3].event.message == (
        "Error creating: Pod j-worker-0 already exists and does not belong to PyTorchJob j"
    )
    assert made.requeue_after == 30


# Counting -------------------------------------------------------------------------------------------------------------


@pytest.mark.case("job-engine-23", "ab")
@pytest.mark.parametrize("limit", [0, 1, 2])
def test_exit_codes_reach_the_backoff_limit(limit: int):
    world = started("ExitCode", run={"backoffLimit": limit})
    for _ in range(limit):
        world.end("j-worker-0", 137)
        world.settle()
        world.reap()
        world.pass_time(1)
        world.settle()  # a plan has no state, so every pass is like one after a restart of the operator
        world.run()
        world.settle()
    assert world.created_pods == 2 + limit
    world.end("j-worker-0", 137)
    world.settle()
    assert world.conditions[-1] == ("Failed", "True", "PyTorchJobFailed")
    assert world.status["conditions"][-1]["message"] == (
        Upstream("Job j has failed because it has reached the specified backoff limit")
    )
    assert world.created_pods == 2 + limit
    assert world.counts.get("restarted", 0) == limit
    assert world.counts["failed_pods"] == limit + 1


def test_several_failures_at_once_count_each():
    world = started("ExitCode", run={"backoffLimit": 2}, worker=3)
    for index in range(3):
        world.end(f"j-worker-{index}", 137)
    world.settle()
    assert world.is_true("Failed")


def test_disruptions_are_counted_apart_and_not_limited():
    world = started("ExitCode", run={"backoffLimit": 0})
    disrupted = {"conditions": [{"type": "DisruptionTarget", "status": "True"}]}
    for status in ({"reason": "Evicted"}, disrupted, {"reason": "NodeLost"}):
        world.end("j-worker-0", 137, **status)
        world.settle()
        world.reap()
        world.pass_time(2)
        world.settle()
        world.run()
        world.settle()
        assert world.is_true("Running")
    history = RestartHistory(UID, world.raw["metadata"]["annotations"])
    assert (history.failures, history.disruptions) == (0, 3)
    assert world.counts["disrupted"] == 3


@pytest.mark.parametrize(("reason", "counts"), [("Evicted", {"disrupted": 1}), ("", {})])
def test_a_disruption_that_fails_the_job_is_counted(reason: str, counts: dict[str, int]):
    world = started("Never")
    world.end("j-worker-0", 137, reason=reason)
    world.settle()
    assert world.counts == {"created": 1, "failed": 1, "failed_pods": 1, **counts}


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ([], False),
        ([{"type": "DisruptionTarget", "status": "True"}], True),
        ([{"type": "DisruptionTarget", "status": "False"}], False),
        ([{"type": "Ready", "status": "True"}], False),
        ([{"type": "Ready", "status": "False"}, {"type": "DisruptionTarget", "status": "True"}], True),
    ],
)
def test_a_disruption_is_recognized_by_its_condition(conditions: list[Json], expected: bool):
    assert disrupted(make_pod(phase="Failed", status={"conditions": conditions})) is expected


def test_the_pods_deadline_counts_as_a_failure_of_the_user():
    pods = [make_pod("master"), make_pod(phase="Failed", exit_code=137, reason="DeadlineExceeded")]
    made = plan_for(
        make_job(1, 1, policy="ExitCode", run={"backoffLimit": 0}, status=status_of(CREATED, RUNNING)), pods
    )
    assert conditions_of(made.status)[-1][0] == "Failed"


def test_restarts_in_a_row_slow_down():
    world = started("ExitCode")
    waits = []
    for _ in range(12):
        world.end("j-worker-0", 137)
        world.settle()
        world.reap()
        made = world.step()
        waits.append(made.requeue_after or 0.0)
        assert names(made, pod_created) == ([] if made.requeue_after else ["j-worker-0"])
        assert world.conditions[-1][0] == "Restarting"
        world.pass_time(waits[-1])
        world.settle()
        world.run()
        world.settle()
        assert world.is_true("Running")
    assert waits == [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    world.pass_time(601)
    world.end("j-worker-0", 137)
    world.settle()
    world.reap()
    assert names(world.step(), pod_created) == ["j-worker-0"]


def test_pods_that_fail_one_after_another_are_one_round_and_other_roles_do_not_wait():
    world = started("ExitCode", worker=20)
    for index in range(20):
        world.pass_time(1)
        world.end(f"j-worker-{index}", 137)
        world.settle()
    world.reap()
    assert len(names(world.step(), pod_created)) == 20
    world.run()
    world.settle()
    world.end("j-worker-0", 137)
    world.delete("j-master-0")
    world.settle()
    world.reap()
    made = world.step()
    assert (names(made, pod_created), made.requeue_after) == (["j-master-0"], 1)


def test_a_role_that_waits_but_has_all_its_pods_has_nothing_to_look_at():
    history = RestartHistory(UID, {})
    for number in range(9):
        when = NOW - timedelta(seconds=256 - 2 ** min(number, 8))
        history.begin_round("Worker", when, when)
    job = make_job(None, 1, status=status_of(CREATED, RUNNING), annotations={RESTARTS: history.text([])})
    assert plan_for(job, []).requeue_after == 128
    assert plan_for(job, [make_pod()]).requeue_after is None


def test_no_pause_for_a_restart_in_the_future_after_the_clock_was_set_back():
    history = RestartHistory(UID, {})
    for number in range(9):
        when = NOW + timedelta(hours=1, seconds=2**number)
        history.begin_round("Worker", when, when)
    job = make_job(None, 1, status=status_of(CREATED, RUNNING), annotations={RESTARTS: history.text([])})
    made = plan_for(job, [])
    assert (names(made, pod_created), made.requeue_after) == (["j-worker-0"], None)


def test_pods_that_fail_together_are_one_round_also_if_the_servers_clock_is_ahead():
    workers = 30
    annotations: dict[str, str] = {}
    for second in range(10):
        failed = [
            make_pod(index=n, phase="Failed", exit_code=137, creationTimestamp=stamp(60)) for n in range(second * 3)
        ]
        fine = [make_pod(index=n) for n in range(second * 3, workers)]
        job = make_job(None, workers, policy="ExitCode", status=status_of(CREATED, RUNNING), annotations=annotations)
        made = plan_for(job, [*failed, *fine], now=NOW + timedelta(seconds=second))
        annotations = {**annotations, RESTARTS: made.annotations.get(RESTARTS) or annotations.get(RESTARTS, "")}
    history = RestartHistory(UID, annotations)
    assert history.failures + history.disruptions == 27
    assert history.wait("Worker", NOW + timedelta(seconds=9)) <= 8


def test_a_restart_is_counted_once_however_often_its_pass_is_repeated():
    world = started("OnFailure")
    world.end("j-worker-0", 1)
    snapshot = world.snapshot()
    first = world.step()
    # the operator stopped between the count and the deletion: the pod is still there
    world.pods["j-worker-0"]["metadata"].pop("deletionTimestamp")
    again = world.step()
    assert names(again, pod_deleted) == ["j-worker-0"]
    assert again.annotations == {}
    assert again.transitions == ()
    assert first.annotations
    assert snapshot.job.metadata.annotations == {}


def test_a_restart_that_was_counted_but_not_reported_is_reported():
    annotation = json.dumps({"job": UID, "failures": 1, "settled": sorted(RestartHistory(UID, {})._counted)})
    history = RestartHistory(UID, {RESTARTS: annotation})
    pod = make_pod(phase="Failed", exit_code=137)
    history.count(1, 0)
    history.mark_counted(pod.metadata.uid)
    text = history.text([pod.metadata.uid])
    job = make_job(1, 1, policy="ExitCode", status=status_of(CREATED, RUNNING), annotations={RESTARTS: text})
    made = plan_for(job, [make_pod("master"), pod])
    assert [t for t in made.transitions if isinstance(t, Event)] == [
        Event("Warning", "PyTorchJobRestarting", RESTARTING_TEXT)
    ]
    assert Count("restarted") not in made.transitions


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"job":"other","failures":9}',
        f'{{"job":"{UID}","failures":-1,"disruptions":true,"settled":7,"lost":[1]}}',
        f'{{"job":"{UID}","rounds":{{"A":[0,"{stamp()}"],"B":[2,"x"],"C":7,"D":[2]}}}}',
        f'{{"job":"{UID}","rounds":[1]}}',
        f'{{"job":"{UID}","failures":"9","settled":[1,null],"lost":{{"a":1}}}}',
        f'{{"job":"{UID}","lost":{{"Worker":"short","Other":["AAAAAAAA"],"PS":"AAA AAAA"}}}}',
        "[" * 100_000,
    ],
)
def test_an_annotation_that_is_not_ours_counts_as_none(text: str):
    history = RestartHistory(UID, {RESTARTS: text})
    assert (history.failures, history.disruptions) == (0, 0)
    assert not history.is_counted("x")
    assert len(history.lost("Worker", [])) == 0
    assert [history.wait(role, NOW) for role in "ABCD"] == [0, 0, 0, 0]
    assert not history.changed


@pytest.mark.parametrize(
    "entries",
    [
        f'"failures":{"9" * 4300}',
        f'"disruptions":{"9" * 4300}',
        f'"failures":{"9" * 5000}',
        '"failures":NaN,"disruptions":Infinity',
        '"failures":1e400,"disruptions":-1',
        f'"rounds":{{"Worker":[{"9" * 4300},"2025-06-01T11:59:59Z"]}}',
        '"rounds":{"Worker":[1,"9999-12-31T23:59:59-12:00"]}',
        '"rounds":{"Worker":[1,"0001-01-01T00:00:00+12:00"]}',
        '"rounds":{"Worker":[true,"2025-06-01T11:59:59Z"],"\\ud800":[1,"2025-06-01T11:59:59Z"]}',
        '"rounds":{' + ",".join(f'"{n}":[1,"2025-06-01T11:59:59Z"]' for n in range(5000)) + "}",
        '"lost":{"Worker":"\\ud800AAAAAAA"},"settled":"\\ud800"',
    ],
)
def test_a_forged_ledger_blocks_nothing(entries: str):
    """The ledger that replaces it is small and valid."""
    annotations = {RESTARTS: f'{{"job":"{UID}",{entries}}}'}
    job = make_job(1, 1, policy="ExitCode", status=status_of(CREATED, RUNNING), annotations=annotations)
    made = plan_for(job, [make_pod("master"), make_pod(phase="Failed", exit_code=137)])
    assert names(made, pod_deleted) == ["j-worker-0"]
    text = made.annotations[RESTARTS] or ""
    assert len(text) < 2000
    again = RestartHistory(UID, {RESTARTS: text})
    assert again.is_counted("uid-j-worker-0")
    assert (again.failures, again.disruptions) == (1, 0)


def test_entries_of_pods_that_have_gone_are_dropped():
    history = RestartHistory(UID, {})
    for uid in ("a", "b"):
        history.count(1, 0)
        history.mark_counted(uid)
        history.record_lost("Worker", 7 if uid == "a" else 70_000, uid)
    again = RestartHistory(UID, {RESTARTS: history.text(["b"])})
    assert again.failures == 2
    assert [again.is_counted(uid) for uid in ("a", "b")] == [False, True]
    assert len(again.lost("Worker", ["b"])) == 0
    assert len(again.lost("Worker", [])) == 1
    again.record_lost("Worker", 70_000, "b")
    again.mark_counted("b")
    again.clear_lost("Worker", 7)
    again.clear_lost_beyond({"Worker": 70_001})
    assert not again.changed


def test_losses_count_only_in_slots_that_are_left():
    history = RestartHistory(UID, {})
    history.record_lost("Worker", 70_000, "b")
    again = RestartHistory(UID, {RESTARTS: history.text(["b"])})
    again.clear_lost_beyond({"Worker": 70_000})
    assert again.changed
    assert len(again.lost("Worker", [])) == 0


MOST_OF_ALL_ANNOTATIONS = 256 * 1024
"""Bytes that the API server takes (`k8s.io/apimachinery/pkg/api/validation`, `TotalAnnotationSizeLimitB`)."""


def test_thirty_thousand_entries_fit_an_annotation():
    history = RestartHistory(UID, {})
    uids = [f"01234567-89ab-cdef-0123-{number:012}" for number in range(30_000)]
    for uid in uids[:20_000]:
        history.mark_counted(uid)
    for index, uid in enumerate(uids[20_000:]):
        history.record_lost("Worker", index, uid)
    text = history.text(uids)
    assert len(text) < MOST_OF_ALL_ANNOTATIONS - 10_000
    again = RestartHistory(UID, {RESTARTS: text})
    assert all(again.is_counted(uid) for uid in uids[:20_000])
    assert not any(again.is_counted(uid) for uid in uids[20_000:])
    assert len(again.lost("Worker", [])) == 10_000


def test_restarting_gives_way_to_running_only_when_every_replica_has_a_pod():
    status = status_of(CREATED, condition("Restarting", message=RESTARTING_TEXT))
    vacant = plan_for(make_job(1, 1, status=status), [make_pod("master")])
    assert names(vacant, pod_created) == ["j-worker-0"]
    assert conditions_of(vacant.status)[-1][0] == "Restarting"
    full = plan_for(make_job(1, 1, status=status), [make_pod("master"), make_pod(phase="Pending")])
    assert conditions_of(full.status)[-1][0] == "Running"


def test_pods_of_unknown_phase_count_nowhere():
    pod: Pod = make_pod(phase="Unknown")
    made = plan_for(make_job(1, 1, status=status_of(CREATED)), [make_pod("master"), pod])
    assert written(made)["replicaStatuses"]["Worker"].keys() == {"selector"}
    assert made.actions == ()


# Restarts of more than the pod ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scope", "restarted", "reported", "failures"),
    [("pod", 3, ["Master", "Worker"], 3), ("role", 2, ["Master", "Worker"], 2), ("job", 1, ["Master"], 1)],
)
def test_pods_that_fail_together_are_as_many_restarts_as_the_scope_says(
    scope: str, restarted: int, reported: list[str], failures: int
):
    world = World(make_job(1, 3, policy="OnFailure", annotations={RESTART_SCOPE: scope}))
    world.settle()
    world.run()
    world.settle()
    for name in ("j-master-0", "j-worker-0", "j-worker-2"):
        world.end(name, 1)
    world.settle()
    assert world.counts["restarted"] == restarted
    assert world.counts["failed_pods"] == 3
    texts = [Upstream(f"job j is restarting because {role} replica(s) failed.") for role in reported]
    assert world.event_messages("PyTorchJobRestarting") == texts
    assert json.loads(world.raw["metadata"]["annotations"][RESTARTS])["failures"] == failures
    assert world.living() == (["j-worker-1"] if scope == "pod" else [])


@pytest.mark.parametrize(("scope", "expected"), [("pod", (1, 1)), ("role", (0, 1)), ("job", (0, 1))])
def test_what_fails_together_with_a_disrupted_pod_fails_because_of_it(scope: str, expected: tuple[int, int]):
    world = World(make_job(1, 2, policy="OnFailure", annotations={RESTART_SCOPE: scope}))
    world.settle()
    world.run()
    world.settle()
    world.end("j-worker-0", 137, reason="Evicted")
    world.end("j-worker-1", 1)
    world.settle()
    entries = json.loads(world.raw["metadata"]["annotations"][RESTARTS])
    assert (entries.get("failures", 0), entries["disruptions"]) == expected


def test_a_whole_restart_takes_succeeded_pods_and_those_of_other_policies_with_it():
    job = make_job(1, 3, policy="OnFailure", annotations={RESTART_SCOPE: "job"})
    job["spec"]["pytorchReplicaSpecs"]["Master"]["restartPolicy"] = "Never"
    world = World(job)
    world.settle()
    world.run()
    world.settle()
    world.end("j-worker-0", 0)
    world.end("j-worker-1", 1)
    world.settle()
    assert world.living() == []
    world.end("j-master-0", 143)
    world.settle()
    world.reap()
    world.settle()
    world.run()
    world.settle()
    assert world.is_true("Running")
    assert len(world.pods) == 4


def test_a_whole_restart_that_was_cut_off_is_carried_on():
    """The operator stopped after the count: the remaining pods are deleted, and no restart is counted again."""
    world = World(make_job(1, 2, policy="OnFailure", annotations={RESTART_SCOPE: "job"}))
    world.settle()
    world.run()
    world.settle()
    world.end("j-worker-0", 1)
    world.settle()
    for pod in world.pods.values():
        pod["metadata"].pop("deletionTimestamp")
    del world.pods["j-worker-0"]
    again = world.step()
    assert sorted(names(again, pod_deleted)) == ["j-master-0", "j-worker-1"]
    assert names(again, pod_created) == []
    assert (again.annotations, again.transitions) == ({}, ())


def test_pods_that_are_still_to_be_made_are_waited_with_too():
    """A scale-up in the middle of a whole restart."""
    world = World(make_job(1, 2, policy="OnFailure", annotations={RESTART_SCOPE: "job"}))
    world.settle()
    world.run()
    world.settle()
    world.spec["pytorchReplicaSpecs"]["Worker"]["replicas"] = 4
    world.end("j-worker-0", 1)
    made = world.step()
    assert names(made, pod_created) == []
    world.settle()
    world.reap()
    world.settle()
    assert len(world.living()) == 5
