"""Pods that restart in place: the rule `RestartAllContainers` of kubelet 1.36."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.local.node.world import World, container_status, terminated
from trainop.local.node.pods.status import restarts_all
from trainop.runtime.objects.metadata import Json

pytestmark = pytest.mark.asyncio(loop_scope="session")

RULES: Json = {
    "restartPolicy": "Never",
    "restartPolicyRules": [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [77]}}],
}
FAILS_TWICE = "echo main >> /data/f; [ $(grep -c main /data/f) -gt 2 ] || exit 77"


def shared(*argv: str, **more: Any) -> Json:
    mounts = [{"name": "v", "mountPath": "/data"}]
    return {"image": "example.com/image:1", "command": list(argv), "volumeMounts": mounts, **more}


def sh(name: str, script: str, **more: Any) -> Json:
    return shared("sh", "-c", script, name=name, **more)


async def test_all_containers_restart_in_their_pod(world: World) -> None:
    spec = {
        "volumes": [{"name": "v", "emptyDir": {}}],
        "initContainers": [sh("first", "echo first >> /data/f")],
        "containers": [
            sh("main", FAILS_TWICE, **RULES),
            sh("other", "trap '' TERM; echo other >> /data/f; [ $(grep -c first /data/f) -gt 2 ] || sleep 1000"),
        ],
    }
    name = await world.create(spec)
    pod = await world.finish(name)
    assert pod["status"]["phase"] == "Succeeded"
    seen = world.seen[name]
    assert {each["metadata"]["uid"] for each in seen} == {pod["metadata"]["uid"]}
    assert len({each["status"]["podIP"] for each in seen if each.get("status", {}).get("podIP")}) == 1
    assert [each["restartCount"] for each in pod["status"]["containerStatuses"]] == [2, 2]
    assert container_status(pod)["lastState"]["terminated"]["reason"] == "RestartingAllContainers"
    assert terminated(pod)["exitCode"] == 0
    shown = [state["terminated"]["exitCode"] for each in seen if (state := state_of(each)) and "terminated" in state]
    assert [code for code, _ in itertools.groupby(shown)] == [77, 0]  # the exit code is shown before it is replaced
    phases = [each["status"]["phase"] for each in seen if each.get("status", {}).get("phase")]
    assert "Failed" not in phases
    restarting = [condition(each) for each in seen if condition(each)]
    assert "True" in restarting
    assert restarting[-1] == "False"


def state_of(pod: Json) -> Json:
    statuses = pod.get("status", {}).get("containerStatuses") or [{}]
    found: Json = statuses[0].get("state") or {}
    return found


def condition(pod: Json) -> str:
    found = pod.get("status", {}).get("conditions") or ()
    return next((str(each["status"]) for each in found if each["type"] == "AllContainersRestarting"), "")


async def test_another_code_ends_the_pod(world: World) -> None:
    pod = await world.finish(await world.start("sh", "-c", "exit 3", main=RULES))
    assert pod["status"]["phase"] == "Failed"
    assert container_status(pod)["restartCount"] == 0


async def test_a_container_in_back_off_restarts_at_once(world: World) -> None:
    """And so does a sidecar."""
    spec = {
        "restartPolicy": "OnFailure",
        "volumes": [{"name": "v", "emptyDir": {}}],
        "initContainers": [sh("side", "echo side >> /data/f; exec sleep 1000", restartPolicy="Always")],
        "containers": [
            sh("main", "until [ -e /data/failed ]; do sleep 0.01; done; " + FAILS_TWICE, **RULES),
            sh("broken", "touch /data/failed; [ $(grep -c side /data/f) -gt 2 ]"),
        ],
    }
    pod = await world.finish(await world.create(spec))
    assert pod["status"]["phase"] == "Succeeded"
    assert pod["status"]["initContainerStatuses"][0]["restartCount"] == 2


async def test_a_pod_that_is_deleted_does_not_restart(world: World) -> None:
    script = "trap 'exit 77' TERM; echo up; while :; do sleep 0.01; done"
    name = await world.start("sh", "-c", script, main=RULES)
    await world.log_with(name, "up\n")
    await world.delete(name)
    await world.gone(name)
    assert all(container_status(pod).get("restartCount", 0) == 0 for pod in world.seen[name] if pod.get("status"))


@pytest.mark.parametrize(
    ("rules", "code", "expected"),
    [
        ([("RestartAllContainers", "In", [1, 2])], 2, True),
        ([("RestartAllContainers", "In", [1, 2])], 3, False),
        ([("RestartAllContainers", "NotIn", [0])], 0, False),
        ([("RestartAllContainers", "NotIn", [0])], 139, True),
        ([("Restart", "In", [1]), ("RestartAllContainers", "NotIn", [0])], 1, False),
        ([("Restart", "In", [1]), ("RestartAllContainers", "NotIn", [0])], 2, True),
        ([], 1, False),
    ],
)
async def test_the_first_rule_that_fits_counts(rules: list[tuple[str, str, list[int]]], code: int, expected: bool):
    spec = {
        "restartPolicyRules": [
            {"action": action, "exitCodes": {"operator": operator, "values": values}}
            for action, operator, values in rules
        ]
    }
    assert restarts_all(spec, code) is expected
