"""JSON patches: applying one to the first value gives the second, and only differences are written."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainop.local.api.fields.json_patch import json_patch
from trainop.runtime.objects.jsonpatch import diff, equal_json, escape

NAMES = st.sampled_from(["a", "b", "a/b", "~", "", "c~1"])
SCALARS = st.none() | st.booleans() | st.integers(-2, 2) | st.floats(0, 2, width=16) | st.sampled_from(["", "x"])
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4))


def text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


@given(VALUES, VALUES)
def test_a_patch_turns_the_first_value_into_the_second(before: Any, after: Any):
    kept = copy.deepcopy((before, after))
    operations = diff(before, after)
    assert text(json_patch(copy.deepcopy(before), operations)) == text(after)
    assert text((before, after)) == text(kept)
    assert (not operations) == equal_json(before, after) == (text(before) == text(after))


@pytest.mark.parametrize(
    ("before", "after", "operations"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1}, {"a": True}, [{"op": "replace", "path": "/a", "value": True}]),
        ({"a/b": 1, "~": 2}, {}, [{"op": "remove", "path": "/a~1b"}, {"op": "remove", "path": "/~0"}]),
        ({"a": {"b": 1}}, {"a": {"b": 1, "c": None}}, [{"op": "add", "path": "/a/c", "value": None}]),
        ([1, 2, 3], [0, 1, 2, 3], [{"op": "add", "path": "/0", "value": 0}]),
        ([1, 2, 3, 4], [1, 4], [{"op": "remove", "path": "/2"}, {"op": "remove", "path": "/1"}]),
        ([{"n": 1}, 5], [{"n": 2}, 5], [{"op": "replace", "path": "/0/n", "value": 2}]),
        ({"a": []}, {"a": {}}, [{"op": "replace", "path": "/a", "value": {}}]),
        (1, [], [{"op": "replace", "path": "", "value": []}]),
    ],
)
def test_only_differences_are_written(before: Any, after: Any, operations: list[Any]):
    assert diff(before, after) == operations


def test_pointers_escape_special_characters():
    assert escape("a/b~c~1") == "a~1b~0c~01"
