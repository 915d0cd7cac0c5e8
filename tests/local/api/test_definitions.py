"""CRDs: served at once, in several versions, with their schema and subresources, until they are deleted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from tests.local.api.support import APPLY, DEFINITIONS, STRATEGIC, TASKS, Api, definition, settle, task

NEWER = TASKS.replace("/v1/", "/v2/")


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    api = Api()
    run = asyncio.create_task(api.server.run())
    await api.create(DEFINITIONS, definition("v2"))
    yield api
    run.cancel()
    with suppress(asyncio.CancelledError):
        await run


async def test_is_served_at_once(api: Api):
    made = (await api("GET", f"{DEFINITIONS}/tasks.example.com")).json
    conditions = {condition["type"]: condition["status"] for condition in made["status"]["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}
    assert made["status"]["storedVersions"] == ["v1"]
    assert made["spec"]["names"]["listKind"] == "TaskList"
    group = (await api("GET", "/apis/example.com")).json
    assert [version["version"] for version in group["versions"]] == ["v2", "v1"]
    listed = (await api("GET", "/apis/example.com/v1")).json["resources"]
    assert [entry["name"] for entry in listed] == ["tasks", "tasks/status", "tasks/scale"]
    assert (await api("GET", TASKS)).json["kind"] == "TaskList"


async def test_defaults_prunes_and_validates(api: Api):
    made = await api.create(TASKS, task("t", odd=1))
    assert made["spec"] == {"command": "x", "replicas": 1}
    refused = await api("POST", TASKS, task("u", replicas=-1))
    assert (refused.code, refused.json["details"]["causes"][0]) == (
        422,
        {
            "reason": "FieldValueInvalid",
            "message": "Invalid value: -1: spec.replicas in body should be greater than or equal to 0",
            "field": "spec.replicas",
        },
    )
    strict = await api("POST", TASKS, task("u", odd=1), fieldValidation="Strict")
    assert strict.json["message"] == (
        'Task in version "v1" cannot be handled as a Task: strict decoding error: unknown field "spec.odd"'
    )


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ({"kind": "Foo"}, 422, 'Foo.example.com "t" is invalid: kind: Invalid value: "Foo": must be Task'),
        (
            {"apiVersion": "example.com/v9"},
            400,
            "the API version in the data (example.com/v9) does not match the expected API version (example.com/v1)",
        ),
        (
            {"metadata": {"name": "t", "labels": {"a": 1}}},
            400,
            (
                'Task in version "v1" cannot be handled as a Task: json: cannot unmarshal number into Go struct field '
                "ObjectMeta.labels of type string"
            ),
        ),
    ],
)
async def test_an_object_must_be_what_the_url_says(api: Api, change: dict[str, Any], code: int, message: str):
    refused = await api("POST", TASKS, {**task(), **change})
    assert (refused.code, refused.json["message"]) == (code, message)


async def test_generation_counts_changes_of_the_specification(api: Api):
    assert (await api.create(TASKS, task()))["metadata"]["generation"] == 1
    table: list[tuple[str, Any, int]] = [
        ("", {"metadata": {"labels": {"a": "b"}}}, 1),
        ("", {"spec": {"replicas": 2}}, 2),
        ("", {"spec": {"replicas": 2}}, 2),
        ("/status", {"status": {"phase": "R"}}, 2),
    ]
    for part, patch, generation in table:
        assert (await api.patch(f"{TASKS}/t{part}", patch)).json["metadata"]["generation"] == generation


async def test_status_is_a_subresource(api: Api):
    await api.create(TASKS, {**task(), "status": {"phase": "X"}})
    assert "status" not in (await api("GET", f"{TASKS}/t")).json
    patch = {"status": {"phase": "R"}, "spec": {"replicas": 7}, "metadata": {"labels": {"a": "b"}}}
    written = (await api.patch(f"{TASKS}/t/status", patch)).json
    assert (written["status"], written["spec"]["replicas"], "labels" in written["metadata"]) == (
        {"phase": "R"},
        1,
        False,
    )
    late = await api.patch(f"{TASKS}/t/status", {"metadata": {"resourceVersion": "1"}, "status": {"phase": "Q"}})
    assert late.json["reason"] == "Conflict"


async def test_scales(api: Api):
    await api.create(TASKS, task(replicas=3))
    await api.patch(f"{TASKS}/t/status", {"status": {"replicas": 2}})
    scale = (await api("GET", f"{TASKS}/t/scale")).json
    assert (scale["kind"], scale["spec"], scale["status"]) == ("Scale", {"replicas": 3}, {"replicas": 2})
    assert (await api.patch(f"{TASKS}/t/scale", {"spec": {"replicas": 5}})).json["spec"] == {"replicas": 5}
    assert (await api("GET", f"{TASKS}/t")).json["spec"]["replicas"] == 5
    old = {**scale, "spec": {"replicas": 1}}
    assert (await api("PUT", f"{TASKS}/t/scale", old)).json["reason"] == "Conflict"
    assert (await api.patch(f"{TASKS}/t/scale", {"spec": {"replicas": -1}})).code == 422


async def test_versions_are_views_of_one_object(api: Api):
    await api.create(NEWER, {**task(), "apiVersion": "example.com/v2"})
    assert (await api("GET", f"{TASKS}/t")).json["apiVersion"] == "example.com/v1"
    watch = await api.watch(NEWER)
    await api.patch(f"{TASKS}/t", {"spec": {"command": "y"}})
    events = [await watch.next() for _ in range(2)]
    assert [(event["type"], event["object"]["apiVersion"]) for event in events] == [
        ("ADDED", "example.com/v2"),
        ("MODIFIED", "example.com/v2"),
    ]
    assert (await api("GET", NEWER)).json["items"][0]["spec"]["command"] == "y"


async def test_patches_of_custom_objects(api: Api):
    await api.create(TASKS, task())
    refused = await api.patch(f"{TASKS}/t", {"spec": {"command": "z"}}, STRATEGIC)
    assert (refused.code, refused.json["reason"]) == (415, "UnsupportedMediaType")
    applied = await api.patch(f"{TASKS}/new", task("new"), APPLY, fieldManager="me")
    assert applied.code == 201
    unknown = await api.patch(f"{TASKS}/new", task("new", odd=1), APPLY, fieldManager="me")
    assert (unknown.code, unknown.json["message"]) == (
        500,
        (
            "failed to create typed patch object (/new; example.com/v1, Kind=Task): "
            ".spec.odd: field not declared in schema"
        ),
    )


async def test_deletion_takes_the_objects_along_and_ends_their_watches(api: Api):
    await api.create(TASKS, task())
    watch = await api.watch(TASKS)
    going = (await api("DELETE", f"{DEFINITIONS}/tasks.example.com")).json
    assert going["metadata"]["finalizers"] == ["customresourcecleanup.apiextensions.k8s.io"]
    refused = await api("POST", TASKS, task("late"))
    assert (refused.code, refused.json["message"]) == (
        405,
        "create not allowed while custom resource definition is terminating",
    )
    await settle()
    assert (await api("GET", f"{DEFINITIONS}/tasks.example.com")).code == 404
    assert (await api("GET", TASKS)).code == 404
    assert await watch.next_events(2) == [("ADDED", "t"), ("DELETED", "t")]
    assert await watch.next() is None


async def test_refuses_definitions_that_cannot_be_served(api: Api):
    wrong = definition()
    wrong["metadata"]["name"] = "other.example.com"
    refused = await api("POST", DEFINITIONS, wrong)
    assert refused.json["message"] == (
        'CustomResourceDefinition.apiextensions.k8s.io "other.example.com" is invalid: metadata.name: '
        'Invalid value: "other.example.com": must be spec.names.plural+"."+spec.group'
    )
    loose = definition()
    del loose["spec"]["versions"][0]["schema"]
    assert (await api("POST", DEFINITIONS, loose)).code == 422
