"""Misspelt fields of pod templates, found by the types of Kubernetes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from trainop.engine.unknown_fields import MAX_FOUND, describe_dropped_field, describe_unknown_fields
from trainop.programs.schemes import crds
from trainop.runtime.objects.core_types import POD_TEMPLATE, SCHEMA_PREFIX, newest_schemas

AT = "spec.tfReplicaSpecs.Worker.template"


def said(template: Any) -> list[str]:
    """The messages about a job of one role, without the path of the template."""
    job = {"spec": {"tfReplicaSpecs": {"Worker": {"replicas": 1, "template": template}}}}
    found = list(describe_unknown_fields(job))
    assert all(text.startswith(f"{AT}.") for text in found)
    return [text.removeprefix(f"{AT}.") for text in found]


def in_container(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "tensorflow", "image": "i", **fields}]}}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (in_container(resource={}), 'spec.containers[0].resource: unknown field, did you mean "resources"?'),
        (in_container(volumeMount=[]), 'spec.containers[0].volumeMount: unknown field, did you mean "volumeMounts"?'),
        (in_container(envs=[]), 'spec.containers[0].envs: unknown field, did you mean "env"?'),
        (in_container(working_dir=""), 'spec.containers[0].working_dir: unknown field, did you mean "workingDir"?'),
        (in_container(xyz=1), "spec.containers[0].xyz: unknown field"),
        (
            in_container(env=[{"name": "A", "valueFrom": {"fieldRef": {"path": "x"}}}]),
            'spec.containers[0].env[0].valueFrom.fieldRef.path: unknown field, did you mean "fieldPath"?',
        ),
        (in_container(limits={}), 'spec.containers[0].limits: unknown field, did you mean "resources.limits"?'),
        (
            in_container(nodeSelector={}),
            f'spec.containers[0].nodeSelector: unknown field, did you mean "{AT}.spec.nodeSelector"?',
        ),
        ({"spec": {"image": "i"}}, 'spec.image: unknown field, did you mean "containers[].image"?'),
        ({"spec": {"Containers": []}}, 'spec.Containers: unknown field, did you mean "containers"?'),
        ({"metadata": {"label": {}}}, 'metadata.label: unknown field, did you mean "labels"?'),
        ({"specs": {}}, 'specs: unknown field, did you mean "spec"?'),
    ],
)
def test_the_message_names_the_field_and_what_was_meant(template: dict[str, Any], text: str):
    assert said(template) == [text]


def of_type(schema: dict[str, Any], schemas: dict[str, Any]) -> Any:
    """A value of the schema with every field that it declares."""
    if "$ref" in schema:
        return of_type(schemas[schema["$ref"].removeprefix(SCHEMA_PREFIX)], schemas)
    if "properties" in schema:
        return {name: of_type(part, schemas) for name, part in schema["properties"].items()}
    if schema.get("type") == "array":
        return [of_type(schema["items"], schemas)]
    if isinstance(schema.get("additionalProperties"), dict):
        return {"any.key/of": of_type(schema["additionalProperties"], schemas)}
    return "x"


def test_every_field_of_kubernetes_is_known():
    schemas = newest_schemas()
    template = of_type(schemas[POD_TEMPLATE], schemas)
    assert said(template) == []
    assert "schedulingGroup" in template["spec"]  # of Kubernetes 1.37
    assert template["spec"]["volumes"][0]["emptyDir"].keys() == {"medium", "sizeLimit", "mode"}


def templates_of(schema: dict[str, Any]) -> Iterator[list[str]]:
    """The paths of all pod templates in a schema; a map of roles has the role `Worker`."""
    if "containers" in schema.get("properties", {}).get("spec", {}).get("properties", {}):
        yield []
        return
    inner = dict(schema.get("properties", {}))
    if isinstance(schema.get("additionalProperties"), dict):
        inner["Worker"] = schema["additionalProperties"]
    for name, part in inner.items():
        yield from ([name, *path] for path in templates_of(part))


ALL = [
    (definition["metadata"]["name"], version["name"], path)
    for definition in crds()
    for version in definition["spec"]["versions"]
    for path in templates_of(version["schema"]["openAPIV3Schema"])
]


@pytest.mark.parametrize(("name", "version", "path"), ALL)
def test_every_template_of_every_crd_is_looked_into(name: str, version: str, path: list[str]):
    job: Any = {"specs": {}}
    for part in reversed(path):
        job = {part: job}
    at = ".".join(path)
    assert list(describe_unknown_fields(job)) == [f'{at}.specs: unknown field, did you mean "spec"?']


def test_all_crds_have_templates():
    assert {name for name, _, _ in ALL} == {definition["metadata"]["name"] for definition in crds()}


@pytest.mark.parametrize("spec", [None, 7, "x", [], {"template": 1}, {"a": {"b": {"template": []}}}])
def test_no_content_raises(spec: Any):
    assert list(describe_unknown_fields({"spec": spec})) == []


@pytest.mark.parametrize(
    "template", [{"spec": 1}, {"spec": {"containers": 1}}, {"spec": {"containers": [1, None, []]}}]
)
def test_wrong_types_are_left_to_the_api_server(template: dict[str, Any]):
    assert said(template) == []


def test_the_number_and_the_length_of_messages_are_bounded():
    found = said(in_container(**{f"x{index}": 1 for index in range(100_000)}))
    assert len(found) == MAX_FOUND
    (text,) = said(in_container(**{"x" * 1_000_000: 1}))
    assert len(text) < 200
    deep: Any = 1
    for _ in range(500):
        deep = {"securityContext": [deep]}
    said({"spec": deep})  # the types end long before
    long: Any = {"spec": {"tfReplicaSpecs": {"R" * 1_000_000: {"template": {"specs": {}}}}}}
    assert all(len(text) < 300 for text in describe_unknown_fields(long))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("spec.containers[0].resource", f'{AT}.spec.containers[0].resource: unknown field, did you mean "resources"?'),
        ("spec.odd.field", f"{AT}.spec.odd.field: unknown field"),
        ("odd", f"{AT}.odd: unknown field"),
        ("", f"{AT}.: unknown field"),
    ],
)
def test_a_field_that_the_api_server_has_dropped(path: str, text: str):
    assert describe_dropped_field(AT, path) == text
