"""Selectors as text and as predicates."""

from __future__ import annotations

from typing import Any

import pytest

from trainop.runtime.selector import equality, field_equality, matches, render

LABELS = {"app": "x", "tier": "back"}


@pytest.mark.parametrize(
    ("selector", "text", "satisfied"),
    [
        ({}, "", True),
        ({"matchLabels": {"app": "x", "tier": "back"}}, "app=x,tier=back", True),
        ({"matchLabels": {"app": "y"}}, "app=y", False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["x", "y"]}]}, "app in (x,y)", True),
        ({"matchExpressions": [{"key": "none", "operator": "In", "values": ["x"]}]}, "none in (x)", False),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["x"]}]}, "app notin (x)", False),
        ({"matchExpressions": [{"key": "none", "operator": "NotIn", "values": ["x"]}]}, "none notin (x)", True),
        ({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, "app", True),
        ({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, "!app", False),
        (
            {"matchLabels": {"app": "x"}, "matchExpressions": [{"key": "none", "operator": "Exists"}]},
            "app=x,none",
            False,
        ),
    ],
)
def test_label_selectors(selector: dict[str, Any], text: str, satisfied: bool):
    assert render(selector) == text
    assert matches(selector, LABELS) is satisfied


def test_operator_that_does_not_exist_is_refused():
    selector = {"matchExpressions": [{"key": "app", "operator": "Gt", "values": ["1"]}]}
    with pytest.raises(ValueError, match="'Gt'"):
        render(selector)
    with pytest.raises(ValueError, match="'Gt'"):
        matches(selector, LABELS)


def test_equality_and_escapes():
    assert equality({"a": "1", "b": ""}) == "a=1,b="
    assert field_equality({"metadata.name": "a,b=c\\"}) == r"metadata.name=a\,b\=c\\"
