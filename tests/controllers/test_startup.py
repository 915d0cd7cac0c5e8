"""A job of which not all replicas start in time is suspended, or fails, with the causes, whatever its kind."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from tests.controllers.shell import JOBS, Shell, api_error, pytorch_job
from tests.controllers.worlds import OPTIONS, WORLDS, decide, kind_in, settle, start
from tests.engine.builders import NOW
from tests.engine.world import World
from tests.kinds.mpi_world import MpiWorld
from tests.runtime.virtual_time import virtual_time
from trainop.engine.actions import Plan, Remove, Wait
from trainop.engine.gang_scheduler import choose_scheduler
from trainop.engine.kind import Kind
from trainop.engine.kueue import QUEUE
from trainop.engine.plan import plan
from trainop.engine.seen import Snapshot
from trainop.engine.startup import describe_causes, seconds_to_startup
from trainop.engine.status import format_time
from trainop.kinds.pytorch import PYTORCH
from trainop.runtime.errors import ForbiddenError
from trainop.runtime.objects.metadata import PODS, Json, Unstructured

LIMIT = 1200.0
every_kind = pytest.mark.parametrize("kind", WORLDS)
SUSPENDED = [kind for kind in WORLDS if kind != "DIJob"]


def started(world: World) -> tuple[str, str, str] | None:
    """Status, reason and message of the condition."""
    found = [each for each in world.status.get("conditions") or () if each["type"] == "Started"]
    assert len(found) <= 1
    return (found[0]["status"], found[0]["reason"], found[0]["message"]) if found else None


def state(world: World) -> tuple[str, str] | None:
    found = started(world)
    return found and found[:2]


STARTING, STARTED = ("False", "Starting"), ("True", "AllReplicasStarted")
EXCEEDED = ("False", "StartupDeadlineExceeded")


def starting(kind: str, how: str = "", **annotations: str) -> World:
    """A job whose pods are pending."""
    if how or kind == "DIJob":
        annotations["on_startup_deadline"] = how or "fail"
    return WORLDS[kind](startup_deadline="20m", **annotations)


def run_some(world: World) -> str:
    """All pods run but the last one; returns its name."""
    if isinstance(world, MpiWorld) and world.kind.launcher is not None:
        world.launch()
    pending = [name for name, pod in world.pods.items() if pod["status"]["phase"] == "Pending"]
    if pending[:-1]:
        world.run(*pending[:-1])
    settle(world)
    return pending[-1]


def told(world: World) -> list[str]:
    return world.event_messages("StartupDeadlineExceeded")


# The condition --------------------------------------------------------------------------------------------------------


@every_kind
def test_without_the_annotation_there_is_no_condition(kind: str):
    world = WORLDS[kind]()
    world.pass_time(10 * LIMIT)
    assert decide(world).unstarted is None
    assert started(world) is None


@every_kind
def test_the_condition_lasts_from_the_first_pods_until_all_have_started(kind: str):
    world = starting(kind)
    assert state(world) == STARTING
    assert world.status["conditions"][0]["type"] == "Started"
    run_some(world)
    assert state(world) == STARTING
    start(world)
    assert state(world) == STARTED
    world.pass_time(10 * LIMIT)
    settle(world)
    assert state(world) == STARTED
    assert world.is_true("Running")
    assert told(world) == []


@every_kind
def test_the_next_look_is_at_the_deadline(kind: str):
    world = starting(kind)
    world.pass_time(60)
    assert decide(world).requeue_after == pytest.approx(LIMIT - 60, abs=1) or "ssh" in kind
    seconds = seconds_to_startup(Unstructured(world.raw), world.now)
    assert seconds == pytest.approx(LIMIT - 60, abs=1)
    assert kind_in(world).seconds_to_due(Unstructured(world.raw), world.now) == seconds
    start(world)
    assert seconds_to_startup(Unstructured(world.raw), world.now) is None


def test_an_earlier_look_stays():
    world = starting("PyTorchJob")
    world.spec["runPolicy"] = {"activeDeadlineSeconds": 100}
    assert decide(world).requeue_after == 100


def test_the_end_of_the_annotation_removes_the_condition():
    world = starting("PyTorchJob")
    del world.raw["metadata"]["annotations"]["trainop.kubeflow.org/startup-deadline"]
    decide(world)
    assert started(world) is None


def test_time_in_the_queue_of_a_gang_scheduler_does_not_count():
    world = starting("PyTorchJob")
    world.pods.clear()
    world.raw["status"] = {}
    world.options = replace(OPTIONS, gang=choose_scheduler("volcano"))
    for _ in range(3):
        made = decide(world)
    assert world.group is not None
    assert (made.unstarted, started(world), world.pods) == (None, None, {})
    world.group["status"] = {"phase": "Inqueue"}
    settle(world)
    assert state(world) == STARTING


# The deadline ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SUSPENDED)
def test_a_job_that_does_not_start_is_suspended_with_the_causes(kind: str):
    world = starting(kind)
    late = run_some(world)
    world.set_pod(
        late,
        "Pending",
        conditions=[
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/9: Insufficient gpu."}
        ],
    )
    world.pass_time(LIMIT - 1)
    settle(world)
    assert state(world) == STARTING
    world.pass_time(1)
    made = decide(world)
    assert made.status_first
    assert (made.suspend, made.actions) == (True, ())
    (text,) = told(world)
    assert text.startswith(f"1 of {len(world.pods)} replicas have not started within 20m: 1: Unschedulable: 0/9: Ins")
    assert text.endswith("; the job is suspended: set spec.runPolicy.suspend to false to start it again")
    assert started(world) == (*EXCEEDED, text)
    assert world.spec["runPolicy"]["suspend"] is True
    gone = decide(world)
    assert {each.name for each in gone.actions if isinstance(each, Remove) and each.resource == PODS} >= {late}
    assert world.is_true("Suspended")
    assert started(world) == (*EXCEEDED, text)
    assert len(told(world)) == 1


@pytest.mark.parametrize("kind", SUSPENDED)
def test_a_resumed_job_has_the_whole_time_again(kind: str):
    world = starting(kind)
    world.pass_time(LIMIT)
    settle(world)
    assert state(world) == EXCEEDED
    world.reap()
    world.pass_time(3600)
    settle(world)
    world.spec["runPolicy"]["suspend"] = False
    settle(world)
    assert state(world) == STARTING
    world.pass_time(LIMIT - 1)
    settle(world)
    assert not world.spec["runPolicy"]["suspend"]
    start(world)
    assert state(world) == STARTED
    assert len(told(world)) == 1


@every_kind
def test_a_job_that_does_not_start_fails_with_the_causes(kind: str):
    world = starting(kind, "fail")
    late = run_some(world) if kind != "DIJob" else "a-coordinator"
    total = len(world.pods)
    world.pass_time(LIMIT)
    made = decide(world)
    assert made.status_first
    assert world.is_true("Failed")
    failed = next(each for each in world.status["conditions"] if each["type"] == "Failed")
    name = world.raw["metadata"]["name"]
    assert failed["message"] == (
        f"Job {name} has failed because not all of its replicas started before its startup deadline. No replica had"
        f" failed: 1 of {total} replicas have not started within 20m: 1: its pod is pending."
    )
    failure = world.status["lastFailure"]
    assert failure["reason"] == "StartupDeadlineExceeded"
    assert failure["message"].startswith(f"1 of {total} replicas")
    assert state(world) == EXCEEDED
    assert late in {each.name for each in made.actions if isinstance(each, Remove)}
    settle(world)
    assert state(world) == EXCEEDED
    if kind != "DIJob":
        assert all(
            "deletionTimestamp" in pod["metadata"] for name, pod in world.pods.items() if "launcher-x" not in name
        )


def test_all_pods_of_a_job_that_failed_to_start_are_deleted_after_a_restart_of_the_operator():
    for kind in ("PyTorchJob", "MPIJob over ssh"):
        world = starting(kind, "fail")
        run_some(world)
        world.pass_time(LIMIT)
        decide(world)
        for pod in world.pods.values():
            pod["metadata"].pop("deletionTimestamp", None)
        settle(world)
        assert all(
            "deletionTimestamp" in pod["metadata"] for name, pod in world.pods.items() if "launcher-x" not in name
        )


@every_kind
def test_a_new_leader_neither_prolongs_nor_shortens_it(kind: str):
    """The plan has nothing but objects to go by."""
    world = starting(kind, "fail")
    world.pass_time(LIMIT - 1)
    assert decide(world, wall=NOW).status is None
    world.pass_time(1)
    decide(world)
    assert world.is_true("Failed")


@every_kind
def test_a_time_of_a_clock_that_was_set_back_does_not_prolong_it_for_long(kind: str):
    """A new process finds a time in the future: it begins anew, once."""
    world = starting(kind, "fail")
    world.pass_time(-3600)
    decide(world)
    settle(world)
    assert state(world) == STARTING
    assert seconds_to_startup(Unstructured(world.raw), world.now) == LIMIT
    world.pass_time(LIMIT - 1)
    assert decide(world).status is None
    world.pass_time(1)
    decide(world)
    assert world.is_true("Failed")


def test_all_have_started_is_known_whatever_the_clock_says():
    world = starting("PyTorchJob")
    start(world)
    assert state(world) == STARTED
    world.pass_time(-3600)
    assert decide(world).status is None


def test_an_operator_that_dies_before_the_suspension_repeats_it_and_says_nothing_again():
    world = starting("PyTorchJob")
    world.pass_time(LIMIT)
    decide(world)
    del world.spec["runPolicy"]
    made = decide(world)
    assert (made.suspend, made.actions) == (True, ())
    assert (made.status, len(told(world))) == (None, 1)


def test_a_job_of_kueue_is_not_suspended():
    world = starting("PyTorchJob")
    world.raw["metadata"]["labels"] = {QUEUE: "team-a"}
    world.pass_time(LIMIT)
    made = decide(world)
    assert (made.suspend, made.actions) == (None, ())
    (text,) = told(world)
    assert "the job is not suspended, because Kueue would resume it (queue team-a): use waitForPodsReady" in text
    for name in world.pods:  # another message of the scheduler is no news
        world.set_pod(name, "Pending", conditions=[{"type": "PodScheduled", "status": "False", "message": "x"}])
    again = decide(world)
    assert (again.status, again.suspend, again.requeue_after) == (None, None, None)
    start(world)
    assert state(world) == STARTED
    world = starting("PyTorchJob", "fail")
    world.raw["metadata"]["labels"] = {QUEUE: "team-a"}
    world.pass_time(LIMIT)
    decide(world)
    assert world.is_true("Failed")


def test_a_suspended_job_has_no_deadline():
    world = starting("PyTorchJob")
    world.spec["runPolicy"] = {"suspend": True}
    settle(world)
    assert started(world) is None
    world.reap()
    world.pass_time(10 * LIMIT)
    settle(world)
    world.spec["runPolicy"] = {"suspend": False}
    settle(world)
    assert state(world) == STARTING


# Attempts -------------------------------------------------------------------------------------------------------------


def test_a_restart_begins_anew_with_the_whole_time():
    world = starting("PyTorchJob")
    start(world)
    world.pass_time(10 * LIMIT)
    world.end("j-worker-1", 137)
    decide(world)
    assert state(world) == STARTING
    world.reap()
    settle(world)
    world.pass_time(LIMIT - 1)
    settle(world)
    assert state(world) == STARTING
    world.pass_time(1)
    assert decide(world).suspend


def test_restarts_before_all_have_started_do_not_prolong_it_without_end():
    world = starting("PyTorchJob")
    run_some(world)
    world.pass_time(600)
    world.end("j-worker-0", 137)
    decide(world)
    for _ in range(3):
        world.reap()
        world.pass_time(300)
        settle(world)
        if not world.living():
            break
        world.run("j-worker-0")
        settle(world)
        world.end("j-worker-0", 137)
        decide(world)
    assert world.spec["runPolicy"]["suspend"] is True


def test_what_is_lost_or_added_later_is_no_new_start():
    world = starting("JAXJob")
    start(world)
    world.pass_time(10 * LIMIT)
    world.spec["jaxReplicaSpecs"]["Worker"]["replicas"] = 5
    settle(world)
    assert len(world.pods) == 5
    world.pass_time(10 * LIMIT)
    settle(world)
    assert state(world) == STARTED


@pytest.mark.parametrize("phase", ["Running", "Succeeded"])
def test_a_replica_that_has_ended_has_started(phase: str):
    world = starting("JAXJob")
    world.run()
    world.end("j-worker-2", 0)
    if phase == "Succeeded":
        world.delete("j-worker-2")
    decide(world)
    assert state(world) == STARTED


def test_a_job_whose_roles_are_unreadable_is_left_alone():
    world = starting("PyTorchJob")
    world.spec["pytorchReplicaSpecs"] = 1
    world.pass_time(LIMIT)
    made = decide(world)
    assert made.unstarted is None
    assert state(world) == STARTING


def test_a_condition_without_a_time_begins_now():
    world = starting("PyTorchJob")
    world.status["conditions"][0]["lastTransitionTime"] = "?"
    del world.status["startTime"]
    world.pass_time(LIMIT)
    decide(world)
    assert state(world) == STARTING
    assert seconds_to_startup(Unstructured(world.raw), world.now) == LIMIT


# Causes ---------------------------------------------------------------------------------------------------------------


def wait_for(world: World, name: str, reason: str, message: str) -> None:
    status = {"name": "pytorch", "state": {"waiting": {"reason": reason, "message": message}}}
    world.set_pod(name, "Pending", containerStatuses=[status])


def test_causes_are_counted_the_most_frequent_first():
    world = World(WORLDS["PyTorchJob"]().raw)
    world.spec["pytorchReplicaSpecs"]["Worker"]["replicas"] = 9
    settle(world)
    for index in range(3):
        wait_for(world, f"j-worker-{index}", "ErrImagePull", "no such image: x")
    for index in (3, 4):
        wait_for(world, f"j-worker-{index}", "Other", str(index) * 500)
    world.delete("j-worker-5")
    names = [*(f"j-worker-{index}" for index in range(7)), "j-worker-99", "j-worker-98"]
    found = describe_causes(world.snapshot(), names)
    assert found.startswith("3: ErrImagePull: no such image: x; 2: has no pod; 1: Other: 333")
    assert found.endswith("; 2: other causes")
    assert len(found) < 700
    assert describe_causes(world.snapshot(), ["j-worker-5"]) == "1: the former pod still terminates"
    refused = replace(world.snapshot(), obstacle=Wait("CreationFailed", "pods are forbidden", "exceeded quota"))
    assert describe_causes(refused, ["x"]) == "1: has no pod: pods are forbidden: exceeded quota"


# Annotations ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotations", "said"),
    [
        ({"startup_deadline": "soon"}, '"soon" is ignored: it must be a duration from 10s to 720h'),
        ({"startup_deadline": "9s"}, '"9s" is ignored'),
        ({"on_startup_deadline": "fail"}, '"fail" is ignored without trainop.kubeflow.org/startup-deadline'),
        ({"startup_deadline": "20m", "on_startup_deadline": "stop"}, '"stop" is ignored: it must be suspend or fail'),
    ],
)
@every_kind
def test_annotations_without_effect_are_one_warning_and_the_job_goes_on(
    kind: str, annotations: dict[str, str], said: str
):
    world = WORLDS[kind](**annotations)
    settle(world)
    start(world)
    (message,) = world.event_messages("AnnotationIgnored")
    assert said in message
    assert world.is_true("Running")


def test_jobs_that_cannot_be_suspended_are_told():
    world = WORLDS["DIJob"](startup_deadline="20m")
    (message,) = world.event_messages("AnnotationIgnored")
    assert message.endswith("jobs of this kind cannot be suspended: set trainop.kubeflow.org/on-startup-deadline=fail")
    world.pass_time(LIMIT)
    assert not decide(world).suspend
    assert started(world) is None


# The write ------------------------------------------------------------------------------------------------------------


def annotated() -> Json:
    job = pytorch_job()
    job["metadata"]["annotations"] = {"trainop.kubeflow.org/startup-deadline": "20m"}
    return job


@virtual_time
async def test_the_job_is_suspended_by_a_patch_of_its_spec():
    shell = Shell()
    shell.client.put(JOBS, annotated())
    await shell.settle()
    result = await shell.look()
    assert result.requeue_after == pytest.approx(LIMIT, abs=2)
    await shell.clock.sleep(LIMIT)
    await shell.look()
    assert shell.job()["spec"]["runPolicy"] == {"suspend": True}
    assert len(shell.events.of("StartupDeadlineExceeded")) == 1
    await shell.settle()
    assert shell.pods() == []
    assert ("Suspended", "True") in shell.conditions()


@virtual_time
async def test_a_refused_suspension_is_reported_and_repeated():
    shell = Shell()
    shell.client.put(JOBS, annotated())
    await shell.settle()
    await shell.clock.sleep(LIMIT)
    shell.client.fail("patch merge", JOBS, api_error(403, "Forbidden", "no"))
    with pytest.raises(ForbiddenError):
        await shell.look()
    assert shell.events.of("FailedSuspend") == ["Error suspending: no"]
    shell.show()
    shell.client.fail("patch merge", JOBS, api_error(409, "Conflict", "changed meanwhile"))
    assert (await shell.look()).requeue
    assert len(shell.events.of("FailedSuspend")) == 1
    assert "runPolicy" not in shell.job()["spec"]
    shell.client.put(JOBS, shell.job())  # the change of the other client
    await shell.settle()
    assert shell.job()["spec"]["runPolicy"] == {"suspend": True}


def test_a_kind_without_deadlines_goes_on():
    world = starting("PyTorchJob", "fail")
    own = Kind(resource=PYTORCH.resource, name="own", controller="own", plan=partial(plan, PYTORCH), reject=refuse)
    world.pass_time(LIMIT)
    assert own.decide(world.snapshot()).actions == ()


def refuse(_seen: Snapshot, _message: str) -> Plan:
    return Plan()


def test_plans_of_deleted_jobs_stay_empty():
    world = starting("PyTorchJob")
    world.raw["metadata"]["deletionTimestamp"] = format_time(world.now)
    world.raw["metadata"]["finalizers"] = ["x"]
    assert decide(world) == Plan()
