"""Companion objects of a job besides pods and services: applied when wanted, kept in sync, deleted when unwanted."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.engine.builders import UID, applied, apply, make_job, make_pod, see
from tests.engine.world import World
from trainop.engine.actions import Ensure, Need, Plan, Remove
from trainop.engine.framework import JOB_NAME, OPERATOR_NAME, Companion, CompanionKind
from trainop.engine.plan import plan
from trainop.engine.steps.companions import FINGERPRINT
from trainop.kinds.pytorch import PYTORCH
from trainop.runtime.objects.metadata import (
    CONFIG_MAPS,
    HORIZONTAL_POD_AUTOSCALERS,
    PODS,
    SERVICES,
    Json,
    Resource,
    Unstructured,
    owner_reference,
)

METRICS = [
    {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}
]


def elastic(least: int = 1, most: int = 3, metrics: list[Json] | None = METRICS, **policy: Any) -> Json:
    spec = {"elasticPolicy": {"minReplicas": least, "maxReplicas": most, "metrics": metrics, **policy}}
    return make_job(None, 2, spec=spec)


def hpas(world: World) -> dict[str, Json]:
    return world.companions[HORIZONTAL_POD_AUTOSCALERS]


def started(job: Json) -> World:
    world = World(job)
    world.settle()
    world.run()
    world.settle()
    return world


@pytest.mark.case("frameworks-v1-17", "a")
def test_an_elastic_job_with_metrics_has_an_autoscaler():
    world = started(elastic())
    assert list(hpas(world)) == ["j"]
    made = hpas(world)["j"]
    assert (made["apiVersion"], made["kind"]) == ("autoscaling/v2", "HorizontalPodAutoscaler")
    assert made["metadata"]["ownerReferences"] == [owner_reference("kubeflow.org/v1", "PyTorchJob", "j", UID)]
    assert made["metadata"]["labels"] == {OPERATOR_NAME: "pytorchjob-controller", JOB_NAME: "j"}
    assert made["spec"] == {
        "scaleTargetRef": {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "j"},
        "minReplicas": 1,
        "maxReplicas": 3,
        "metrics": METRICS,
    }


@pytest.mark.case("frameworks-v1-17", "bc")
def test_it_goes_with_suspension_and_comes_back():
    world = started(elastic())
    world.spec["runPolicy"] = {"suspend": True}
    world.settle()
    assert hpas(world) == {}
    world.reap()
    world.spec["runPolicy"] = {"suspend": False}
    world.settle()
    assert list(hpas(world)) == ["j"]


@pytest.mark.case("frameworks-v1-17", "d")
def test_it_follows_the_policy():
    world = started(elastic())
    world.spec["elasticPolicy"]["maxReplicas"] = 5
    world.settle()
    assert hpas(world)["j"]["spec"]["maxReplicas"] == 5
    world.spec["elasticPolicy"]["metrics"] = [*METRICS, *METRICS]
    world.settle()
    assert len(hpas(world)["j"]["spec"]["metrics"]) == 2


@pytest.mark.parametrize("change", [{"metrics": []}, {"metrics": None}, None])
def test_without_metrics_there_is_none(change: Json | None):
    world = started(elastic())
    if change is None:
        del world.spec["elasticPolicy"]
    else:
        world.spec["elasticPolicy"] |= change
    world.settle()
    assert hpas(world) == {}


@pytest.mark.parametrize("code", [0, 1])
def test_a_finished_job_has_none(code: int):
    job = elastic()
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] = "Never"
    world = started(job)
    world.end("j-worker-0", code)
    made = world.step()
    assert made.status_first
    assert hpas(world) == {}
    hpas(world)["j"] = {"metadata": {"name": "j", "uid": "u", "ownerReferences": [world.owner()]}}
    world.settle()
    assert hpas(world) == {}


def test_a_suspended_job_never_gets_one():
    world = World(elastic() | {})
    world.spec["runPolicy"] = {"suspend": True}
    world.settle()
    assert hpas(world) == {}


def test_foreign_changes_are_reverted():
    world = started(elastic())
    for change in (
        {"maxReplicas": 9},
        {"scaleTargetRef": {"name": "other"}},
        {"minReplicas": None},
        {"scaleTargetRef": 7},
    ):
        hpas(world)["j"]["spec"] |= change
        world.settle()
        assert hpas(world)["j"]["spec"]["maxReplicas"] == 3
        assert hpas(world)["j"]["spec"]["scaleTargetRef"]["kind"] == "PyTorchJob"


def test_what_the_api_server_writes_its_own_way_is_left():
    world = started(elastic())
    hpas(world)["j"]["spec"] |= {"behavior": {"scaleUp": {}}, "metrics": [{"as": "the server likes it"}]}
    assert world.step().actions == ()


def look(raw: Json, job: Json | None = None) -> Plan:
    seen = see(job or elastic(), [make_pod(index=index) for index in (0, 1)])
    return plan(PYTORCH, dataclasses.replace(seen, companions={HORIZONTAL_POD_AUTOSCALERS: [Unstructured(raw)]}))


@pytest.mark.parametrize("owners", [[], [owner_reference("apps/v1", "Deployment", "d", "other")]])
def test_a_foreign_object_is_reported_and_left_alone(owners: list[Json]):
    metadata: Json = {"name": "j", "namespace": "ns", "uid": "theirs", "ownerReferences": owners}
    made = look({"metadata": metadata})
    assert not any(isinstance(action, Ensure | Remove) for action in made.actions)
    assert [notice.event.message for notice in made.notices] == [
        "Error creating: HorizontalPodAutoscaler j already exists and does not belong to PyTorchJob j"
    ]
    assert made.requeue_after == 30
    unwanted = look({"metadata": metadata}, make_job(None, 2))
    assert (unwanted.actions, unwanted.notices) == ((), ())
    going = look({"metadata": metadata | {"deletionTimestamp": "2025-06-01T12:00:00Z"}})
    assert (going.notices, going.actions) == ((), ())


def test_one_that_terminates_is_waited_for():
    metadata: Json = {
        "name": "j",
        "uid": "u",
        "deletionTimestamp": "2025-06-01T12:00:00Z",
        "ownerReferences": [owner_reference("kubeflow.org/v1", "PyTorchJob", "j", UID)],
    }
    assert look({"metadata": metadata}).actions == ()


KEPT = CompanionKind(CONFIG_MAPS, Need.JOB, metadata_only=True)


def keeping(data: str) -> Any:
    def companions(_job: Any, _seen: Any) -> Sequence[Companion]:
        return [Companion(KEPT, "shared", data, lambda: {"data": {"x": data}})] if data else ()

    return dataclasses.replace(PYTORCH, companion_kinds=(KEPT,), companions=companions)


def test_a_lasting_one_stays_when_it_is_not_asked_for_any_more():
    world = World(make_job(None, 1), framework=keeping("one"))
    world.settle()
    (action,) = [apply(CONFIG_MAPS, made) for made in world.companions[CONFIG_MAPS].values()]
    assert action.manifest["data"] == {"x": "one"}
    world.framework = keeping("two")
    world.settle()
    (found,) = world.companions[CONFIG_MAPS].values()
    assert found["data"] == {"x": "two"}
    # only its metadata is watched
    del found["data"]
    assert world.step().actions == ()
    world.framework = keeping("")
    world.settle()
    world.spec["runPolicy"] = {"suspend": True}
    world.settle()
    assert list(world.companions[CONFIG_MAPS]) == ["shared"]


def test_what_pods_need_is_essential_and_comes_before_them():
    made = plan(keeping("one"), see(make_job(None, 1)))
    assert [action.resource for action in made.actions if isinstance(action, Ensure)] == [CONFIG_MAPS, SERVICES, PODS]
    assert applied(made.actions[0])
    assert made.actions[0].need is Need.JOB
    assert next(a for a in plan(PYTORCH, see(elastic())).actions if applied(a)).need is Need.NONE


def test_facts_of_any_text_have_a_fingerprint():
    world = World(make_job(None, 1), framework=keeping("\ud800"))
    world.settle()
    (found,) = world.companions[CONFIG_MAPS].values()
    assert len(found["metadata"]["annotations"][FINGERPRINT]) == 32
    json.dumps(found)


def test_a_kind_that_has_none_asks_for_none():
    bare = dataclasses.replace(PYTORCH, companion_kinds=())
    assert not any(applied(action) for action in plan(bare, see(elastic())).actions)
    resources: tuple[Resource, ...] = tuple(kind.resource for kind in PYTORCH.companion_kinds)
    assert resources == (HORIZONTAL_POD_AUTOSCALERS,)
