"""Structural schemas: pruning, defaulting and validation as recorded from a kube-apiserver 1.37.2."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.local.semantics.recordings import recorded
from trainop.local.api.schema.crd_schema import Schema, SchemaError, invalid_message

RECORDED = recorded("schema")
SCHEMA = Schema(RECORDED["schema"])


def thing(**spec: Any) -> dict[str, Any]:
    head = {"apiVersion": "test.trainop/v1", "kind": "Thing", "metadata": {"name": "x"}}
    return {**head, "spec": {"must": "m", **spec}}


def answer(body: dict[str, Any]) -> tuple[int, Any]:
    """The answer to the creation of an object with `fieldValidation=Strict`."""
    pruned, unknown = SCHEMA.prune({**thing(), "spec": {}, **body} if "spec" in body else _without_spec())
    if unknown:
        reported = ", ".join(f'unknown field "{path}"' for path in unknown)
        message = f'Thing in version "v1" cannot be handled as a Thing: strict decoding error: {reported}'
        return 400, {"message": message, "causes": []}
    value = SCHEMA.default(pruned)
    errors = SCHEMA.validate(value)
    if errors:
        causes = [[error.reason, error.message, error.path] for error in errors]
        return 422, {"message": invalid_message("Thing.test.trainop", "x", errors), "causes": causes}
    return 201, value.get("spec")


def _without_spec() -> dict[str, Any]:
    return {name: value for name, value in thing().items() if name != "spec"}


@pytest.mark.parametrize("case", RECORDED["answers"], ids=lambda case: json.dumps(case["body"].get("spec"))[:70])
def test_answers_of_the_api_server(case: Any):
    body = copy.deepcopy(case["body"])
    assert answer(body) == (case["code"], case["answer"])
    assert body == case["body"]


def complaints(new: dict[str, Any], old: dict[str, Any] | None = None) -> list[str]:
    return [str(error) for error in SCHEMA.validate(new, old)]


def test_transition_rules_bind_where_old_and_new_have_the_field():
    assert complaints(thing(q="b"), thing(q="a")) == ['spec.q: Invalid value: "string": q is immutable']
    assert complaints(thing(q2="b"), thing(q2="a")) == [
        'spec.q2: Invalid value: "string": failed rule: self == oldSelf'
    ]
    assert complaints(thing(q="a"), thing(q="a")) == []
    assert complaints(thing(q="a"), thing()) == []
    assert complaints(thing(), thing(q="a")) == []
    assert complaints(thing(q="a")) == []


def test_rules_are_not_looked_at_while_types_are_wrong():
    reported = complaints(thing(q="b", s=1), thing(q="a"))
    assert reported[0] == 'spec.s: Invalid value: "integer": spec.s in body must be of type string: "integer"'
    assert reported[1].startswith("<nil>: Invalid value: null: some validation rules were not checked")
    assert len(reported) == 2


STORED = thing(s="abcde", lm=[{"name": "a", "v": "x"}, {"name": "b", "v": 9}], l=["x", "y"], m={"a": "x"})
"""As an older schema would have let it in."""


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ({}, []),
        ({"p": "abc"}, []),
        ({"s": "vwxyz"}, ["spec.s"]),
        ({"lm": [{"name": "b", "v": 9}, {"name": "a", "v": "x"}]}, []),
        ({"lm": [{"name": "a", "v": "x"}, {"name": "c", "v": "z"}]}, ["spec.lm[1].v"]),
        ({"l": ["x"]}, ["spec.l[0]"]),
        ({"m": {"a": "x", "b": 1}}, []),
        ({"m": {"a": "y"}}, ["spec.m.a"]),
    ],
)
def test_an_update_reports_no_errors_of_unchanged_fields(change: dict[str, Any], fields: list[str]):
    new = {**STORED, "spec": {**STORED["spec"], **change}}
    assert [error.path for error in SCHEMA.validate(new, STORED) if error.path != "<nil>"] == fields
    assert {error.path for error in SCHEMA.validate(STORED)} == {
        *("spec.s", "spec.lm[0].v", "spec.l[0]", "spec.l[1]", "spec.m.a", "<nil>")
    }


def test_pruning_reports_dropped_fields_and_keeps_preserved_ones():
    body = {
        **thing(keep={"x": {"y": 1}, "o": {"z": "1", "gone": 1}}, foo=1, deep={"bar": 1}),
        "metadata": {"name": "x", "foo": 1, "labels": {"any": "thing"}},
        "extra": {},
    }
    pruned, unknown = SCHEMA.prune(body)
    assert unknown == ["metadata.foo", "extra", "spec.deep.bar", "spec.foo", "spec.keep.o.gone"]
    assert pruned["spec"] == {"must": "m", "keep": {"x": {"y": 1}, "o": {"z": "1"}}, "deep": {}}
    assert pruned["metadata"] == {"name": "x", "labels": {"any": "thing"}}
    assert "extra" not in pruned


def test_embedded_objects_keep_their_metadata():
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "bogus": 1}, "spec": {"any": "thing"}}
    pruned, unknown = SCHEMA.prune(thing(emb=pod))
    assert unknown == ["spec.emb.metadata.bogus"]
    assert pruned["spec"]["emb"] == {**pod, "metadata": {"name": "a"}}


def test_defaults_are_applied_deeply_and_copied():
    first = SCHEMA.default(thing(lm=[{"name": "a"}], deep={"x": {}}))
    assert first["spec"]["lm"] == [{"name": "a", "v": 5}]
    assert first["spec"]["deep"] == {"x": {"y": 3}, "w": "dw"}
    first["spec"]["deep"]["w"] = "changed"
    second = SCHEMA.default(thing())
    assert second["spec"]["deep"] == {"w": "dw"}
    assert second["spec"]["b"] is True


def test_nulls():
    spec = SCHEMA.default(thing(s=None, b=None, nul=None, keep={"unseen": None}))["spec"]
    assert spec["nul"] is None
    assert spec["b"] is True
    assert spec["keep"] == {"unseen": None}
    assert "s" not in spec


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 20) | st.text("abz", max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abxyz"), inner, max_size=2),
    max_leaves=6,
)
FIELDS = st.sampled_from(sorted(RECORDED["schema"]["properties"]["spec"]["properties"]))


@given(st.dictionaries(FIELDS, JSON, max_size=4))
def test_pruning_and_defaulting_twice_change_nothing_more(spec: dict[str, Any]):
    body = thing(**spec)
    kept = copy.deepcopy(body)
    pruned, _ = SCHEMA.prune(body)
    assert SCHEMA.prune(pruned) == (pruned, [])
    value = SCHEMA.default(pruned)
    assert SCHEMA.default(value) == value
    SCHEMA.validate(value)
    assert not any("type" in error.reason.lower() for error in SCHEMA.validate(value, value))
    assert body == kept


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({}, 'type: Invalid value: "": must be object at the root'),
        ({"type": "array"}, 'type: Invalid value: "array": must be object at the root'),
        (
            {"type": "object", "properties": {"a": {}}},
            "properties[a].type: Required value: must not be empty for specified object fields",
        ),
        (
            {"type": "object", "properties": {"a": {"type": "array"}}},
            "properties[a].items: Required value: must be specified",
        ),
        (
            {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "string"}},
            "additionalProperties: Forbidden: properties and additionalProperties are exclusive",
        ),
    ],
)
def test_schemas_that_are_not_structural(schema: dict[str, Any], message: str):
    with pytest.raises(SchemaError) as caught:
        Schema(schema)
    assert str(caught.value) == message


def test_rules_that_cannot_be_checked_are_reported():
    rule = {"rule": "self.all(x, x > 1)"}
    schema = {"type": "object", "properties": {"a": {"type": "object", "x-kubernetes-validations": [rule]}}}
    compiled = Schema(schema)
    assert compiled.warnings == ["the rule 'self.all(x, x > 1)' is not checked here: function 'all' is not known"]
    assert compiled.validate({"a": {}}) == []


def test_one_message_for_all_complaints():
    errors = SCHEMA.validate(thing(num=0, p="A"))
    assert invalid_message("Thing.test.trainop", "x", errors[:1]).startswith('Thing.test.trainop "x" is invalid: spec.')
    both = invalid_message("Thing.test.trainop", "x", [*errors, errors[0]])
    assert both == (
        'Thing.test.trainop "x" is invalid: [spec.num: Invalid value: 0: spec.num in body should be greater than or '
        "equal to 1, spec.p: Invalid value: \"A\": spec.p in body should match '^[a-z]+$']"
    )
