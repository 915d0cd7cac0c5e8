"""Whether a node may run a pod: the documentation of node affinity and of taints, as tables."""

from __future__ import annotations

from typing import Any

import pytest

from trainop.engine.placement import capacity, is_near, is_selected, refusing_taints
from trainop.runtime.objects.metadata import Json

NODE: Json = {"metadata": {"name": "n", "labels": {"zone": "a", "cores": "8", "word": "x"}}}


def near(*terms: Any) -> Json:
    required = {"nodeSelectorTerms": [*terms]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def label(key: str, operator: str, *values: str) -> Json:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


IN_A = label("zone", "In", "a")["matchExpressions"]


@pytest.mark.parametrize(
    ("selector", "answer"),
    [(None, True), ({}, True), ({"zone": "a"}, True), ({"zone": "b"}, False), ({"gpu": "a"}, False)],
)
def test_node_selectors(selector: Any, answer: bool):
    assert is_selected({"nodeSelector": selector}, NODE) is answer


@pytest.mark.parametrize(
    ("terms", "answer"),
    [
        ([label("zone", "In", "a", "b")], True),
        ([label("zone", "In", "b")], False),
        ([label("zone", "NotIn", "b")], True),
        ([label("none", "NotIn", "b")], True),
        ([label("zone", "Exists")], True),
        ([label("zone", "DoesNotExist")], False),
        ([label("none", "DoesNotExist")], True),
        ([label("cores", "Gt", "4")], True),
        ([label("cores", "Gt", "8")], False),
        ([label("cores", "Lt", "9")], True),
        ([label("word", "Lt", "9")], False),
        ([label("cores", "Gt")], False),
        ([label("none", "Gt", "1")], False),
        ([label("zone", "In", "b"), label("zone", "In", "a")], True),
        ([{"matchExpressions": [*IN_A, *label("word", "In", "y")["matchExpressions"]]}], False),
        ([{"matchExpressions": [*IN_A, *label("word", "In", "x")["matchExpressions"]]}], True),
        ([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}], True),
        ([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["m"]}]}], False),
        ([{}], False),
        ([], False),
    ],
)
def test_required_affinity(terms: list[Json], answer: bool):
    assert is_near(near(*terms), NODE) is answer


def test_preferred_affinity_and_none_require_nothing():
    assert is_near({}, NODE)
    assert is_near({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}}, NODE)


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "k", "operator": "Exists"}, True),
        ({"key": "k", "value": "v"}, True),
        ({"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}, True),
        ({"key": "k", "value": "w"}, False),
        ({"key": "k", "value": "v", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"operator": "Equal"}, False),
    ],
)
def test_taints(toleration: Json, tolerated: bool):
    taint = {"key": "k", "value": "v", "effect": "NoSchedule"}
    soft = {"key": "soft", "effect": "PreferNoSchedule"}
    node = NODE | {"spec": {"taints": [taint, soft]}}
    assert refusing_taints({"tolerations": [toleration]}, node) == ([] if tolerated else [taint])
    assert refusing_taints({}, node) == [taint]
    assert refusing_taints({}, NODE) == []


def test_capacity():
    node = {"status": {"allocatable": {"cpu": "1500m", "gpu": 2, "bad": "many"}}}
    assert [str(capacity(node, name)) for name in ("cpu", "gpu", "bad", "none")] == ["3/2", "2", "0", "0"]
    assert capacity({}, "cpu") == 0
