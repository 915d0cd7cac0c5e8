"""The decisions and words of kube-scheduler 1.37 (`recorded.json`), and what leniency leaves out."""

from __future__ import annotations

from fractions import Fraction

import pytest

from tests.local.scheduler.record import Json, situations, whole_node, whole_pod
from trainop.local.scheduler.filters import (
    STRICT,
    Amounts,
    Leniency,
    counted,
    find_obstacle,
    is_extended,
    requested,
)


def decide(situation: Json, leniency: Leniency = STRICT) -> str:
    node = whole_node(situation)
    used: Amounts = {}
    for spec in situation.get("running", ()):
        for name, amount in requested(whole_pod(spec, "running")["spec"]).items():
            used[name] = used.get(name, Fraction(0)) + amount
    spec = whole_pod(situation["pod"], "asking")["spec"]
    return find_obstacle(spec, counted(requested(spec), node, leniency), node, used)


@pytest.mark.parametrize("situation", situations(), ids=lambda each: each["name"])
def test_words_of_kube_scheduler(situation: Json):
    assert decide(situation) == situation["message"]


def test_no_node():
    assert find_obstacle({}, {}, None, {}) == "no nodes available to schedule pods"


def test_overcommit_leaves_gpus_and_the_number_of_pods():
    greedy = {"limits": {"cpu": "100", "memory": "1Ti", "ephemeral-storage": "1Ti"}}
    assert decide({"pod": greedy}, Leniency(overcommit=True)) == ""
    gpus = {"limits": {"cpu": "100", "nvidia.com/gpu": "3"}}
    assert "1 Insufficient nvidia.com/gpu." in decide({"pod": gpus}, Leniency(overcommit=True))
    full = {"node": {"allocatable": {"pods": "1"}}, "running": [{}], "pod": {}}
    assert "Too many pods" in decide(full, Leniency(overcommit=True))


@pytest.mark.parametrize(
    ("limits", "runs"),
    [
        ({"nvidia.com/gpu": "3"}, True),  # the node has two
        ({"amd.com/gpu": "1"}, True),
        ({"nvidia.com/gpu": "2"}, False),  # one is in use: it waits
        ({"nvidia.com/gpu": "3", "cpu": "5"}, False),
    ],
)
def test_allow_cpu_leaves_out_what_the_node_can_never_give(limits: dict[str, str], runs: bool):
    situation = {"running": [{"limits": {"nvidia.com/gpu": "1"}}], "pod": {"limits": limits}}
    assert (decide(situation, Leniency(allow_cpu=True)) == "") is runs


@pytest.mark.parametrize(
    ("name", "extended"),
    [("nvidia.com/gpu", True), ("cpu", False), ("hugepages-2Mi", False), ("kubernetes.io/batch", False)],
)
def test_extended_resources(name: str, extended: bool):
    assert is_extended(name) is extended
