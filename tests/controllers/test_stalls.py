"""A job whose reports of progress stop says so, and restarts if it asks for that, whatever its kind."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.controllers.worlds import WORLDS, annotate, decide, settle, start
from tests.engine.world import World
from trainop.controllers.observe import by_stall
from trainop.engine.actions import Plan, Remove
from trainop.engine.interventions import restart_all
from trainop.engine.kind import is_watched
from trainop.engine.restart_history import RESTARTS
from trainop.engine.root_cause import Failure
from trainop.engine.seen import Options, Silence
from trainop.engine.stalls import awaits_report, read_stall_rule
from trainop.engine.status import format_time
from trainop.kinds.pytorch import PYTORCH
from trainop.runtime.objects.metadata import PODS, Json, Unstructured

every_kind = pytest.mark.parametrize("kind", WORLDS)
RESTARTED = [kind for kind in WORLDS if kind != "DIJob"]
AFTER = 1800
JUST = Silence(0.0, 0.0, "j-master-0", look_in=AFTER)
"""A report has just come."""
OVER = Silence(AFTER + 15.0, AFTER + 15.0, "j-master-0", overdue=True)
"""None has come for too long."""
UNHEARD = Silence(AFTER + 15.0, overdue=True)
"""This process has never heard one."""


def stalled(world: World) -> tuple[str, str, str] | None:
    """Status, reason and message of the condition."""
    found = [each for each in world.status.get("conditions") or () if each["type"] == "Stalled"]
    assert len(found) <= 1
    return (found[0]["status"], found[0]["reason"], found[0]["message"]) if found else None


def say(world: World, percent: int = 37) -> None:
    """A report is written into the status."""
    metrics = [{"name": "current_step", "value": "1200"}, {"name": "total_steps", "value": "3000"}]
    world.status["trainerStatus"] = {"progressPercentage": percent, "metrics": metrics}


def running(kind: str, **annotations: str) -> World:
    """A job that runs and has reported."""
    world = WORLDS[kind](stalled_after="30m", **annotations)
    start(world)
    say(world)
    decide(world, silence=JUST)
    settle_silent(world)
    world.pass_time(AFTER + 15)
    return world


def test_the_pass_in_which_the_first_report_is_seen_asks_for_the_next():
    """Its own write wakes nobody."""
    world = WORLDS["PyTorchJob"](stalled_after="30m")
    start(world)
    say(world)
    assert decide(world, silence=JUST).requeue_after == AFTER
    world.pass_time(AFTER)
    decide(world, silence=OVER)
    world.pass_time(AFTER)
    assert decide(world, silence=JUST).requeue_after == AFTER


def settle_silent(world: World) -> None:
    for _ in range(5):
        decide(world, silence=Silence(1.0, look_in=AFTER))


def deleted_pods(made: Plan) -> list[str]:
    return [each.name for each in made.actions if isinstance(each, Remove) and each.resource == PODS]


def history(world: World) -> Json:
    found: Json = json.loads(world.raw["metadata"]["annotations"].get(RESTARTS, "{}"))
    return found


# The condition --------------------------------------------------------------------------------------------------------


@every_kind
def test_without_the_annotation_nothing_is_watched(kind: str):
    world = WORLDS[kind]()
    start(world)
    say(world)
    made = decide(world, silence=OVER)
    assert (made.status, made.requeue_after, made.notices) == (None, decide(world).requeue_after, decide(world).notices)


@every_kind
def test_a_job_that_never_reports_never_stalls(kind: str):
    world = WORLDS[kind](stalled_after="30m", on_stall="restart")
    start(world)
    made = decide(world, silence=UNHEARD)
    assert stalled(world) is None
    assert (made.status, made.actions, made.annotations) == (None, (), {})


@every_kind
def test_a_stall_says_who_was_heard_last_when_and_how_far_it_was(kind: str):
    world = running(kind)
    assert stalled(world) == ("False", "ProgressReported", "The job reports its progress")
    last = format_time(world.now)
    world.pass_time(AFTER + 15)
    made = decide(world, silence=OVER)
    text = (
        f"No report of progress for 30m: pod j-master-0 was last heard at {last}, at 37 %, step 1200 of 3000; `trainop"
        f" stacks {world.raw['metadata']['name']}` shows where its replicas stand, and"
        " trainop.kubeflow.org/on-stall=restart would restart them"
    )
    assert stalled(world) == ("True", "NoProgress", text)
    assert world.is_true("Running")
    assert world.event_messages("Stalled") == [text]
    assert [each.type for each in world.events if each.reason == "Stalled"] == ["Warning"]
    assert world.counts["stalled"] == 1
    assert deleted_pods(made) == []
    assert world.status["conditions"][0]["type"] == "Stalled"
    settle_silent(world)
    assert decide(world, silence=OVER).status is None
    assert len(world.event_messages("Stalled")) == 1


@every_kind
def test_a_later_report_ends_the_stall(kind: str):
    world = running(kind)
    decide(world, silence=OVER)
    world.pass_time(5)
    decide(world, silence=Silence(900.0, 900.0))
    assert stalled(world)[0] == "True"  # type: ignore[index]  # the report was before the stall
    decide(world, silence=JUST)
    assert stalled(world)[0] == "False"  # type: ignore[index]
    world.pass_time(AFTER)
    decide(world, silence=OVER)
    assert stalled(world)[0] == "True"  # type: ignore[index]
    assert world.counts["stalled"] == 2


@every_kind
def test_a_report_ends_a_stall_of_a_time_when_the_clock_was_ahead(kind: str):
    """The process that saw the stall has ended, and its clock was an hour ahead."""
    world = running(kind)
    world.pass_time(3600)
    decide(world, silence=OVER)
    world.pass_time(-3600)
    decide(world, silence=UNHEARD)
    assert stalled(world)[0] == "True"  # type: ignore[index]
    decide(world, silence=JUST)
    assert stalled(world)[0] == "False"  # type: ignore[index]


def test_a_stall_of_which_little_is_known():
    world = running("PyTorchJob")
    world.status["trainerStatus"] = {"metrics": [None, {"name": "current_step", "value": "7"}]}
    decide(world, silence=Silence(AFTER, overdue=True))
    assert ": the job was last heard before " in stalled(world)[2]  # type: ignore[index]
    assert ", at step 7;" in stalled(world)[2]  # type: ignore[index]
    world = running("PyTorchJob")
    world.status["trainerStatus"] = "?"
    decide(world, silence=Silence(AFTER, overdue=True))
    assert "Z; `trainop" in stalled(world)[2]  # type: ignore[index]


def test_the_next_look_is_when_the_job_may_have_stalled():
    world = running("PyTorchJob")
    assert decide(world, silence=Silence(60.0, look_in=1740.0)).requeue_after == 1740.0
    world = WORLDS["PyTorchJob"](stalled_after="30m")
    world.spec["runPolicy"] = {"activeDeadlineSeconds": 100}
    start(world)
    say(world)
    decide(world, silence=JUST)
    assert decide(world, silence=Silence(60.0, look_in=1740.0)).requeue_after == 100


@every_kind
def test_an_operator_that_has_just_begun_to_watch_knows_of_no_silence(kind: str):
    world = running(kind)
    world.pass_time(10 * AFTER)
    decide(world, silence=Silence(0.0, look_in=AFTER))
    assert stalled(world)[0] == "False"  # type: ignore[index]


@every_kind
def test_a_report_in_the_status_of_a_job_that_was_never_restarted_is_of_this_run(kind: str):
    world = WORLDS[kind](stalled_after="30m")
    start(world)
    say(world)
    decide(world, silence=Silence(0.0, look_in=AFTER))
    assert stalled(world)[0] == "False"  # type: ignore[index]


def test_the_end_of_the_annotation_ends_the_watch():
    world = running("PyTorchJob")
    decide(world, silence=OVER)
    del world.raw["metadata"]["annotations"]["trainop.kubeflow.org/stalled-after"]
    decide(world)
    assert stalled(world) is None


@pytest.mark.parametrize("kind", RESTARTED)
@pytest.mark.parametrize("silence", [JUST, OVER])
def test_suspension_ends_the_watch_until_the_next_report(kind: str, silence: Silence):
    world = running(kind)
    decide(world, silence=silence)
    world.spec.setdefault("runPolicy", {})["suspend"] = True
    decide(world)
    assert stalled(world) is None
    world.reap()
    settle(world)
    world.pass_time(60)
    world.spec["runPolicy"]["suspend"] = False
    settle(world)
    if "ssh" in kind:
        world.pods.pop("foo-launcher-x", None)
    start(world)
    assert world.is_true("Running")
    assert decide(world, silence=UNHEARD).status is None
    decide(world, silence=Silence(5.0, None))
    assert stalled(world) is None  # what the status has is of the run before
    decide(world, silence=JUST)
    assert stalled(world)[0] == "False"  # type: ignore[index]


@pytest.mark.parametrize("kind", ["PyTorchJob", "TFJob"])
def test_the_end_of_the_job_removes_the_condition(kind: str):
    world = running(kind)
    decide(world, silence=OVER)
    for name in world.pods:
        world.end(name, 0)
    decide(world)
    assert world.is_true("Succeeded")
    assert stalled(world) is None


def test_a_restart_of_one_pod_begins_a_new_run():
    world = running("PyTorchJob")
    decide(world, silence=OVER)
    world.end("j-worker-1", 137)
    decide(world)
    assert world.is_true("Restarting")
    assert stalled(world)[0] == "True"  # type: ignore[index]
    world.reap()
    settle(world)
    world.pass_time(3)
    start(world)
    assert world.is_true("Running")
    assert stalled(world) is None
    world = running("PyTorchJob")
    world.end("j-worker-1", 137)
    decide(world, silence=JUST)
    assert stalled(world) is None


def test_a_condition_without_times_is_kept():
    world = running("PyTorchJob")
    for each in world.status["conditions"]:
        each.pop("lastTransitionTime")
    assert decide(world, silence=Silence(5.0, look_in=1.0)).status is None
    decide(world, silence=OVER)
    world.status["conditions"][0].pop("lastTransitionTime")
    decide(world, silence=JUST)
    assert stalled(world)[0] == "False"  # type: ignore[index]


# The restart ----------------------------------------------------------------------------------------------------------


def restart(kind: str, **annotations: str) -> tuple[World, Plan]:
    """The pass in which the job stalls."""
    world = running(kind, on_stall="restart", **annotations)
    return world, decide(world, silence=OVER)


@pytest.mark.parametrize("kind", RESTARTED)
@pytest.mark.parametrize("scope", ["pod", "job"])
def test_all_pods_restart_once_whatever_the_scope(kind: str, scope: str):
    world, made = restart(kind, restart_scope=scope)
    before = {name: pod["metadata"]["uid"] for name, pod in world.pods.items()}
    assert sorted(deleted_pods(made)) == sorted(before)
    assert made.status_first, "a status that is lost to a conflict would leave pods that end without a reason"
    assert made.annotations.keys() == {RESTARTS}
    assert history(world)["failures"] == 1
    assert world.counts["restarted"] == world.counts["stalled"] == 1
    assert world.is_true("Restarting")
    assert not world.is_true("Running")
    assert stalled(world)[2].endswith("; all its pods are restarted")  # type: ignore[index]
    assert world.status["lastFailure"]["reason"] == "Stalled"
    (said,) = [each.message for each in world.events if each.reason.endswith("Restarting")]
    assert "is restarting as a whole (Stalled). No replica had failed: No report of progress for 30m: pod" in said
    for _ in range(3):  # nothing is created before all are gone
        assert deleted_pods(decide(world)) == []
    assert world.pods.keys() == before.keys()
    first = next(iter(world.pods))
    del world.pods[first]
    settle(world)
    assert world.pods.keys() == before.keys() - {first}
    world.reap()
    settle(world)
    world.pass_time(3)
    start(world)
    assert world.is_true("Running")
    assert not {pod["metadata"]["uid"] for pod in world.pods.values()} & set(before.values())
    assert stalled(world) is None
    assert history(world)["failures"] == 1
    assert world.counts["restarted"] == 1
    assert decide(world, silence=UNHEARD).actions == ()  # the new run has not reported


@pytest.mark.parametrize("kind", RESTARTED)
def test_an_operator_that_dies_after_counting_goes_on_with_the_restart(kind: str):
    world = running(kind, on_stall="restart")
    status = json.loads(json.dumps(world.status))
    pods = json.loads(json.dumps(world.pods))
    jobs = json.loads(json.dumps(world.companions.get(getattr(world, "jobs", None), {})))  # type: ignore[arg-type]
    decide(world, silence=OVER)
    world.raw["status"], world.pods = status, pods
    if jobs:
        world.companions[world.jobs] = jobs  # type: ignore[attr-defined]
    made = decide(world, silence=Silence(0.0, look_in=AFTER))
    assert sorted(deleted_pods(made)) == sorted(pods)
    assert history(world)["failures"] == 1
    assert world.counts["restarted"] == 1
    world.reap()
    settle(world)
    assert not {pod["metadata"]["uid"] for pod in world.pods.values()} & {
        pod["metadata"]["uid"] for pod in pods.values()
    }


@pytest.mark.parametrize("kind", RESTARTED)
def test_the_restart_is_charged_to_the_budget(kind: str):
    world = running(kind, on_stall="restart")
    world.spec.setdefault("runPolicy", {})["backoffLimit"] = 0
    made = decide(world, silence=OVER)
    assert world.is_true("Failed")
    assert stalled(world) is None
    failed = next(each for each in world.status["conditions"] if each["type"] == "Failed")
    assert "has reached the specified backoff limit" in failed["message"]
    assert "No report of progress for 30m" in failed["message"]
    assert world.status["lastFailure"]["reason"] == "Stalled"
    assert world.counts["stalled"] == 1
    assert made.status_first


def test_pods_that_have_succeeded_restart_too():
    world = running("JAXJob", on_stall="restart")
    world.end("j-worker-2", 0)
    decide(world, silence=Silence(1.0, look_in=AFTER))
    made = decide(world, silence=OVER)
    assert sorted(deleted_pods(made)) == ["j-worker-0", "j-worker-1", "j-worker-2"]


def test_a_pod_that_fails_at_the_same_moment_restarts_with_the_others_as_one():
    world = running("PyTorchJob")
    world.end("j-worker-1", 137)
    made = restart_all(PYTORCH, world.snapshot(), Failure(reason="Stalled", message="silent"))
    assert made is not None
    world.carry_out(made)
    assert sorted(deleted_pods(made)) == ["j-master-0", "j-worker-0", "j-worker-1"]
    assert (history(world)["failures"], world.counts["restarted"]) == (1, 1)


def test_a_later_restart_of_one_pod_is_of_one_pod_again():
    world, _ = restart("PyTorchJob")
    world.reap()
    settle(world)
    world.pass_time(3)
    start(world)
    world.end("j-worker-1", 137)
    assert deleted_pods(decide(world)) == ["j-worker-1"]
    assert history(world)["failures"] == 2
    assert "whole" not in history(world)


def test_a_job_that_cannot_be_restarted_as_it_is_only_says_so():
    world = running("PyTorchJob", on_stall="restart")
    world.spec["pytorchReplicaSpecs"]["Worker"]["template"] = {"spec": {"containers": []}}
    made = decide(world, silence=OVER)
    assert deleted_pods(made) == []
    assert stalled(world)[0] == "True"  # type: ignore[index]
    assert "trainop stacks" in stalled(world)[2]  # type: ignore[index]
    world = running("MPIJob over ssh", on_stall="restart")
    world.spec["mpiReplicaSpecs"]["Launcher"] = 1
    made = decide(world, silence=OVER)
    assert deleted_pods(made) == []


@pytest.mark.parametrize("limit", [None, 4])
def test_failures_of_a_launcher_count_beyond_its_job(limit: int | None):
    world = running("MPIJob over ssh", on_stall="restart")
    world.spec["runPolicy"] = {"activeDeadlineSeconds": 7200}
    if limit is not None:
        world.spec["runPolicy"]["backoffLimit"] = limit
    world.launcher["status"] = {"failed": 2}  # type: ignore[attr-defined]
    decide(world, silence=OVER)
    assert history(world)["failures"] == 3
    world.reap()
    settle(world)
    spec = world.launcher["spec"]  # type: ignore[attr-defined]
    assert spec["backoffLimit"] == (6 if limit is None else limit) - 3
    assert spec["activeDeadlineSeconds"] == 7200 - AFTER - 15


def test_a_launcher_that_has_ended_meanwhile_ends_the_job():
    world = running("MPIJob over ssh", on_stall="restart")
    world.raw["metadata"]["annotations"][RESTARTS] = json.dumps({"job": "?"})
    launcher = world.launcher  # type: ignore[attr-defined]
    decide(world, silence=OVER)
    world.companions[world.jobs]["foo-launcher"] = launcher  # type: ignore[attr-defined]
    world.end_launcher()  # type: ignore[attr-defined]
    decide(world)
    assert world.is_true("Succeeded")


# Annotations ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotations", "said"),
    [
        (
            {"stalled_after": "soon"},
            'stalled-after]: "soon" is ignored: it must be a duration from 1m to 720h, such as',
        ),
        ({"stalled_after": "59s"}, '"59s" is ignored'),
        ({"stalled_after": "-30m"}, '"-30m" is ignored'),
        ({"stalled_after": "9" * 5000}, "it must be a duration from 1m to 720h"),
        ({"stalled_after": "721h"}, '"721h" is ignored'),
        ({"on_stall": "restart"}, 'on-stall]: "restart" is ignored without trainop.kubeflow.org/stalled-after'),
        ({"stalled_after": "30m", "on_stall": "reboot"}, 'on-stall]: "reboot" is ignored: it must be restart'),
        ({"stalled_after": "30m", "on_stall": "Restart"}, "it must be restart"),
        ({"stalled_after": "30m", "progress": "false"}, "stalled-after] has no effect on a job that does not report"),
    ],
)
@every_kind
def test_annotations_without_effect_are_one_warning_and_the_job_goes_on(
    kind: str, annotations: dict[str, str], said: str
):
    world = WORLDS[kind](**annotations)
    start(world)
    say(world)
    for _ in range(3):
        decide(world, silence=JUST)
    (message,) = world.event_messages("AnnotationIgnored")
    assert said in message
    assert world.is_true("Running")


def test_jobs_that_the_operator_does_not_restart_are_told():
    world = running("DIJob", on_stall="restart")
    (message,) = world.event_messages("AnnotationIgnored")
    assert message.endswith("on-stall] is ignored: the operator does not restart jobs of this kind")
    assert decide(world, silence=OVER).actions == ()
    assert stalled(world)[0] == "True"  # type: ignore[index]


def test_an_operator_that_takes_no_reports_says_so():
    world = WORLDS["PyTorchJob"]()
    world.options = Options()
    annotate(world.raw, stalled_after="30m")
    decide(world)
    assert "has no effect on a job that does not report" in world.event_messages("AnnotationIgnored")[0]


def test_what_wakes_the_controller():
    world = WORLDS["PyTorchJob"](stalled_after="30m")
    assert not awaits_report(Unstructured(world.raw))
    start(world)
    assert awaits_report(Unstructured(world.raw))
    say(world)
    decide(world, silence=JUST)
    assert not awaits_report(Unstructured(world.raw))
    assert by_stall(Unstructured(world.raw)) == ()
    decide(world, silence=OVER)
    assert awaits_report(Unstructured(world.raw))
    assert by_stall(Unstructured(world.raw)) == ("Stalled",)
    other = WORLDS["PyTorchJob"]()
    start(other)
    assert not awaits_report(Unstructured(other.raw))
    assert by_stall(Unstructured({"status": []})) == ()


@pytest.mark.parametrize("status", [None, [], {}, {"conditions": 1}, {"conditions": [1, {"type": "Running"}]}])
def test_a_job_that_asks_for_nothing_is_not_watched(status: Any):
    assert not is_watched(Unstructured({"status": status}))
    assert is_watched(Unstructured({"status": {"conditions": [{"type": "Started", "status": "True"}]}}))


@pytest.mark.parametrize(("text", "seconds"), [("30m", 1800.0), ("1h30m", 5400.0), ("90", 90.0), (" 2m ", 120.0)])
def test_durations(text: str, seconds: float):
    found: Any = read_stall_rule({"trainop.kubeflow.org/stalled-after": text})
    assert found.after == seconds
