"""Pods that are stuck terminating are reported, and deleted by force if asked for, whatever the kind of their job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.controllers.test_waiting import WORLDS, decide, start
from tests.engine.world import World
from trainop.engine.actions import Plan, Remove
from trainop.engine.seen import Options
from trainop.engine.status import format_time
from trainop.engine.steps.symptoms import STUCK_AFTER

FORCED = Options(force_delete_after=STUCK_AFTER / 2)


def make(kind: str, options: Options) -> tuple[World, dict[str, str]]:
    """A running job, and its pods by name with their UIDs; all are terminating, and their grace period is over now."""
    world = WORLDS[kind]()
    start(world)
    world.options = options
    for pod in world.pods.values():
        pod["metadata"] |= {"deletionTimestamp": format_time(world.now), "deletionGracePeriodSeconds": 30}
    assert world.pods
    return world, {name: pod["metadata"]["uid"] for name, pod in world.pods.items()}


def look(world: World) -> Plan:
    return decide(world, now=world.now, wall=world.now)


def forced(made: Plan) -> dict[str, str]:
    return {each.name: each.uid or "" for each in made.actions if isinstance(each, Remove) and each.force}


def reported(made: Plan) -> list[str]:
    return [each.event.message.split()[1] for each in made.notices if each.event.reason == "StuckTerminating"]


every_kind = pytest.mark.parametrize("kind", WORLDS)


@every_kind
def test_every_stuck_pod_is_reported_and_left_alone(kind: str):
    world, pods = make(kind, Options())
    made = look(world)
    assert reported(made) == []
    assert made.requeue_after is not None
    assert made.requeue_after <= STUCK_AFTER
    world.pass_time(STUCK_AFTER)
    made = look(world)
    assert sorted(reported(made)) == sorted(pods)
    assert forced(made) == {}


@every_kind
def test_every_stuck_pod_is_deleted_by_force_if_asked_for(kind: str):
    world, pods = make(kind, FORCED)
    made = look(world)
    assert forced(made) == {}
    assert made.requeue_after is not None
    assert made.requeue_after <= STUCK_AFTER / 2
    world.pass_time(STUCK_AFTER / 2)
    assert forced(look(world)) == pods


@every_kind
def test_stuck_pods_of_a_job_that_has_ended_are_treated_alike(kind: str):
    world, pods = make(kind, FORCED)
    if kind == "DIJob":
        world.raw["status"]["phase"] = "Failed"
    condition = {"type": "Failed", "status": "True", "reason": "r", "message": "", "lastUpdateTime": None}
    world.raw["status"].setdefault("conditions", []).append(condition | {"lastTransitionTime": None})
    world.raw["status"]["completionTime"] = format_time(world.now)
    world.pass_time(STUCK_AFTER)
    made = look(world)
    assert forced(made) == pods
    assert sorted(reported(made)) == sorted(pods)


@pytest.mark.parametrize("kind", [kind for kind in WORLDS if kind != "DIJob"])
def test_pods_of_others_are_never_deleted_by_force(kind: str):
    """A predecessor's pods: those of a DIJob are not seen, as they have no name that the job needs."""
    world, _ = make(kind, replace(FORCED))
    for pod in world.pods.values():
        for owner in pod["metadata"]["ownerReferences"]:
            owner["uid"] = "older"
    world.pass_time(STUCK_AFTER)
    assert forced(look(world)) == {}
