"""Invalid jobs of every kind: the engine never raises, and reports one error for each."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.controllers.kinds import KINDS, SHAPES, make
from tests.engine.builders import NOW, manifest_of, pod_created
from tests.engine.test_laws import anything, check_form, places
from tests.engine.world import World
from trainop.engine.actions import Event, Plan
from trainop.engine.children import decode_pod, decode_service
from trainop.engine.extensions import INFRA_RESTART_LIMIT, RESTART_SCOPE, SERVICE_MODE
from trainop.engine.framework import JOB_NAME, OPERATOR_NAME, REPLICA_INDEX, REPLICA_TYPE
from trainop.engine.plan import plan
from trainop.engine.schema.crd import crd
from trainop.engine.seen import Pod, Service, Snapshot
from trainop.programs.schemes import FRAMEWORKS
from trainop.runtime.client.decoding import ObjectDecoder
from trainop.runtime.errors import DecodeError
from trainop.runtime.objects.metadata import Json, Unstructured, decode_unstructured

every_kind = pytest.mark.parametrize("kind", KINDS)

ELASTIC: Json = {
    "minReplicas": 1,
    "maxReplicas": 2,
    "maxRestarts": 3,
    "rdzvConf": [{"key": "a", "value": "b"}],
    "metrics": [{"type": "Resource"}],
}
OWN_FIELDS: dict[str, Json] = {
    "TFJob": {"successPolicy": "AllWorkers", "enableDynamicWorker": False},
    "PyTorchJob": {"nprocPerNode": "auto", "elasticPolicy": ELASTIC},
    "MXJob": {"jobMode": "MXTrain"},
    "PaddleJob": {"elasticPolicy": ELASTIC},
}


def rich(kind: str) -> Json:
    """A job with a value at every place that the engine reads."""
    job = make(
        kind,
        run={"suspend": False, "backoffLimit": 3, "ttlSecondsAfterFinished": 5, "activeDeadlineSeconds": 60},
        annotations={RESTART_SCOPE: "role", SERVICE_MODE: "leader", INFRA_RESTART_LIMIT: "3"},
        **OWN_FIELDS.get(kind, {}),
    )
    job["status"] = {
        "startTime": "2025-06-01T11:59:00Z",
        "completionTime": None,
        "conditions": [{"type": "Created", "status": "True", "reason": f"{kind}Created"}],
        "replicaStatuses": {"Worker": {"active": 1}},
    }
    specs = copy.deepcopy(job["spec"][FRAMEWORKS[kind].replica_specs])
    job["spec"][FRAMEWORKS[kind].replica_specs] = specs
    for role in specs.values():
        template = role["template"]
        template["metadata"] = {"labels": {"a": "b"}, "annotations": {"tuner-server-key": "b"}, "finalizers": ["a/b"]}
        template["spec"] |= {"initContainers": [{"name": "i"}], "volumes": [{"name": "v"}], "restartPolicy": "Never"}
        container = template["spec"]["containers"][0]
        container["env"] = [{"name": "A", "value": "b"}]
        container["ports"] = [{"name": "a", "containerPort": 1}]
        container["volumeMounts"] = [{"name": "v", "mountPath": "/v"}]
    return job


def look(job: Json) -> Plan:
    framework = FRAMEWORKS[job["kind"]]
    return plan(framework, Snapshot(Unstructured(job), (), (), NOW))


def said(made: Plan) -> int:
    """The number of Failed conditions of a plan, or else of Warnings about an invalid job."""
    failed = [c for c in (made.status or {}).get("conditions", []) if isinstance(c, dict) and c.get("type") == "Failed"]
    return len(failed) or sum(notice.event.reason.endswith("FailedValidation") for notice in made.notices)


def spoil(job: Json, path: tuple[Any, ...], value: Any) -> Json:
    spoilt = copy.deepcopy(job)
    place: Any = spoilt
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return spoilt


def spec_places(kind: str) -> list[tuple[Any, ...]]:
    return [path for path in places(rich(kind)) if path and path[0] in {"spec", "status"}]


STRANGE: list[Any] = [None, [], {}, "", "x", 0, -1, 2**70, 1.5, True, [None], {"a": None}, "ü" * 300, "\x00"]


@every_kind
def test_any_one_place_may_hold_anything(kind: str):
    """Exhaustive instead of random: each place of the spec and the status, with each strange value."""
    good = rich(kind)
    for path in spec_places(kind):
        for value in STRANGE:
            made = look(spoil(good, path, value))
            check_form(made)
            if any(pod_created(action) for action in made.actions):
                assert "Failed" not in json.dumps((made.status or {}).get("conditions"))


@every_kind
def test_any_one_place_may_be_missing(kind: str):
    good = rich(kind)
    for path in spec_places(kind):
        job = copy.deepcopy(good)
        place: Any = job
        for key in path[:-1]:
            place = place[key]
        del place[path[-1]]
        check_form(look(job))


@st.composite
def spoilt_jobs(draw: st.DrawFn, kind: str) -> Json:
    """A rich job with one to four of its places holding anything."""
    job = rich(kind)
    for path in draw(st.lists(st.sampled_from(spec_places(kind)), min_size=1, max_size=4)):
        try:
            job = spoil(job, path, draw(anything))
        except (LookupError, TypeError):
            continue  # an earlier change removed the place
    return job


ANNOTATIONS = st.fixed_dictionaries(
    {}, optional={name: st.text(max_size=5) for name in (RESTART_SCOPE, SERVICE_MODE, INFRA_RESTART_LIMIT)}
)


@every_kind
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_is_drawn(kind: str, data: st.DataObject):
    job = data.draw(spoilt_jobs(kind))
    job["metadata"]["annotations"] = data.draw(ANNOTATIONS)
    made = look(job)
    check_form(made)
    assert said(made) <= 1


def worker_specs(kind: str, **changes: Any) -> Json:
    """A new job with these fields in the replica spec of every role."""
    job = make(kind)
    for role in job["spec"][FRAMEWORKS[kind].replica_specs].values():
        role.update(changes)
    return job


def hostile(kind: str) -> Iterator[tuple[str, Json]]:
    """Jobs that can never run, with the expected message."""
    specs = FRAMEWORKS[kind].replica_specs
    name = FRAMEWORKS[kind].container
    yield "no spec", {key: value for key, value in make(kind).items() if key != "spec"}
    yield "spec is a list", make(kind) | {"spec": []}
    yield "no map", make(kind) | {"spec": {}}
    yield "the map is null", make(kind) | {"spec": {specs: None}}
    yield "the map is a list", make(kind) | {"spec": {specs: [1]}}
    yield "the map is empty", make(kind) | {"spec": {specs: {}}}
    yield "a role is null", make(kind) | {"spec": {specs: dict.fromkeys(SHAPES[kind])}}
    yield "unknown role", make(kind, {"Ωmega": 1})
    yield "twice the same role", make(kind, {**SHAPES[kind], "worker": 1})
    yield "no template", worker_specs(kind, template=None)
    yield "no containers", worker_specs(kind, template={"spec": {"containers": []}})
    yield "containers is a map", worker_specs(kind, template={"spec": {"containers": {"name": name}}})
    yield "a container is null", worker_specs(kind, template={"spec": {"containers": [None]}})
    yield "an empty container", worker_specs(kind, template={"spec": {"containers": [{}]}})
    yield "negative replicas", worker_specs(kind, replicas=-3)
    yield "huge replicas", worker_specs(kind, replicas=2**40)
    yield "half a replica", worker_specs(kind, replicas=1.5)
    yield "replicas in words", worker_specs(kind, replicas="two")
    yield "unknown restart policy", worker_specs(kind, restartPolicy="Sometimes")
    yield "unknown clean-up", make(kind, run={"cleanPodPolicy": "Some"})
    yield "negative limit", make(kind, run={"backoffLimit": -1})
    yield "unicode name", make(kind, name="jöb")
    yield "name of a number", make(kind, name="1")
    yield "long name", make(kind, name="a" * 64)


@every_kind
def test_a_job_that_can_never_run_is_reported_once_and_left_alone(kind: str):
    for problem, job in hostile(kind):
        world = World(job, framework=FRAMEWORKS[kind])
        world.settle()
        assert world.conditions[-1] == ("Failed", "True", f"{kind}FailedValidation"), problem
        assert len(world.event_messages(f"{kind}FailedValidation")) == 1, problem
        assert (world.pods, world.services) == ({}, {}), problem
        made = world.step()
        assert (made.actions, made.status, made.transitions, made.requeue_after) == ((), None, (), None), problem
        assert world.counts == {"created": 1, "failed": 1}, problem


@every_kind
def test_ten_thousand_variables_are_kept(kind: str):
    env = [{"name": f"V{i}", "value": "x"} for i in range(10_000)]
    job = make(kind, template={"containers": [{"name": FRAMEWORKS[kind].container, "image": "i", "env": env}]})
    made = look(job)
    for pod in (manifest_of(action) for action in made.actions if pod_created(action)):
        assert pod["spec"]["containers"][0]["env"][:10_000] == env


@every_kind
def test_texts_of_any_kind_come_through(kind: str):
    """Fields that the operator does not validate reach the API server unchanged."""
    strange = {"name": FRAMEWORKS[kind].container, "image": "ü🚀", "command": ["\x07", "{kind}", "%s"]}
    for action in look(make(kind, template={"containers": [strange], "nodeSelector": {"ключ": "значение"}})).actions:
        if pod_created(action):
            spec = manifest_of(action)["spec"]
            assert spec["nodeSelector"] == {"ключ": "значение"}
            assert spec["containers"][0] | strange == spec["containers"][0]


@pytest.mark.parametrize("decode", [decode_pod, decode_service])
def test_decoded_children_keep_no_large_fields(decode: Callable[[bytes], Pod | Service]):
    ours = {JOB_NAME: "j", OPERATOR_NAME: "pytorchjob-controller", REPLICA_TYPE: "worker", REPLICA_INDEX: "0"}
    metadata = {
        "name": "j-worker-0",
        "namespace": "ns",
        "uid": "u",
        "labels": {**{f"user{number}": "x" * 63 for number in range(5_000)}, **ours},
        "annotations": {"user": "x" * 200_000},
        "managedFields": [{"manager": "x" * 200_000}],
    }
    child = decode(json.dumps({"metadata": metadata, "spec": {"a": "x" * 200_000}, "data": "x" * 200_000}).encode())
    assert child.metadata.labels == ours
    assert len(msgspec.json.encode(child)) < 1000


@every_kind
def test_the_schema_of_a_kind_names_its_own_fields(kind: str):
    spec = crd(FRAMEWORKS[kind])["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert set(OWN_FIELDS.get(kind, {})) <= set(spec["properties"])
    assert spec["required"] == [FRAMEWORKS[kind].replica_specs, *(["jobMode"] if kind == "MXJob" else [])]


def unreadable(kind: str, status: Json | None = None, *, outside: bool = False) -> Unstructured:
    """The decoded rest of a job whose first container nests too deeply; with the spec too deep as well, if asked
    for."""
    body = make(kind, name="deep") | {"status": status or {}}
    body["metadata"] |= {"resourceVersion": "5"}
    deep = msgspec.Raw(b'{"a":' * 2_000 + b"1" + b"}" * 2_000)
    role = next(iter(body["spec"][FRAMEWORKS[kind].replica_specs].values()))
    role["template"]["spec"]["containers"][0]["unknown"] = deep
    if outside:
        body["spec"] = {"elasticPolicy": {"unknown": deep}, **body["spec"]}
    with pytest.raises(DecodeError) as caught:
        ObjectDecoder(FRAMEWORKS[kind].resource, decode_unstructured)(msgspec.json.encode(body))
    assert caught.value.remains is not None
    return caught.value.remains


@every_kind
def test_an_unreadable_job_fails_with_the_path(kind: str):
    made = plan(FRAMEWORKS[kind], Snapshot(unreadable(kind), (), (), NOW))
    conditions = (made.status or {})["conditions"]
    assert [(each["type"], each["status"]) for each in conditions] == [("Created", "True"), ("Failed", "True")]
    assert conditions[-1]["reason"] == f"{kind}FailedValidation"
    assert conditions[-1]["message"].startswith(
        f"{kind} failed validation because spec.{FRAMEWORKS[kind].replica_specs}."
    )
    assert "must not be nested more than 200 levels deep" in conditions[-1]["message"]
    warnings = [each for each in made.transitions if isinstance(each, Event) and each.type == "Warning"]
    assert [each.reason for each in warnings] == [f"{kind}FailedValidation"]
    assert made.actions == ()


@every_kind
def test_a_job_with_too_many_lists_fails_with_the_path(kind: str):
    """Half a million lists fit into etcd; each traversal would take half a second."""
    body = make(kind, name="crowded")
    body["metadata"] |= {"resourceVersion": "5"}
    role, spec = next(iter(body["spec"][FRAMEWORKS[kind].replica_specs].items()))
    spec["template"]["spec"]["containers"][0]["ports"] = [{}] * 70_000
    with pytest.raises(DecodeError) as caught:
        ObjectDecoder(FRAMEWORKS[kind].resource, decode_unstructured)(msgspec.json.encode(body))
    assert caught.value.remains is not None
    made = plan(FRAMEWORKS[kind], Snapshot(caught.value.remains, (), (), NOW))
    failed = (made.status or {})["conditions"][-1]
    assert (failed["type"], failed["reason"]) == ("Failed", f"{kind}FailedValidation")
    where = f"spec.{FRAMEWORKS[kind].replica_specs}.{role}.template.spec.containers"
    assert f"{where}: Invalid value: must not have more than 49,152 lists and objects, and has " in failed["message"]
    assert made.actions == ()


@every_kind
def test_a_finished_job_that_cannot_be_read_is_left_as_it_is(kind: str):
    done = {"type": "Succeeded", "status": "True", "reason": f"{kind}Succeeded", "message": "m"}
    made = plan(FRAMEWORKS[kind], Snapshot(unreadable(kind, {"conditions": [done]}), (), (), NOW))
    assert (made.status, made.actions, made.transitions, made.notices) == (None, (), (), ())


@pytest.mark.parametrize("outside", [False, True])
@every_kind
def test_a_begun_job_that_cannot_be_read_any_more_keeps_its_pods(kind: str, outside: bool):
    """Its template is unknown, so no pod is created; running pods continue."""
    running = {"type": "Running", "status": "True", "reason": f"{kind}Running", "message": "m"}
    status = {"startTime": "2025-06-01T11:59:00Z", "conditions": [running]}
    made = plan(FRAMEWORKS[kind], Snapshot(unreadable(kind, status, outside=outside), (), (), NOW))
    assert made.actions == ()
    assert [notice.event.reason for notice in made.notices] == [f"{kind}FailedValidation"]
    assert all(each["type"] != "Failed" for each in (made.status or {}).get("conditions", ()))
