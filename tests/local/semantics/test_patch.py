"""JSON patch, merge patch and strategic merge patch."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.local.semantics.recordings import recorded
from trainop.local.api.fields.json_patch import (
    MalformedPatchError,
    PatchError,
    json_patch,
    merge_patch,
    strategic_merge_patch,
)
from trainop.local.api.schema.shapes import Shape, shape_of_kind

LEAVES = st.one_of(st.booleans(), st.integers(-3, 3), st.text("ab~/", max_size=3))
NAMES = st.text("ab~/", max_size=3)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=12
)
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=4)


def same(left: Any, right: Any) -> bool:
    """Equality of JSON values, where true differs from 1."""
    return repr(left) == repr(right) if not isinstance(left, dict | list) else _same_parts(left, right)


def _same_parts(left: Any, right: Any) -> bool:
    if type(left) is not type(right) or len(left) != len(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)
    return all(same(a, b) for a, b in zip(left, right, strict=True))


def difference(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The merge patch that leads from one object to another."""
    patch: dict[str, Any] = dict.fromkeys(old.keys() - new.keys())
    for name, value in new.items():
        before = old.get(name)
        if isinstance(before, dict) and isinstance(value, dict):
            patch[name] = difference(before, value)
        else:
            patch[name] = value
    return patch


# Merge patch ----------------------------------------------------------------------------------------------------------


@given(OBJECTS, OBJECTS)
def test_a_merge_patch_made_of_a_difference_leads_there(old: dict[str, Any], new: dict[str, Any]):
    kept = copy.deepcopy(old)
    # An object that replaces a value of another type is merged into an empty object.
    assert same(merge_patch(old, difference(old, new)), new)
    assert old == kept


@given(OBJECTS, OBJECTS)
def test_a_merge_patch_twice_is_the_same_as_once(value: dict[str, Any], patch: dict[str, Any]):
    once = merge_patch(value, patch)
    assert same(merge_patch(once, patch), once)


@pytest.mark.parametrize(
    ("value", "patch", "result"),
    [  # RFC 7386, appendix A
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patches_of_the_rfc(value: Any, patch: Any, result: Any):
    assert merge_patch(value, patch) == result


# JSON patch -----------------------------------------------------------------------------------------------------------


@given(OBJECTS, st.sampled_from(["x", "a/b", "~", "~1", ""]), VALUES)
def test_what_is_added_can_be_tested_moved_and_removed(value: dict[str, Any], name: str, new: Any):
    pointer = "/" + name.replace("~", "~0").replace("/", "~1")
    kept = copy.deepcopy(value)
    added = json_patch(value, [{"op": "add", "path": pointer, "value": new}])
    assert same(added, {**value, name: new})
    moved = json_patch(
        added,
        [
            {"op": "test", "path": pointer, "value": new},
            {"op": "move", "from": pointer, "path": "/elsewhere"},
            {"op": "copy", "from": "/elsewhere", "path": pointer},
            {"op": "remove", "path": "/elsewhere"},
        ],
    )
    assert same(moved, added)
    assert value == kept


@pytest.mark.parametrize(
    ("value", "operation", "result"),
    [
        ({"a": [1, 2]}, {"op": "add", "path": "/a/1", "value": 9}, {"a": [1, 9, 2]}),
        ({"a": [1, 2]}, {"op": "add", "path": "/a/2", "value": 9}, {"a": [1, 2, 9]}),
        ({"a": [1, 2]}, {"op": "add", "path": "/a/-", "value": 9}, {"a": [1, 2, 9]}),
        ({"a": [1, 2]}, {"op": "remove", "path": "/a/0"}, {"a": [2]}),
        ({"a": [1, 2]}, {"op": "replace", "path": "/a/1", "value": None}, {"a": [1, None]}),
        ({"a": {"b": 1}}, {"op": "replace", "path": "/a", "value": {}}, {"a": {}}),
        ({"a": 1}, {"op": "replace", "path": "", "value": {"b": 2}}, {"b": 2}),
        ({"a": 1}, {"op": "add", "path": "", "value": {"b": 2}}, {"b": 2}),
        ({"a": [1, 2, 3]}, {"op": "move", "from": "/a/0", "path": "/a/2"}, {"a": [2, 3, 1]}),
        ({"a": {"b": 1}}, {"op": "copy", "from": "/a", "path": "/c"}, {"a": {"b": 1}, "c": {"b": 1}}),
        ({"a": None}, {"op": "test", "path": "/a", "value": None}, {"a": None}),
        ({}, {"op": "test", "path": "/a", "value": None}, {}),
        ({"": {"": 1}}, {"op": "remove", "path": "//"}, {"": {}}),
    ],
)
def test_operations(value: Any, operation: Any, result: Any):
    assert same(json_patch(value, [operation]), result)


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        ({"op": "remove", "path": "/x"}, "doc is missing key: /x"),
        ({"op": "replace", "path": "/x", "value": 1}, "doc is missing key: /x"),
        ({"op": "add", "path": "/x/y", "value": 1}, "doc is missing path: /x/y"),
        ({"op": "add", "path": "/a/9", "value": 1}, "invalid index referenced: 9"),
        ({"op": "add", "path": "/a/-1", "value": 1}, "invalid index referenced: -1"),
        ({"op": "add", "path": "/a/01", "value": 1}, "invalid index referenced: 01"),
        ({"op": "remove", "path": "/a/-"}, "invalid index referenced: -"),
        ({"op": "test", "path": "/a", "value": 1}, "testing value /a failed"),
        ({"op": "test", "path": "/t", "value": 1}, "testing value /t failed"),
        ({"op": "move", "from": "/x", "path": "/y"}, "doc is missing from path: /x"),
        ({"op": "move", "from": "/o", "path": "/o/p"}, "/o/p lies inside of /o"),
        ({"op": "add", "path": "/y"}, "is missing its value"),
        ({"op": "frobnicate", "path": "/y"}, "Unexpected kind: frobnicate"),
        ({"path": "/y"}, "Unexpected kind: unknown"),
        ({"op": "add", "value": 1}, "missing path field"),
        ({"op": "add", "path": "y", "value": 1}, "is no JSON pointer"),
        ({"op": "remove", "path": ""}, "cannot be removed"),
        ({"op": "add", "path": "/t/x", "value": 1}, "doc is missing path: /t/x"),
    ],
)
def test_operations_that_do_not_fit(operation: Any, message: str):
    value = {"a": [1, 2], "t": True, "o": {}}
    with pytest.raises(PatchError, match=message.replace("(", r"\(")) as caught:
        json_patch(value, [operation])
    assert caught.value.code == 422
    assert value == {"a": [1, 2], "t": True, "o": {}}


@pytest.mark.parametrize("patch", [{}, "x", [1], None])
def test_invalid_json_patches(patch: Any):
    with pytest.raises(MalformedPatchError) as caught:
        json_patch({}, patch)
    assert caught.value.code == 400


def test_a_failed_operation_leaves_nothing_of_those_before_it():
    value = {"a": {"b": 1}}
    with pytest.raises(PatchError):
        json_patch(value, [{"op": "add", "path": "/a/c", "value": 2}, {"op": "remove", "path": "/x"}])
    assert value == {"a": {"b": 1}}


# Strategic merge patch ------------------------------------------------------------------------------------------------

STRATEGIC = recorded("strategic")


@pytest.mark.parametrize("case", STRATEGIC["cases"], ids=lambda case: str(case["patch"])[:60])
def test_strategic_merge_patches_as_the_api_server_applies_them(case: Any):
    current = copy.deepcopy(STRATEGIC["current"])
    patched = strategic_merge_patch(current, case["patch"], shape_of_kind("", "PodTemplate"))
    for container in patched["template"]["spec"]["containers"]:
        if container.get("env") == []:  # the API server drops empty values when it stores the object
            del container["env"]
    assert patched == case["result"]
    assert current == STRATEGIC["current"]


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ({"template": {"spec": {"containers": [{"image": "i"}]}}}, "does not contain declared merge key: name"),
        ({"template": {"spec": {"containers": ["x"]}}}, "is no object"),
        ({"template": {"$patch": "bogus"}}, "unknown patch type: bogus"),
        ([], "must be an object"),
    ],
)
def test_invalid_strategic_merge_patches(patch: Any, message: str):
    with pytest.raises(MalformedPatchError, match=message):
        strategic_merge_patch(STRATEGIC["current"], patch, shape_of_kind("", "PodTemplate"))


def test_lists_of_which_nothing_is_known_are_replaced():
    assert strategic_merge_patch({"l": [{"name": "a"}]}, {"l": [{"name": "b"}]}, Shape()) == {"l": [{"name": "b"}]}


@given(OBJECTS, OBJECTS)
def test_without_lists_a_strategic_merge_patch_is_a_merge_patch(value: dict[str, Any], patch: dict[str, Any]):
    assert same(strategic_merge_patch(value, patch, Shape()), merge_patch(value, patch))
