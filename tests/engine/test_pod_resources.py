"""The resources that a pod requests."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.controllers.test_work import instructions
from trainop.engine.pod_resources import Resources, add_multiple, pod_requests, same_resources
from trainop.runtime.objects.metadata import Json


def container(requests: Json | None = None, limits: Json | None = None, **fields: Any) -> Json:
    given = {"requests": requests, "limits": limits}
    return {"name": "c", "resources": {name: value for name, value in given.items() if value is not None}, **fields}


def sidecar(cpu: str) -> Json:
    return container({"cpu": cpu}, restartPolicy="Always")


def written(resources: Resources) -> dict[str, str]:
    return {name: str(amount) for name, amount in resources.items()}


TABLE: list[tuple[str, Json, dict[str, str]]] = [
    ("nothing", {}, {}),
    ("no resources", {"containers": [{"name": "c"}, {"name": "d", "resources": None}]}, {}),
    (
        "containers add up",
        {"containers": [container({"cpu": "1", "memory": "1Gi"}), container({"cpu": "500m"})]},
        {"cpu": "1500m", "memory": "1Gi"},
    ),
    (
        "a limit counts per resource without a request",
        {"containers": [container({"cpu": "1"}, {"cpu": "2", "nvidia.com/gpu": 4})]},
        {"cpu": "1", "nvidia.com/gpu": "4"},
    ),
    (
        "requests of the pod stand for those of its containers, and devices are of containers only",
        {
            "resources": {"requests": {"cpu": "8", "hugepages-2Mi": "4Mi", "nvidia.com/gpu": 9}},
            "containers": [container({"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": 1}), container({"cpu": "1"})],
            "initContainers": [container({"cpu": "12", "memory": "3Gi"})],
        },
        {"cpu": "8", "memory": "3Gi", "nvidia.com/gpu": "1", "hugepages-2Mi": "4Mi"},
    ),
    (
        "a limit of the pod is its request of what no container requests",
        {
            "resources": {"limits": {"cpu": "8", "memory": "8Gi"}},
            "containers": [container({"cpu": "2"})],
            "overhead": {"memory": "1Gi"},
        },
        {"cpu": "2", "memory": "9Gi"},
    ),
    ("resources of the pod that are none", {"resources": 7, "containers": [container({"cpu": "2"})]}, {"cpu": "2"}),
    ("resources of the pod without amounts", {"resources": {"requests": {"cpu": []}, "limits": None}}, {}),
    ("an empty map of requests", {"containers": [container({}, {"cpu": 2})]}, {"cpu": "2"}),
    (
        "init containers run one after another, before the others",
        {
            "containers": [container({"cpu": "1", "memory": "2Gi"})],
            "initContainers": [container({"cpu": "3"}), container({"cpu": "2", "memory": "1Gi"})],
        },
        {"cpu": "3", "memory": "2Gi"},
    ),
    (
        "sidecars stay",
        {"containers": [container({"cpu": "1"})], "initContainers": [sidecar("2"), sidecar("500m")]},
        {"cpu": "3500m"},
    ),
    (
        "an init container runs beside the sidecars before it",
        {
            "containers": [container({"cpu": "1"})],
            "initContainers": [container({"cpu": "4"}), sidecar("2"), container({"cpu": "4"}), sidecar("1")],
        },
        {"cpu": "6"},
    ),
    (
        "overhead",
        {"containers": [container({"cpu": "1"})], "overhead": {"cpu": "250m", "memory": "64Mi"}},
        {"cpu": "1250m", "memory": "64Mi"},
    ),
    (
        "sums are exact and keep the first format",
        {"containers": [container({"memory": "0"}), container({"memory": "0.1Gi"}), container({"memory": "0.9Gi"})]},
        {"memory": "1Gi"},
    ),
    ("numbers", {"containers": [container({"cpu": 0.5}), container({"cpu": 1})]}, {"cpu": "1500m"}),
    (
        "what is no quantity counts as nothing",
        {
            "containers": [container({"cpu": "many", "memory": None, "x": ["1"]}), 7, {"resources": 7}],
            "initContainers": "none",
            "overhead": [1],
        },
        {},
    ),
    (
        "a huge number",
        {"containers": [container({"cpu": "1e999999999"})]},
        {"cpu": "9223372036854775807"},
    ),
]


@pytest.mark.parametrize(("spec", "requests"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_requests_of_a_pod(spec: Json, requests: dict[str, str]):
    assert written(pod_requests(spec)) == requests


def many(shape: str, count: int) -> Json:
    """A template each of whose init containers names a resource of its own."""
    sidecars = {"none": 0, "half": count // 2, "all": count}[shape]
    own: list[Json] = [{f"x/{number}": "1"} for number in range(count)]
    return {"initContainers": [container(each, **(ALWAYS if n < sidecars else {})) for n, each in enumerate(own)]}


ALWAYS: Json = {"restartPolicy": "Always"}


@pytest.mark.parametrize("shape", ["none", "half", "all"])
def test_the_cost_is_that_of_the_template(shape: str):
    """A user may write 10,000 init containers, and the requests are computed in every reconcile."""
    pod_requests(many(shape, 400))  # what is cached between plans is not part of the cost
    small, middle, large = (instructions(partial(pod_requests, many(shape, size))) for size in (100, 200, 400))
    assert (large - middle) / (middle - small) < 2.1


def test_multiples():
    total: Resources = {}
    add_multiple(total, pod_requests({"containers": [container({"cpu": "100m"})]}), 0)
    assert written(total) == {"cpu": "0"}
    add_multiple(total, pod_requests({"containers": [container({"cpu": "100m"})]}), 30)
    assert written(total) == {"cpu": "3"}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({}, {}, True),
        ({"cpu": "1"}, {"cpu": 1}, True),
        ({"cpu": "1000m", "memory": "1Gi"}, {"memory": "1024Mi", "cpu": "1"}, True),
        ({"cpu": "1"}, {"cpu": "2"}, False),
        ({"cpu": "1"}, {}, False),
        ({"cpu": "1"}, {"cpu": "1", "memory": "0"}, False),
        ({"cpu": "many"}, {"cpu": "many"}, True),
        ({"cpu": "many"}, {"cpu": "1"}, False),
    ],
)
def test_quantities_are_compared_by_value(one: Json, other: Json, same: bool):
    assert same_resources(one, other) is same
