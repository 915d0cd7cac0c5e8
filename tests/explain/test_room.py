"""Whether quotas and nodes have room for jobs: quotas as the API server counts, nodes as kube-scheduler does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import pytest

import trainop.explain.nodes
import trainop.explain.room
from tests.explain.test_requirements import GPUS, NOW, Json, asks, node, pytorch
from trainop.engine.seen import Options
from trainop.explain.rehearsal import Rehearsal, rehearse
from trainop.explain.requirements import Group, Reference
from trainop.explain.room import Demand, Load, counted_objects, demand_of, describe_quotas
from trainop.programs.schemes import all_kinds
from trainop.runtime.objects.metadata import PODS, SERVICES
from trainop.runtime.objects.quantity import read_quantity


def quota(hard: Json, used: Json | None = None, **spec: Any) -> Json:
    return {"metadata": {"name": "q"}, "spec": {"hard": hard, **spec}, "status": {"hard": hard, "used": used or {}}}


def rehearsed(job: Json) -> Rehearsal:
    kinds = [each for each in all_kinds(Options()) if each.resource.kind == job["kind"]]
    return rehearse(kinds, job, Options(), NOW)


def demand(job: Json, *existing: str) -> Demand:
    """That of a job of which the pods and services with these names exist."""
    references = {Reference(resource, name) for resource in (PODS, SERVICES) for name in existing}
    return demand_of(job, rehearsed(job), references)


def gpus() -> Json:
    """A master and three workers, each with 2 GPUs, 1 CPU and 1Gi."""
    return pytorch(**copy.deepcopy(GPUS))


QUOTAS: list[tuple[Json, str]] = [
    (quota({"pods": "4"}), ""),
    (quota({"pods": "4"}, {"pods": "1"}), "ResourceQuota q allows 4 pods, 1 are used, and the job needs 4"),
    (quota({"count/pods": "3"}), "3 count/pods, 0 are used, and the job needs 4"),
    (quota({"requests.nvidia.com/gpu": "8"}), ""),
    (quota({"requests.nvidia.com/gpu": "7"}), "7 requests.nvidia.com/gpu, 0 are used, and the job needs 8"),
    (quota({"cpu": "3"}), "3 cpu, 0 are used, and the job needs 4"),
    (quota({"requests.memory": "3Gi"}), "the job needs 4Gi"),
    (quota({"limits.cpu": "6"}, {"limits.cpu": "2500m"}), "6 limits.cpu, 2500m are used, and the job needs 4"),
    (quota({"services": "3"}), "3 services, 0 are used, and the job needs 4"),
    (quota({"count/services": "4"}), ""),
    (quota({"pods": "1"}, scopes=["BestEffort"]), ""),
    (quota({"pods": "many"}), ""),
    (quota({"secrets": "0"}), ""),
]


@pytest.mark.parametrize(("given", "said"), QUOTAS, ids=range(len(QUOTAS)))
def test_a_quota_counts_the_whole_job(given: Json, said: str):
    lines = list(describe_quotas([given], demand(gpus()), {}))
    assert len(lines) == bool(said), lines
    assert all(said in line and line.startswith("spec: ") for line in lines), lines


CONTINUED: list[tuple[Json, tuple[str, ...], str]] = [
    (quota({"pods": "4"}, {"pods": "4"}), ("j-master-0", "j-worker-0", "j-worker-1", "j-worker-2"), ""),
    (quota({"pods": "4"}, {"pods": "2"}), ("j-master-0", "j-worker-0"), ""),
    (quota({"pods": "4"}, {"pods": "3"}), ("j-master-0", "j-worker-0"), "3 are used, and the job needs 2 more"),
    (quota({"cpu": "4"}, {"cpu": "3"}), ("j-worker-0", "j-worker-1", "j-worker-2"), ""),
    (quota({"limits.cpu": "3"}, {"limits.cpu": "3"}), ("j-worker-0",), "3 are used, and the job needs 3 more"),
    (quota({"services": "4"}, {"services": "4"}), ("j-master-0", "j-worker-0", "j-worker-1", "j-worker-2"), ""),
    (quota({"services": "4"}, {"services": "4"}), ("j-worker-0",), "4 are used, and the job needs 3 more"),
    (quota({"pods": "4"}, {"pods": "1"}), ("j-worker-9", "other"), "1 are used, and the job needs 4"),
]


@pytest.mark.parametrize(("given", "existing", "said"), CONTINUED, ids=range(len(CONTINUED)))
def test_what_a_job_has_already_is_counted_once(given: Json, existing: tuple[str, ...], said: str):
    """Its objects are in the quota's use: only the others need room."""
    lines = list(describe_quotas([given], demand(gpus(), *existing), {}))
    assert [line.partition("pods, ")[2] or line for line in lines] == [] if not said else lines[0].endswith(said)


def test_jobs_before_it_need_room_too():
    promised = {"pods": read_quantity(3), "requests.nvidia.com/gpu": read_quantity(6)}
    given = quota({"pods": "7", "requests.nvidia.com/gpu": "12", "cpu": "4"}, {"pods": "0"})
    (line,) = describe_quotas([given], demand(gpus()), promised)
    assert line == (
        "spec: ResourceQuota q allows 12 requests.nvidia.com/gpu, 0 are used, "
        "jobs before it in the files need 6, and the job needs 8"
    )


@pytest.mark.parametrize("wait", ["queue", "suspend", "none"])
def test_a_job_that_waits_for_its_turn_is_known(wait: str):
    job = gpus()
    if wait == "queue":
        job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
    job["spec"]["runPolicy"] = {"suspend": wait == "suspend"}
    assert demand(job).waits == (wait != "none")
    assert demand(job).counted["pods"].amount == 4


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (quota({"pods": "1"}), {PODS}),
        (quota({"requests.cpu": "1"}), {PODS}),
        (quota({"services": "1"}), {SERVICES}),
        (quota({"pods": "1", "count/services": "1"}), {PODS, SERVICES}),
        (quota({"secrets": "1"}), set()),
        (quota({"pods": "1"}, scopes=["BestEffort"]), set()),
        ({"metadata": {"name": "q"}}, set()),
    ],
)
def test_only_objects_that_a_quota_counts_are_asked_for(given: Json, names: set[Any]):
    assert {made.resource for made in counted_objects([given], rehearsed(gpus()))} == names


# Nodes ----------------------------------------------------------------------------------------------------------------


def group(count: int, spec: Json) -> Group:
    return Group("spec", spec, count)


TWO = [node("a", gpu="8"), node("b", gpu="8", labels={"zone": "x"})]
LOADS: list[tuple[list[Group], str]] = [
    ([group(2, asks(gpu="8"))], ""),
    ([group(3, asks(gpu="8"))], "ask for 24 nvidia.com/gpu at the same time; the nodes on which they fit have 16"),
    ([group(16, asks(cpu="1"))], ""),
    ([group(17, asks(cpu="1"))], "ask for 17 cpu at the same time; the nodes on which they fit have 16"),
    ([group(3, {**asks(gpu="4"), "nodeSelector": {"zone": "x"}})], "ask for 12 nvidia.com/gpu"),
    ([group(2, {**asks(gpu="4"), "nodeSelector": {"zone": "x"}}), group(2, asks(gpu="4"))], ""),
    ([group(9, asks(gpu="9"))], ""),  # said of one pod already
    ([group(220, {"containers": [{"name": "c"}]})], ""),
    ([group(221, {"containers": [{"name": "c"}]})], "ask for 221 pods at the same time"),
    ([], ""),
]


@pytest.mark.parametrize(("groups", "said"), LOADS, ids=range(len(LOADS)))
def test_the_pods_of_a_job_need_room_at_the_same_time(groups: list[Group], said: str):
    lines = Load(TWO, groups).excess()
    assert len(lines) == bool(said), lines
    assert all(said in line for line in lines), lines


def test_loads_add_up():
    load = Load(TWO)
    for _ in range(2):
        load.add(Load(TWO, [group(1, asks(gpu="8"))]))
        assert load.excess() == []
    load.add(Load(TWO, [group(1, asks(gpu="1"))]))
    assert load.excess() == ["ask for 17 nvidia.com/gpu at the same time; the nodes on which they fit have 16"]


def test_nodes_that_do_not_say_how_many_pods_they_take_are_not_judged():
    assert Load([{"status": {"allocatable": {"cpu": "8"}}}], [group(500, asks(cpu="1m"))]).excess() == []


def note(read: list[str], capacity: Callable[[Json, str], Fraction], node: Json, name: str) -> Fraction:
    read.append(name)
    return capacity(node, name)


def test_a_job_costs_the_same_after_many_others(monkeypatch: pytest.MonkeyPatch):
    """In capacities of nodes that are read: these are most of the work."""
    nodes = [node(f"n{number}", gpu="8") for number in range(50)]
    read: list[str] = []
    for module in (trainop.explain.nodes, trainop.explain.room):
        capacity = module.capacity
        counted = partial(note, read, capacity)
        monkeypatch.setattr(module, "capacity", counted)
    load, costs = Load(nodes), []
    for _ in range(20):
        before = len(read)
        load.add(Load(nodes, [group(1, asks(gpu="1"))]))
        load.excess()
        costs.append(len(read) - before)
    assert max(costs[1:]) == costs[1] <= costs[0]
    assert costs[1] <= 4 * len(nodes)
