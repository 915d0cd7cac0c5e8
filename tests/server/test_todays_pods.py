"""What pods of Kubernetes 1.34 may use: the job's pods get it, and it is neither a failure nor a change of the pod."""

from __future__ import annotations

import pytest

from tests.server.world import CORE, Json, World, container, replicas

STRATEGIC = "application/strategic-merge-patch+json"
NAME = "j-master-0"


def run(world: World, **template: object) -> Json:
    """Creates a job of one replica with these fields of the pod's spec, and returns its pod."""
    world.create_job("j", {"Master": replicas(1, "OnFailure", **template)})
    return world.wait_pod(NAME)


def warnings(world: World) -> list[str]:
    events = world.ask("GET", f"{CORE}/events?fieldSelector=type=Warning")["items"]
    return [event["message"] for event in events]


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(
            {
                "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}],
                "container": {"resources": {"claims": [{"name": "gpu"}]}},
            },
            id="dynamic resource allocation",
        ),
        pytest.param({"hostUsers": False}, id="user namespaces"),
        pytest.param({"resources": {"requests": {"cpu": "2"}, "limits": {"memory": "4Gi"}}}, id="resources of the pod"),
        pytest.param({"schedulingGates": [{"name": "example.com/net"}]}, id="scheduling gates"),
        pytest.param(
            {"initContainers": [{"name": "proxy", "image": "none", "restartPolicy": "Always"}]}, id="sidecars"
        ),
    ],
)
def test_the_pod_gets_what_the_template_says(world: World, spec: Json):
    pod = run(world, **spec)
    wanted = {key: value for key, value in spec.items() if key != "container"}
    wanted["containers"] = [spec.get("container", {})]
    for key, value in wanted.items():
        assert contains(pod["spec"][key], value), key
    world.run_pod(NAME)
    world.wait_condition("Running")
    assert warnings(world) == []


def contains(found: object, wanted: object) -> bool:
    """Whether `found` is `wanted` but for what the API server has added."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(contains(found.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(found, list) and all(any(contains(one, each) for one in found) for each in wanted)
    return found == wanted


def test_a_gated_pod_is_no_failure_and_goes_on(world: World):
    pod = run(world, schedulingGates=[{"name": "example.com/net"}])
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    world.set_pod(NAME, {"phase": "Pending", "conditions": [gated]})
    world.settle()
    assert world.pods()[NAME]["metadata"]["uid"] == pod["metadata"]["uid"]
    world.wait(
        lambda: [(kind, status) for kind, status, _ in world.conditions()] == [("Created", "True")], "the status"
    )
    world.ask("PATCH", f"{CORE}/pods/{NAME}", {"spec": {"schedulingGates": None}}, STRATEGIC)
    world.run_pod(NAME)
    world.wait_condition("Running")
    assert world.tally("Master")["active"] == 1
    assert warnings(world) == []


def test_a_resized_pod_is_not_a_changed_one(world: World):
    given = {"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}}
    pod = run(world, container=given)
    started = container({"running": {"startedAt": "2024-01-01T00:00:00Z"}})
    world.set_pod(NAME, {"phase": "Running", "containerStatuses": [{**started, **given}]})
    world.wait_condition("Running")
    before = world.job()["metadata"]["resourceVersion"]
    more = {"name": "pytorch", "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "4"}}}
    path = f"{CORE}/pods/{NAME}/resize"
    resized = world.ask("PATCH", path, {"spec": {"containers": [more]}}, STRATEGIC)
    world.settle()
    now = world.pods()[NAME]
    assert now["metadata"]["uid"] == pod["metadata"]["uid"]
    assert now["metadata"]["resourceVersion"] == resized["metadata"]["resourceVersion"]
    assert now["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "2"}
    assert world.job()["metadata"]["resourceVersion"] == before
    world.end_pod(NAME)
    world.wait_condition("Succeeded")


SIDECAR = [{"name": "proxy", "image": "none", "restartPolicy": "Always"}]
KILLED = {"terminated": {"exitCode": 137, "reason": "Error", "finishedAt": "2024-01-01T00:00:09Z"}}


@pytest.mark.parametrize(("exit_code", "ended"), [(0, "Succeeded"), (3, "Failed")])
def test_the_end_of_a_job_is_judged_without_its_sidecars(world: World, exit_code: int, ended: str):
    """The kubelet kills sidecars after the containers have ended, and does not count their exit codes."""
    world.create_job("j", {"Master": replicas(1, "Never", initContainers=SIDECAR)})
    world.wait_pod(NAME)
    world.run_pod(NAME)
    world.wait_condition("Running")
    done = {"terminated": {"exitCode": exit_code, "reason": "Error", "finishedAt": "2024-01-01T00:00:05Z"}}
    status = {
        "phase": ended,
        "containerStatuses": [container(done)],
        "initContainerStatuses": [{**container(KILLED), "name": "proxy"}],
    }
    world.set_pod(NAME, status)
    condition = world.wait_condition(ended)
    assert "137" not in condition["message"]
    if exit_code:
        assert world.status()["lastFailure"]["exitCode"] == 3
