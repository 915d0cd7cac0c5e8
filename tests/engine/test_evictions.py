"""Evictions that the operator answers, with on-disruption `checkpoint-and-respond`: `docs/survive.md`, "Evictions that
wait". The oracle of the answers are the rules of the API server, which `EvictingWorld` applies."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec
import pytest

from tests.engine.builders import NOW, at, make_job, manifest_of, pod_created, pod_deleted, stamp, template
from tests.engine.test_checkpoint import GRACE, ON_DISRUPTION, SavingWorld
from trainop.engine.actions import Action, Answer, Plan
from trainop.engine.gang_scheduler import KUBE
from trainop.engine.kind import kind_of
from trainop.engine.seen import RESPONDER, Eviction, Options, SeenEvictions, Snapshot
from trainop.runtime.clock import parse_timestamp
from trainop.runtime.objects.metadata import Json

RESPOND = {ON_DISRUPTION: "checkpoint-and-respond"}
EVICTOR = "imperative-eviction.k8s.io/evictor"
SKEW = 30.0


def eviction(pod: Json, *, name: str = "e", state: str = "Active", since: datetime = NOW, **mine: Any) -> Json:
    """As the controller of Evictions has begun it."""
    began = {"startTime": since.isoformat(timespec="seconds").replace("+00:00", "Z")} if state != "Inactive" else {}
    target = {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    status = {
        "requesters": [{"name": "acme.io/drain", "intent": "Eviction"}, {"name": "a.io/b", "intent": "Withdrawn"}],
        "targetResponders": [{"name": RESPONDER, "state": state}, {"name": EVICTOR, "state": "Inactive"}],
        "responders": [{"name": EVICTOR}, {"name": RESPONDER, **began, **mine}],
    }
    metadata = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "resourceVersion": "1"}
    return {"metadata": metadata, "spec": {"target": {"pod": target}}, "status": status}


class EvictingWorld(SavingWorld):
    """With the Evictions of its namespace, whose answers it checks as the API server does."""

    unavailable = ""

    def __init__(self, job: Json, **options: Any) -> None:
        super().__init__(job, options=Options(**options))
        self.evictions: dict[str, Json] = {}
        self.answers: list[Answer] = []

    def snapshot(self) -> Snapshot:
        found = tuple(each for raw in self.evictions.values() if (each := msgspec.convert(raw, Eviction)).active)
        options = replace(self.options, answers_evictions=not self.unavailable)
        return replace(super().snapshot(), evictions=SeenEvictions(self.unavailable, found), options=options)

    def _act(self, action: Action) -> None:
        if isinstance(action, Answer):
            self.answers.append(action)
            self._write(action)
        else:
            super()._act(action)

    def _write(self, answer: Answer) -> None:
        """As kubernetes `pkg/apis/lifecycle/validation/validation.go`, as far as a responder meets it."""
        status = self.evictions[answer.name]["status"]
        metadata = self.evictions[answer.name]["metadata"]
        assert answer.version == metadata["resourceVersion"]
        new, old = (
            {each["name"]: each for each in responders}
            for responders in (answer.body["status"]["responders"], status["responders"])
        )
        assert new.keys() == old.keys()
        assert new[EVICTOR] == old[EVICTOR], "only the active responder may change its entry"
        mine, before = new[RESPONDER], old[RESPONDER]
        assert mine["startTime"] == before["startTime"]
        assert "completionTime" not in before
        for name in ("heartbeatTime", "completionTime", "expectedCompletionTime"):
            if (time := mine.get(name)) is not None and time != before.get(name):
                assert time >= mine["startTime"]
                assert time >= before.get(name, "") or name == "expectedCompletionTime"
                ahead = (parse_timestamp(time) - self.now).total_seconds()
                assert ahead > -SKEW
                assert ahead < SKEW or name == "expectedCompletionTime"
        assert len(mine["message"]) <= 4000
        status["responders"] = answer.body["status"]["responders"]
        metadata["resourceVersion"] += "1"

    def evict(self, name: str, **mine: Any) -> Json:  # type: ignore[override]
        found = self.evictions[f"of-{name}"] = eviction(self.pods[name], name=f"of-{name}", since=self.now, **mine)
        return found

    def said(self, name: str) -> Json:
        found: Json = self.evictions[f"of-{name}"]["status"]["responders"][1]
        return found


def started(annotations: dict[str, str] | None = None, **options: Any) -> EvictingWorld:
    job = make_job(1, 2, annotations=RESPOND if annotations is None else annotations, policy="OnFailure")
    world = EvictingWorld(job, **options)
    world.settle()
    world.run()
    world.settle()
    assert world.is_true("Running")
    return world


def report(world: EvictingWorld, saved: str) -> None:
    metrics = [{"name": "checkpoint_step", "value": "1"}, {"name": "checkpoint_time", "value": saved}]
    world.raw["status"]["trainerStatus"] = {"metrics": metrics}


# What pods get --------------------------------------------------------------------------------------------------------


def responders(made: Plan) -> list[Any]:
    return [manifest_of(each)["spec"].get("evictionResponders") for each in made.actions if pod_created(each)]


OURS = {"name": RESPONDER, "priority": 10000}
FIRST = {"name": "a.io/first", "priority": 20000}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, [OURS]),
        ({"evictionResponders": None}, [OURS]),
        ({"evictionResponders": [FIRST]}, [FIRST, OURS]),
        ({"evictionResponders": [{"name": RESPONDER, "priority": 1}]}, [OURS]),
        ({"evictionResponders": [FIRST | {"name": f"a.io/{n}"} for n in range(9)]}, ...),
    ],
)
def test_pods_have_the_operator_as_a_responder(given: Json, expected: Any):
    world = EvictingWorld(make_job(1, 1, annotations=RESPOND, tmpl=template(**given)))
    found = responders(world.step())
    assert len(found) == 2
    assert all(each == expected or (expected is ... and len(each) == 10 and each[-1] == OURS) for each in found)
    assert not world.event_messages("EvictionsNotAnswered")


MANY = [FIRST | {"name": f"a.io/{n}"} for n in range(10)]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"evictionResponders": MANY}, "evictionResponders has 10 entries already, and must have room for another"),
        ({"evictionResponders": "x"}, "evictionResponders must be a list of objects"),
        ({"evictionResponders": [1]}, "evictionResponders must be a list of objects"),
        ({"schedulingGroup": {"podGroupName": "g"}}, "pods of a PodGroup of kube-scheduler have no responders"),
    ],
)
def test_pods_that_cannot_have_another_have_none_and_one_warning(given: Json, said: str):
    world = EvictingWorld(make_job(1, 1, annotations=RESPOND, tmpl=template(**given)))
    assert responders(world.step()) == [given.get("evictionResponders")] * 2
    (text,) = world.event_messages("EvictionsNotAnswered")
    assert text.startswith(
        "metadata.annotations[trainop.kubeflow.org/on-disruption]: the operator answers no Evictions"
    )
    assert text.endswith(f".template.spec: {said}")


def test_with_gang_scheduling_by_kube_scheduler_there_are_none():
    world = EvictingWorld(make_job(1, 1, annotations=RESPOND), gang=KUBE)
    world.step()
    (text,) = world.event_messages("EvictionsNotAnswered")
    assert text.endswith("pods of a PodGroup of kube-scheduler have no responders")


def test_where_they_are_not_served_there_are_none_and_one_warning():
    world = EvictingWorld(make_job(1, 1, annotations=RESPOND, policy="OnFailure"))
    world.unavailable = "the API server does not serve it"
    assert responders(world.step()) == [None, None]
    world.run()
    world.settle()
    (text,) = world.event_messages("EvictionsNotAnswered")
    assert text.endswith(": the API server does not serve it")
    assert world.is_true("Running")


# An Eviction ----------------------------------------------------------------------------------------------------------


def test_all_pods_end_together_and_the_job_restarts_without_a_charge():
    world = started(RESPOND | {GRACE: "5m"})
    target = world.evict("j-worker-1")["spec"]["target"]["pod"]
    made = world.step()
    assert sorted(each.name for each in made.actions if pod_deleted(each)) == ["j-master-0", "j-worker-0", "j-worker-1"]
    assert isinstance(made.actions[-1], Answer), "the pods come first"
    assert (world.history["disruptions"], world.history.get("failures", 0)) == (1, 0)
    (text,) = world.event_messages("PyTorchJobRestarting")
    assert "Worker 1 (rank 2, pod j-worker-1) was asked to leave its node (EvictionRequested)" in text
    assert "by acme.io/drain" in text
    assert world.status["lastFailure"]["reason"] == "EvictionRequested"
    assert world.said("j-worker-1") == {
        "name": RESPONDER,
        "startTime": stamp(),
        "heartbeatTime": stamp(),
        "expectedCompletionTime": stamp(300),
        "message": "All replicas of PyTorchJob j are asked to save and to end",
    }
    world.settle()
    world.reap()
    world.settle()
    done = world.said("j-worker-1")
    assert (done["message"], done["completionTime"]) == ("The pod has ended", stamp())
    assert world.answers[-1].unless_pod == (target["name"], target["uid"])
    world.run()
    world.settle()
    assert world.is_true("Running")
    assert world.history["disruptions"] == 1


def test_heartbeats_go_on_until_the_pod_is_gone():
    world = started(RESPOND | {GRACE: "5m"})
    world.evict("j-worker-1")
    world.settle()
    world.delete("j-worker-1")  # 30 s, as the toy cluster does
    made = world.step()
    assert not made.actions
    assert made.requeue_after == 20
    world.pass_time(19)
    assert not world.step().actions
    world.pass_time(1)
    world.step()
    assert world.said("j-worker-1")["message"] == "All replicas of PyTorchJob j save and end"
    assert world.said("j-worker-1")["expectedCompletionTime"] == stamp(30)
    world.pass_time(59)
    assert not world.step().actions
    world.pass_time(1)
    made = world.step()
    assert world.said("j-worker-1")["heartbeatTime"] == stamp(80)
    assert made.requeue_after == 10  # 60 s after the deletionTimestamp the pod is given up
    world.pass_time(10)
    world.settle()
    done = world.said("j-worker-1")
    assert (done["message"], done["completionTime"]) == ("The pod has not ended within its grace period", stamp(90))
    assert len(world.answers) == 4


def test_a_second_eviction_in_the_grace_counts_nothing_and_is_answered_too():
    world = started()
    world.evict("j-worker-1")
    world.settle()
    world.evict("j-worker-0")
    world.settle()
    assert world.history["disruptions"] == 1
    assert world.said("j-worker-0")["message"] == "All replicas of PyTorchJob j save and end"
    assert len(world.event_messages("PyTorchJobRestarting")) == 1
    world.reap()
    world.settle()
    assert all("completionTime" in world.said(name) for name in ("j-worker-0", "j-worker-1"))


@pytest.mark.parametrize("state", ["Inactive", "Canceled", "Interrupted", "Completed"])
def test_an_eviction_that_is_not_the_operators_turn_means_nothing(state: str):
    world = started()
    world.evict("j-worker-1", state=state)
    world.settle()
    assert not world.answers
    assert len(world.living()) == 3


def test_an_eviction_whose_answer_is_complete_means_nothing():
    world = started()
    world.evict("j-worker-1", completionTime=stamp())
    world.settle()
    assert not world.answers
    assert len(world.living()) == 3


@pytest.mark.parametrize("target", [{}, {"pod": None}, {"pod": {}}])
def test_an_eviction_of_something_else_means_nothing(target: Json):
    world = started()
    world.evict("j-worker-1")
    world.evictions["of-j-worker-1"]["spec"]["target"] = target
    seen = world.snapshot()
    assert seen.evictions is not None
    assert seen.evictions.found == ()


# Passing on -----------------------------------------------------------------------------------------------------------


def of_finished(world: EvictingWorld) -> None:
    world.end("j-master-0", 0)
    world.settle()
    assert world.is_true("Succeeded")
    world.pods["j-worker-1"]["metadata"].pop("deletionTimestamp", None)


def of_pending(world: EvictingWorld) -> None:
    world.set_pod("j-worker-1", "Pending")


def of_ended(world: EvictingWorld) -> None:
    world.end("j-worker-1", 0)


def of_annotation_removed(world: EvictingWorld) -> None:
    world.raw["metadata"]["annotations"].pop(ON_DISRUPTION)


@pytest.mark.parametrize(
    ("happens", "said"),
    [
        (of_finished, "PyTorchJob j has ended: the pod has nothing to save"),
        (of_pending, "The pod has not started: it has nothing to save"),
        (of_ended, "The pod has ended"),
        (of_annotation_removed, "PyTorchJob j asks for nothing before its pods are evicted"),
    ],
)
def test_where_nothing_can_be_saved_the_next_responder_has_its_turn(happens: Any, said: str):
    world = started()
    happens(world)
    world.evict("j-worker-1")
    world.settle()
    assert (world.said("j-worker-1")["message"], world.said("j-worker-1")["completionTime"]) == (said, stamp())
    assert not world.raw["metadata"]["annotations"].get("trainop.kubeflow.org/restarts")


def test_an_eviction_is_passed_on_if_the_replicas_cannot_be_asked_in_time():
    """A job whose spec has errors is not restarted."""
    world = started(RESPOND | {GRACE: "5m"})
    world.raw["spec"]["pytorchReplicaSpecs"] = "x"
    world.evict("j-worker-1")
    world.settle()
    assert len(world.living()) == 3
    for _ in range(6):
        world.pass_time(60)
        world.settle()
    done = world.said("j-worker-1")
    assert done["message"] == "The operator could not ask the replicas of PyTorchJob j to save in time"
    assert done["completionTime"] == stamp(360)


# Waiting for a checkpoint ---------------------------------------------------------------------------------------------


def test_a_job_that_reports_checkpoints_runs_on_until_the_next():
    world = started(RESPOND | {GRACE: "5m"})
    report(world, stamp(-100))
    world.evict("j-worker-1")
    made = world.step()
    world.settle()
    assert len(world.living()) == 3
    assert made.requeue_after == 60
    said = world.said("j-worker-1")
    assert said["message"].startswith("PyTorchJob j runs on until it reports its next checkpoint")
    assert said["expectedCompletionTime"] == stamp(300)
    (text,) = world.event_messages("CheckpointAwaited")
    assert text.startswith("Pod j-worker-1 is asked to leave its node.")
    assert text.endswith("at most 300 s")
    world.pass_time(40)
    report(world, stamp(40))
    world.settle()
    assert not world.living()
    assert world.history["disruptions"] == 1


def test_it_waits_for_no_longer_than_the_grace():
    world = started(RESPOND | {GRACE: "5m"})
    report(world, stamp(-100))
    world.evict("j-worker-1")
    world.settle()
    world.pass_time(299)
    made = world.step()
    assert len(world.living()) == 3
    assert made.requeue_after == 1
    world.pass_time(1)
    world.settle()
    assert not world.living()


def of_gone(world: EvictingWorld) -> None:
    del world.pods["j-worker-1"]


def of_deleted(world: EvictingWorld) -> None:
    world.delete("j-worker-1")


@pytest.mark.parametrize("happens", [of_gone, of_deleted, of_pending, of_annotation_removed])
def test_nothing_is_awaited_for_a_pod_that_saves_nothing(happens: Any):
    world = started(RESPOND | {GRACE: "5m"})
    report(world, stamp(-100))
    world.evict("j-worker-1")
    happens(world)
    world.step()
    assert not world.event_messages("CheckpointAwaited")


def test_a_canceled_eviction_leaves_a_waiting_job_as_it_is():
    world = started(RESPOND | {GRACE: "5m"})
    report(world, stamp(-100))
    world.evict("j-worker-1")
    world.settle()
    world.evictions["of-j-worker-1"]["status"]["targetResponders"][0]["state"] = "Canceled"
    world.pass_time(1000)
    world.settle()
    assert len(world.living()) == 3
    assert "trainop.kubeflow.org/restarts" not in world.raw["metadata"]["annotations"]


@pytest.mark.parametrize("saved", [None, "soon", stamp()])
def test_it_waits_only_for_jobs_that_report_and_have_saved_nothing_since(saved: str | None):
    world = started(RESPOND | {GRACE: "5m"})
    if saved is not None:
        report(world, saved)
    world.evict("j-worker-1")
    world.step()
    assert not world.living()


@pytest.mark.parametrize("mine", [{"startTime": "x"}, {"startTime": 5}, {"startTime": stamp(500)}])
def test_it_does_not_wait_by_a_clock_that_cannot_be_right(mine: Json):
    world = started(RESPOND | {GRACE: "5m"})
    report(world, stamp(-100))
    world.evict("j-worker-1")
    world.said("j-worker-1").update(mine)
    seen = world.snapshot()
    made = kind_of(world.framework).decide(seen)
    assert [each for each in made.actions if pod_deleted(each)]


def test_a_clock_behind_that_of_the_controller_never_goes_back():
    world = started()
    world.evict("j-worker-1")
    world.said("j-worker-1")["startTime"] = stamp(5)
    world.step()
    assert world.said("j-worker-1")["heartbeatTime"] == stamp(5)
    world.reap()
    world.evictions["of-j-worker-1"]["status"]["responders"][1]["heartbeatTime"] = stamp(10)
    world.step()
    assert world.said("j-worker-1")["completionTime"] == stamp(10)


def test_another_operator_goes_on_by_what_the_eviction_has():
    """All that is known of an Eviction is in it: a new process makes the same answers."""
    world = started(RESPOND | {GRACE: "5m"})
    world.evict("j-worker-1", heartbeatTime=stamp(-30), message="All replicas of PyTorchJob j save and end")
    world.delete("j-worker-1")
    made = world.step()
    assert not [each for each in made.actions if isinstance(each, Answer)]
    assert made.requeue_after == 30


def test_times_are_compared_with_the_wall_clock():
    world = started(RESPOND | {GRACE: "5m"})
    report(world, stamp(-100))
    world.evict("j-worker-1")
    made = kind_of(world.framework).decide(replace(world.snapshot(), wall=at(300)))
    assert [each for each in made.actions if pod_deleted(each)]
