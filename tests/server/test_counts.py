"""The cost of a job: API requests by verb and resource, reconciles, and cached objects. Time is not measured."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.server.process import Operator, fetch
from tests.server.world import World, replicas

JOBS = 3
PODS = 8
WORKERS = 300
MOST_RECONCILES = 12
"""Reconciles of one job from its creation to its success. Measured: 5."""


@pytest.fixture
def counting(
    alone: None, make_operator: Callable[..., Operator], control_plane: Any, quiet_world: World
) -> Callable[..., Operator]:
    """
    Starts an operator for this test's namespace alone, so that its counters are exact: jobs that other tests left
    unfinished get statuses and events of their own, such as the condition Waiting after ten minutes.
    """

    def start(*flags: str) -> Operator:
        operator = make_operator(control_plane.kubeconfig, f"--namespace={quiet_world.namespace}", *flags)
        operator.start()
        return operator

    return start


def requests(operator: Operator) -> Counter[str]:
    """Requests so far by method; watches are GETs."""
    text = fetch(operator.metrics_url)[1]
    counts: Counter[str] = Counter()
    for found in re.finditer(r'^rest_client_requests_total\{.*method="(\w+)"\} (\S+)$', text, re.MULTILINE):
        counts[found[1]] += int(float(found[2]))
    return counts


def live(world: World, operator: Operator, name: str) -> list[str]:
    """Take a job from creation to success, its pods starting and ending together; returns their names."""
    pods = [f"{name}-master-0", *(f"{name}-worker-{index}" for index in range(PODS - 1))]
    world.create_job(name, {"Master": replicas(1), "Worker": replicas(PODS - 1)})
    world.wait(lambda: set(pods) <= set(world.pods()), "all pods")
    with operator.frozen():
        world.run_pod(*pods)
    world.wait_condition("Running", name)
    world.wait(lambda: active(world, name) == PODS, "all pods are counted")
    with operator.frozen():
        for pod in pods:
            world.end_pod(pod)
    world.wait_condition("Succeeded", name)
    return pods


def active(world: World, name: str) -> int:
    return sum(role.get("active", 0) for role in world.status(name).get("replicaStatuses", {}).values())


def measure(world: World, operator: Operator) -> Counter[str]:
    """Requests of `JOBS` consecutive jobs, and under `reconciles` the number of their reconciles."""
    live(world, operator, "first")  # warm up, so that one-time requests are not counted
    world.settle(1.0)
    before = requests(operator) + Counter({"reconciles": reconciles(operator)})
    for number in range(JOBS):
        live(world, operator, f"j{number}")
    world.settle(1.0)
    after = requests(operator) + Counter({"reconciles": reconciles(operator)})
    return after - before


@pytest.mark.parametrize(("flags", "wanted"), [((), 19), (("--service-mode=job",), 12)], ids=["replica", "job"])
def test_a_job_whose_pods_start_at_once_needs_two_status_writes(
    quiet_world: World, counting: Callable[..., Operator], flags: tuple[str, ...], wanted: int
):
    """19 requests: 8 pods, 8 services, one event and two statuses; 12 with one service per job. A busy machine takes
    more than a second for some."""
    operator = counting(*flags)
    live(quiet_world, operator, "first")
    for number in range(20):
        quiet_world.settle(1.0)
        before = requests(operator)
        live(quiet_world, operator, f"j{number}")
        quiet_world.settle(1.0)
        spent = requests(operator) - before
        assert spent["PUT"] in {2, 3}
        if spent["PUT"] == 2:
            assert sum(spent.values()) - spent["GET"] == wanted
            return
    pytest.fail("Created and Running were never written together")


def test_a_large_job_runs_after_three_requests_more_than_it_has_pods(
    quiet_world: World, counting: Callable[..., Operator]
):
    """With service mode job: its pods, one service, and two statuses, so 1,004 for a master and 1,000 workers."""
    operator = counting("--service-mode=job")
    live(quiet_world, operator, "first")
    quiet_world.settle(1.0)
    before = requests(operator)
    quiet_world.create_job("large", {"Master": replicas(1), "Worker": replicas(WORKERS)})
    quiet_world.wait(lambda: (requests(operator) - before)["POST"] >= WORKERS + 2, "all pods and a service")
    with operator.frozen():
        quiet_world.run_pod("large-master-0", *(f"large-worker-{index}" for index in range(WORKERS)))
    quiet_world.wait_condition("Running", "large")
    quiet_world.wait(lambda: active(quiet_world, "large") == WORKERS + 1, "all pods are counted")
    spent = requests(operator) - before
    assert spent.pop("GET", 0) <= 1, "all reads come from the caches; only a watch may have restarted"
    assert spent.pop("PUT") in {1, 2}, "one if all pods start within a second"
    assert spent == {"POST": WORKERS + 2}


def reconciles(operator: Operator) -> int:
    text = fetch(operator.metrics_url)[1]
    series = r'^controller_runtime_reconcile_total\{controller="pytorchjob-controller".*\} (\S+)$'
    return sum(int(float(found[1])) for found in re.finditer(series, text, re.MULTILINE))


@pytest.mark.parametrize(
    ("flags", "services"),
    [((), PODS), (("--service-mode=leader",), 1), (("--service-mode=job",), 1)],
    ids=["services-by-default", "leader-only", "one-per-job"],
)
def test_a_job_costs_so_many_requests(
    quiet_world: World, counting: Callable[..., Operator], flags: tuple[str, ...], services: int
):
    """Per job: its pods, its services, one event, and the status when it is created, runs and has succeeded."""
    spent = measure(quiet_world, counting(*flags))
    quiet_world.wait(lambda: len(quiet_world.services()) == services * (JOBS + 1), "the services")
    assert spent["POST"] == JOBS * (PODS + services + 1)
    assert 2 * JOBS <= spent["PUT"] <= 3 * JOBS, "Created has a write of its own only if the pods start late"
    assert spent["DELETE"] == spent["PATCH"] == 0
    assert spent["GET"] <= JOBS, "all reads come from the caches; only a watch may have restarted"
    assert spent["reconciles"] <= MOST_RECONCILES * JOBS


def more(held: dict[str, float], by: dict[str, int]) -> dict[str, float]:
    return {kind: count + by[kind] for kind, count in held.items()}


def test_the_cache_holds_only_objects_that_exist(quiet_world: World, counting: Callable[..., Operator]):
    """The cache holds one object for each existing pod, service and job, and none for deleted ones."""
    operator = counting()

    def held(resource: str) -> float | None:
        return operator.metric(f'trainop_informer_objects{{resource="{resource}"}}')

    kinds = ("pods", "services", "pytorchjobs.kubeflow.org")
    before = {kind: held(kind) or 0.0 for kind in kinds}
    pods = live(quiet_world, operator, "j")
    expected = {"pods": PODS, "services": PODS, "pytorchjobs.kubeflow.org": 1}
    quiet_world.wait(lambda: {kind: held(kind) for kind in kinds} == more(before, expected), "each object, once")
    for pod in pods:
        quiet_world.reap_pod(pod)
    quiet_world.wait(lambda: held("pods") == before["pods"], "no pods")
