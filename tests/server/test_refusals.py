"""Pods refused by admission in the API server: a job that never had a pod fails, and a running job continues."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import pytest

from tests.server.world import CORE, JOBS, MERGE, World, replicas

POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
LIMITS = f"{CORE}/limitranges"
ENFORCE = "pod-security.kubernetes.io/enforce"

Switch: TypeAlias = Callable[[World], Any]


class Cause(NamedTuple):
    words: str
    """Part of the API server's message."""
    forbid: Switch
    allow: Switch
    prepare: Switch = lambda _: None
    """Creates the objects without which no pod could be created."""
    template: Mapping[str, Any] = MappingProxyType({})


def add_policy(world: World) -> None:
    name = f"no-pods-{world.namespace}"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    policy = {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "false", "message": "no pods today"}],
    }
    chosen = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": world.namespace}}}
    binding = {"policyName": name, "validationActions": ["Deny"], "matchResources": chosen}
    for plural, kind, spec in (("ies", "", policy), ("ybindings", "Binding", binding)):
        body = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": f"ValidatingAdmissionPolicy{kind}"}
        world.ask("POST", POLICIES + plural, body | {"metadata": {"name": name}, "spec": spec})


def remove_policy(world: World) -> None:
    for plural in ("ybindings", "ies"):
        world.try_to("DELETE", f"{POLICIES}{plural}/no-pods-{world.namespace}")


def add_limit(world: World) -> None:
    spec = {"limits": [{"type": "Container", "max": {"cpu": "1"}}]}
    body = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "small"}, "spec": spec}
    world.ask("POST", LIMITS, body)


def remove_limit(world: World) -> None:
    world.try_to("DELETE", f"{LIMITS}/small")


def enforce(level: str) -> Switch:
    labels = {"metadata": {"labels": {ENFORCE: level}}}
    return lambda world: world.ask("PATCH", "/api/v1/namespaces/{namespace}", labels, MERGE)


def add_class(world: World) -> None:
    body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent"}, "value": 7}
    assert world.try_to("POST", CLASSES, body).status in (201, 409)


def remove_class(world: World) -> None:
    world.try_to("DELETE", f"{CLASSES}/urgent")


CAUSES = {
    "policy": Cause("denied request: no pods today", add_policy, remove_policy),
    "limits": Cause(
        "maximum cpu usage per Container is 1",
        add_limit,
        remove_limit,
        template={"container": {"resources": {"limits": {"cpu": "2"}}}},
    ),
    "security": Cause('violates PodSecurity "restricted', enforce("restricted"), enforce("privileged")),
    "priority": Cause(
        "no PriorityClass with name urgent was found",
        remove_class,
        add_class,
        prepare=add_class,
        template={"priorityClassName": "urgent"},
    ),
}


def try_pod(world: World, cause: Cause) -> tuple[int, str]:
    """Status and message of the API server for a dry run of a pod of the template."""
    template = replicas(1, **cause.template)["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"}, "spec": template["spec"]}
    answer = world.try_to("POST", f"{CORE}/pods?dryRun=All", pod)
    return answer.status, str(answer.body)


@contextmanager
def forbidden(world: World, cause: Cause) -> Iterator[None]:
    """Admission refuses pods of the template within the context, and accepts them after it."""
    cause.forbid(world)
    try:
        world.wait(lambda: cause.words in try_pod(world, cause)[1], f"refusal by {cause.words}")
        yield
    finally:
        cause.allow(world)
    world.wait(lambda: try_pod(world, cause)[0] == 201, "that pods are taken again")


@pytest.fixture(params=CAUSES)
def cause(request: pytest.FixtureRequest, world: World) -> Iterator[Cause]:
    found = CAUSES[request.param]
    found.prepare(world)
    world.wait(lambda: try_pod(world, found)[0] == 201, "that pods are taken")
    yield found
    found.allow(world)


def test_a_refused_replacement_leaves_the_others_running(world: World, cause: Cause):
    template = cause.template
    world.create_job("j", {"Master": replicas(1, **template), "Worker": replicas(2, **template)})
    before = world.wait_pods("j-master-0", "j-worker-0", "j-worker-1")
    world.run_pod(*before)
    world.wait_condition("Running")
    with forbidden(world, cause):
        world.reap_pod("j-worker-0")
        event = world.wait(lambda: world.events("FailedCreatePod"), "the event")[0]
        assert event["type"] == "Warning"
        assert cause.words in event["message"]
        assert "j-worker-0" not in world.pods()
        world.run_pod("j-worker-1", restarts=1)  # more passes
        world.settle()
        world.wait_events("FailedCreatePod")
        assert event.get("count", 1) == 1
    after = world.pods()
    assert {name: pod["metadata"]["uid"] for name, pod in after.items()} == {
        name: before[name]["metadata"]["uid"] for name in ("j-master-0", "j-worker-1")
    }
    assert not world.condition("Failed")
    world.ask("PATCH", f"{JOBS}/j", {"metadata": {"annotations": {"try": "1"}}}, MERGE)
    world.wait_successor("j-worker-0", before["j-worker-0"]["metadata"]["uid"])
    world.run_pod("j-worker-0")
    world.end_pod("j-master-0")
    world.wait_condition("Succeeded")


def test_a_job_that_never_had_a_pod_fails_with_the_servers_message(world: World, cause: Cause):
    with forbidden(world, cause):
        world.create_job("j", {"Worker": replicas(2, **cause.template)})
        failed = world.wait_condition("Failed")
        assert failed["reason"] == "PyTorchJobFailedValidation"
        assert cause.words in failed["message"]
        assert world.pods() == {}


def test_fields_that_the_api_server_drops_are_one_event_and_a_condition(world: World):
    container = {"resource": {"limits": {"cpu": 1}}, "env": [{"name": "A", "values": "a"}]}
    world.create_job("j", {"Master": replicas(1), "Worker": replicas(3, container=container)})
    pods = world.wait_pods("j-master-0", *(f"j-worker-{index}" for index in range(3)))
    world.run_pod(*pods)
    world.wait_condition("Running")
    at = "spec.pytorchReplicaSpecs.Worker.template.spec.containers[0]"
    text = (
        f"Pods run without fields that the API server does not know: {at}.env[0].values: unknown field, "
        f'did you mean "value"?; {at}.resource: unknown field, did you mean "resources"?'
    )
    first = world.job()["status"]["conditions"][0]
    assert (first["type"], first["status"], first["reason"]) == ("TemplateValid", "False", "UnknownFields")
    assert first["message"] == text
    events = world.wait(lambda: world.events("UnknownFields"), "the event")
    assert [(event["type"], event["message"], event.get("count", 1)) for event in events] == [("Warning", text, 1)]
    for pod in pods:
        world.end_pod(pod)
    world.wait_condition("Succeeded")
    assert world.job()["status"]["conditions"][0] == first
    world.settle()
    world.wait_events("UnknownFields")


def test_a_pod_that_is_refused_for_a_dropped_field(world: World):
    container = {"env": [{"name": "A", "valueFrom": {"fieldref": {"fieldPath": "metadata.name"}}}]}
    world.create_job("j", {"Worker": replicas(2, container=container)})
    failed = world.wait_condition("Failed")
    assert "spec.containers[0].env[0].valueFrom: Invalid value" in failed["message"]
    at = "spec.pytorchReplicaSpecs.Worker.template.spec.containers[0].env[0].valueFrom.fieldref"
    valid = world.wait(lambda: world.condition("TemplateValid"), "the condition")
    assert valid["message"].endswith(f': {at}: unknown field, did you mean "fieldRef"?')
