"""DIJobs in a queue of Kueue. The tests play Kueue, di-server and the kubelet."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.engine.queue_world import QUEUE, WithKueue
from tests.kinds.dijob_world import MAIN, DiWorld, dijob, template
from trainop.engine.queueing.placement import Placement
from trainop.kinds.dijob.kind import DIJOB
from trainop.kinds.dijob.names import ADMISSION, REPLICAS, Role
from trainop.programs.queues import with_queue
from trainop.runtime.objects.metadata import Json

COORDINATOR = "a-coordinator"


class QueuedDi(WithKueue, DiWorld):
    """A DIJob in the queue `q`."""

    def __init__(self, declared: str | None = "collector=2, learner=1", **fields: Any) -> None:
        job = dijob(**{"replicas": True, **fields})
        job["metadata"]["labels"] = {QUEUE: "q"}
        if declared is not None:
            job["metadata"]["annotations"] = {REPLICAS: declared}
        super().__init__(job)
        self.kind = with_queue(DIJOB)

    @property
    def admission(self) -> dict[str, Placement]:
        """What the coordinator carries to di-server."""
        text = self.pods[COORDINATOR]["metadata"]["annotations"][ADMISSION]
        return msgspec.json.decode(text, type=dict[str, Placement])

    def message(self, type_: str) -> str:
        return next(str(each["message"]) for each in self.status["conditions"] if each["type"] == type_)


def test_a_job_asks_for_what_it_declares_and_has_no_pods_before() -> None:
    world = QueuedDi()
    world.settle()
    assert not world.pods
    assert not world.services
    assert world.phase == "Created"
    counts = {each["name"]: each["count"] for each in world.workload["spec"]["podSets"]}
    assert counts == {"coordinator": 1, "collector": 2, "learner": 1}
    assert world.shown[:2] == ("False", "Pending")


def test_an_admitted_job_runs_where_the_flavor_says() -> None:
    world = QueuedDi()
    world.settle()
    world.admit(flavor="spot")
    world.settle()
    assert world.pod_spec(COORDINATOR)["nodeSelector"] == {"pool": "spot"}
    assert {name: each.count for name, each in world.admission.items()} == {"collector": 2, "learner": 1}
    for name, each in world.admission.items():
        assert each.node_selector == {"pool": "spot"}
        assert each.tolerations[0]["key"] == "spot"
        assert each.labels["kueue.x-k8s.io/podset"] == name
    assert world.shown[:2] == ("True", "Admitted")
    world.set_pod(COORDINATOR, "Running")
    world.settle()
    assert world.phase == "Running"
    assert world.said()["PodsReady"] == ("True", "Started")
    world.set_pod(COORDINATOR, "Succeeded")
    world.settle()
    assert world.phase == "Succeeded"
    assert world.said()["Finished"] == ("True", "Succeeded")


def test_an_evicted_job_has_no_pods_and_runs_again() -> None:
    world = QueuedDi()
    world.begin()
    world.add(Role.COLLECTOR, "x1")
    world.settle()
    assert len(world.services) == 2
    world.evict()
    world.settle()
    assert not world.living()
    assert world.said()["QuotaReserved"][0] == "True", "the pods have not ended yet"
    world.reap()
    world.settle()
    assert not world.services
    assert world.said()["QuotaReserved"][0] == "False"
    assert (world.phase, dict(world.states())["Running"]) == ("Created", "False")
    world.admit()
    world.settle()
    world.set_pod(COORDINATOR, "Running")
    world.settle()
    assert world.phase == "Running"
    assert set(world.pods) == {COORDINATOR}


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_a_coordinator_that_ends_as_its_job_is_evicted_ends_the_job(phase: str) -> None:
    world = QueuedDi()
    world.begin()
    world.set_pod(COORDINATOR, phase)
    world.evict()
    world.settle()
    assert world.phase == phase
    assert world.said()["Finished"] == ("True", phase)


def test_a_job_that_declares_nothing_asks_for_its_coordinator_alone() -> None:
    world = QueuedDi(None)
    world.begin()
    assert [each["name"] for each in world.workload["spec"]["podSets"]] == ["coordinator"]
    assert world.admission == {}


def test_pods_that_cannot_be_placed_are_known_before_anything_starts() -> None:
    pinned = {"template": template(nodeSelector={"pool": "other"})}
    world = QueuedDi(collector=pinned)
    world.settle()
    world.admit(flavor="spot")
    world.settle()
    assert not world.pods
    assert world.shown[1] == "PlacementImpossible"
    assert world.workload["spec"]["active"] is False


@pytest.mark.parametrize(
    "text", ["", "collector", "collector=-1", "collector=1,collector=2", "aggregator=1", "learner=10001", "x" * 9999]
)
def test_a_wrong_declaration_fails_a_new_job(text: str) -> None:
    world = QueuedDi(text)
    world.settle()
    assert world.phase == "Failed"
    message = world.message("Failed")
    assert f"metadata.annotations[{REPLICAS}]" in message
    assert "must be such as collector=4,learner=1" in message
    assert not world.workloads


def test_declared_replicas_need_a_template() -> None:
    world = QueuedDi("learner=1", replicas=False)
    world.settle()
    assert "spec.learner" in world.message("Failed")


def test_a_declaration_that_becomes_wrong_stops_nothing() -> None:
    world = QueuedDi()
    world.begin()
    world.raw["metadata"]["annotations"][REPLICAS] = "many"
    world.settle()
    assert set(world.pods) == {COORDINATOR}
    assert len(world.workloads) == 1


def test_a_larger_declaration_is_queued_again() -> None:
    world = QueuedDi()
    world.begin()
    world.raw["metadata"]["annotations"][REPLICAS] = "collector=3"
    world.settle()
    assert not world.living()
    world.reap()
    world.settle()
    counts = {each["name"]: each["count"] for each in world.workload["spec"]["podSets"]}
    assert counts == {"coordinator": 1, "collector": 3}


def test_zero_replicas_are_no_pod_set() -> None:
    world = QueuedDi("collector=0,learner=1", coordinator=template({"name": MAIN, "image": "i"}))
    world.settle()
    sets: list[Json] = world.workload["spec"]["podSets"]
    assert [each["name"] for each in sets] == ["coordinator", "learner"]
