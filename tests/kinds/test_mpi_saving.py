"""MPIJob with transport ssh: the annotations checkpoint-grace and on-disruption (`docs/survive.md`)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.engine.builders import UID, pod_created, pod_deleted
from tests.engine.test_checkpoint import AWAITED, GRACE, TARGET, TOGETHER, graces, report
from tests.kinds.mpi_world import MpiWorld, mpi_job, replicas, running
from trainop.engine.actions import Remove
from trainop.engine.restart_history import RESTARTS
from trainop.kinds.mpi.transport import LAUNCHER_JOBS
from trainop.runtime.objects.metadata import Json

LAUNCHED = "foo-launcher-x"


def disruptions(world: MpiWorld) -> int:
    history: Json = json.loads(world.raw["metadata"]["annotations"].get(RESTARTS, "{}"))
    found: int = history.get("disruptions", 0)
    return found


def evict(world: MpiWorld, name: str) -> None:
    world.pods[name]["status"] |= {"conditions": [TARGET]}
    world.delete(name)


def end_all(world: MpiWorld) -> None:
    """The pods end; the Job controller has deleted that of the suspended launcher."""
    assert world.launcher["spec"]["suspend"]
    world.delete(LAUNCHED)
    world.reap()


def start_again(world: MpiWorld) -> None:
    world.settle()
    world.launch("foo-launcher-y")
    world.run_workers()
    world.settle()


def decided(world: MpiWorld) -> Any:
    return world.kind.decide(world.snapshot())


def test_launcher_and_workers_have_the_grace_period():
    world = running(annotations={GRACE: "5m"})
    specs = [world.launcher["spec"]["template"]["spec"], *(pod["spec"] for pod in world.pods.values())]
    assert [spec["terminationGracePeriodSeconds"] for spec in specs] == [300] * 4


def test_without_the_annotation_the_grace_periods_are_those_of_the_templates():
    world = running()
    assert all("terminationGracePeriodSeconds" not in pod["spec"] for pod in world.pods.values())
    assert "podFailurePolicy" not in world.launcher["spec"]


def test_workers_from_before_the_annotation_get_the_grace_period_with_their_deletion():
    world = running()
    world.raw["metadata"]["annotations"][GRACE] = "5m"
    world.spec["runPolicy"] = {"suspend": True}
    made = decided(world)
    assert graces(made) == [300, 300]
    assert all(isinstance(action, Remove) for action in made.actions[:2])


def test_a_launcher_made_anew_for_the_annotation_alone_is_not():
    world = running(run={"suspend": True})
    world.raw["metadata"]["annotations"][GRACE] = "5m"
    world.spec["runPolicy"] = {"suspend": False}
    assert not any(isinstance(action, Remove) and action.resource == LAUNCHER_JOBS for action in world.step().actions)


@pytest.mark.parametrize("code", ["Complete", "Failed"])
def test_the_workers_of_a_job_that_has_succeeded_have_nothing_to_save(code: str):
    world = running(annotations={GRACE: "5m"}, run={"cleanPodPolicy": "All"})
    world.end_launcher(code)
    assert graces(world.step()) == [30 if code == "Complete" else None] * 2


def test_the_eviction_of_a_worker_ends_all_and_charges_nothing():
    world = running(annotations=TOGETHER)
    evict(world, "foo-worker-1")
    made = world.step()
    assert [action.name for action in made.actions if pod_deleted(action)] == ["foo-worker-0"]
    assert world.patches[-1] == {"spec": {"suspend": True}}
    assert disruptions(world) == 1
    (said,) = world.event_messages("MPIJobRestarting")
    assert said.startswith(
        "MPIJob bar/foo is restarting because 1 of its pods were disrupted. All replicas save and end."
    )
    assert "Worker 1 (pod foo-worker-1) was evicted by another client" in said
    assert world.status["lastFailure"]["pod"] == "foo-worker-1"
    world.settle()
    assert (world.is_true("Restarting"), world.is_true("Running")) == (True, False)
    end_all(world)
    start_again(world)
    assert world.is_true("Running")
    assert world.launcher["spec"]["suspend"] is False
    assert (disruptions(world), world.counts["restarted"]) == (1, 1)


def test_nothing_starts_before_the_last_pod_is_gone():
    world = running(annotations=TOGETHER)
    evict(world, LAUNCHED)
    world.settle()
    for name in ("foo-worker-0", LAUNCHED):
        del world.pods[name]
        assert not any(map(pod_created, world.step().actions))
        world.settle()
        assert world.launcher["spec"]["suspend"]
    world.reap()
    start_again(world)
    assert world.is_true("Running")


@pytest.mark.parametrize("end", ["Complete", "Failed"])
def test_the_launchers_end_during_the_restart_is_not_the_jobs(end: str):
    world = running(annotations=TOGETHER, launcher=replicas(1), run={"ttlSecondsAfterFinished": 5, "backoffLimit": 0})
    before = world.launcher["metadata"]["uid"]
    evict(world, LAUNCHED)
    world.set_pod(LAUNCHED, "Succeeded" if end == "Complete" else "Failed")
    evict(world, "foo-worker-0")
    world.end_launcher(end)
    made = world.step()
    assert any(isinstance(action, Remove) and action.resource == LAUNCHER_JOBS for action in made.actions)
    assert not world.status.get("completionTime")
    world.settle()
    assert not world.has_launcher()
    world.reap()
    start_again(world)
    assert world.is_true("Running")
    assert world.launcher["metadata"]["uid"] != before
    world.end_launcher("Complete")
    world.settle()
    assert world.is_true("Succeeded")
    assert disruptions(world) == 1


def test_the_end_after_the_restart_is_the_jobs():
    world = running(annotations=TOGETHER)
    evict(world, "foo-worker-1")
    world.settle()
    end_all(world)
    start_again(world)
    world.end_launcher("Failed", reason="BackoffLimitExceeded", message="m")
    world.settle()
    assert world.is_true("Failed")


def test_a_second_disruption_during_the_grace_period_counts_nothing():
    world = running(annotations=TOGETHER)
    evict(world, "foo-worker-1")
    world.settle()
    evict(world, "foo-worker-0")
    evict(world, LAUNCHED)
    world.set_pod("foo-worker-0", "Failed", reason="Evicted")
    world.settle()
    assert disruptions(world) == 1
    assert len(world.event_messages("MPIJobRestarting")) == 1
    assert not world.is_true("Failed")


def test_a_killed_operator_continues():
    world = running(annotations=TOGETHER)
    evict(world, "foo-worker-1")
    made = world.plan(world.snapshot())
    world.raw["metadata"]["annotations"] |= {RESTARTS: made.annotations[RESTARTS]}  # and nothing else
    world.settle()
    assert world.launcher["spec"]["suspend"]
    assert disruptions(world) == 1


def test_the_limit_of_disruptions_holds():
    world = running(annotations=TOGETHER | {"trainop.kubeflow.org/infra-restart-limit": "0"})
    evict(world, "foo-worker-1")
    world.settle()
    assert world.is_true("Failed")
    assert world.condition("Failed")["reason"] == "MPIJobInfraRestartLimitExceeded"


@pytest.mark.parametrize("annotations", [TOGETHER, {GRACE: "5m"}])
def test_a_resumed_job_waits_until_the_pods_from_before_are_gone_and_counts_no_disruption(annotations: dict[str, str]):
    world = running(annotations=annotations)
    world.spec["runPolicy"] = {"suspend": True}
    world.settle()
    world.delete(LAUNCHED)
    del world.pods["foo-worker-0"]
    world.spec["runPolicy"] = {"suspend": False}
    world.settle()
    assert world.launcher["spec"]["suspend"]
    assert "foo-worker-0" not in world.pods
    world.reap()
    start_again(world)
    assert world.is_true("Running")
    assert disruptions(world) == 0


def test_scaling_down_and_up_is_no_disruption():
    world = running(3, annotations=TOGETHER)
    world.spec["mpiReplicaSpecs"]["Worker"]["replicas"] = 2
    world.settle()
    world.spec["mpiReplicaSpecs"]["Worker"]["replicas"] = 3  # while the surplus worker terminates
    world.settle()
    assert disruptions(world) == 0
    assert not world.launcher["spec"].get("suspend")


@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
def test_the_job_controller_does_not_count_disruptions_of_the_launcher(policy: str):
    world = running(annotations=TOGETHER, launcher=replicas(1, policy))
    rules = world.launcher["spec"].get("podFailurePolicy", {}).get("rules", [])
    assert [rule["action"] for rule in rules] == (["Ignore"] if policy == "Never" else [])


def test_without_the_annotation_nothing_is_recorded():
    world = running()
    evict(world, "foo-worker-1")
    world.settle()
    world.spec["runPolicy"] = {"suspend": True}
    world.settle()
    assert RESTARTS not in world.raw["metadata"]["annotations"]


def test_the_job_of_another_uid_is_not_restarting():
    job = mpi_job(annotations={**TOGETHER, RESTARTS: json.dumps({"job": "other", "disruptions": 1})})
    assert job["metadata"]["uid"] == UID
    world = MpiWorld(job)
    world.settle()
    assert len(world.pods) == 2


# Suspension waits for a checkpoint ------------------------------------------------------------------------------------


def suspending(**fields: Any) -> MpiWorld:
    world = running(annotations={GRACE: "5m"}, **fields)
    report(world, "100")
    world.spec["runPolicy"] = {"suspend": True}
    return world


def test_a_suspension_waits_for_the_next_checkpoint():
    world = suspending()
    made = world.step()
    assert (made.actions, made.requeue_after) == ((), 300)
    assert not world.is_true("Suspended")
    assert world.is_true("Running")
    world.pass_time(10)
    assert world.step().requeue_after == 290
    report(world, "101")
    world.step()
    assert world.is_true("Suspended")
    assert world.launcher["spec"]["suspend"]
    assert not [name for name in world.living() if "worker" in name]
    world.settle()
    assert AWAITED not in world.raw["metadata"]["annotations"]


def test_the_wait_ends_with_the_grace_period():
    world = suspending()
    world.step()
    world.pass_time(300)
    world.step()
    assert world.is_true("Suspended")


def test_a_job_that_has_lost_a_worker_does_not_wait():
    world = suspending()
    world.step()
    world.delete("foo-worker-0")
    world.step()
    assert world.is_true("Suspended")


def test_a_job_that_is_resumed_meanwhile_runs_on():
    world = suspending()
    world.step()
    world.spec["runPolicy"] = {"suspend": False}
    world.settle()
    assert world.is_true("Running")
    assert AWAITED not in world.raw["metadata"]["annotations"]
