"""Environment and command line of a container, as tables of kubelet's rules."""

from __future__ import annotations

import base64
import os
from typing import Any

import pytest

from trainop.local.node.pods.environment import (
    ConfigError,
    Placement,
    Reference,
    command_line,
    container_environment,
    expand,
    pod_field,
    references,
    resource_field,
)
from trainop.runtime.objects.quantity import exact_amount

HERE = Placement("local", "10.244.0.1", "10.244.0.7", {"cpu": "4", "memory": "1Gi"})
SETTINGS = Reference("configmap", "settings")
KEYS = Reference("secret", "keys")
SOURCES = {
    SETTINGS: {"data": {"lr": "0.1", "not-a-name": "x"}, "binaryData": {"raw": base64.b64encode(b"bin").decode()}},
    KEYS: {"data": {"token": base64.b64encode(b"s3cret").decode()}},
}


def make_pod(**container: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "job-worker-0",
            "namespace": "team",
            "uid": "u-1",
            "labels": {"training.kubeflow.org/job-name": "job", "b": "2"},
            "annotations": {"note": 'say "hi"\nthere'},
        },
        "spec": {
            "serviceAccountName": "trainer",
            "initContainers": [{"name": "first", "resources": {"limits": {"cpu": "1"}}}],
            "containers": [{"name": "main", **container}],
        },
    }


def environment_of(**container: Any) -> dict[str, str]:
    pod = make_pod(**container)
    return container_environment(pod, pod["spec"]["containers"][0], SOURCES, HERE)


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("plain", "plain"),
        ("$(A)", "1"),
        ("x-$(A)-$(B)-y", "x-1-two-y"),
        ("$(MISSING)", "$(MISSING)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A ${A}", "$A ${A}"),
        ("$(A", "$(A"),
        ("cost: 5$", "cost: 5$"),
        ("$$", "$"),
        ("$()", "$()"),
        ("$(A)$(A)", "11"),
        ("$($(A))", "$($(A))"),
    ],
)
def test_references_to_variables_expand_as_kubernetes_does(text: str, expanded: str) -> None:
    assert expand(text, {"A": "1", "B": "two"}) == expanded


def test_variables_see_those_before_them_and_later_ones_win() -> None:
    found = environment_of(
        envFrom=[{"configMapRef": {"name": "settings"}}],
        env=[
            {"name": "A", "value": "$(lr)/$(B)"},
            {"name": "B", "value": "b"},
            {"name": "C", "value": "$(B)$$(B)"},
            {"name": "lr", "value": "overridden"},
            {"name": "EMPTY"},
        ],
    )
    assert found["A"] == "0.1/$(B)"
    assert found["C"] == "b$(B)"
    assert found["lr"] == "overridden"
    assert found["EMPTY"] == ""


def test_whole_objects_become_variables_with_a_prefix() -> None:
    found = environment_of(
        envFrom=[
            {"prefix": "S_", "configMapRef": {"name": "settings"}},
            {"secretRef": {"name": "keys"}},
            {"configMapRef": {"name": "absent", "optional": True}},
        ]
    )
    assert found == {"S_lr": "0.1", "S_not-a-name": "x", "token": "s3cret"}, "kubelet leaves binaryData out"


def test_later_sources_win_and_variables_win_over_sources() -> None:
    other = Reference("configmap", "other")
    sources = {**SOURCES, other: {"data": {"lr": "0.2", "token": "plain"}}}
    pod = make_pod(
        envFrom=[
            {"secretRef": {"name": "keys"}},
            {"configMapRef": {"name": "settings"}},
            {"configMapRef": {"name": "other"}},
        ],
        env=[{"name": "token", "value": "$(token)!"}],
    )
    found = container_environment(pod, pod["spec"]["containers"][0], sources, HERE)
    assert found == {"lr": "0.2", "not-a-name": "x", "token": "plain!"}


def test_bytes_of_a_secret_that_are_no_text_reach_the_variable_unchanged() -> None:
    secret = {KEYS: {"data": {"raw": base64.b64encode(b"\xff\xfe").decode()}}}
    pod = make_pod(envFrom=[{"secretRef": {"name": "keys"}}])
    found = container_environment(pod, pod["spec"]["containers"][0], secret, HERE)
    assert os.fsencode(found["raw"]) == b"\xff\xfe"


@pytest.mark.parametrize(
    ("origin", "value"),
    [
        ({"fieldRef": {"fieldPath": "metadata.name"}}, "job-worker-0"),
        ({"fieldRef": {"fieldPath": "metadata.namespace"}}, "team"),
        ({"fieldRef": {"fieldPath": "metadata.uid"}}, "u-1"),
        ({"fieldRef": {"fieldPath": "metadata.labels['training.kubeflow.org/job-name']"}}, "job"),
        ({"fieldRef": {"fieldPath": "metadata.labels['absent']"}}, ""),
        ({"fieldRef": {"fieldPath": "metadata.annotations['note']"}}, 'say "hi"\nthere'),
        ({"fieldRef": {"fieldPath": "spec.nodeName"}}, "local"),
        ({"fieldRef": {"fieldPath": "spec.serviceAccountName"}}, "trainer"),
        ({"fieldRef": {"fieldPath": "status.podIP"}}, "10.244.0.7"),
        ({"fieldRef": {"fieldPath": "status.hostIP"}}, "10.244.0.1"),
        ({"configMapKeyRef": {"name": "settings", "key": "lr"}}, "0.1"),
        ({"secretKeyRef": {"name": "keys", "key": "token"}}, "s3cret"),
        ({"resourceFieldRef": {"resource": "limits.cpu"}}, "2"),
        ({"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}, "1500"),
        ({"resourceFieldRef": {"resource": "requests.memory", "divisor": "1Mi"}}, "512"),
        ({"resourceFieldRef": {"resource": "limits.memory"}}, str(1024**3)),
        ({"resourceFieldRef": {"resource": "requests.cpu"}}, "2"),
        ({"resourceFieldRef": {"resource": "limits.cpu", "containerName": "first"}}, "1"),
    ],
)
def test_values_come_from_where_they_are_asked_for(origin: dict[str, Any], value: str) -> None:
    resources = {"limits": {"cpu": "1500m"}, "requests": {"memory": "512Mi"}}
    assert environment_of(env=[{"name": "X", "valueFrom": origin}], resources=resources) == {"X": value}


@pytest.mark.parametrize(
    ("container", "message"),
    [
        ({"envFrom": [{"configMapRef": {"name": "gone"}}]}, 'configmap "gone" not found'),
        ({"envFrom": [{"secretRef": {"name": "gone"}}]}, 'secret "gone" not found'),
        (
            {"env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "gone", "key": "k"}}}]},
            'configmap "gone" not found',
        ),
        (
            {"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "k"}}}]},
            "couldn't find key k in Secret team/keys",
        ),
        (
            {"env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "raw"}}}]},
            "couldn't find key raw in ConfigMap team/settings",
        ),
        (
            {"env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "spec.color"}}}]},
            "unsupported fieldPath: spec.color",
        ),
    ],
)
def test_missing_references_are_reported_with_kubelets_messages(container: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        environment_of(**container)
    assert str(error.value) == message


def test_optional_keys_that_are_missing_leave_no_variable() -> None:
    refs = [
        {"configMapKeyRef": {"name": "gone", "key": "k", "optional": True}},
        {"secretKeyRef": {"name": "keys", "key": "k", "optional": True}},
    ]
    assert environment_of(env=[{"name": "X", "valueFrom": ref} for ref in refs]) == {}


def test_references_name_the_objects_to_fetch() -> None:
    container = {
        "envFrom": [{"configMapRef": {"name": "a"}}, {"secretRef": {"name": "b"}}],
        "env": [
            {"name": "X", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
            {"name": "Y", "valueFrom": {"secretKeyRef": {"name": "d", "key": "k"}}},
            {"name": "Z", "value": "z"},
        ],
    }
    assert references(container) == {
        Reference("configmap", "a"),
        Reference("secret", "b"),
        Reference("configmap", "c"),
        Reference("secret", "d"),
    }


def test_command_and_arguments_expand_the_containers_own_variables() -> None:
    container = {"command": ["python", "$(SCRIPT)"], "args": ["--rank=$(RANK)", "$(HOME)"]}
    words = command_line(container, {"SCRIPT": "t.py", "RANK": "3"})
    assert words == ["python", "t.py", "--rank=3", "$(HOME)"]


def test_all_labels_are_listed_for_a_downward_volume() -> None:
    assert pod_field(make_pod(), "metadata.labels", HERE) == 'b="2"\ntraining.kubeflow.org/job-name="job"'
    assert pod_field(make_pod(), "metadata.annotations", HERE) == 'note="say \\"hi\\"\\nthere"'


def test_unknown_resources_and_containers_are_refused() -> None:
    with pytest.raises(ConfigError, match="unsupported container resource"):
        resource_field(make_pod(), {"resource": "color"}, HERE, default={})
    with pytest.raises(ConfigError, match="container nobody not found"):
        resource_field(make_pod(), {"resource": "limits.cpu", "containerName": "nobody"}, HERE)


@pytest.mark.parametrize(
    ("text", "number"),
    [("1", 1), ("1500m", 1.5), ("2k", 2000), ("1Ki", 1024), ("1.5Gi", 1.5 * 1024**3), ("1e3", 1000), ("3E", 3e18)],
)
def test_quantities_are_exact_numbers(text: str, number: float) -> None:
    assert exact_amount(text) == number


@pytest.mark.parametrize("text", ["", "many", "1Q", "1 2", "--1"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        exact_amount(text)


def test_a_known_image_needs_no_command():
    image = "registry.example:5000/kubeflow/kubectl-delivery:latest"
    assert command_line({"image": image}, {})[:2] == ["/bin/sh", "-c"]
    assert command_line({"image": image, "command": ["true"]}, {}) == ["true"]
    assert command_line({"image": "kubectl"}, {}) == []
