"""Suspend and resume, jobs of other managers, invalid specs, refused templates, and pods stuck terminating."""

import pytest

from tests.engine.builders import (
    CREATED,
    RUNNING,
    condition,
    conditions_of,
    make_job,
    make_pod,
    make_service,
    names,
    plan_for,
    pod_created,
    pod_deleted,
    replica,
    see,
    service_deleted,
    stamp,
    status_of,
    template,
    written,
)
from tests.engine.world import World
from tests.upstream import Upstream
from trainop.engine.actions import Count, Event, Plan, Remove
from trainop.engine.plan import ignored, plan, reject
from trainop.engine.restart_history import RESTARTS
from trainop.engine.seen import Options, Pod
from trainop.kinds.pytorch import PYTORCH
from trainop.runtime.objects.metadata import PODS, Json, Unstructured

SUSPENDED_EVENT = Event("Normal", "PyTorchJobSuspended", "PyTorchJob j is suspended.")
RESUMED_EVENT = Event("Normal", "PyTorchJobResumed", "PyTorchJob j is resumed.")


@pytest.mark.case("job-engine-16", "abc")
@pytest.mark.case("frameworks-v1-24", "abc")
def test_a_job_created_suspended_gets_nothing():
    world = World(make_job(run={"suspend": True}))
    world.settle()
    assert (world.pods, world.services) == ({}, {})
    assert "startTime" not in world.status
    assert world.conditions == [
        ("Created", "True", "PyTorchJobCreated"),
        ("Suspended", "True", "PyTorchJobSuspended"),
    ]
    assert world.status["conditions"][-1]["message"] == "PyTorchJob j is suspended."
    assert "replicaStatuses" not in world.status


@pytest.mark.case("job-engine-17", "abcde")
@pytest.mark.case("frameworks-v1-25", "abc")
def test_suspending_deletes_all_children_and_reports_it_once():
    status = status_of(CREATED, RUNNING, start=-60, replicaStatuses={"Worker": {"active": 1, "succeeded": 1}})
    pods = [make_pod("master"), make_pod(), make_pod(index=1, phase="Succeeded")]
    made = plan_for(make_job(run={"suspend": True}, status=status), pods)
    assert len(names(made, pod_deleted)) == len(names(made, service_deleted)) == 3
    assert conditions_of(made.status) == [
        ("Created", "True", "PyTorchJobCreated"),
        ("Running", "False", "PyTorchJobSuspended"),
        ("Suspended", "True", "PyTorchJobSuspended"),
    ]
    assert written(made)["startTime"] == stamp(-60)
    assert written(made)["replicaStatuses"] == {"Worker": {"succeeded": 1}}
    assert made.transitions == (SUSPENDED_EVENT,)
    assert plan_for(make_job(run={"suspend": True}, status=made.status)) == Plan()


def test_a_restarting_job_that_is_suspended_is_restarting_no_more():
    status = status_of(CREATED, condition("Restarting"))
    made = plan_for(make_job(run={"suspend": True}, status=status))
    assert [type_ for type_, _, _ in conditions_of(made.status)] == ["Created", "Suspended"]


@pytest.mark.case("job-engine-18", "abc")
@pytest.mark.case("frameworks-v1-25", "de")
def test_resuming_starts_the_job_from_the_beginning():
    world = World(make_job(1, 1, run={"suspend": False, "backoffLimit": 1}, policy="ExitCode"))
    world.settle()
    world.run()
    world.settle()
    world.end("j-worker-0", 137)
    world.settle()
    assert RESTARTS in world.raw["metadata"]["annotations"]
    world.spec["runPolicy"]["suspend"] = True
    world.settle()
    world.reap()
    world.settle()
    started = world.status["startTime"]
    world.pass_time(60)
    world.spec["runPolicy"]["suspend"] = False
    world.settle()
    assert world.living() == sorted(world.services) == ["j-master-0", "j-worker-0"]
    assert RESTARTS not in world.raw["metadata"]["annotations"]
    assert world.status["startTime"] > started
    assert world.conditions[-1] == ("Suspended", "False", "PyTorchJobResumed")
    assert world.status["conditions"][-1]["message"] == "PyTorchJob j is resumed."
    world.run()
    world.settle()
    assert world.conditions == [
        ("Created", "True", "PyTorchJobCreated"),
        ("Suspended", "False", "PyTorchJobResumed"),
        ("Running", "True", "PyTorchJobRunning"),
    ]
    assert [event for event in world.events if event in {SUSPENDED_EVENT, RESUMED_EVENT}] == [
        SUSPENDED_EVENT,
        RESUMED_EVENT,
    ]


@pytest.mark.case("frameworks-v1-27", "ab")
@pytest.mark.parametrize("policy", ["Never", "OnFailure", "ExitCode"])
def test_suspend_and_resume_within_the_grace_period_is_no_failure(policy: str):
    world = World(make_job(1, 1, policy=policy, run={"suspend": False}))
    world.settle()
    world.run()
    world.settle()
    world.spec["runPolicy"]["suspend"] = True
    world.settle()
    world.spec["runPolicy"]["suspend"] = False
    world.settle()
    assert world.living() == []
    world.end("j-worker-0", 143)
    world.settle()
    assert world.conditions[-1] == ("Suspended", "True", "PyTorchJobSuspended")
    world.reap()
    world.settle()
    world.run()
    world.settle()
    assert [type_ for type_, _, _ in world.conditions] == ["Created", "Suspended", "Running"]
    assert "restarted" not in world.counts


def test_pods_that_outlived_the_suspension_are_removed_before_the_job_resumes():
    status = status_of(CREATED, condition("Suspended"))
    made = plan_for(make_job(status=status), [make_pod()])
    assert names(made, pod_deleted) == ["j-worker-0"]
    assert names(made, pod_created) == []
    assert made.status is None


def test_that_a_job_is_resumed_is_written_before_its_pods_are_made():
    """Otherwise, after a crash in between, the new pods would be taken for old ones and deleted."""
    made = plan_for(make_job(None, 1, status=status_of(CREATED, condition("Suspended"))))
    assert names(made, pod_created) == ["j-worker-0"]
    assert made.status is not None
    assert made.status_first


@pytest.mark.case("job-engine-20", "ab")
@pytest.mark.case("frameworks-v1-23", "ab")
def test_a_job_that_others_manage_is_left_alone_wholly():
    """The engine's part of the case; admission makes the field immutable."""
    run = {"managedBy": "kueue.x-k8s.io/multikueue", "suspend": True}
    world = World(make_job(run=run))
    assert world.step() == Plan()
    world.spec["runPolicy"]["suspend"] = False
    assert world.step() == Plan()
    assert world.status == {}


@pytest.mark.case("job-engine-20", "d")
@pytest.mark.parametrize(
    ("manager", "expected"),
    [
        ("kueue.x-k8s.io/multikueue", True),
        ("", True),
        ("x", True),
        ("kubeflow.org/training-operator", False),
        (None, False),
    ],
)
def test_managed_by(manager: str | None, expected: bool):
    job = make_job(run={"managedBy": manager})
    assert ignored(Unstructured(job)) is expected
    assert (plan_for(job) == Plan()) is expected


@pytest.mark.parametrize("job", [{}, {"spec": None}, {"spec": []}, {"spec": {"runPolicy": 1}}])
def test_jobs_of_any_shape_have_no_other_manager(job: Json):
    assert not ignored(Unstructured(job))


# Bad specs ------------------------------------------------------------------------------------------------------------

BAD = {"pytorchReplicaSpecs": {"Master": replica(2)}}
BAD_TEXT = "PyTorchJob failed validation because spec.pytorchReplicaSpecs[Master].replicas: Forbidden: must be 1"


def test_a_job_that_cannot_run_fails_with_one_condition_and_one_event():
    world = World(make_job(spec=BAD))
    made = world.step()
    assert made.status_first
    assert world.conditions == [
        ("Created", "True", "PyTorchJobCreated"),
        ("Failed", "True", "PyTorchJobFailedValidation"),
    ]
    assert world.status["conditions"][-1]["message"] == BAD_TEXT
    assert world.status["completionTime"] == stamp()
    assert world.events == [Event("Warning", "PyTorchJobFailedValidation", BAD_TEXT)]
    assert world.counts == {"created": 1, "failed": 1}
    assert (world.pods, world.services) == ({}, {})
    assert world.step() == Plan()


@pytest.mark.case("job-engine-39", "cd")
def test_without_the_frameworks_container_there_are_no_pods():
    tmpl = {"spec": {"containers": [{"name": "main", "image": "i"}]}}
    world = World(make_job(1, None, tmpl=tmpl))
    world.settle()
    assert world.events == [
        Event(
            "Warning",
            "PyTorchJobFailedValidation",
            "PyTorchJob failed validation because spec.pytorchReplicaSpecs[Master].template.spec.containers: "
            "Required value: must have at least one container with name pytorch",
        )
    ]
    assert world.pods == {}


def test_a_number_that_is_not_allowed_is_taken_as_the_nearest():
    world = World(make_job(1, 2))
    world.settle()
    world.run()
    world.settle()
    world.spec["pytorchReplicaSpecs"]["Worker"]["replicas"] = 0
    world.spec["pytorchReplicaSpecs"]["Master"]["replicas"] = 2
    world.raw["metadata"]["generation"] = 2
    world.settle()
    world.settle()
    (text,) = world.event_messages("PyTorchJobFailedValidation")
    assert "spec.pytorchReplicaSpecs[Worker].replicas: Forbidden: must be at least 1" in text
    assert world.living() == ["j-master-0", "j-worker-0"]
    world.end("j-worker-0", 137)
    world.settle()
    world.reap()
    world.settle()
    assert world.living() == ["j-master-0", "j-worker-0"], "restarts continue"
    world.end("j-master-0", 0)
    world.settle()
    assert world.conditions[-1] == ("Succeeded", "True", "PyTorchJobSucceeded")


def test_the_deadline_holds_for_a_job_whose_spec_went_wrong():
    world = World(make_job(1, 2, run={"activeDeadlineSeconds": 60}))
    world.settle()
    world.run()
    world.settle()
    world.spec["pytorchReplicaSpecs"]["Worker"]["template"] = None
    world.pass_time(20)
    assert world.step().requeue_after == 40
    world.pass_time(40)
    world.settle()
    assert world.conditions[-1] == ("Failed", "True", "PyTorchJobFailed")
    assert world.status["conditions"][-1]["message"] == Upstream(
        "Job j has failed because it was active longer than specified deadline"
    )
    assert world.living() == []


def test_a_job_scaled_until_its_names_are_too_long_goes_on():
    """The API server refuses services with such names, which is reported on the job."""
    name = "j" * 54
    world = World(make_job(None, 2, name=name))
    world.settle()
    world.run()
    world.settle()
    world.spec["pytorchReplicaSpecs"]["Worker"]["replicas"] = 11
    world.settle()
    (text,) = world.event_messages("PyTorchJobFailedValidation")
    assert f'the service "{name}-worker-10" must be no more than 63 characters' in text
    assert len(world.living()) == 11
    world.spec["pytorchReplicaSpecs"]["Worker"]["replicas"] = 2
    for index in range(2):
        world.end(f"{name}-worker-{index}", 0)
    world.settle()
    assert world.conditions[-1] == ("Succeeded", "True", "PyTorchJobSucceeded")

    job = make_job(1, 1, name="j" * 60, status=status_of(CREATED, RUNNING))
    made = plan_for(job, [make_pod("master", job="j" * 60, phase="Succeeded", exit_code=0)], [])
    assert conditions_of(made.status)[-1] == ("Succeeded", "True", "PyTorchJobSucceeded")


def test_a_bad_job_can_be_suspended():
    made = plan_for(make_job(spec=BAD, run={"suspend": True}, status=status_of(CREATED, RUNNING)), [make_pod()])
    assert names(made, pod_deleted) == ["j-worker-0"]


def test_a_refused_template_fails_the_job_with_the_servers_message():
    snapshot = see(make_job(status=status_of(CREATED)), [make_pod("master"), make_pod(phase="Succeeded")])
    made = reject(PYTORCH, snapshot, 'Pod "j-worker-1" is invalid: spec.x: Required value')
    assert made.status_first
    assert conditions_of(made.status)[-1] == ("Failed", "True", "PyTorchJobFailedValidation")
    text = 'PyTorchJob failed validation because Pod "j-worker-1" is invalid: spec.x: Required value'
    assert written(made)["conditions"][-1]["message"] == text
    assert made.transitions == (Event("Warning", "PyTorchJobFailedValidation", text), Count("failed"))
    assert names(made, pod_deleted) == ["j-master-0"]
    assert names(made, service_deleted) == ["j-master-0"]


def test_after_a_refusal_no_replica_is_active():
    counters = {"Worker": {"active": 2, "failed": 1}}
    made = reject(PYTORCH, see(make_job(status=status_of(CREATED, replicaStatuses=counters))), "no")
    assert written(made)["replicaStatuses"] == {"Worker": {"failed": 1}}


@pytest.mark.parametrize(
    ("start", "pods", "begun"), [(None, [], False), (0, [], True), (None, [make_pod()], True), (0, [make_pod()], True)]
)
def test_a_job_has_begun_once_it_has_a_start_time_or_a_pod(start: float | None, pods: list[Pod], begun: bool):
    made = plan_for(make_job(spec=BAD, status=status_of(CREATED, start=start)), pods)
    assert ((made.status or {}).get("conditions", [{}])[-1].get("type") != "Failed") is begun


def test_a_template_refused_in_the_very_first_pass():
    made = reject(PYTORCH, see(make_job()), "no")
    assert [type_ for type_, _, _ in conditions_of(made.status)] == ["Created", "Failed"]
    assert Count("created") in made.transitions


def test_a_finished_job_is_not_failed_by_a_late_refusal():
    assert reject(PYTORCH, see(make_job(status=status_of(condition("Succeeded")))), "no") == Plan()


# Pods stuck terminating
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("late", "notices", "again"), [(0, 0, 300), (299, 0, 1), (300, 1, None), (100_000, 1, None)])
def test_a_pod_stuck_terminating_is_reported(late: float, notices: int, again: float | None):
    dying = make_pod(deletionTimestamp=stamp(-late))
    made = plan_for(make_job(run={"suspend": True}, status=status_of(CREATED, condition("Suspended"))), [dying], [])
    assert [notice.event.reason for notice in made.notices] == ["StuckTerminating"] * notices
    assert made.requeue_after == again
    assert made.actions == ()


@pytest.mark.parametrize(("late", "deleted", "again"), [(10, False, 50), (60, True, 60)])
def test_a_stuck_pod_is_removed_by_force_if_asked_for(late: float, deleted: bool, again: float):
    dying = make_pod(deletionTimestamp=stamp(-late))
    job = make_job(run={"suspend": True}, status=status_of(CREATED, condition("Suspended")))
    made = plan_for(job, [dying], [], options=Options(force_delete_after=60))
    assert made.actions == ((Remove(PODS, "j-worker-0", dying.metadata.uid, force=True),) if deleted else ())
    assert made.requeue_after == again


def test_a_predecessors_stuck_pod_is_reported_and_never_force_deleted():
    dying = make_pod(owner="older", deletionTimestamp=stamp(-1000))
    made = plan_for(make_job(None, 1), [dying], [make_service()], options=Options(force_delete_after=60))
    assert made.actions == ()
    assert [notice.event.reason for notice in made.notices] == ["StuckTerminating"]


def test_a_deletion_time_that_is_none_is_passed_over():
    made = plan_for(make_job(None, 1), [make_pod(deletionTimestamp="soon")])
    assert made.notices == ()


def test_templates_are_not_touched():
    tmpl = template(initContainers=[{"name": "mine", "image": "i"}])
    job = make_job(1, 1, tmpl=tmpl)
    before = repr(job)
    plan(PYTORCH, see(job))
    assert repr(job) == before


def test_services_without_pods_are_deleted_on_suspension():
    made = plan_for(make_job(run={"suspend": True}), [], [make_service()])
    assert names(made, service_deleted) == ["j-worker-0"]
