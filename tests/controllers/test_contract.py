"""The contract of every kind: behaviour that all kinds share, tested for each of them."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest

from tests.controllers.kinds import (
    KINDS,
    SHAPES,
    last,
    last_role,
    leaders,
    line,
    make,
    pods_of,
    running,
    services_of,
    world_of,
)
from tests.engine.builders import NOW, pod_created, pod_deleted, stamp
from tests.engine.world import World
from tests.upstream import Upstream
from trainop.engine.actions import DeleteJob, Event
from trainop.engine.extensions import INFRA_RESTART_LIMIT, RESTART_SCOPE, SERVICE_MODE
from trainop.engine.framework import JOB_NAME, JOB_ROLE, OPERATOR_NAME, REPLICA_INDEX, REPLICA_TYPE
from trainop.engine.gang_scheduler import choose_scheduler
from trainop.engine.parse import parse
from trainop.engine.plan import ignored, plan
from trainop.engine.seen import Options, Snapshot
from trainop.programs.schemes import FRAMEWORKS
from trainop.runtime.objects.metadata import Json, Unstructured

pytestmark = pytest.mark.parametrize("kind", KINDS)


def problems(kind: str, *args: Any, **fields: Any) -> list[str]:
    return [str(error) for error in parse(FRAMEWORKS[kind], Unstructured(make(kind, *args, **fields))).errors]


def test_a_framework_is_what_the_api_says(kind: str):
    framework = FRAMEWORKS[kind]
    assert framework.kind == kind
    assert framework.resource.plural == f"{kind.lower()}s"
    assert framework.controller == f"{kind.lower()}-controller"
    assert framework.resource.api_version == "kubeflow.org/v1"


@pytest.mark.case("job-engine-1", "ab")
def test_each_replica_gets_a_pod_and_a_service_that_the_job_owns(kind: str):
    expected = [f"j-{role.lower()}-{i}" for role, count in SHAPES[kind].items() for i in range(count)]
    pods, services = pods_of(make(kind)), services_of(make(kind))
    assert sorted(pods) == sorted(services) == sorted(expected)
    for name, child in [*pods.items(), *services.items()]:
        _, role, index = name.split("-")
        labels = child["metadata"]["labels"]
        assert {key: value for key, value in labels.items() if key != JOB_ROLE} == {
            OPERATOR_NAME: f"{kind.lower()}-controller",
            JOB_NAME: "j",
            REPLICA_TYPE: role,
            REPLICA_INDEX: index,
        }
        (owner,) = child["metadata"]["ownerReferences"]
        assert owner == {
            "apiVersion": "kubeflow.org/v1",
            "kind": kind,
            "name": "j",
            "uid": "uid-j",
            "controller": True,
            "blockOwnerDeletion": True,
        }
    for name, service in services.items():
        assert service["spec"]["clusterIP"] == "None"
        assert service["spec"]["selector"] == service["metadata"]["labels"]
        assert JOB_ROLE not in service["metadata"]["labels"], name


def test_the_default_port_is_there_and_the_users_own_beats_it(kind: str):
    framework = FRAMEWORKS[kind]
    port = {"name": framework.port_name, "port": framework.port}
    assert all(service["spec"]["ports"] == [port] for service in services_of(make(kind)).values())
    own = {"name": framework.port_name, "containerPort": 7777}
    named = make(kind, template={"containers": [{"name": framework.container, "image": "i", "ports": [own]}]})
    assert all(pod["spec"]["containers"][0]["ports"] == [own] for pod in pods_of(named).values())
    assert "7777" in json.dumps([pod["spec"]["containers"][0].get("env") for pod in pods_of(named).values()])


@pytest.mark.case("job-engine-39", "b")
def test_the_same_port_under_another_name_appears_once(kind: str):
    framework = FRAMEWORKS[kind]
    ports = [{"name": "x", "containerPort": framework.port}]
    job = make(kind, template={"containers": [{"name": framework.container, "image": "i", "ports": ports}]})
    for service in services_of(job).values():
        assert service["spec"]["ports"] == [{"name": "x", "port": framework.port}]


@pytest.mark.case("job-engine-4", "ac")
def test_restart_policies(kind: str):
    default = {"PyTorchJob": "OnFailure", "PaddleJob": "OnFailure"}.get(kind, "Never")
    for policy, expected in [
        (None, default),
        ("Never", "Never"),
        ("OnFailure", "OnFailure"),
        ("Always", "Always"),
        ("ExitCode", "Never"),
    ]:
        pods = pods_of(make(kind, policy=policy, template={"restartPolicy": "Always"}))
        assert {pod["spec"]["restartPolicy"] for pod in pods.values()} == {expected}


def test_running_is_reported_once_the_leaders_run(kind: str):
    world = world_of(kind)
    others = [name for name in world.pods if name not in leaders(kind)]
    if others:
        world.run(*others)
    world.settle()
    assert not world.is_true("Running")
    world.run(*leaders(kind))
    world.settle()
    assert world.conditions == [("Created", "True", f"{kind}Created"), ("Running", "True", f"{kind}Running")]


@pytest.mark.case("job-engine-14", "abcd")
@pytest.mark.case("job-engine-15", "a")
@pytest.mark.parametrize("policy", ["None", "Running", "All", None])
def test_success_and_clean_up(kind: str, policy: str | None):
    world = running(kind, run={"cleanPodPolicy": policy})
    before = len(world.pods)
    for name in leaders(kind):
        world.end(name, 0)
    world.settle()
    world.reap()
    assert world.conditions[-1] == ("Succeeded", "True", f"{kind}Succeeded")
    assert world.status["completionTime"]
    assert not world.is_true("Running")
    kept = {"None": before, None: before, "Running": len(leaders(kind)), "All": 0}[policy]
    assert (len(world.pods), len(world.services)) == (kept, kept)
    counts = {role: {"succeeded": count} for role, count in SHAPES[kind].items()}
    assert {
        role: {name: value for name, value in entry.items() if name != "selector"}
        for role, entry in world.status["replicaStatuses"].items()
    } == counts
    assert world.counts == {"created": 1, "successful": 1}


def test_a_failure_under_never_keeps_the_pods_and_ends_the_job(kind: str):
    world = running(kind, policy="Never")
    world.end(last(kind), 3)
    world.settle()
    assert world.conditions[-1] == ("Failed", "True", f"{kind}Failed")
    assert world.status["completionTime"]
    assert world.status["replicaStatuses"][last_role(kind)]["failed"] == 1
    assert last(kind) in world.living()
    assert world.counts == {"created": 1, "failed": 1, "failed_pods": 1}


@pytest.mark.case("frameworks-v1-10", "ab")
@pytest.mark.case("job-engine-6", "ae")
@pytest.mark.case("job-engine-7", "abcd")
@pytest.mark.parametrize("code", [1, 2, 127, 128, 130, 138, 255])
def test_policy_exit_code(kind: str, code: int):
    world = running(kind, policy="ExitCode")
    world.end(last(kind), code)
    world.settle()
    if code < 128:
        assert world.status["conditions"][-1]["message"] == (
            Upstream(f'job "j" is failing because "{last_role(kind)}" replica(s) failed.')
        )
        assert world.conditions[-1] == ("Failed", "True", f"{kind}Failed")
        assert world.status["completionTime"]
        assert world.event_messages(f"{kind}Restarting") == []
        assert last(kind) in world.living()
        return
    assert world.conditions[-1] == ("Restarting", "True", f"{kind}Restarting")
    assert last(kind) not in world.living()
    world.reap()
    world.settle()
    assert last(kind) in world.living()


@pytest.mark.parametrize("policy", ["OnFailure", "Always", "ExitCode"])
def test_an_evicted_pod_is_replaced_and_the_job_goes_on(kind: str, policy: str):
    world = running(kind, policy=policy)
    world.set_pod(last(kind), "Failed", reason="Evicted")
    world.settle()
    text = Upstream(f"job j is restarting because {last_role(kind)} replica(s) failed.")
    assert world.event_messages(f"{kind}Restarting") == [text]
    assert world.status["conditions"][-1]["message"] == text
    assert world.counts["restarted"] == 1
    world.reap()
    world.settle()
    world.run()
    world.settle()
    assert world.conditions == [("Created", "True", f"{kind}Created"), ("Running", "True", f"{kind}Running")]
    assert "failed" not in world.counts


@pytest.mark.case("job-engine-38", "cd")
@pytest.mark.parametrize("policy", ["OnFailure", "Always", "ExitCode", "Never"])
def test_a_drained_pod_fails_the_job_only_under_never(kind: str, policy: str):
    world = running(kind, policy=policy)
    world.delete(last(kind))
    world.settle()
    assert not world.is_true("Failed")
    world.reap()
    world.settle()
    assert world.is_true("Failed") == (policy == "Never")
    assert (last(kind) in world.living()) == (policy != "Never")


RESTARTING = {"MXJob": "mxjob j is restarting because 1 {} replica(s) failed."}
"""The messages of the status steps of training-operator, as far as they do not begin with the kind."""


@pytest.mark.parametrize("policy", ["OnFailure", "Always", "ExitCode"])
def test_the_restart_of_a_running_pod_that_was_deleted_has_the_message_of_the_kind(kind: str, policy: str):
    world = running(kind, policy=policy)
    world.delete(last(kind))
    world.settle()
    plain = RESTARTING.get(kind, f"{kind} j is restarting because 1 {{}} replica(s) failed.").format(last_role(kind))
    text = Upstream(plain)
    assert world.event_messages(f"{kind}Restarting") == [text]
    assert world.status["conditions"][-1]["message"] == text


@pytest.mark.parametrize("cleaned", ["None", "Running", "All"])
def test_a_failed_job_counts_only_the_active_pods_that_stay(kind: str, cleaned: str):
    world = running(kind, policy="Never", run={"cleanPodPolicy": cleaned})
    world.end(last(kind), 1)
    world.settle()
    assert world.is_true("Failed")
    running_pods = [name for name in world.living() if world.pods[name]["status"]["phase"] == "Running"]
    counted = sum(entry.get("active", 0) for entry in world.status["replicaStatuses"].values())
    assert counted == len(running_pods)
    assert bool(running_pods) == (cleaned == "None")


@pytest.mark.parametrize("given", ["restartPolicy", "schedulerName"])
def test_the_events_about_templates_have_upstreams_reasons(kind: str, given: str):
    """MXJob has those of training-operator 1.7, the last release that has the kind."""
    job = make(kind)
    for role in job["spec"][FRAMEWORKS[kind].replica_specs].values():
        role["template"]["spec"][given] = "Always"
    world = World(job, framework=FRAMEWORKS[kind], options=Options(gang=choose_scheduler("other")))
    world.settle()
    prefix = "SettedPodTemplate" if kind == "MXJob" else "SetPodTemplate"
    expected = f"{prefix}{given[0].upper()}{given[1:]}"
    assert {event.reason for event in world.events if "PodTemplate" in event.reason} == {expected}


@pytest.mark.case("job-engine-13", "ab")
@pytest.mark.case("frameworks-v1-40", "d")
def test_a_type_of_zero_replicas_has_nothing_ever_and_is_no_success(kind: str):
    framework = FRAMEWORKS[kind]
    free = [role for role, replicas in framework.roles.items() if replicas.minimum == 0]
    needed = dict.fromkeys(framework.required_roles, 1)
    world = world_of(kind, {**dict.fromkeys(free, 0), **needed} if kind != "TFJob" else {"PS": 0, "Worker": 1})
    for _ in range(3):
        world.run()
        world.settle()
    assert {name.split("-")[1] for name in world.pods} == ({"worker"} if kind == "TFJob" else {*map(str.lower, needed)})
    assert sorted(world.services) == sorted(world.pods)
    assert not world.is_true("Succeeded")


@pytest.mark.case("job-engine-11", "ab")
def test_scaling(kind: str):
    world = running(kind)
    role = world.spec[FRAMEWORKS[kind].replica_specs]["Worker"]
    role["replicas"] = 5
    world.settle()
    workers = [name for name in world.living() if "worker" in name]
    assert workers == [f"j-worker-{i}" for i in range(5)]
    assert set(world.services) >= set(workers)
    role["replicas"] = 1
    world.settle()
    world.reap()
    world.settle()
    assert [name for name in world.pods if "worker" in name] == ["j-worker-0"]
    assert [name for name in world.services if "worker" in name] == ["j-worker-0"]
    assert not world.is_true("Failed")
    assert not world.is_true("Restarting")


@pytest.mark.case("job-engine-16", "ab")
@pytest.mark.case("job-engine-17", "cd")
@pytest.mark.case("job-engine-18", "b")
def test_suspension(kind: str):
    world = world_of(kind, run={"suspend": True})
    assert world.conditions == [("Created", "True", f"{kind}Created"), ("Suspended", "True", f"{kind}Suspended")]
    assert (world.pods, world.services) == ({}, {})
    assert "startTime" not in world.status
    world.spec["runPolicy"] = {"suspend": False}
    world.settle()
    world.run()
    world.settle()
    started = world.status["startTime"]
    world.spec["runPolicy"] = {"suspend": True}
    world.pass_time(5)
    world.settle()
    assert world.living() == []
    assert world.status["startTime"] == started
    assert [entry[:2] for entry in world.conditions] == [
        ("Created", "True"),
        ("Running", "False"),
        ("Suspended", "True"),
    ]
    world.spec["runPolicy"] = {"suspend": False}
    world.settle()
    assert world.living() == []
    world.reap()
    world.settle()
    world.run()
    world.settle()
    assert [entry[:2] for entry in world.conditions] == [
        ("Created", "True"),
        ("Suspended", "False"),
        ("Running", "True"),
    ]
    assert world.status["startTime"] > started


@pytest.mark.case("job-engine-20", "abc")
@pytest.mark.case("frameworks-v1-23", "ab")
@pytest.mark.parametrize("manager", ["kueue.x-k8s.io/multikueue", "somebody/else", ""])
def test_a_job_that_others_manage_is_left_alone(kind: str, manager: str):
    world = World(make(kind, run={"managedBy": manager, "suspend": True}), framework=FRAMEWORKS[kind])
    for suspend in (True, False):
        world.spec["runPolicy"]["suspend"] = suspend
        world.settle()
        assert (world.pods, world.services, world.status, world.events) == ({}, {}, {}, [])


@pytest.mark.case("job-engine-20", "d")
def test_a_job_managed_by_us_is_like_any_other(kind: str):
    assert not ignored(Unstructured(make(kind, run={"managedBy": "kubeflow.org/training-operator"})))
    world = running(kind, run={"managedBy": "kubeflow.org/training-operator"})
    assert sorted(world.pods) == sorted(pods_of(make(kind)))
    assert world.is_true("Running")


def test_restarts_in_place_reach_the_backoff_limit(kind: str):
    world = running(kind, policy="OnFailure", run={"backoffLimit": 4})
    worker = {"name": FRAMEWORKS[kind].container, "restartCount": 2, "state": {}}
    for name in list(world.pods)[:2]:
        world.set_pod(name, "Running", containerStatuses=[worker])
    world.settle()
    world.reap()
    text = Upstream("Job j has failed because it has reached the specified backoff limit")
    assert world.status["conditions"][-1]["message"] == text
    assert world.event_messages(f"{kind}Failed") == [text]
    assert (world.pods, world.counts) == ({}, {"created": 1, "failed": 1})


@pytest.mark.case("job-engine-23", "a")
@pytest.mark.parametrize("limit", [0, 2])
def test_restarts_by_exit_code_reach_the_backoff_limit(kind: str, limit: int):
    world = running(kind, policy="ExitCode", run={"backoffLimit": limit})
    for _ in range(limit):
        world.end(last(kind), 137)
        world.settle()
        world.reap()
        world.pass_time(10)
        world.settle()
        world.run()
        world.settle()
        assert world.is_true("Running")
    world.end(last(kind), 137)
    world.settle()
    assert world.is_true("Failed")
    assert world.counts.get("restarted", 0) == limit


@pytest.mark.case("job-engine-24", "bc")
def test_the_deadline(kind: str):
    world = running(kind, run={"activeDeadlineSeconds": 60})
    assert world.step().requeue_after == 60
    world.pass_time(60)
    world.settle()
    world.reap()
    assert [entry[:2] for entry in world.conditions[1:]] == [("Running", "False"), ("Failed", "True")]
    assert world.pods == {}


@pytest.mark.case("job-engine-25", "c")
def test_the_time_to_live(kind: str):
    world = running(kind, run={"ttlSecondsAfterFinished": 180})
    for name in leaders(kind):
        world.end(name, 0)
    world.settle()
    assert world.step().requeue_after == 180
    world.pass_time(181)
    assert world.step().actions == (DeleteJob(),)
    assert FRAMEWORKS[kind].deleted_as == ("Job" if kind in {"TFJob", "XGBoostJob"} else "Pod")


@pytest.mark.case("frameworks-v1-5", "ab")
def test_keys_in_any_case_are_read_and_reported_in_the_canonical_case(kind: str):
    job = make(kind)
    specs = job["spec"][FRAMEWORKS[kind].replica_specs]
    job["spec"][FRAMEWORKS[kind].replica_specs] = {
        (role.upper() if place % 2 else role.lower()): entry for place, (role, entry) in enumerate(specs.items())
    }
    world = World(job, framework=FRAMEWORKS[kind])
    world.settle()
    assert set(world.status["replicaStatuses"]) == set(SHAPES[kind])
    assert sorted(world.pods) == sorted(pods_of(make(kind)))


def test_unknown_types_and_empty_maps_are_refused(kind: str):
    field = f"spec.{FRAMEWORKS[kind].replica_specs}"
    (error,) = problems(kind, {**SHAPES[kind], "Boss": 1})
    listed = ", ".join(f'"{role}"' for role in FRAMEWORKS[kind].roles)
    assert error == f'{field}[Boss]: Unsupported value: "Boss": supported values: {listed}'
    assert problems(kind, {})[0].startswith(f"{field}: Required value: must have at least one of ")
    job = make(kind)
    del job["spec"][FRAMEWORKS[kind].replica_specs]
    (missing,) = parse(FRAMEWORKS[kind], Unstructured(job)).errors
    assert str(missing) == f"{field}: Required value: must be required"


def test_templates_without_what_is_needed_are_refused(kind: str):
    framework = FRAMEWORKS[kind]
    role = next(iter(SHAPES[kind]))
    at = f"spec.{framework.replica_specs}[{role}].template.spec.containers"
    quoted = f'"{framework.container}"' if kind == "PaddleJob" else framework.container
    missing = f"{at}: Required value: must have at least one container with name {quoted}"
    assert problems(kind, {role: 1}, template={"containers": []})[:2] == [
        f"{at}: Required value: must be specified",
        missing,
    ]
    assert problems(kind, {role: 1}, template={"containers": [{"name": "x", "image": "i"}]})[0] == missing
    (image,) = problems(kind, {role: 1}, template={"containers": [{"name": framework.container}]})
    assert image == f"{at}[0].image: Required value: must be required"


@pytest.mark.case("frameworks-v1-22", "g")
def test_names_that_no_service_could_have_are_refused(kind: str):
    assert problems(kind, name="0-test")[0].startswith('metadata.name: Invalid value: "0-test": should match: ')
    assert "must be no more than 63 characters" in problems(kind, name="a" * 60)[0]


@pytest.mark.parametrize("scope", ["role", "job"])
def test_a_restart_of_more_than_the_pod(kind: str, scope: str):
    """All pods of the scope are deleted, none is recreated before all have gone, and it counts as one restart."""
    world = running(kind, policy="OnFailure", annotations={RESTART_SCOPE: scope})
    role = last(kind).split("-")[1]
    scoped = {name for name in world.pods if scope == "job" or name.split("-")[1] == role}
    born = {name: pod["metadata"]["uid"] for name, pod in world.pods.items()}
    world.end(last(kind), 1)
    world.settle()
    assert set(world.living()) == set(world.pods) - scoped
    # the others fail because of it
    for name in sorted(scoped)[:-1]:
        world.end(name, 1)
    world.settle()
    assert world.conditions[-1] == ("Restarting", "True", f"{kind}Restarting")
    for name in sorted(scoped):
        assert not any(pod_created(action) for action in world.step().actions)
        del world.pods[name]
    world.settle()
    world.run()
    world.settle()
    assert world.is_true("Running")
    assert {name for name, pod in world.pods.items() if pod["metadata"]["uid"] != born[name]} == scoped
    assert world.counts["restarted"] == 1
    assert world.event_messages(f"{kind}Restarting") == [
        Upstream(f"job j is restarting because {last_role(kind)} replica(s) failed.")
    ]
    assert json.loads(world.raw["metadata"]["annotations"]["trainop.kubeflow.org/restarts"])["failures"] == 1


@pytest.mark.parametrize(
    ("annotation", "value", "reported"),
    [
        (RESTART_SCOPE, "all", 'Unsupported value: "all": supported values: "pod", "role", "job"'),
        (SERVICE_MODE, "none", 'Unsupported value: "none": supported values: "replica", "leader", "job"'),
        (INFRA_RESTART_LIMIT, "-1", 'Invalid value: "-1": must be a whole number from 0 to 2147483647'),
        (INFRA_RESTART_LIMIT, "2147483648", 'Invalid value: "2147483648": must be a whole number from 0 to 2147483647'),
        (INFRA_RESTART_LIMIT, "", 'Invalid value: "": must be a whole number from 0 to 2147483647'),
    ],
)
def test_wrong_annotations_are_one_clear_error(kind: str, annotation: str, value: str, reported: str):
    world = world_of(kind, annotations={annotation: value})
    assert world.pods == {}
    text = f"{kind} failed validation because metadata.annotations[{annotation}]: {reported}"
    assert world.event_messages(f"{kind}FailedValidation") == [text]
    assert world.status["conditions"][-1]["message"] == text


def test_the_largest_limit_is_one(kind: str):
    assert problems(kind, annotations={INFRA_RESTART_LIMIT: "2147483647", RESTART_SCOPE: "pod"}) == []


def test_service_mode_leader(kind: str):
    """Only replicas whose address others need get a service, except for LightGBM jobs, which need all."""
    services = services_of(make(kind, annotations={SERVICE_MODE: "leader"}))
    assert sorted(services_of(make(kind), service_mode="leader")) == sorted(services)
    reported = re.findall(r"\bj-[a-z]+-[0-9]+\b", " ".join(line(pod) for pod in pods_of(make(kind)).values()))
    lightgbm = {"j-worker-0", "j-worker-1"} if kind == "XGBoostJob" else set()
    assert set(services) == set(reported) - lightgbm
    everything = services_of(make(kind, annotations={SERVICE_MODE: "replica"}), service_mode="leader")
    assert sorted(everything) == sorted(pods_of(make(kind)))


def test_restarts_by_disruption_can_be_limited(kind: str):
    world = running(kind, policy="OnFailure", run={"backoffLimit": 9}, annotations={INFRA_RESTART_LIMIT: "1"})
    for expected in (False, True):
        world.end(last(kind), 137, reason="Evicted")
        world.settle()
        assert world.is_true("Failed") == expected
        world.reap()
        world.settle()
        world.run()
        world.settle()
    assert world.status["conditions"][-1]["message"] == Upstream(
        "Job j has failed because it has reached the specified infra restart limit"
    )
    assert world.living() == [last(kind)]


def test_the_snapshot_is_not_mutated_and_a_steady_job_needs_no_actions(kind: str):
    world = running(kind)
    before = copy.deepcopy((world.raw, world.pods))
    made = world.step()
    assert (made.actions, made.status, made.annotations, made.transitions) == ((), None, {}, ())
    assert (world.raw, world.pods) == before


def test_the_first_pass_orders_services_before_pods_and_leaders_first(kind: str):
    made = plan(FRAMEWORKS[kind], Snapshot(Unstructured(make(kind)), (), (), NOW, Options()))
    order = [action.name for action in made.actions if pod_created(action)]
    assert order[: len(leaders(kind))] == leaders(kind)
    assert not any(pod_deleted(action) for action in made.actions)


def test_a_plan_is_json(kind: str):
    for name, pod in pods_of(make(kind)).items():
        assert json.loads(json.dumps(pod)) == pod, name


# Root cause -----------------------------------------------------------------------------------------------------------


def failed_status(kind: str, code: int, second: int, message: str = "") -> Json:
    end = {
        "exitCode": code,
        "reason": "Error",
        "message": message,
        "startedAt": stamp(-60),
        "finishedAt": stamp(second),
    }
    return {"containerStatuses": [{"name": FRAMEWORKS[kind].container, "state": {"terminated": end}}]}


@pytest.mark.parametrize("policy", ["Never", "OnFailure", "ExitCode"])
def test_the_first_failure_is_named(kind: str, policy: str):
    """Under every policy that fails or restarts: the earlier failure, although its pod is examined last."""
    world = running(kind, policy=policy)
    first = leaders(kind)[0]
    world.set_pod(first, "Failed", **failed_status(kind, 134, 5))
    world.set_pod(last(kind), "Failed", **failed_status(kind, 139, 3, "step 1\nthe reason"))
    world.pass_time(6)
    made = world.step()
    found = world.status["lastFailure"]
    assert (found["pod"], found["exitCode"], found["signal"], found["failedAfter"]) == (last(kind), 139, "SIGSEGV", 1)
    assert (found["role"], found["log"]) == (last_role(kind), ["step 1", "the reason"])
    message = world.status["conditions"][-1]["message"]
    assert f"First failure: {last_role(kind)} " in message
    assert message.endswith("1 other replica failed after it. Last output: step 1 | the reason")
    events = [each.message for each in made.transitions if isinstance(each, Event)]
    assert message in events
    assert all("First failure: " in each for each in events)


def test_the_root_cause_is_kept_when_all_pods_are_deleted(kind: str):
    world = running(kind, policy="Never", run={"cleanPodPolicy": "All"})
    world.set_pod(last(kind), "Failed", **failed_status(kind, 3, 0))
    world.settle()
    world.reap()
    world.settle()
    assert not world.pods
    assert world.status["lastFailure"]["exitCode"] == 3


def test_a_root_cause_that_is_pruned_is_written_once(kind: str):
    """Under upstream's CRD the API server drops the field."""
    world = running(kind, policy="OnFailure")
    world.set_pod(last(kind), "Failed", **failed_status(kind, 3, 0))
    for _ in range(9):
        made = world.step()
        world.status.pop("lastFailure", None)
    assert made.status is None
    assert world.counts["restarted"] == 1


def test_containers_leave_the_end_of_their_log(kind: str):
    """All containers and init containers, unless the template says otherwise or a flag turns it off."""
    own = {"name": "own", "image": "i", "terminationMessagePolicy": "File"}
    main = {"name": FRAMEWORKS[kind].container, "image": "i"}
    template = {"containers": [main, own, {"name": "side", "image": "i"}], "initContainers": [{"name": "init"}]}
    for policy, expected in (("FallbackToLogsOnError", "FallbackToLogsOnError"), ("File", None)):
        world = world_of(kind, template=template, options=Options(termination_message_policy=policy))
        assert world.pods
        for pod in world.pods.values():
            given = {
                each["name"]: each.get("terminationMessagePolicy")
                for each in (*pod["spec"]["containers"], *pod["spec"]["initContainers"])
            }
            assert given.pop("own") == "File"
            assert len(given) >= 3
            assert set(given.values()) == {expected}


def test_a_new_policy_of_termination_messages_changes_no_running_pod(kind: str):
    world = running(kind)
    world.options = Options(termination_message_policy="File")
    made = world.step()
    assert (made.actions, made.status, made.annotations) == ((), None, {})
