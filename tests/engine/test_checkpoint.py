"""The annotations checkpoint-grace and on-disruption: `docs/survive.md`, "Checkpoint before the end"."""

from __future__ import annotations

from typing import Any
from unittest.mock import ANY

import pytest

from tests.engine.builders import make_job, make_pod, manifest_of, names, pod_created, pod_deleted, see, template
from tests.engine.world import DecidingWorld, World
from trainop.engine.actions import Plan, Remove
from trainop.engine.children import arrange
from trainop.engine.kind import kind_of
from trainop.engine.parse import parse
from trainop.engine.restart_history import RESTARTS
from trainop.kinds.mpi.exec.kind import MPI_EXEC
from trainop.kinds.pytorch import PYTORCH
from trainop.kinds.tensorflow import TENSORFLOW
from trainop.runtime.objects.metadata import PODS, Json

GRACE = "trainop.kubeflow.org/checkpoint-grace"
ON_DISRUPTION = "trainop.kubeflow.org/on-disruption"
AWAITED = "trainop.kubeflow.org/checkpoint-awaited"
TOGETHER = {ON_DISRUPTION: "checkpoint-all"}
TARGET: Json = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "Eviction"}


class SavingWorld(DecidingWorld):
    """Decides as the operator does, with what all kinds have in common."""

    @property
    def phases(self) -> dict[str, str]:
        return {name: pod["status"]["phase"] for name, pod in self.pods.items()}

    def announce(self, name: str, **condition: str) -> None:
        """A controller or the kubelet is about to end the pod, which still runs."""
        self.pods[name]["status"] |= {"conditions": [TARGET | condition]}

    def evict(self, name: str) -> None:
        """The Eviction API: the condition, then the deletion."""
        self.announce(name)
        self.delete(name)


def started(annotations: dict[str, str], worker: int = 2, **fields: Any) -> SavingWorld:
    world = SavingWorld(make_job(1, worker, annotations=annotations, **{"policy": "OnFailure", **fields}))
    world.settle()
    world.run()
    world.settle()
    assert world.is_true("Running")
    return world


def graces(made: Plan) -> list[int | None]:
    return [action.grace for action in made.actions if isinstance(action, Remove) and action.resource == PODS]


# The grace period -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "own", "expected"),
    [
        (None, None, None),
        (None, 5, 5),
        ("5m", None, 300),
        ("5m", 20, 300),
        ("5m", 600, 600),
        ("10s", None, None),  # the default of Kubernetes is longer
        ("10s", 2, 10),
        ("1m30.5s", None, 91),
        ("90", None, 90),
        ("1h", None, 3600),
        ("2h", None, 3600),
        ("9e9h", None, None),
        ("0", None, None),
        ("-5m", None, None),
        ("999999999999999999999999h", None, 3600),
        ("5 minutes", None, None),
        ("", None, None),
        ("٣m", None, None),
        ("9" * 100_000, None, None),
    ],
)
def test_pods_have_at_least_the_grace_period_that_the_job_asks_for(
    given: str | None, own: int | None, expected: int | None
):
    spec = {} if own is None else {"terminationGracePeriodSeconds": own}
    job = make_job(1, 1, tmpl=template(**spec), annotations={} if given is None else {GRACE: given})
    made = kind_of(PYTORCH).decide(see(job))
    pods = [manifest_of(action) for action in made.actions if pod_created(action)]
    assert len(pods) == 2
    assert [pod["spec"].get("terminationGracePeriodSeconds") for pod in pods] == [expected] * 2


def test_a_grace_period_of_a_wrong_type_is_left_to_the_api_server():
    job = make_job(1, None, tmpl=template(terminationGracePeriodSeconds="x"), annotations={GRACE: "5m"})
    (pod,) = [manifest_of(action) for action in kind_of(PYTORCH).decide(see(job)).actions if pod_created(action)]
    assert pod["spec"]["terminationGracePeriodSeconds"] == "x"


@pytest.mark.parametrize("own", [None, 5])
def test_pods_from_before_the_annotation_get_the_grace_period_with_their_deletion(own: int | None):
    world = started({}, tmpl=template(**({"terminationGracePeriodSeconds": own} if own else {})))
    world.raw["metadata"]["annotations"][GRACE] = "5m"
    world.spec["runPolicy"] = {"suspend": True}
    made = world.step()
    assert graces(made) == [300] * 3
    assert [type(action) for action in made.actions[:3]] == [Remove] * 3


def test_the_deletion_never_shortens_a_grace_period():
    world = started({}, tmpl=template(terminationGracePeriodSeconds=600))
    world.raw["metadata"]["annotations"][GRACE] = "5m"
    world.spec["runPolicy"] = {"suspend": True}
    assert graces(world.step()) == [None] * 3


def test_without_the_annotation_a_deletion_names_no_grace_period():
    world = started({}, run={"backoffLimit": 0})
    world.spec["runPolicy"] = {"suspend": True}
    assert graces(world.step()) == [None] * 3


@pytest.mark.parametrize("own", [None, 60])
def test_the_pods_of_a_job_that_has_succeeded_have_nothing_to_save(own: int | None):
    tmpl = template(**({"terminationGracePeriodSeconds": own} if own else {}))
    world = started({GRACE: "5m"}, tmpl=tmpl, run={"cleanPodPolicy": "Running"})
    world.end("j-master-0", 0)
    made = world.step()
    assert world.is_true("Succeeded")
    assert names(made, pod_deleted) == ["j-worker-0", "j-worker-1"]
    assert graces(made) == [own or 30] * 2


def test_a_template_with_a_longer_grace_period_keeps_it_after_success():
    world = started({GRACE: "10s"}, tmpl=template(terminationGracePeriodSeconds=60), run={"cleanPodPolicy": "Running"})
    world.end("j-master-0", 0)
    assert graces(world.step()) == [None] * 2


def test_the_pods_of_a_job_at_its_deadline_may_save():
    world = started({GRACE: "5m"}, run={"activeDeadlineSeconds": 60})
    world.pass_time(61)
    made = world.step()
    assert world.is_true("Failed")
    assert graces(made) == [None] * 3  # as their specs say


def test_in_a_restart_of_the_whole_job_a_replica_that_saves_and_exits_with_0_has_not_succeeded():
    world = started({GRACE: "5m", "trainop.kubeflow.org/restart-scope": "job"})
    world.end("j-worker-0", 1)
    world.settle()
    world.end("j-master-0", 0)
    world.settle()
    assert not world.is_true("Succeeded")
    world.reap()
    world.settle()
    assert world.living() == ["j-master-0", "j-worker-0", "j-worker-1"]


# Malformed and contradictory annotations ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotations", "text"),
    [
        ({GRACE: "soon"}, f'metadata.annotations[{GRACE}]: "soon" is ignored: it must be a duration from 1s to 1h'),
        ({GRACE: "0s"}, f'metadata.annotations[{GRACE}]: "0s" is ignored: it must be a duration from 1s to 1h'),
        ({GRACE: "2h"}, f'metadata.annotations[{GRACE}]: "2h" counts as 1h: it must be a duration from 1s to 1h'),
        ({ON_DISRUPTION: "save"}, f'metadata.annotations[{ON_DISRUPTION}]: "save" is ignored: it must be "checkpoint'),
        ({GRACE: "x", ON_DISRUPTION: "y"}, "is ignored: it must be a duration from 1s to 1h, such as 5m; metadata."),
    ],
)
def test_what_is_wrong_with_an_annotation_is_said_once_and_the_job_runs(annotations: dict[str, str], text: str):
    world = started(annotations)
    (said,) = world.event_messages("CheckpointNotPossible")
    assert text in said
    assert not world.event_messages("PyTorchJobFailedValidation")


# Disruptions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["OnFailure", "Never", "ExitCode", "Always"])
@pytest.mark.parametrize("scope", ["pod", "role", "job"])
def test_the_eviction_of_one_pod_ends_all_while_it_still_runs(policy: str, scope: str):
    annotations = TOGETHER | {"trainop.kubeflow.org/restart-scope": scope}
    world = started(annotations, policy=policy, run={"backoffLimit": 0})
    world.evict("j-worker-1")
    made = world.step()
    assert sorted(names(made, pod_deleted)) == ["j-master-0", "j-worker-0"]
    assert names(made, pod_created) == []
    assert RESTARTS in made.annotations  # recorded before the pods are deleted
    assert (world.history.get("failures"), world.history["disruptions"]) == (None, 1)
    (said,) = world.event_messages("PyTorchJobRestarting")
    assert said.startswith("PyTorchJob j is restarting because 1 Worker replica(s) were disrupted.")
    assert "Worker 1 (rank 2, pod j-worker-1) was evicted by another client (EvictionByEvictionAPI)" in said
    assert world.status["lastFailure"]["reason"] == "EvictionByEvictionAPI"
    world.settle()
    assert world.living() == []
    world.reap()
    world.settle()
    assert world.living() == ["j-master-0", "j-worker-0", "j-worker-1"]
    world.run()
    world.settle()
    assert world.is_true("Running")
    assert (world.history.get("failures"), world.history["disruptions"]) == (None, 1)
    assert world.counts["restarted"] == 1
    assert world.counts["disrupted"] == 1


def test_no_pod_is_made_before_the_last_one_is_gone():
    world = started(TOGETHER)
    world.evict("j-worker-1")
    world.settle()
    for name in ("j-worker-1", "j-master-0"):
        del world.pods[name]
        world.settle()
        assert world.living() == []
    del world.pods["j-worker-0"]
    world.settle()
    assert world.living() == ["j-master-0", "j-worker-0", "j-worker-1"]


@pytest.mark.parametrize("code", [0, 1, 143])
def test_how_the_replicas_end_while_they_save_means_nothing(code: int):
    world = started(TOGETHER, policy="ExitCode", run={"backoffLimit": 0})
    world.evict("j-worker-1")
    world.settle()
    for name in ("j-worker-0", "j-master-0", "j-worker-1"):
        world.end(name, code)
        world.settle()
    assert not world.is_true("Succeeded")
    assert not world.is_true("Failed")
    assert world.status["lastFailure"]["pod"] == "j-worker-1"
    world.reap()
    world.settle()
    assert len(world.living()) == 3
    assert world.history["disruptions"] == 1
    assert "failures" not in world.history


def test_the_disrupted_leader_that_saves_and_exits_with_0_has_not_succeeded():
    """The operator sees it only when the program has ended already."""
    world = started(TOGETHER)
    world.evict("j-master-0")
    world.end("j-master-0", 0)
    world.settle()
    assert not world.is_true("Succeeded")
    world.reap()
    world.settle()
    assert world.living() == ["j-master-0", "j-worker-0", "j-worker-1"]


def test_a_leader_that_another_replica_has_told_to_save_has_not_succeeded():
    """A library may make all replicas save and exit as soon as one of them gets SIGTERM."""
    world = started(TOGETHER)
    world.evict("j-worker-0")
    world.end("j-master-0", 0)
    world.settle()
    assert not world.is_true("Succeeded")
    assert world.history["disruptions"] == 1


def test_a_second_disruption_during_the_grace_period_counts_nothing():
    world = started(TOGETHER, run={"backoffLimit": 0})
    world.evict("j-worker-1")
    world.settle()
    world.announce("j-worker-0")
    world.announce("j-master-0", reason="DeletionByTaintManager")
    world.settle()
    world.pods["j-worker-0"]["status"]["phase"] = "Failed"
    world.settle()
    assert world.history["disruptions"] == 1
    assert world.counts["restarted"] == 1
    assert len(world.event_messages("PyTorchJobRestarting")) == 1


def test_two_pods_that_are_disrupted_at_once_are_one_disruption():
    world = started(TOGETHER)
    world.evict("j-worker-0")
    world.evict("j-worker-1")
    world.settle()
    world.reap()
    world.settle()
    assert world.history["disruptions"] == 1
    (said,) = world.event_messages("PyTorchJobRestarting")
    assert "because 2 Worker replica(s) were disrupted" in said


def test_the_announcement_alone_begins_the_restart():
    """The kubelet of a node that shuts down announces the end before the pod is deleted."""
    world = started(TOGETHER)
    world.announce("j-worker-0", reason="TerminationByKubelet")
    made = world.step()
    assert sorted(names(made, pod_deleted)) == ["j-master-0", "j-worker-0", "j-worker-1"]
    world.settle()
    assert world.history["disruptions"] == 1


@pytest.mark.parametrize("condition", [{"status": "False"}, {"type": "Other"}])
def test_an_announcement_that_was_taken_back_is_none(condition: dict[str, str]):
    world = started(TOGETHER)
    world.announce("j-worker-0", **condition)
    world.settle()
    assert len(world.living()) == 3


def test_a_pod_that_its_kubelet_has_evicted_restarts_the_job():
    world = started(TOGETHER, policy="Never")
    world.set_pod("j-worker-0", "Failed", reason="Evicted")
    world.settle()
    assert world.living() == []
    assert world.history["disruptions"] == 1


def test_a_pod_that_has_not_started_is_only_replaced():
    world = started(TOGETHER)
    world.set_pod("j-worker-0", "Pending")
    world.evict("j-worker-0")
    world.settle()
    assert world.living() == ["j-master-0", "j-worker-1"]
    world.reap()
    world.settle()
    assert len(world.living()) == 3
    assert world.history == {}


def test_a_pod_that_a_node_refused_is_only_replaced():
    world = started(TOGETHER)
    world.set_pod("j-worker-0", "Failed", reason="OutOfcpu")
    world.settle()
    assert world.living() == ["j-master-0", "j-worker-1"]


def test_the_operators_own_deletions_are_no_disruptions():
    world = started(TOGETHER, worker=3)
    world.spec["pytorchReplicaSpecs"]["Worker"]["replicas"] = 1
    world.settle()
    assert world.living() == ["j-master-0", "j-worker-0"]
    world.spec["pytorchReplicaSpecs"]["Worker"]["replicas"] = 3  # while the surplus pods terminate
    world.settle()
    assert "disruptions" not in world.history
    world.reap()
    world.settle()
    assert len(world.living()) == 4


def test_a_failure_restarts_as_without_the_annotation():
    world = started(TOGETHER)
    world.end("j-worker-0", 1)
    world.settle()
    assert world.living() == ["j-master-0", "j-worker-1"]
    assert world.history["failures"] == 1


def test_a_disruption_cannot_restart_a_job_whose_replicas_cannot_be_made():
    world = started(TOGETHER)
    del world.spec["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    world.evict("j-worker-0")
    world.settle()
    assert world.living() == ["j-master-0", "j-worker-1"]


def test_the_limit_of_disruptions_holds():
    world = started(TOGETHER | {"trainop.kubeflow.org/infra-restart-limit": "1"})
    for _ in range(2):
        assert not world.is_true("Failed")
        world.evict("j-worker-0")
        world.settle()
        world.reap()
        world.settle()
        world.run()
        world.settle()
    assert world.is_true("Failed")
    assert world.status["conditions"][-1]["message"].startswith(
        "Job j has failed because it has reached the specified infra restart limit"
    )


def test_a_repeated_pass_deletes_what_is_left_and_counts_nothing():
    world = started(TOGETHER)
    world.evict("j-worker-1")
    made = kind_of(PYTORCH).decide(world.snapshot())
    world.raw["metadata"]["annotations"] |= {RESTARTS: made.annotations[RESTARTS]}  # killed after the first write
    again = world.step()
    assert sorted(names(again, pod_deleted)) == ["j-master-0", "j-worker-0"]
    assert world.history["disruptions"] == 1


def test_without_the_annotation_a_disruption_replaces_one_pod():
    world = started({GRACE: "5m"})
    world.announce("j-worker-0")
    world.settle()
    assert len(world.living()) == 3
    world.delete("j-worker-0")
    world.settle()
    assert world.living() == ["j-master-0", "j-worker-1"]


def test_a_worker_that_was_asked_to_end_does_not_complete_a_tfjob():
    job = make_job(None, 2, annotations=TOGETHER)
    specs = job["spec"].pop("pytorchReplicaSpecs")
    specs["Worker"]["template"]["spec"]["containers"][0]["name"] = "tensorflow"
    job["spec"]["tfReplicaSpecs"] = specs | {"PS": specs["Worker"]}
    world = SavingWorld(job | {"kind": "TFJob"}, framework=TENSORFLOW)
    world.settle()
    world.run()
    world.settle()
    world.evict("j-ps-0")
    world.settle()
    world.end("j-worker-0", 0)
    world.settle()
    assert not world.is_true("Succeeded")
    world.reap()
    world.settle()
    assert len(world.living()) == 4


def test_an_mpijob_by_exec_restarts_with_its_launcher():
    specs = make_job(None, 2)["spec"]["pytorchReplicaSpecs"]
    launcher = {"replicas": 1, "template": specs["Worker"]["template"]}
    job = make_job(None, None, annotations=TOGETHER)
    job |= {"kind": "MPIJob", "spec": {"mpiReplicaSpecs": specs | {"Launcher": launcher}}}
    world = SavingWorld(job, framework=MPI_EXEC)
    world.settle()
    world.run()
    world.settle()
    world.evict("j-worker-0")
    world.settle()
    assert world.living() == []
    world.end("j-launcher", 0)
    world.settle()
    assert not world.is_true("Succeeded")
    assert world.history["disruptions"] == 1


def test_pods_of_any_state_are_understood():
    pods = [make_pod("worker", 0, phase, dying=dying) for phase in ("", "Unknown", "Odd") for dying in (True, False)]
    for pod in pods:
        made = kind_of(PYTORCH).decide(see(make_job(1, 1, policy="OnFailure", annotations=TOGETHER), [pod]))
        assert made.annotations.keys() >= ({RESTARTS} if pod.metadata.terminating else set())


# Suspension waits for a checkpoint ------------------------------------------------------------------------------------


def report(world: World, step: object, name: str = "checkpoint_step") -> None:
    """What the pods have reported, as the progress endpoint writes it."""
    world.raw["status"]["trainerStatus"] = {"metrics": [{"name": "loss", "value": "1"}, {"name": name, "value": step}]}


def suspending(step: object = "100", grace: str = "5m", **fields: Any) -> SavingWorld:
    world = started({GRACE: grace}, **fields)
    report(world, step)
    world.spec["runPolicy"] = {**(world.spec.get("runPolicy") or {}), "suspend": True}
    return world


def test_a_suspension_waits_for_the_next_checkpoint():
    world = suspending()
    made = world.step()
    assert made.actions == ()
    assert made.requeue_after == 300
    assert not world.is_true("Suspended")
    assert len(world.living()) == 3
    (said,) = world.event_messages("CheckpointAwaited")
    assert said == (
        "PyTorchJob j is to be suspended and runs on until it reports a checkpoint after step 100, at most 300 s"
    )
    world.pass_time(60)
    assert world.step().requeue_after == 240
    report(world, "150")
    world.step()
    assert world.is_true("Suspended")
    assert world.living() == []
    world.settle()
    assert AWAITED not in world.raw["metadata"]["annotations"]
    assert len(world.event_messages("CheckpointAwaited")) == 1


def test_the_wait_ends_with_the_grace_period_whoever_leads_then():
    world = suspending()
    world.step()
    other = SavingWorld(world.raw)
    other.pods, other.now = world.pods, world.now
    other.pass_time(299)
    assert other.step().requeue_after == 1
    other.pass_time(1)
    other.step()
    assert other.is_true("Suspended")
    assert other.living() == []


def test_an_operator_that_is_killed_while_it_suspends_does_not_wait_again():
    world = suspending()
    world.step()
    report(world, "150")
    made = kind_of(PYTORCH).decide(world.snapshot())
    assert AWAITED not in made.annotations  # it goes only after the condition is written


@pytest.mark.parametrize("step", ["99", "100", "x", "nan", "inf", "", None, [], True])
def test_a_report_of_no_later_checkpoint_changes_nothing(step: object):
    world = suspending()
    world.step()
    report(world, step)
    if step not in ("99", "100", True):
        assert world.step().actions  # the job reports no checkpoints: there is nothing to wait for
    else:
        assert world.step().actions == ()


@pytest.mark.parametrize("end", [0, 1])
def test_what_happens_meanwhile_comes_first(end: int):
    world = suspending()
    world.step()
    world.end("j-master-0", end)
    world.settle()
    assert world.is_true("Suspended" if end else "Succeeded")


def test_a_deadline_does_not_wait():
    world = suspending(run={"activeDeadlineSeconds": 60})
    made = world.step()
    assert made.requeue_after == 60
    world.pass_time(60)
    world.step()
    assert world.is_true("Failed")
    assert world.living() == []


def test_a_job_that_is_resumed_meanwhile_runs_on():
    world = suspending()
    world.step()
    world.spec["runPolicy"] = {"suspend": False}
    world.settle()
    assert AWAITED not in world.raw["metadata"]["annotations"]
    assert len(world.living()) == 3
    world.pass_time(400)
    world.spec["runPolicy"] = {"suspend": True}
    assert world.step().requeue_after == 300


@pytest.mark.parametrize("status", [{}, {"trainerStatus": 1}, {"trainerStatus": {"metrics": {"a": 1}}}])
def test_a_job_that_reports_no_checkpoints_is_suspended_at_once(status: Json):
    world = suspending()
    del world.raw["status"]["trainerStatus"]
    world.raw["status"] |= status
    world.step()
    assert world.is_true("Suspended")


def test_a_job_without_the_annotation_is_suspended_at_once():
    world = started({})
    report(world, "100")
    world.spec["runPolicy"] = {"suspend": True}
    world.step()
    assert world.is_true("Suspended")


@pytest.mark.parametrize(
    "stored",
    [
        "{",
        "[" * 100_000,
        "[]",
        '{"job": "other", "step": 1, "since": "2000-01-01T00:00:00Z"}',
        '{"job": "uid-j", "step": "x", "since": "2000-01-01T00:00:00Z"}',
        '{"job": "uid-j", "step": 1, "since": "soon"}',
    ],
)
def test_an_annotation_that_is_not_the_operators_begins_a_new_wait(stored: str):
    world = suspending()
    world.raw["metadata"]["annotations"][AWAITED] = stored
    assert world.step().requeue_after == 300


def test_a_clock_that_was_set_back_ends_the_wait():
    world = suspending()
    world.step()
    world.pass_time(-3600)
    world.step()
    assert world.is_true("Suspended")


@pytest.mark.parametrize(("policy", "end"), [("OnFailure", "Running"), ("Never", "Failed")])
def test_a_leader_that_is_evicted_and_saves_has_not_succeeded_whatever_happens_to_the_others(policy: str, end: str):
    world = started({GRACE: "5m"}, policy=policy)
    world.evict("j-master-0")
    world.settle()
    world.end("j-master-0", 0)
    world.settle()
    assert not world.is_true("Succeeded")
    world.reap()
    world.settle()
    world.run()
    world.settle()
    assert world.is_true(end)


def test_without_the_annotations_a_pod_that_succeeds_while_it_is_deleted_has_succeeded():
    world = started({})
    world.evict("j-master-0")
    world.end("j-master-0", 0)
    world.settle()
    assert world.is_true("Succeeded")


@pytest.mark.parametrize("annotations", [TOGETHER, {GRACE: "5m"}])
def test_a_pod_that_had_succeeded_before_others_deleted_it_has_succeeded(annotations: dict[str, str]):
    """It has no grace period, and a finalizer keeps it."""
    world = started(annotations)
    world.end("j-worker-0", 0)
    world.settle()
    world.delete("j-worker-0")
    world.pods["j-worker-0"]["metadata"]["deletionGracePeriodSeconds"] = 0
    world.settle()
    assert len(world.living()) == 2
    assert world.history == {}
    assert world.status["replicaStatuses"]["Worker"] == {"active": 1, "succeeded": 1, "selector": ANY}


def test_a_job_that_reports_other_metrics_is_suspended_at_once():
    world = suspending()
    report(world, "100", name="step")
    world.step()
    assert world.is_true("Suspended")


def test_a_pod_that_was_asked_to_end_and_is_not_deleted_yet_has_not_succeeded():
    """The restart is in the history, and the operator was killed before it deleted the pod."""
    seen = see(make_job(None, 1), [make_pod(phase="Succeeded", exit_code=0)])
    (slots,) = [each for each in arrange(parse(PYTORCH, seen.job), seen.pods).all_slots if each.pods]
    assert (slots.tally().succeeded, slots.tally().first_completed) == (1, True)
    void = {seen.pods[0].metadata.uid}
    assert (slots.tally(void).succeeded, slots.tally(void).first_completed) == (0, False)
