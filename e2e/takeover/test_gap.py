"""training-operator is killed, things happen to its jobs while no operator runs, and ours continues."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from e2e.takeover.observers import STUCK
from e2e.takeover.scenes import Scene, Stage, Step, restarts_counted, runs, succeeds
from e2e.takeover.test_takeover import broken_laws
from e2e.takeover.theatre import NEW, Theatre
from tests.server.kinds import ROWS
from tests.server.world import CORE, MERGE, Json
from tests.upstream import Upstream
from trainop.programs.schemes import FRAMEWORKS

Uids = Mapping[str, str]
"""Name -> UID of the pods of a job when training-operator was killed."""
DEADLINE = 100
"""Seconds: not over before training-operator is killed."""


def victim(stage: Stage, name: str) -> str:
    return f"{name}-{stage.victim}"


def stick(stage: Stage, pod: str) -> None:
    stage.ask("PATCH", f"{CORE}/pods/{pod}", {"metadata": {"finalizers": [STUCK]}}, MERGE)


def release(stage: Stage, pod: str) -> None:
    stage.ask("PATCH", f"{CORE}/pods/{pod}", {"metadata": {"finalizers": None}}, MERGE)


def time_of(status: Json, name: str) -> datetime:
    return datetime.fromisoformat(status[name])


# what happened before the operator was killed


def begins_to_restart(stage: Stage, name: str) -> None:
    """The failed pod is being deleted, and does not go."""
    stick(stage, victim(stage, name))
    stage.end_pod(victim(stage, name), 137)
    stage.wait(lambda: victim(stage, name) not in stage.pods_of(name), "the deletion of the failed pod")


def begins_to_suspend(stage: Stage, name: str) -> None:
    """All pods are being deleted, and do not go."""
    for pod in stage.pods_of(name):
        stick(stage, pod)
    stage.patch_job({"runPolicy": {"suspend": True}}, name)
    stage.wait_condition("Suspended", name)
    stage.wait(lambda: not stage.pods_of(name), "the deletion of all pods")


def has_pods(stage: Stage, name: str) -> None:
    stage.wait_running_pods(name)


def is_refused_by_the_engine(stage: Stage, name: str) -> None:
    """Some pods may exist, without services or a status."""


# what happens while no operator runs


def nothing(stage: Stage, name: str) -> None:
    pass


def exits(code: int) -> Step:
    return lambda stage, name: stage.end_pod(victim(stage, name), code)


def completes(stage: Stage, name: str) -> None:
    for end in ROWS[stage.framework.kind].ends:
        stage.end_pod(f"{name}-{end}")


def evicts(stage: Stage, name: str) -> None:
    stage.evict_pod(victim(stage, name))


def suspends(stage: Stage, name: str) -> None:
    stage.patch_job({"runPolicy": {"suspend": True}}, name)


def resumes(stage: Stage, name: str) -> None:
    stage.patch_job({"runPolicy": {"suspend": False}}, name)


def scales(count: int) -> Step:
    return lambda stage, name: _scale(stage, name, count)


def _scale(stage: Stage, name: str, count: int) -> None:
    stage.patch_job({stage.framework.replica_specs: {"Worker": {"replicas": count}}}, name)


# what is true in the end

Check = Callable[[Stage, str, Uids], None]


def runs_on(stage: Stage, name: str, before: Uids) -> None:
    stage.wait_active(name)
    assert stage.uids_of(name) == before


def replaced(stage: Stage, name: str, before: Uids) -> None:
    """The victim has a successor; the other pods run on."""
    stage.wait_successor(victim(stage, name), before[victim(stage, name)])
    stage.wait_active(name)
    after = stage.uids_of(name)
    assert {pod for pod, uid in after.items() if uid != before[pod]} == {victim(stage, name)}


def replaced_and_counted(stage: Stage, name: str, before: Uids) -> None:
    replaced(stage, name, before)
    assert restarts_counted(stage.job(name)) == 1


def replaced_once_gone(stage: Stage, name: str, before: Uids) -> None:
    stage.settle()
    assert stage.uids_of(name) == before
    release(stage, victim(stage, name))
    replaced(stage, name, before)


def resumed_once_gone(stage: Stage, name: str, before: Uids) -> None:
    stage.settle()
    assert stage.uids_of(name) == before
    assert stage.is_now("Suspended", name)
    for pod in before:
        release(stage, pod)
    stage.wait_active(name)
    assert not set(stage.uids_of(name).values()) & set(before.values())
    assert not stage.condition("Failed", name)


def succeeded(stage: Stage, name: str, before: Uids) -> None:
    stage.wait_condition("Succeeded", name)
    assert stage.uids_of(name) == before


def failed(stage: Stage, name: str, before: Uids) -> None:
    stage.wait_condition("Failed", name)
    assert stage.uids_of(name) == before


def suspended(stage: Stage, name: str, before: Uids) -> None:
    stage.wait_condition("Suspended", name)
    stage.wait(lambda: not stage.uids_of(name), "no pods")
    assert before


def has_workers(count: int) -> Check:
    def check(stage: Stage, name: str, before: Uids) -> None:
        wanted = {f"{name}-master-0", *(f"{name}-worker-{index}" for index in range(count))}
        stage.wait(lambda: set(stage.uids_of(name)) == wanted, f"{count} workers")
        after = stage.uids_of(name)
        assert all(after[pod] == before[pod] for pod in wanted & before.keys())

    return check


def failed_in_time(stage: Stage, name: str, before: Uids) -> None:
    failed_ = stage.wait_condition("Failed", name)
    assert failed_["message"] == Upstream(f"Job {name} has failed because it was active longer than specified deadline")
    status = stage.status(name)
    assert (time_of(status, "completionTime") - time_of(status, "startTime")).total_seconds() >= DEADLINE
    assert before


def kept(stage: Stage, name: str, before: Uids) -> None:
    """No running pod is deleted because the job is invalid."""
    stage.wait(lambda: stage.events(f"{stage.framework.kind}FailedValidation"), "a warning")
    assert stage.uids_of(name) == before


def warned_and_runs_on(stage: Stage, name: str, before: Uids) -> None:
    runs_on(stage, name, before)
    stage.wait(lambda: stage.warnings_about(name), "a warning")
    assert stage.is_now("Running", name)


def deleted(stage: Stage, name: str, _before: Uids) -> None:
    stage.wait(lambda: stage.try_to("GET", f"{stage.jobs}/{name}").status == 404, f"the deletion of {name}")


@dataclass(frozen=True)
class Gap:
    scene: Scene
    gap: Step
    check: Check
    kinds: tuple[str, ...] = field(default=())


PYTORCH = ("PyTorchJob",)
XGBOOST = ("XGBoostJob",)
GAPS = [
    Gap(Scene("deadline", run_policy={"activeDeadlineSeconds": DEADLINE}), nothing, failed_in_time),
    Gap(Scene("nothing"), nothing, runs_on),
    Gap(Scene("short", lower_case=True, past=(has_pods,)), nothing, runs_on),
    Gap(Scene("killed", "ExitCode"), exits(137), replaced_and_counted),
    Gap(Scene("wrong", "ExitCode"), exits(1), failed),
    Gap(Scene("hanging", "ExitCode", past=(runs, exits(1))), nothing, failed),
    Gap(
        Scene("endless", "ExitCode", run_policy={"ttlSecondsAfterFinished": 5}, past=(runs, exits(1))), nothing, deleted
    ),
    Gap(Scene("fatal", "Never"), exits(137), failed),
    Gap(Scene("evicted"), evicts, replaced),
    Gap(Scene("complete"), completes, succeeded),
    Gap(Scene("suspends"), suspends, suspended),
    Gap(Scene("restarting", "ExitCode", past=(runs, begins_to_restart)), nothing, replaced_once_gone),
    Gap(Scene("pausing", past=(runs, begins_to_suspend)), resumes, resumed_once_gone),
    Gap(Scene("grows"), scales(4), has_workers(4), PYTORCH),
    Gap(Scene("shrinks"), scales(1), has_workers(1), PYTORCH),
    Gap(Scene("odd", run_policy={"cleanPodPolicy": "Sometimes"}), nothing, warned_and_runs_on),
    Gap(Scene("invalid", container="wrong", past=(is_refused_by_the_engine,)), nothing, kept),
    Gap(Scene("headless", counts={"Worker": 2}, past=(is_refused_by_the_engine,)), nothing, kept, XGBOOST),
]
EXPIRES = Scene("expires", run_policy={"ttlSecondsAfterFinished": DEADLINE}, past=(runs, succeeds))


def test_events_while_no_operator_runs(theatre: Theatre) -> None:
    stages = list(theatre.stages().values())
    cast = [(stage, each) for stage in stages for each in GAPS if not each.kinds or stage.framework.kind in each.kinds]
    old, new = theatre.old(), theatre.new()
    old.start()
    for stage, each in cast:
        stage.create_scene(each.scene)
    for stage, each in cast:
        for step in each.scene.past:
            step(stage, each.scene.name)
    old.end(signal.SIGKILL)
    before = {(stage.namespace, each.scene.name): stage.uids_of(each.scene.name) for stage, each in cast}
    for stage, each in cast:
        each.gap(stage, each.scene.name)
    mark = theatre.audit.end()
    new.start()
    for stage, each in reversed(cast):
        each.check(stage, each.scene.name, before[stage.namespace, each.scene.name])
    assert [str(write) for write in theatre.writes(NEW, mark) if write.code >= 400] == []
    assert list(broken_laws(theatre)) == []


def test_a_time_to_live_that_has_begun(theatre: Theatre) -> None:
    stage = Stage(theatre.api, FRAMEWORKS["PyTorchJob"])
    old, new = theatre.old(), theatre.new()
    old.start()
    stage.create_scene(EXPIRES)
    for step in EXPIRES.past:
        step(stage, EXPIRES.name)
    old.end()
    finished = time_of(stage.status(EXPIRES.name), "completionTime")
    new.start()
    gone = f"{stage.jobs}/{EXPIRES.name}"
    stage.wait(lambda: stage.try_to("GET", gone).status == 404, "the deletion of the job")
    (event,) = stage.wait(lambda: stage.events("SuccessfulDeletePod"), "the event of the deletion")
    deleted = datetime.fromisoformat(event["firstTimestamp"] or event["eventTime"])
    assert (deleted - finished).total_seconds() >= DEADLINE
