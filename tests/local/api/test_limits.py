"""Requests that nest too deeply, are too large or expand too much: each is refused with a message, and the server
continues."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.local.api.support import (
    APPLY,
    CONFIG_MAPS,
    DEFINITIONS,
    JSON_PATCH,
    MERGE,
    PODS,
    Api,
    config_map,
    definition,
)

FREE = "/apis/free.example.com/v1/namespaces/default/frees"
KIND: Any = json.loads(json.dumps(definition()).replace("example.com", "free.example.com").replace("tasks", "frees"))
KIND["spec"]["names"]["kind"] = "Free"
KIND["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = {
    "type": "object",
    "x-kubernetes-preserve-unknown-fields": True,
}


def free(name: str, spec: bytes) -> bytes:
    head = b'{"apiVersion":"free.example.com/v1","kind":"Free","metadata":{"name":"%s"},"spec":' % name.encode()
    return head + spec + b"}"


@pytest.fixture
async def api() -> Api:
    api = Api()
    await api.create(DEFINITIONS, KIND)
    assert (await api("POST", FREE, free("held", b'{"a":["x"]}'))).code == 201
    return api


def nested(levels: int, opening: bytes = b'{"a":', closing: bytes = b"}") -> bytes:
    return opening * levels + b"1" + closing * levels


@pytest.mark.parametrize("levels", [501, 960, 5_000, 9_900, 200_000])
@pytest.mark.parametrize("brackets", [(b'{"a":', b"}"), (b"[", b"]")], ids=["maps", "lists"])
async def test_what_is_nested_too_deeply_is_refused(api: Api, levels: int, brackets: tuple[bytes, bytes]):
    deep = nested(levels, *brackets)
    asked = [
        await api("POST", FREE, free("deep", deep)),
        await api("POST", FREE, free("deep", deep), fieldValidation="Strict"),
        await api("PUT", f"{FREE}/held", free("held", deep)),
        await api("PATCH", f"{FREE}/held", b'{"spec":' + deep + b"}", MERGE),
        await api("PATCH", f"{FREE}/held", b'[{"op":"add","path":"/spec/a","value":' + deep + b"}]", JSON_PATCH),
        await api("PATCH", f"{FREE}/deep", free("deep", deep), APPLY, fieldManager="me"),
        await api("POST", PODS, b'{"metadata":{"name":"p"},"spec":{"affinity":' + deep + b"}}"),
        await api("POST", CONFIG_MAPS, b'{"metadata":{"name":"p"},"data":{"a":' + deep + b"}}"),
        await api("DELETE", f"{FREE}/held", deep),
    ]
    assert [answer.code for answer in asked] == [400] * len(asked)
    assert asked[0].json["message"] == "the object is nested too deeply: this server takes 500 levels"
    assert (await api("GET", FREE)).items == ["held"]


async def test_what_is_nested_as_deeply_as_allowed_can_be_used(api: Api):
    deep = nested(498)
    assert (await api("POST", FREE, free("deep", deep))).code == 201
    for accept in ("application/json", "application/json;as=Table;v=v1;g=meta.k8s.io"):
        assert (await api("GET", f"{FREE}/deep", accept=accept)).code == 200
    assert (await api.patch(f"{FREE}/deep", {"metadata": {"labels": {"a": "b"}}})).code == 200
    assert (await api("PATCH", f"{FREE}/more", free("more", deep), APPLY, fieldManager="me")).code == 201
    assert (await api("DELETE", f"{FREE}/deep")).code == 200


async def test_a_patch_that_doubles_what_it_copies_is_refused(api: Api):
    copies = [{"op": "copy", "from": "/spec", "path": f"/spec/b{number}"} for number in range(40)]
    refused = await api.patch(f"{FREE}/held", copies, JSON_PATCH)
    assert refused.code == 400
    assert "expanded size" in refused.json["message"]
    assert (await api("GET", f"{FREE}/held")).json["spec"] == {"a": ["x"]}


async def test_aliases_that_multiply_are_refused(api: Api):
    lines = ["apiVersion: free.example.com/v1", "kind: Free", "metadata: {name: bomb}", "a0: &a0 [1, 1, 1, 1]"]
    lines += [f"a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 9)}]" for number in range(1, 30)]
    for body in ("\n".join(lines), "apiVersion: free.example.com/v1\nkind: Free\nspec: &s [*s]"):
        refused = await api("PATCH", f"{FREE}/bomb", body.encode(), APPLY, fieldManager="me")
        assert refused.code == 400


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b'{"metadata":{"name":"u"},"data":{"a":"\xff\xfe"}}', "application/json"),
        (b'{"metadata":{"name":"u"},"data":{"a":"\\ud800"}}', "application/json"),
        (b'metadata: {name: u}\ndata: {a: "\\ud800"}', "application/yaml"),
        (b"\xff\xfe\x00", "application/yaml"),
    ],
)
async def test_text_that_is_not_utf_8_is_refused(api: Api, body: bytes, content_type: str):
    assert (await api("POST", CONFIG_MAPS, body, content_type)).code == 400
    assert (await api("PATCH", f"{FREE}/held", body, MERGE)).code == 400


@pytest.mark.parametrize("operation", [{"op": ["x"], "path": "/a"}, {"op": {}, "path": 7}, {"op": None}, {}])
async def test_operations_that_are_none_are_refused(api: Api, operation: Any):
    assert (await api.patch(f"{FREE}/held", [operation], JSON_PATCH)).code == 422


@pytest.mark.parametrize(
    "options",
    [
        {"gracePeriodSeconds": "x"},
        {"gracePeriodSeconds": True},
        {"preconditions": "x"},
        {"propagationPolicy": ["x"]},
    ],
)
async def test_options_of_a_deletion_that_are_mistyped_are_refused(api: Api, options: Any):
    assert (await api("DELETE", f"{FREE}/held", options)).code in {400, 422}
    assert (await api("GET", FREE)).items == ["held"]


@pytest.mark.parametrize("query", ["gracePeriodSeconds=x", "gracePeriodSeconds=" + "9" * 5000])
async def test_queries_of_a_deletion_that_are_mistyped_are_refused(api: Api, query: str):
    assert (await api("DELETE", f"{FREE}/held?{query}")).code == 400


@pytest.mark.parametrize("version", ["9" * 5000, "9" * 21, "x", "-1"])
async def test_versions_that_no_number_holds_are_refused(api: Api, version: str):
    assert (await api("GET", PODS, resourceVersion=version)).code == 400


@pytest.mark.parametrize("kind", ["validating", "mutating"])
async def test_admission_webhooks_are_refused_because_they_are_not_called(kind: str):
    api = Api()
    path = f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations"
    webhook = {
        "name": "a.b.c",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    refused = await api("POST", path, {"metadata": {"name": "w"}, "webhooks": [webhook]})
    assert refused.code == 422
    assert "this cluster calls no admission webhooks" in refused.json["message"]
    assert (await api("POST", path, {"metadata": {"name": "w"}})).code == 201  # it sends no request
    assert (await api.patch(f"{path}/w", {"webhooks": [webhook]})).code == 422
    ignored = {"metadata": {"name": "i"}, "webhooks": [{**webhook, "failurePolicy": "Ignore"}]}
    answer = await api("POST", path, ignored)
    assert answer.code == (201 if kind == "validating" else 422)  # a skipped mutation would change the object
    if kind == "validating":
        assert "this cluster calls no admission webhooks" in answer.headers["warning"]
        assert (await api.patch(f"{path}/i", {"webhooks": [{**webhook, "failurePolicy": "Fail"}]})).code == 422
    assert (await api("POST", CONFIG_MAPS, config_map())).code == 201
