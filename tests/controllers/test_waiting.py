"""A job that is unfinished and does not move says what it waits for, after a while, whatever its kind."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.controllers.kinds import KINDS, last, make
from tests.controllers.kinds import running as running_job
from tests.controllers.kinds import world_of as job_of
from tests.engine.builders import NOW
from tests.engine.world import World
from tests.kinds.dijob_world import DiWorld, dijob
from tests.kinds.mpi_world import MpiWorld, mpi_job, replicas
from tests.kinds.mpi_world import running as running_mpi
from tests.kinds.mpi_world import world_of as mpi_of
from trainop.controllers.job_state import JobStates
from trainop.controllers.outcome import Outcome, Passes
from trainop.engine.actions import Plan, Wait
from trainop.engine.gang_scheduler import choose_scheduler
from trainop.engine.leaders import missing_leaders
from trainop.engine.parse import parse
from trainop.engine.plan import plan, reject
from trainop.engine.seen import Options, Snapshot
from trainop.engine.status import WAITING, format_time
from trainop.engine.waiting import REASONS, reason_of, say_waiting
from trainop.kinds.dijob.plan import plan_dijob
from trainop.kinds.mpi.transport import TRANSPORT
from trainop.kinds.pytorch import PYTORCH
from trainop.programs.schemes import FRAMEWORKS
from trainop.programs.schemes import KINDS as SCHEMES
from trainop.runtime.clock import SystemClock
from trainop.runtime.controller.expectations import Expectations
from trainop.runtime.errors import InvalidError
from trainop.runtime.objects.metadata import Json, Unstructured, owner_reference

N = Options().waiting_after


def decide(world: World, **seen: Any) -> Plan:
    """One reconcile as the controllers make it."""
    snapshot = replace(world.snapshot(), **seen)
    if isinstance(world, MpiWorld):
        made = world.plan(snapshot)
    elif isinstance(world, DiWorld):
        made = plan_dijob(snapshot)
    else:
        made = plan(world.framework, snapshot)
    made = say_waiting(snapshot, made)
    world.carry_out(made)
    return made


def condition(world: World) -> tuple[str, str] | None:
    """Reason and message of the condition Waiting."""
    found = [each for each in world.status.get("conditions") or () if each["type"] == WAITING]
    return (found[0]["reason"], found[0]["message"]) if found else None


def wait(world: World, seconds: float = N) -> tuple[str, str] | None:
    """Lets time pass, with a reconcile whenever the operator has asked for one."""
    left = seconds
    while left > 0:
        made = decide(world)
        due = left if made.requeue_after is None else min(max(made.requeue_after, 1.0), left)
        world.pass_time(due)
        left -= due
    decide(world)
    return condition(world)


def start(world: World) -> None:
    """All pods run, also that of a launcher's batch Job."""
    world.run()
    if isinstance(world, MpiWorld) and world.kind.launcher is not None:
        world.launch()
    world.settle()


# Every kind -----------------------------------------------------------------------------------------------------------


def exec_of(*args: Any, **fields: Any) -> MpiWorld:
    world = MpiWorld(mpi_job(*args, transport="exec", **fields), ssh=False)
    world.settle()
    return world


def di_of(**fields: Any) -> DiWorld:
    world = DiWorld(dijob(**fields))
    world.settle()
    return world


WORLDS: dict[str, Callable[[], World]] = {kind: partial(job_of, kind) for kind in KINDS}
WORLDS |= {"MPIJob over ssh": mpi_of, "MPIJob with exec": exec_of, "DIJob": di_of}
"""A job of each kind whose pods are pending."""

every_kind = pytest.mark.parametrize("kind", WORLDS)


def test_every_kind_has_a_world():
    assert {name.split()[0] for name in WORLDS} == set(SCHEMES)


@every_kind
def test_pending_pods_are_named_after_a_while_and_not_before(kind: str):
    world = WORLDS[kind]()
    world.job["metadata"]["creationTimestamp"] = format_time(world.now)  # type: ignore[index]
    assert wait(world, N - 1) is None
    decide(world)
    assert condition(world) is None
    world.pass_time(1)
    events = len(world.events)
    made = decide(world)
    found = condition(world)
    assert found is not None
    first = min(world.pods)
    assert found[0] == "PodsPending"
    assert first in found[1]
    assert [event.message for event in world.events[events:]] == [found[1]]
    assert world.status["conditions"][0]["type"] == WAITING, "the last condition still shows the state"
    assert made.status is not None
    for _ in range(3):
        world.pass_time(60)
        assert decide(world).status is None
    assert len(world.events) == events + 1


@every_kind
def test_pods_that_start_end_the_wait_in_silence(kind: str):
    world = WORLDS[kind]()
    assert wait(world) is not None
    events = [event.reason for event in world.events]
    start(world)
    made = decide(world)
    assert condition(world) is None
    assert made.status is not None
    assert [event.reason for event in world.events][len(events) :] in ([], ["MPIJobRunning"])
    world.pass_time(100 * N)
    assert decide(world).status is None, "a job that runs does not wait, however long it runs"


@every_kind
def test_a_restarted_operator_counts_from_the_times_of_the_objects(kind: str):
    """Nothing but objects decides: the first reconcile of a new process says it at once."""
    world = WORLDS[kind]()
    world.pass_time(N)
    decide(world)
    assert condition(world) is not None


@every_kind
def test_a_job_that_has_lost_all_its_pods_after_days_moves_on_without_a_word(kind: str):
    world = WORLDS[kind]()
    start(world)
    world.pass_time(100 * N)
    decide(world)
    world.pods.clear()
    events = len(world.events)
    decide(world)
    assert condition(world) is None
    assert "Waiting" not in str(world.events[events:])
    assert world.pods


@every_kind
def test_a_refused_child_is_named_with_the_message_of_the_api_server(kind: str):
    world = WORLDS[kind]()
    start(world)
    obstacle = Wait("CreationFailed", "Pod x cannot be created", "exceeded quota", world.now)
    world.pass_time(N - 1)
    decide(world, obstacle=obstacle)
    assert condition(world) is None
    world.pass_time(1)
    decide(world, obstacle=obstacle)
    assert condition(world) == ("CreationFailed", "Pod x cannot be created: exceeded quota")
    assert decide(world, obstacle=obstacle._replace(why="another text")).status is None
    decide(world)
    assert condition(world) is None


@pytest.mark.parametrize("kind", [*KINDS, "MPIJob over ssh", "MPIJob with exec"])
def test_a_suspended_and_a_finished_job_wait_for_nothing(kind: str):
    world = WORLDS[kind]()
    assert wait(world) is not None
    world.spec.setdefault("runPolicy", {})["suspend"] = True
    decide(world)
    assert condition(world) is None
    assert wait(world, 3 * N) is None
    world.spec["runPolicy"]["suspend"] = False
    world.reap()
    for _ in range(3):
        decide(world)
        world.reap()
    assert wait(world) is not None
    world.carry_out(_reject(world))
    assert world.is_true("Failed")
    assert condition(world) is None
    assert wait(world, 3 * N) is None


def _reject(world: World) -> Plan:
    snapshot = world.snapshot()
    return world.kind.reject(snapshot, "no") if isinstance(world, MpiWorld) else reject(world.framework, snapshot, "no")


def test_a_job_of_another_manager_is_left_alone():
    world = World(make("PyTorchJob", run={"managedBy": "kueue.x-k8s.io/multikueue"}), framework=PYTORCH)
    assert wait(world, 3 * N) is None
    assert world.status == {}


def test_zero_switches_it_off():
    world = job_of("PyTorchJob", options=Options(waiting_after=0))
    assert wait(world, 10 * N) is None


# What is said ---------------------------------------------------------------------------------------------------------


def test_the_message_of_the_scheduler_is_repeated_and_stays():
    """It changes whenever the cluster does, and would be a write each time."""
    world = job_of("PyTorchJob", {"Worker": 1})
    for count in ("3", "2"):
        why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": f"{count} lack cpu"}
        world.set_pod("j-worker-0", "Pending", conditions=[why])
        wait(world)
        assert condition(world) == ("PodsPending", "j-worker-0 is pending: Unschedulable: 3 lack cpu")


def test_an_image_that_cannot_be_pulled_is_named():
    world = job_of("PyTorchJob", {"Worker": 1})
    state = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    world.set_pod("j-worker-0", "Pending", containerStatuses=[{"name": "pytorch", "state": state}])
    text = "j-worker-0 is pending: container pytorch of j-worker-0: ImagePullBackOff: no such image"
    assert wait(world) == ("PodsPending", text)


def test_the_names_of_many_pods_are_bounded_and_start_one_by_one_with_few_writes():
    world = job_of("JAXJob", {"Worker": 40})
    found = wait(world)
    assert found is not None
    assert "and others are pending" in found[1]
    assert len(found[1]) < 400
    writes = 0
    for index in range(39, 17, -1):
        world.run(f"j-worker-{index}")
        before = condition(world)
        decide(world)
        writes += condition(world) != before
    assert writes == 0


def test_a_pod_that_terminates_for_ever_is_named():
    world = running_job("PyTorchJob", policy="OnFailure")
    world.delete("j-worker-0")
    found = wait(world, N + 31)
    assert found == ("PodsTerminating", "j-worker-0 is still terminating: is the node gone?")


def test_a_pod_of_unknown_phase_is_named():
    world = running_job("PyTorchJob")
    world.set_pod("j-worker-0", "Unknown")
    found = wait(world)
    assert found is not None
    assert found[0] == "PodsUnknown"
    assert found[1].startswith("j-worker-0 is in an unknown phase")


def test_a_pause_between_restarts_is_no_reason_to_say_anything_at_the_usual_patience():
    world = running_job("PyTorchJob", policy="OnFailure")
    for _ in range(12):
        world.end("j-worker-0", 1)
        world.settle()
        world.reap()
        for _ in range(5):
            assert decide(world).status is None or condition(world) is None
            world.pass_time(60)
        world.settle()
        world.run()
    assert condition(world) is None


def test_a_long_pause_is_named_with_less_patience():
    world = running_job("PyTorchJob", policy="OnFailure", options=Options(waiting_after=60))
    for _ in range(9):
        world.end("j-worker-0", 1)
        world.settle()
        world.reap()
        world.settle()
        if "j-worker-0" not in world.living():
            world.pass_time(61)
            decide(world)
            found = condition(world)
        world.pass_time(300)
        world.settle()
        world.run("j-worker-0")
    assert found is not None
    assert found[0] == "BackOff"


def test_a_name_that_is_taken_is_named():
    world = World(make("PyTorchJob", {"Worker": 1}), framework=PYTORCH)
    other = owner_reference("apps/v1", "ReplicaSet", "r", "other")
    world.pods["j-worker-0"] = {
        "metadata": {"name": "j-worker-0", "namespace": "ns", "uid": "u", "ownerReferences": [other]},
        "status": {"phase": "Running"},
    }
    found = wait(world)
    assert found is not None
    assert found[0] == "NameTaken"
    assert "j-worker-0" in found[1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_pod_without_its_labels_is_named_although_the_job_runs(kind: str):
    world = running_job(kind)
    del world.pods[last(kind)]["metadata"]["labels"]["training.kubeflow.org/replica-type"]
    found = wait(world)
    assert found is not None
    assert found[0] == "InvalidLabels"
    assert last(kind) in found[1]


def test_a_pod_group_that_its_scheduler_does_not_admit_is_named():
    world = World(make("PyTorchJob"), framework=PYTORCH, options=Options(gang=choose_scheduler("volcano")))
    found = wait(world)
    assert found == ("GangNotReady", "Pods wait for PodGroup j: its scheduler has not set a phase")


def test_a_role_whose_template_became_invalid_is_named_only_when_a_pod_is_missing():
    world = running_job("PyTorchJob", policy="OnFailure")
    world.spec["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"] = []
    assert wait(world, 3 * N) is None
    del world.pods["j-worker-0"]
    found = wait(world)
    assert found is not None
    assert found[0] == "InvalidSpec"
    assert "Worker" in found[1]
    assert "containers" in found[1]


@pytest.mark.parametrize(
    ("kind", "roles", "lacking"),
    [
        ("TFJob", {"PS": 1}, "Chief or Master or Worker"),
        ("TFJob", {"Worker": 0}, "Chief or Master or Worker"),
        ("MXJob", {"Server": 1, "Worker": 1}, "Scheduler or Tuner"),
    ],
)
def test_a_job_that_nothing_can_end_says_which_replica_it_lacks(kind: str, roles: dict[str, int], lacking: str):
    world = job_of(kind, roles)
    world.run()
    world.settle()
    assert wait(world) == ("NoLeader", f"No replica of {kind} j decides when it has ended: it lacks {lacking}")


def test_a_job_that_stands_still_for_no_known_reason_shows_its_counters():
    world = running_job("PyTorchJob")
    world.pass_time(N)
    snapshot = replace(world.snapshot(), pods=())
    made = say_waiting(snapshot, Plan(waits=()))
    assert made.status is not None
    text = "No pod of the job runs, is pending or is missing: Master 1 active; Worker 2 active"
    assert made.status["conditions"][0]["message"] == text


@pytest.mark.parametrize("kind", KINDS)
def test_every_ordinary_job_has_a_replica_that_decides(kind: str):
    framework = FRAMEWORKS[kind]
    assert missing_leaders(framework, parse(framework, Unstructured(make(kind)))) == []


def test_the_page_lists_every_reason():
    page = (Path(__file__).parents[2] / "docs" / "waiting.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == list(REASONS)


def test_a_condition_of_a_failed_creation_stays_while_a_new_process_tries_again():
    world = running_job("PyTorchJob", policy="OnFailure")
    del world.pods["j-worker-0"]
    snapshot = replace(
        world.snapshot(), obstacle=Wait("CreationFailed", "Pod j-worker-0 cannot be created", "quota", NOW)
    )
    world.pass_time(N)
    snapshot = replace(snapshot, now=world.now)
    world.carry_out(replace(say_waiting(snapshot, plan(PYTORCH, snapshot)), actions=()))
    assert condition(world) == ("CreationFailed", "Pod j-worker-0 cannot be created: quota")
    made = say_waiting(world.snapshot(), plan(PYTORCH, world.snapshot()))
    assert made.status is None or made.status["conditions"][0]["type"] == WAITING


def test_reasons_of_metrics_are_those_of_the_list_alone():
    def status(**fields: str) -> Json:
        return {"conditions": [{"type": WAITING, "status": "True", **fields}]}

    assert {reason_of(status(reason=reason)) for reason in REASONS} == set(REASONS)
    assert reason_of(status(reason="x" * 99)) == "NoProgress"
    unreadable: list[Any] = [None, [], {}, {"conditions": [1]}, {"conditions": {}}]
    assert {reason_of(each) for each in unreadable} == {""}


# TFJobs with dynamic workers ------------------------------------------------------------------------------------------


def dynamic(roles: dict[str, int]) -> World:
    world = job_of("TFJob", roles, enableDynamicWorker=True)
    world.run()
    world.settle()
    return world


def test_a_job_with_dynamic_workers_fails_when_the_last_one_has_ended_without_its_success():
    world = dynamic({"PS": 1, "Worker": 3})
    world.end("j-worker-0", 1)
    world.settle()
    world.end("j-worker-1", 0)
    world.settle()
    assert not world.is_true("Failed")
    world.end("j-worker-2", 0)
    world.settle()
    assert world.conditions[-1] == ("Failed", "True", "TFJobFailed")
    text = "TFJob ns/j has failed because 1 Worker replica(s) failed."
    assert world.status["conditions"][-1]["message"].startswith(text)


def test_dynamic_workers_may_all_fail_beside_a_chief():
    world = dynamic({"Chief": 1, "Worker": 2})
    world.end("j-worker-0", 1)
    world.end("j-worker-1", 1)
    world.settle()
    assert not world.is_true("Failed")
    world.end("j-chief-0", 0)
    world.settle()
    assert world.is_true("Succeeded")


# MPIJobs over ssh -----------------------------------------------------------------------------------------------------


def test_an_invalid_name_is_a_condition_in_the_end():
    world = MpiWorld(mpi_job(1, name="1-foo"))
    world.raw["metadata"]["creationTimestamp"] = format_time(NOW)
    assert wait(world, N - 1) is None
    found = wait(world, 1)
    assert found is not None
    assert found[0] == "InvalidSpec"
    assert 'metadata.name: Invalid value: "1-foo"' in found[1]
    wait(world, 10 * N)
    assert world.made == []
    assert len(world.event_messages("InvalidSpec")) == 1


def test_the_transport_of_an_invalid_job_is_recorded_before_it_has_a_status():
    """A status without it is that of a job which another operator has begun, and whose version may be forgotten."""
    world = MpiWorld(mpi_job(1, name="1-foo", transport=None, mpiImplementation="Intel"))
    made = decide(world)
    assert made.annotations == {TRANSPORT: "ssh"}
    assert made.status is None


def test_an_invalid_job_that_is_mended_begins():
    world = MpiWorld(mpi_job(1, slotsPerWorker=-1))
    world.raw["metadata"]["creationTimestamp"] = format_time(NOW)
    assert wait(world) is not None
    world.spec["slotsPerWorker"] = 1
    decide(world)
    assert condition(world) is None
    assert world.made


def test_a_launcher_that_waits_for_workers_which_are_not_ready_names_them():
    world = mpi_of(2, launcherCreationPolicy="WaitForWorkersReady")
    world.run_workers(ready=False)
    found = wait(world)
    assert found is not None
    assert found[0] == "WorkersNotReady"
    assert "foo-worker-0, foo-worker-1 are not" in found[1]
    world.set_pod("foo-worker-1", "Failed")
    found = wait(world)
    assert found is not None
    assert "foo-worker-1 will not be, having ended" in found[1]


def test_a_launcher_whose_job_makes_no_pod_is_named():
    world = mpi_of(1)
    world.run_workers()
    assert wait(world) == ("LauncherPending", "Job foo-launcher has no pod: see `kubectl describe job foo-launcher`")


def test_a_missing_worker_of_a_running_job_is_named():
    """Its Secret cannot be made, as an example."""
    world = running_mpi(2)
    del world.pods["foo-worker-1"]
    outcome, states = Outcome(begun=True), JobStates(Expectations(SystemClock()))
    outcome.hinder("Secret", "foo-ssh", InvalidError(422, "Invalid", "denied by policy", {}), "written")
    passes = Passes(states, random.Random(1))
    passes.finish(world.snapshot(), Plan(), outcome)
    world.pass_time(N)
    snapshot = passes.show(world.snapshot())
    made = say_waiting(snapshot, world.plan(snapshot))
    assert made.status is not None
    assert made.status["conditions"][0]["message"].startswith("Secret foo-ssh cannot be written: ")


def test_pods_over_ssh_have_events_about_what_keeps_them():
    world = mpi_of(1, worker=replicas(1))
    state = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    world.set_pod("foo-worker-0", "Pending", containerStatuses=[{"name": "c", "state": state}])
    decide(world)
    text = "Error pod foo-worker-0 container c waiting message: no such image"
    assert world.event_messages("ImagePullBackOff") == [text]


# What is remembered ---------------------------------------------------------------------------------------------------


def test_an_obstacle_lasts_until_a_pass_meets_none():
    states = JobStates(Expectations(SystemClock()))
    passes, world = Passes(states, random.Random(1)), job_of("PyTorchJob")

    def record(outcome: Outcome) -> Wait | None:
        with suppress(TimeoutError):
            passes.finish(world.snapshot(), Plan(), outcome)
        shown: Snapshot = passes.show(world.snapshot())
        return shown.obstacle

    refused = Outcome()
    refused.hinder("Pod", "j-worker-0", "quota")
    refused.hinder("Pod", "j-worker-1", "later")
    first = record(refused)
    assert first == ("CreationFailed", "Pod j-worker-0 cannot be created", "quota", NOW)
    assert refused.requeue_after == N
    world.pass_time(60)
    again = record(Outcome(errors=[TimeoutError("no answer")]))
    assert again == ("CreationFailed", "The API server does not carry out what the job needs", "no answer", NOW)
    assert record(Outcome(held_back=True)) == again
    assert record(Outcome()) is None


def test_obstacles_of_all_kinds_of_writes_are_merged():
    first, second = Outcome(), Outcome()
    second.hinder("Pod", "p", "no")
    first.merge(second)
    assert first.obstacle == ("Pod p cannot be created", "no")
