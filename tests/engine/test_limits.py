"""Back-off limit, deadline, time to live, and clean-up at the end."""

import json
from dataclasses import replace

import pytest

from tests.engine.builders import (
    CREATED,
    NOW,
    RUNNING,
    UID,
    at,
    condition,
    conditions_of,
    make_job,
    make_pod,
    make_service,
    names,
    plan_for,
    pod_created,
    pod_deleted,
    service_deleted,
    stamp,
    status_of,
    written,
)
from tests.engine.world import World
from tests.upstream import Upstream
from trainop.engine.actions import Count, DeleteJob, Event, Plan
from trainop.engine.failures import is_under_way, seconds_to_due
from trainop.engine.restart_history import RESTARTS
from trainop.engine.seen import Pod
from trainop.runtime.objects.metadata import Json, Unstructured

BACKOFF = Upstream("Job j has failed because it has reached the specified backoff limit")
DEADLINE = Upstream("Job j has failed because it was active longer than specified deadline")
SUCCEEDED = condition("Succeeded")
FAILED = condition("Failed")


def failed_by_backoff(limit: int | None, *pods: Pod, policy: str = "OnFailure") -> bool:
    job = make_job(None, len(pods), policy=policy, run={"backoffLimit": limit}, status=status_of(CREATED, RUNNING))
    made = plan_for(job, pods)
    last = (made.status or job["status"])["conditions"][-1]
    return bool(last["type"] == "Failed" and last["message"] == BACKOFF)


@pytest.mark.case("job-engine-22", "abcd")
@pytest.mark.parametrize(
    ("limit", "pods", "policy", "expected"),
    [
        (0, [make_pod(restarts=0)], "OnFailure", False),
        (0, [make_pod(restarts=1)], "OnFailure", True),
        (3, [make_pod(restarts=3)], "OnFailure", True),
        (3, [make_pod(restarts=3)], "Always", True),
        (3, [make_pod(restarts=3)], "ExitCode", True),
        (3, [make_pod(restarts=2)], "OnFailure", False),
        (3, [make_pod(restarts=2), make_pod(index=1, restarts=1)], "OnFailure", True),
        (3, [make_pod(restarts=3)], "Never", False),
        (None, [make_pod(restarts=300)], "OnFailure", False),
        (3, [make_pod(phase="Pending", status={"containerStatuses": [{"restartCount": 9}]})], "OnFailure", False),
        (3, [make_pod(phase="Succeeded", restarts=9, exit_code=0), make_pod(index=1)], "OnFailure", False),
        (3, [make_pod(status={"initContainerStatuses": [{"restartCount": 3}]})], "OnFailure", True),
        (0, [make_pod(phase="Failed", exit_code=1)], "Never", True),
        (1, [make_pod(phase="Failed", exit_code=1)], "Never", False),
        (0, [make_pod(phase="Failed", exit_code=1)], "OnFailure", True),
        (1, [make_pod(phase="Failed", exit_code=1)], "OnFailure", False),
    ],
)
def test_the_backoff_limit(limit: int | None, pods: list[Pod], policy: str, expected: bool):
    assert failed_by_backoff(limit, *pods, policy=policy) is expected


def test_at_the_backoff_limit_all_running_pods_go_and_the_job_is_over():
    pods = [make_pod("master"), make_pod(restarts=4), make_pod(index=1, phase="Succeeded", exit_code=0)]
    job = make_job(1, 2, run={"backoffLimit": 4}, status=status_of(CREATED, RUNNING))
    made = plan_for(job, pods)
    assert made.status_first
    assert names(made, pod_deleted) == ["j-master-0", "j-worker-0"]
    assert names(made, service_deleted) == ["j-master-0", "j-worker-0"]
    assert conditions_of(made.status)[1:] == [
        ("Running", "False", "PyTorchJobRunning"),
        ("Failed", "True", "PyTorchJobFailed"),
    ]
    assert written(made)["completionTime"] == stamp()
    assert made.transitions == (Event("Normal", "PyTorchJobFailed", BACKOFF), Count("failed"))
    statuses = written(made)["replicaStatuses"]
    assert statuses["Master"].keys() == {"selector"}
    assert statuses["Worker"]["succeeded"] == 1
    assert "active" not in statuses["Worker"]


@pytest.mark.case("job-engine-24", "abc")
def test_the_deadline_comes_without_any_event():
    world = World(make_job(1, 1, run={"activeDeadlineSeconds": 2}))
    world.settle()
    world.run()
    assert world.step().requeue_after == 2
    world.pass_time(1.5)
    assert world.step() == Plan(requeue_after=0.5)
    world.pass_time(0.5)
    world.settle()
    assert world.conditions[1:] == [("Running", "False", "PyTorchJobRunning"), ("Failed", "True", "PyTorchJobFailed")]
    assert world.status["conditions"][-1]["message"] == DEADLINE
    assert world.living() == []
    assert world.services == {}


def test_a_deadline_of_zero_trips_at_once():
    made = plan_for(make_job(run={"activeDeadlineSeconds": 0}))
    assert names(made, pod_created) == []
    assert conditions_of(made.status)[-1][0] == "Failed"


@pytest.mark.case("job-engine-24", "d")
def test_without_a_deadline_nothing_is_due():
    world = World(make_job(1, 4))
    world.settle()
    world.run()
    world.settle()
    world.pass_time(10_000_000)
    assert world.step() == Plan()


@pytest.mark.case("job-engine-24", "ef")
def test_the_deadline_does_not_run_while_suspended_and_restarts_on_resume():
    world = World(make_job(1, 1, run={"activeDeadlineSeconds": 5, "suspend": True}))
    world.settle()
    world.pass_time(10)
    world.settle()
    assert not world.is_true("Failed")
    world.spec["runPolicy"]["suspend"] = False
    world.settle()
    world.run()
    world.settle()
    world.pass_time(4)
    world.settle()
    assert world.is_true("Running")
    world.pass_time(1)
    world.settle()
    assert world.is_true("Failed")


def test_success_that_came_before_the_limits_were_looked_at_counts():
    job = make_job(1, 1, run={"activeDeadlineSeconds": 1, "backoffLimit": 1}, status=status_of(CREATED, start=-100))
    made = plan_for(job, [make_pod("master", phase="Succeeded", exit_code=0), make_pod(restarts=7)])
    assert conditions_of(made.status)[-1][0] == "Succeeded"


# Time to live ---------------------------------------------------------------------------------------------------------


@pytest.mark.case("job-engine-25", "abc")
@pytest.mark.parametrize(
    ("ttl", "completed", "expected"),
    [
        (None, stamp(-1_000_000), Plan()),
        (0, stamp(), Plan(actions=(DeleteJob(),))),
        (180, stamp(-86_400), Plan(actions=(DeleteJob(),))),
        (180, stamp(-60), Plan(requeue_after=120)),
        (3, stamp(-3), Plan(actions=(DeleteJob(),))),
        (3, stamp(-2), Plan(requeue_after=1)),
        (3, "0000-01-01T00:00:00Z", Plan(actions=(DeleteJob(),))),
        (3, "0001-01-01T00:00:00+01:00", Plan(actions=(DeleteJob(),))),
    ],
)
def test_time_to_live(ttl: int | None, completed: str, expected: Plan):
    status = status_of(CREATED, SUCCEEDED, completionTime=completed)
    assert plan_for(make_job(run={"ttlSecondsAfterFinished": ttl}, status=status)) == expected


@pytest.mark.case("job-engine-25", "d")
def test_deletion_is_due_between_three_and_five_seconds_after_success():
    world = World(make_job(1, None, run={"ttlSecondsAfterFinished": 3}))
    world.settle()
    world.run()
    world.pass_time(10.25)
    world.end("j-master-0", 0)
    waits = [world.step().requeue_after, world.step().requeue_after]
    assert waits == [2.75, 2.75]
    world.pass_time(2.75)
    world.settle()
    assert world.job is None


def test_the_end_of_a_job_without_completion_time_is_read_from_its_condition():
    for status, left in ((status_of(CREATED, condition("Failed", when=-10)), 5), (status_of(SUCCEEDED), 15)):
        assert plan_for(make_job(run={"ttlSecondsAfterFinished": 15}, status=status)).requeue_after == left
    timeless = {**FAILED, "lastTransitionTime": "x"}
    assert plan_for(make_job(run={"ttlSecondsAfterFinished": 15}, status=status_of(timeless))).requeue_after == 15


@pytest.mark.case("job-engine-19", "ab")
def test_a_suspended_job_does_not_expire():
    run = {"suspend": True, "ttlSecondsAfterFinished": 10}
    world = World(make_job(run=run))
    world.settle()
    world.pass_time(100)
    assert world.step() == Plan()
    assert plan_for(make_job(run=run, status=status_of(SUCCEEDED)), now=at(1000)) == Plan()


# Clean-up -------------------------------------------------------------------------------------------------------------

SIX = [make_pod("master"), *(make_pod(index=index) for index in range(5))]
SIX_ENDED = [
    make_pod("master", phase="Succeeded"),
    *(make_pod(index=index, phase="Succeeded") for index in range(5)),
]


@pytest.mark.case("job-engine-14", "abcde")
@pytest.mark.parametrize(
    ("policy", "pods", "left"),
    [
        ("All", SIX, 0),
        ("", SIX, 0),
        ("Running", SIX, 0),
        ("None", SIX, 6),
        (None, SIX, 6),
        ("All", SIX_ENDED, 0),
        ("Running", SIX_ENDED, 6),
        ("None", SIX_ENDED, 6),
        ("Running", [make_pod(phase="Pending")], 0),
        ("Running", [make_pod(phase="Unknown")], 1),
    ],
)
def test_clean_up(policy: str | None, pods: list[Pod], left: int):
    made = plan_for(make_job(1, 5, run={"cleanPodPolicy": policy}, status=status_of(CREATED, SUCCEEDED)), pods)
    assert len(names(made, pod_deleted)) == len(names(made, service_deleted)) == len(pods) - left


def test_services_of_vanished_pods_are_cleaned_up_too():
    services = [make_service(), make_service(index=1), make_service(index=2, deletionTimestamp=stamp())]
    pods = [make_pod(phase="Succeeded")]
    job = make_job(1, 5, run={"cleanPodPolicy": "Running"}, status=status_of(SUCCEEDED))
    assert names(plan_for(job, pods, services), service_deleted) == ["j-worker-1"]
    job = make_job(1, 5, run={"cleanPodPolicy": "All"}, status=status_of(SUCCEEDED))
    assert names(plan_for(job, [], services), service_deleted) == ["j-worker-0", "j-worker-1"]


def test_terminating_pods_are_not_deleted_again():
    job = make_job(1, 5, run={"cleanPodPolicy": "All"}, status=status_of(SUCCEEDED))
    made = plan_for(job, [make_pod(dying=True)], [])
    assert replace(made, requeue_after=None) == Plan()
    assert made.requeue_after is not None, "until the pod counts as stuck"


@pytest.mark.parametrize(
    ("stopped", "reason"),
    [("BackoffLimitExceeded", None), ("DeadlineExceeded", None), ("", "PyTorchJobFailedValidation")],
)
@pytest.mark.parametrize(("policy", "gone"), [("None", 1), ("Running", 1), ("All", 2)])
def test_a_job_cut_short_never_keeps_running_pods(stopped: str, reason: str | None, policy: str, gone: int):
    status = status_of(CREATED, condition("Failed", reason=reason, message="x"))
    annotations = {RESTARTS: json.dumps({"job": UID, "stopped": stopped})}
    pods = [make_pod(), make_pod(index=1, phase="Succeeded")]
    made = plan_for(make_job(run={"cleanPodPolicy": policy}, status=status, annotations=annotations), pods)
    assert len(names(made, pod_deleted)) == len(names(made, service_deleted)) == gone
    assert names(made, pod_deleted)[0] == "j-worker-0"


@pytest.mark.parametrize("run", [{"backoffLimit": 4}, {"activeDeadlineSeconds": 1}])
def test_the_limit_that_ended_a_job_is_noted_for_later_passes(run: Json):
    """The condition's message is for humans; no decision depends on it."""
    started = {**status_of(CREATED, RUNNING), "startTime": "2020-01-01T00:00:00Z"}
    made = plan_for(make_job(run=run, status=started), [make_pod(restarts=4)])
    assert not made.annotations_required
    status = written(made)
    status["conditions"][-1]["message"] = "reworded"
    noted = {name: value for name, value in made.annotations.items() if value is not None}
    later = plan_for(make_job(run=run, status=status, annotations=noted), [make_pod()])
    assert names(later, pod_deleted) == ["j-worker-0"]


def test_a_limit_that_was_noted_without_ending_the_job_does_not_count():
    """The annotation is written before the status, and the user may raise the limit in between."""
    annotations = {RESTARTS: json.dumps({"job": UID, "stopped": "BackoffLimitExceeded"})}
    made = plan_for(make_job(annotations=annotations), [make_pod()])
    assert "stopped" not in json.loads(made.annotations[RESTARTS] or "")


def test_an_ordinary_failure_keeps_what_the_policy_keeps():
    status = status_of(CREATED, condition("Failed", message="PyTorchJob j is failed"))
    assert plan_for(make_job(1, 5, status=status), SIX) == Plan()


@pytest.mark.case("job-engine-15", "ab")
def test_active_replicas_of_a_succeeded_job_count_as_succeeded():
    def finished(last: Json) -> Json:
        counters = {"Worker": {"succeeded": 1, "active": 3}, "Odd": 7}
        return make_job(status=status_of(CREATED, last, replicaStatuses=counters))

    assert written(plan_for(finished(SUCCEEDED)))["replicaStatuses"] == {"Worker": {"succeeded": 4}, "Odd": 7}
    assert plan_for(finished(FAILED)).status is None


def test_active_counters_without_succeeded_become_succeeded():
    status = status_of(SUCCEEDED, replicaStatuses={"Worker": {"active": 3, "succeeded": "x"}})
    assert written(plan_for(make_job(status=status)))["replicaStatuses"] == {"Worker": {"succeeded": 3}}


@pytest.mark.parametrize(
    ("run", "status", "due", "under_way"),
    [
        ({}, status_of(CREATED), None, True),
        ({"activeDeadlineSeconds": 60}, status_of(CREATED, start=-20), 40, True),
        ({"activeDeadlineSeconds": 60}, status_of(CREATED, start=None), None, False),
        ({"activeDeadlineSeconds": 60, "suspend": True}, status_of(CREATED, start=-20), None, False),
        ({"activeDeadlineSeconds": 60}, status_of(condition("Suspended"), start=-20), 40, False),
        ({"ttlSecondsAfterFinished": 30}, status_of(SUCCEEDED, completionTime=stamp(-10)), 20, True),
        ({"activeDeadlineSeconds": 60}, status_of(SUCCEEDED, completionTime=stamp(-10)), None, True),
        ("x", "y", None, False),
    ],
)
def test_the_time_at_which_a_job_has_to_be_reconciled(run: Json, status: Json, due: float | None, under_way: bool):
    job = Unstructured(make_job(spec={"runPolicy": run}, status=status))
    assert seconds_to_due(job, NOW) == due
    assert is_under_way(job, NOW) is under_way


@pytest.mark.parametrize("forged", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "soon"])
def test_a_time_of_completion_before_the_end_is_not_believed(forged: str):
    job = make_job(
        None, 1, run={"ttlSecondsAfterFinished": 60}, status=status_of(CREATED, RUNNING, completionTime=forged)
    )
    made = plan_for(job, [make_pod(phase="Succeeded", exit_code=0)])
    assert written(made)["completionTime"] == stamp()
    assert made.requeue_after == 60


def test_the_time_of_completion_is_set_once():
    """It is kept for a finished job, whatever its pods do."""
    job = make_job(None, 1, status=status_of(CREATED, SUCCEEDED, completionTime=stamp(-10)))
    for pods in ([], [make_pod(phase="Succeeded", exit_code=0)], [make_pod(phase="Failed", exit_code=1)]):
        made = plan_for(job, pods)
        assert (made.status or job["status"])["completionTime"] == stamp(-10)
