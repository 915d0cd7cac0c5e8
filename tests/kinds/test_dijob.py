"""The plan of DIJob, by the acceptance cases of DI-orchestrator."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.engine.builders import (
    UID,
    manifest_of,
    pod_created,
    pod_deleted,
    replica_created,
    service_created,
    service_deleted,
    stamp,
)
from tests.kinds.dijob_world import LABELS, MAIN, RUNS, DiWorld, dijob, ended, running, settled, template
from tests.upstream import Upstream
from trainop.engine.actions import Plan, Remove
from trainop.engine.seen import Options
from trainop.kinds.dijob.names import Role
from trainop.kinds.dijob.plan import plan_dijob
from trainop.kinds.dijob.seen import decode_di_pod
from trainop.runtime.objects.metadata import SERVICES, Json

OWNER = {"apiVersion": "diengine.opendilab.org/v1alpha1", "kind": "DIJob", "name": "a", "uid": UID, "controller": True}


def variables(pod: Json, container: int = 0) -> dict[str, str]:
    return {each["name"]: each["value"] for each in pod["spec"]["containers"][container]["env"]}


# The coordinator ------------------------------------------------------------------------------------------------------


@pytest.mark.case("di-orchestrator-1", "abcd")
def test_a_serial_job():
    world = DiWorld(dijob())
    first = world.step()
    assert first.status_first
    assert (world.phase, world.states()) == ("Created", [("Created", "True")])
    assert world.told() == [("Normal", "DIJobCreated")]
    assert world.event_messages("DIJobCreated") == ["DIJob a created"]
    assert world.status["replicaStatus"] == {"Collector": {}, "Learner": {}, "Aggregator": {}, "Coordinator": {}}
    world.settle()
    assert ([*world.pods], [*world.services]) == (["a-coordinator"], ["a-coordinator"])
    pod, service = world.pods["a-coordinator"], world.services["a-coordinator"]
    assert variables(pod) == {
        "COORDINATOR_PORT": "22273",
        "KUBERNETES_POD_NAMESPACE": "default",
        "KUBERNETES_POD_NAME": "a-coordinator",
        "KUBERNETES_SERVER_URL": "di-server.di-system:8080",
        "KUBERNETES_COORDINATOR_URL": "a-coordinator.default:22273",
    }
    assert pod["spec"]["restartPolicy"] == "Never"
    own = {**LABELS, "replica-type": "coordinator", "pod-name": "a-coordinator"}
    for child in (pod, service):
        assert child["metadata"]["ownerReferences"] == [OWNER]
        assert child["metadata"]["labels"] == own
    ports = [{"name": "di-port", "port": 22273}]
    assert service["spec"] == {"type": "ClusterIP", "clusterIP": "None", "selector": own, "ports": ports}


@pytest.mark.case("di-orchestrator-2", "ab")
def test_a_port_of_the_template_is_used_everywhere():
    container = {"name": MAIN, "image": "i", "ports": [{"name": "di-port", "containerPort": 80}]}
    world = settled(coordinator=template(container))
    pod = world.pods["a-coordinator"]
    assert pod["spec"]["containers"][0]["ports"] == [{"name": "di-port", "containerPort": 80}]
    assert variables(pod)["COORDINATOR_PORT"] == "80"
    assert variables(pod)["KUBERNETES_COORDINATOR_URL"] == "a-coordinator.default:80"
    assert world.services["a-coordinator"]["spec"]["ports"] == [{"name": "di-port", "port": 80}]


@pytest.mark.case("di-orchestrator-3", "ab")
def test_a_template_without_the_main_container():
    world = settled(coordinator=template({"name": "x", "image": "i"}, {"name": "y", "image": "i"}))
    pod = world.pods["a-coordinator"]
    assert all("ports" not in container for container in pod["spec"]["containers"])
    assert variables(pod, 0) == variables(pod, 1)
    assert variables(pod)["COORDINATOR_PORT"] == "22273"
    assert world.services["a-coordinator"]["spec"]["ports"] == [{"name": "di-port", "port": 22273}]


def test_the_address_of_di_server_is_an_option():
    options = Options(di_server_address="http://elsewhere:1")
    world = settled(options=options)
    assert variables(world.pods["a-coordinator"])["KUBERNETES_SERVER_URL"] == "http://elsewhere:1"


# Phases ---------------------------------------------------------------------------------------------------------------


@pytest.mark.case("di-orchestrator-4", "ab")
def test_a_running_coordinator():
    world = running()
    assert (world.phase, world.counters) == ("Running", {"Coordinator": {"active": 1}})
    last = world.status["conditions"][-1]
    assert (last["type"], last["status"], last["reason"]) == ("Running", "True", "DIJobRunning")
    assert last["message"] == "coordinator and aggregator of DIJob a are running"
    assert world.told() == [("Normal", "DIJobCreated")]


@pytest.mark.case("di-orchestrator-5", "ab")
def test_a_coordinator_that_succeeds():
    world = running()
    world.pass_time(60)
    world.set_pod("a-coordinator", "Succeeded")
    made = world.step()
    assert made.status_first
    assert world.phase == "Succeeded"
    assert world.states() == [("Created", "True"), ("Running", "False"), ("Succeeded", "True")]
    run, end = world.status["conditions"][1:]
    assert (run["reason"], run["message"]) == ("DIJobRunning", "coordinator and aggregator of DIJob a are running")
    assert run["lastTransitionTime"] == run["lastUpdateTime"] == end["lastTransitionTime"]
    assert world.counters == {"Coordinator": {"succeeded": 1}}
    assert world.told()[1:] == [("Normal", "DIJobSucceeded")]
    assert world.event_messages("DIJobSucceeded") == ["DIJob a succeeded because coordinator succeeded"]
    assert ([*world.pods], [*world.services]) == (["a-coordinator"], [])
    assert world.counts == {"created": 1, "successful": 1}
    assert world.step() == Plan()


@pytest.mark.case("di-orchestrator-6", "ab")
def test_a_coordinator_that_fails_at_once():
    world = settled()
    world.set_pod("a-coordinator", "Failed")
    world.settle()
    assert (world.phase, world.states()) == ("Failed", [("Created", "True"), ("Failed", "True")])
    assert world.told()[1:] == [("Warning", "DIJobFailed")]
    assert world.event_messages("DIJobFailed") == [Upstream("DIJob a failed because coordinator failed")]
    assert world.counters == {"Coordinator": {"failed": 1}}


@pytest.mark.parametrize("phase", ["Pending", "Unknown"])
def test_a_coordinator_that_does_not_run_changes_nothing(phase: str):
    world = running()
    world.set_pod("a-coordinator", phase)
    world.settle()
    assert (world.phase, world.counters) == ("Running", {})


@pytest.mark.case("di-orchestrator-13", "ab")
def test_a_deleted_coordinator_is_created_again():
    world = running()
    world.delete("a-coordinator")
    world.settle()
    assert (world.phase, [*world.pods]) == ("Running", ["a-coordinator"])
    world.reap()
    world.settle()
    assert (world.phase, world.pods["a-coordinator"]["status"]["phase"]) == ("Running", "Pending")
    assert world.counters == {}
    world.set_pod("a-coordinator", "Failed")
    world.settle()
    assert world.phase == "Failed"


@pytest.mark.case("di-orchestrator-18", "ab")
@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (137, "Failed"), (1, "Failed")])
def test_side_cars_do_not_keep_a_job_alive(code: int, phase: str):
    side_car = {"name": "proxy", "image": "i"}
    world = running(coordinator=template(side_car, {"name": MAIN, "image": "i"}))
    world.set_containers("a-coordinator", {"proxy": RUNS, MAIN: ended(code, "OOMKilled" if code == 137 else "")})
    world.settle()
    assert world.phase == phase


@pytest.mark.parametrize(
    ("names", "policy", "codes", "state"),
    [
        ([MAIN, "x"], "Never", {"x": 1}, "active"),
        (["coordinator", "x"], "Never", {"coordinator": 0}, "succeeded"),
        (["coordinator", "x"], "Never", {"coordinator": 3}, "failed"),
        (["only"], "Never", {"only": 3}, "failed"),
        (["x", "y"], "Never", {"x": 0}, "active"),
        ([MAIN], "OnFailure", {MAIN: 1}, "active"),
        ([MAIN, "x"], "OnFailure", {MAIN: 0}, "succeeded"),
        ([MAIN], "Always", {MAIN: 0}, "active"),
    ],
)
def test_the_main_container_of_a_running_pod_decides(names: list[str], policy: str, codes: dict[str, int], state: str):
    containers = [{"name": name, "image": "i"} for name in names]
    world = running(coordinator=template(*containers, restartPolicy=policy))
    states = {name: ended(codes[name]) if name in codes else RUNS for name in names}
    world.set_containers("a-coordinator", states)
    world.settle()
    assert world.counters == {"Coordinator": {state: 1}}


# Replicas -------------------------------------------------------------------------------------------------------------


@pytest.mark.case("di-orchestrator-8", "abc")
def test_replicas_are_counted_and_do_not_decide():
    world = running(replicas=True)
    world.add(Role.COLLECTOR, "aaaaa")
    world.add(Role.COLLECTOR, "bbbbb", "Failed")
    world.add(Role.LEARNER, "ccccc", "Succeeded")
    world.add(Role.LEARNER, "ddddd")
    world.settle()
    assert len(world.services) == 5
    assert world.phase == "Running"
    assert world.counters == {
        "Coordinator": {"active": 1},
        "Collector": {"active": 1, "failed": 1},
        "Learner": {"active": 1, "succeeded": 1},
    }
    world.set_pod("a-coordinator", "Succeeded")
    world.settle()
    assert world.status["replicaStatus"] == {
        "Coordinator": {"succeeded": 1},
        "Collector": {"succeeded": 1, "failed": 1},
        "Learner": {"succeeded": 2},
        "Aggregator": {},
    }


def test_ddp_learners_have_services_and_are_not_counted():
    world = running(replicas=True)
    master, worker = world.add_ddp([4, 6])
    world.settle()
    assert world.counters == {"Coordinator": {"active": 1}, "Aggregator": {"active": 1}}
    numbers = [[port["port"] for port in world.services[name]["spec"]["ports"]] for name in (master, worker)]
    assert numbers == [[22271, 22272, 22273, 22274, 10314], [22271, 22272, 22273, 22274, 22275, 22276]]
    owners = world.services[worker]["metadata"]["ownerReferences"]
    assert [(owner["kind"], owner["controller"]) for owner in owners] == [("DIJob", True), ("Pod", False)]
    assert world.services[worker]["metadata"]["labels"]["ddp-learner-type"] == "ddp-learner-worker"


@pytest.mark.case("di-orchestrator-14", "ab")
def test_services_follow_their_pods():
    world = running(replicas=True)
    name = world.add(Role.COLLECTOR, "aaaaa")
    world.settle()
    before = world.services.pop(name)["spec"]
    world.settle()
    assert world.services[name]["spec"] == before
    del world.pods[name]
    made = world.step()
    assert [action for action in made.actions if service_deleted(action)] == [
        Remove(SERVICES, name, made.actions[0].uid, unless_pod=True)  # type: ignore[union-attr]  # checked by the comparison
    ]
    assert ([*world.pods], [*world.services]) == (["a-coordinator"], ["a-coordinator"])
    world.settle()
    assert [*world.pods] == ["a-coordinator"]


@pytest.mark.case("di-orchestrator-15", "a")
def test_a_pod_without_owner_is_ignored():
    world = running()
    for number, role in enumerate(("collector", "coordinator")):
        labels = {**LABELS, "replica-type": role, "pod-name": f"p{number}"}
        metadata = {"name": f"p{number}", "namespace": "default", "labels": labels}
        world.put({"metadata": metadata, "spec": {"containers": [{"name": MAIN}]}}, "Failed")
    assert world.step() == Plan(begun=True)
    world.set_pod("a-coordinator", "Succeeded")
    world.settle()
    assert sorted(world.pods) == ["a-coordinator", "p0", "p1"]


@pytest.mark.case("di-orchestrator-16", "a")
def test_children_of_a_former_job_of_the_name_are_not_adopted():
    world = running()
    world.raw["metadata"]["uid"] = "another"
    world.raw["status"] = {}
    made = world.snapshot()
    assert {pod.metadata.controller.uid for pod in made.pods if pod.metadata.controller} == {UID}
    world.pods["a-coordinator"]["status"] = {"phase": "Failed"}
    creates = [action.name for action in plan_dijob(world.snapshot()).actions if pod_created(action)]
    assert creates == ["a-coordinator"], "the create fails until the name is free, and is repeated"
    world.pods.clear()
    world.services.clear()
    world.settle()
    assert world.pods["a-coordinator"]["metadata"]["ownerReferences"][0]["uid"] == "another"


@pytest.mark.case("di-orchestrator-17", "a")
def test_a_job_that_is_being_deleted_is_left_alone():
    world = DiWorld(dijob())
    world.raw["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert world.step() == Plan()


@pytest.mark.case("di-orchestrator-19", "a")
def test_priority_class_and_volumes():
    volumes = [{"name": "x", "emptyDir": {}}, {"name": "y", "emptyDir": {}}]
    world = running(replicas=True, priorityClassName="high", volumes=volumes)
    world.add(Role.COLLECTOR, "aaaaa")
    world.add(Role.LEARNER, "bbbbb")
    world.add_ddp([2])
    roles = {pod["metadata"]["labels"]["replica-type"]: pod["spec"] for pod in world.pods.values()}
    assert len(roles) == 5
    assert {spec["priorityClassName"] for spec in roles.values()} == {"high"}
    with_volumes = sorted(role for role, spec in roles.items() if spec.get("volumes") == volumes)
    assert with_volumes == ["collector", "coordinator", "ddp-learner", "learner"]


@pytest.mark.parametrize("phase", ["Running", "Succeeded", "Failed"])
def test_a_second_coordinator_neither_ends_the_job_nor_holds_it_up(phase: str):
    """Every user who may create pods can create one."""
    world = running()
    second = copy.deepcopy(world.pods["a-coordinator"])
    second["metadata"]["name"] = "a-coordinator-2"
    world.put(second, phase)
    world.settle()
    assert world.phase == "Running"
    assert world.counters == {"Coordinator": {"active": 1}}
    (text,) = world.event_messages("TooManyCoordinators")
    assert text == "there must be only one coordinator: a-coordinator-2 is ignored"
    world.set_pod("a-coordinator", "Succeeded")
    world.settle()
    assert world.phase == "Succeeded"


def test_a_false_coordinator_does_not_take_the_place_of_the_missing_one():
    world = running()
    second = copy.deepcopy(world.pods["a-coordinator"])
    second["metadata"]["name"] = "a-coordinator-2"
    world.put(second, "Failed")
    del world.pods["a-coordinator"]
    world.settle()
    assert (world.phase, sorted(world.pods)) == ("Running", ["a-coordinator", "a-coordinator-2"])


def test_a_coordinator_without_its_labels_is_still_the_coordinator():
    world = running()
    world.pods["a-coordinator"]["metadata"]["labels"] = {}
    world.set_pod("a-coordinator", "Succeeded")
    world.settle()
    assert world.phase == "Succeeded"


# Clean-up -------------------------------------------------------------------------------------------------------------

COLLECTORS = {"one": ["Running"], "two": ["Running", "Failed"], "three": ["Running", "Failed"]}
LEARNERS = {"one": ["Running"], "two": ["Running"], "three": ["Succeeded", "Running"]}
FAILED_COLLECTOR, SUCCEEDED_LEARNER = "a-collector-k1", "a-learner-k0"


@pytest.mark.case("di-orchestrator-9", "abc")
@pytest.mark.parametrize("row", ["one", "two", "three"])
@pytest.mark.parametrize("policy", ["All", "ALL", "Running", "None", None])
def test_the_table_of_clean_pod_policies(row: str, policy: str | None):
    world = running(replicas=True, cleanPodPolicy=policy)
    for number, phase in enumerate(COLLECTORS[row]):
        world.add(Role.COLLECTOR, f"k{number}", phase)
    for number, phase in enumerate(LEARNERS[row]):
        world.add(Role.LEARNER, f"k{number}", phase)
    world.settle()
    every = sorted(world.pods)
    world.set_pod("a-coordinator", "Succeeded")
    world.settle()
    kept = {"one": [], "two": [FAILED_COLLECTOR], "three": [FAILED_COLLECTOR, SUCCEEDED_LEARNER]}[row]
    left = {"All": [], "ALL": [], "None": every}.get(policy or "", sorted([*kept, "a-coordinator"]))
    assert sorted(world.pods) == left
    assert world.services == {}


@pytest.mark.case("di-orchestrator-10", "ab")
def test_policy_running_keeps_pods_that_crash_and_deletes_pending_ones():
    world = running(replicas=True)
    crashing, pending, partly = (world.add(Role.COLLECTOR, suffix) for suffix in ("aaaaa", "bbbbb", "ccccc"))
    world.set_containers(crashing, {MAIN: {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}})
    world.set_pod(pending, "Pending")
    world.set_containers(partly, {MAIN: RUNS, "x": ended(0)})
    world.set_pod("a-coordinator", "Succeeded")
    world.settle()
    assert sorted(world.pods) == [crashing, partly, "a-coordinator"]
    world.set_containers(crashing, {MAIN: RUNS})
    late = world.add(Role.COLLECTOR, "ddddd", "Pending")
    world.settle()
    assert late not in world.pods
    assert sorted(world.pods) == [partly, "a-coordinator"]


@pytest.mark.parametrize("graceful", [False, True])
def test_pods_are_deleted_without_grace_unless_an_option_says_otherwise(graceful: bool):
    world = running(replicas=True, options=Options(di_graceful_deletion=graceful))
    world.add(Role.COLLECTOR, "aaaaa")
    world.set_pod("a-coordinator", "Succeeded")
    (deleted,) = (action for action in world.step().actions if pod_deleted(action))
    assert deleted.force is not graceful


def test_services_go_although_no_pod_is_left():
    world = running()
    world.pods.clear()
    world.raw["status"]["phase"] = "Succeeded"
    world.settle()
    assert (world.services, world.pods) == ({}, {})


def test_the_active_replicas_of_a_failed_job_are_counted_again_after_the_clean_up():
    world = running(replicas=True)
    world.add(Role.COLLECTOR, "aaaaa")
    world.add(Role.COLLECTOR, "bbbbb", "Failed")
    world.settle()
    world.set_pod("a-coordinator", "Failed")
    world.step()
    assert world.counters["Collector"] == {"active": 1, "failed": 1}
    world.settle()
    assert world.counters == {"Collector": {"failed": 1}, "Coordinator": {"failed": 1}}


def test_replicas_that_a_failed_job_keeps_stay_active():
    world = running(replicas=True, cleanPodPolicy="None")
    name = world.add(Role.COLLECTOR, "aaaaa")
    world.settle()
    world.set_pod("a-coordinator", "Failed")
    world.settle()
    assert world.counters["Collector"] == {"active": 1}
    world.set_pod(name, "Succeeded")
    world.settle()
    world.set_pod(name, "Running")
    world.settle()
    assert world.counters == {"Coordinator": {"failed": 1}}, "a finished job does not become active again"


def test_ddp_learners_of_v0_1_0_belong_to_their_aggregators():
    world = running(replicas=True)
    (learner,) = world.add_ddp([2])
    owners = world.pods[learner]["metadata"]["ownerReferences"]
    world.pods[learner]["metadata"]["ownerReferences"] = [{**owners[1], "controller": True}]
    world.settle()
    assert learner in world.services
    world.set_pod("a-coordinator", "Succeeded")
    world.settle()
    assert [*world.pods] == ["a-coordinator"]


# Restarts of the operator ---------------------------------------------------------------------------------------------


@pytest.mark.case("di-orchestrator-12", "ab")
def test_a_restarted_operator_changes_no_job():
    unfinished, finished = running(), running(cleanPodPolicy="All")
    finished.set_pod("a-coordinator", "Succeeded")
    finished.settle()
    assert finished.pods == {}
    assert unfinished.step() == Plan(begun=True)
    assert finished.step() == Plan(begun=True)


# Bad input ------------------------------------------------------------------------------------------------------------

NOT_A_DIJOB = "failed to convert type *unstructured.Unstructured to v1alpha1.DIJob: "


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (None, f"{NOT_A_DIJOB}spec.coordinator: Required value: a job has a coordinator"),
        ("x", f'{NOT_A_DIJOB}[spec: Invalid value: "x": must be an object, spec.coordinator: Required'),
        ({}, f"{NOT_A_DIJOB}spec.coordinator: Required value"),
        ({"coordinator": 1}, f"{NOT_A_DIJOB}[spec.coordinator: Invalid value: 1: must be an object"),
        ({"coordinator": {}}, f"{NOT_A_DIJOB}spec.coordinator.template: Required value"),
        ({"coordinator": {"template": template(), "x": 1}, "cleanPodPolicy": "hello"}, "Invalid CleanPodPolicy hello"),
        ({"coordinator": {"template": {"spec": {"containers": []}}}}, f"{NOT_A_DIJOB}spec.coordinator.template.spec"),
    ],
)
def test_a_job_that_can_never_work_fails_once(spec: Any, text: str):
    job = dijob()
    job["spec"] = spec
    if spec is None:
        del job["spec"]
    world = DiWorld(job)
    world.settle()
    assert (world.phase, world.states()) == ("Failed", [("Failed", "True")])
    assert world.status["conditions"][0]["message"].startswith(text)
    assert world.told() == [("Warning", "DIJobFailed")]
    assert ("reason" in world.status["conditions"][0]) is not text.startswith(NOT_A_DIJOB)
    assert (world.pods, world.services) == ({}, {})


def test_a_begun_job_that_becomes_invalid_goes_on():
    world = running(replicas=True)
    world.add(Role.COLLECTOR, "aaaaa")
    world.spec["cleanPodPolicy"] = "hello"
    del world.spec["coordinator"]
    world.settle()
    assert (world.phase, len(world.event_messages("DIJobFailedValidation"))) == ("Running", 1)
    world.set_pod("a-coordinator", "Succeeded")
    world.settle()
    assert world.phase == "Succeeded"
    assert len(world.pods) == 2, "an unknown policy deletes nothing"


@pytest.mark.parametrize("status", [None, "x", {"phase": 3}, {"conditions": "x"}, {"replicaStatus": [1]}, []])
def test_any_stored_status_is_survived(status: Any):
    world = DiWorld(dijob())
    world.raw["status"] = status
    world.settle()
    assert world.phase == "Created"


def test_a_finished_job_with_invalid_counters():
    for phase in ("Succeeded", "Failed"):
        world = DiWorld(dijob(status={"phase": phase, "replicaStatus": {"Collector": {"active": "x"}, "y": 3}}))
        world.settle()
        assert (world.phase, world.pods) == (phase, {})


WRONG: list[Any] = [None, 0, -1, "", "x" * 10_000, [], [{}], [None], {}, {"": None}, {"name": 3}, True, 1.5]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, member in members:
        yield (*path, name)
        yield from places(member, (*path, name))


def test_any_one_place_of_a_job_may_hold_anything():
    """At each step of its life. What a plan makes of it is JSON, short, and final after a few passes."""
    whole = dijob(replicas=True, priorityClassName="high", cleanPodPolicy="All", volumes=[{"name": "v"}], group="g")
    new, begun = DiWorld(whole), running(replicas=True)
    begun.add(Role.COLLECTOR, "aaaaa")
    ending, finished = running(replicas=True), running(replicas=True, cleanPodPolicy="None")
    for world in (ending, finished):
        world.set_pod("a-coordinator", "Failed")
    finished.settle()
    for world in (new, begun, ending, finished):
        job = world.raw
        for path in places({"spec": job["spec"], "status": job.get("status", {})}):
            for value in WRONG:
                world.job = copy.deepcopy(job)
                place: Any = {"": world.job}
                for name in ("", *path[:-1]):
                    place = place.setdefault(name, {}) if isinstance(place, dict) else place[name]
                place[path[-1]] = value
                made = plan_dijob(world.snapshot())
                for action in made.actions:
                    if replica_created(action):
                        manifest_of(action)
                assert len(json.dumps(made.status)) < 5000 + len(json.dumps(value)), path
                assert all(len(each.event.message) <= 1024 for each in made.notices)


# What is kept in memory -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "broken",
    [{"status": 3}, {"status": {"containerStatuses": {}}}, {"spec": {"containers": 3}}, {"spec": {"restartPolicy": 1}}],
)
def test_a_pod_that_cannot_be_decoded_is_of_unknown_phase(broken: Json):
    pod = {"metadata": {"name": "p", "labels": LABELS}, **broken}
    found = decode_di_pod(json.dumps(pod).encode())
    assert (found.metadata.name, found.status.phase) == ("p", "Unknown")


def test_only_what_plans_read_is_kept_of_a_pod():
    world = running()
    pod = world.pods["a-coordinator"]
    pod["metadata"]["labels"]["mine"] = pod["metadata"]["annotations"] = {}
    pod["metadata"]["labels"]["mine"] = "x" * 60
    pod["metadata"]["annotations"] = {"x": "y" * 10_000}
    found = decode_di_pod(msgspec.json.encode(pod))
    assert "mine" not in found.metadata.labels
    assert found.metadata.annotations == {}
    assert len(msgspec.json.encode(found)) < 1000


def test_a_large_group_is_served_in_several_passes():
    world = running(replicas=True)
    for number in range(600):
        world.add(Role.COLLECTOR, f"{number:05}")
    made = world.step()
    assert len([action for action in made.actions if service_created(action)]) == 500
    world.settle()
    assert len(world.services) == 601


# Root cause -----------------------------------------------------------------------------------------------------------


def failed_status(code: int, second: int, message: str = "") -> Json:
    end = {"exitCode": code, "reason": "Error", "message": message, "finishedAt": stamp(second), "startedAt": stamp(-9)}
    return {"containerStatuses": [{"name": MAIN, "state": {"terminated": end}}]}


def test_the_coordinator_is_the_root_cause():
    world = running()
    world.set_pod("a-coordinator", "Failed", **failed_status(3, 5, "Traceback\nValueError: bad"))
    world.settle()
    found = world.status["lastFailure"]
    assert (found["role"], found["pod"], found["exitCode"]) == ("coordinator", "a-coordinator", 3)
    assert found["log"] == ["Traceback", "ValueError: bad"]
    (text,) = world.event_messages("DIJobFailed")
    assert text == Upstream("DIJob a failed because coordinator failed")
    assert text.endswith("exited with code 3 at 2025-06-01T12:00:05Z. Last output: Traceback | ValueError: bad")


def test_a_replica_that_failed_before_the_coordinator_is_the_root_cause():
    world = running(replicas=True)
    learner = world.add(Role.LEARNER, "x1")
    collectors = [world.add(Role.COLLECTOR, suffix) for suffix in ("y1", "y2")]
    for name, code, second in ((learner, 137, 1), (collectors[0], 1, 4), ("a-coordinator", 1, 5)):
        world.set_pod(name, "Failed", **failed_status(code, second))
    world.settle()
    found = world.status["lastFailure"]
    assert (found["role"], found["pod"], found["signal"], found["failedAfter"]) == ("learner", learner, "SIGKILL", 2)


def test_a_refused_dijob_has_a_root_cause():
    world = settled(cleanPodPolicy="Sometimes")
    assert world.phase == "Failed"
    assert world.status["lastFailure"]["reason"] == "FailedValidation"
