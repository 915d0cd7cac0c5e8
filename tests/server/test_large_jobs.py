"""Jobs of the maximum size that etcd stores, on a real kube-apiserver: their outcome, and that neither a small job
nor the operator's health is affected."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from e2e.bench.shapes import SHAPES, Shape
from tests.server.process import Operator
from tests.server.world import JOBS, World, replicas

FEW = 8
"""Number of replicas. It is small because an API server takes seconds for each pod or service of a megabyte."""

LONGEST_STALL = 0.3
"""Seconds of processor time for which the event loop may be blocked. The time of day says nothing on a busy machine."""


@pytest.fixture
def stage(world: World) -> Iterator[World]:
    """Deletes the large job and its children after the test, so that they do not slow down the next ones."""
    yield world
    world.try_to("DELETE", f"{JOBS}/hostile")
    world.wait(lambda: world.try_to("GET", f"{JOBS}/hostile").status == 404, "the end of the large job")
    for plural in ("pods", "services"):
        world.ask("DELETE", f"/api/v1/namespaces/{{namespace}}/{plural}?gracePeriodSeconds=0")


def post(world: World, shape: Shape, count: int) -> None:
    body = shape.make(shape.size, count)
    body["metadata"] = {"name": "hostile"}
    world.ask("POST", JOBS, body)


def watch_neighbour(world: World, operator: Operator) -> None:
    """A small job posted after the large one gets its pods while the large one is created, and /healthz answers."""
    world.create_job("small", {"Worker": replicas(2)})
    world.wait(lambda: {"small-worker-0", "small-worker-1"} <= names_of(world, "small"), "the pods of the small job")
    assert operator.probe("/healthz")[0] == 200
    stalls = re.findall(r"event loop stalled.*processor_seconds=([\d.]+)", operator.text())
    assert not [each for each in stalls if float(each) > LONGEST_STALL], operator.text()


def names_of(world: World, job: str) -> set[str]:
    selector = f"labelSelector=training.kubeflow.org/job-name={job}"
    pods = world.ask("GET", f"/api/v1/namespaces/{{namespace}}/pods?{selector}&limit=3")["items"]
    return {pod["metadata"]["name"] for pod in pods}


@pytest.mark.parametrize(("shape", "size"), [("many ports", 20_000), ("huge variable", 1_000_000)])
def test_a_large_template_does_not_delay_a_small_job(stage: World, operator: Operator, shape: str, size: int):
    post(stage, SHAPES[shape]._replace(size=size), FEW)
    watch_neighbour(stage, operator)
    stage.wait(lambda: "hostile-worker-0" in names_of(stage, "hostile") or stage.is_now("Failed", "hostile"), "a pod")


REFUSED: dict[str, tuple[Callable[[], Shape], str]] = {
    "twenty thousand roles": (lambda: Shape(SHAPES["unknown roles"].make, 20_000), " more)]"),
    "a long role": (lambda: Shape(SHAPES["long role"].make, 700_000), " characters left out)"),
    "half a million lists": (lambda: SHAPES["many empty lists"], "must not have more than 49,152 lists and objects"),
    "a long name of a port": (lambda: Shape(SHAPES["long name of a port"].make, 600_000), " characters left out)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_job_that_can_never_run_fails_with_a_short_message(stage: World, operator: Operator, case: str):
    make, words = REFUSED[case]
    post(stage, make(), FEW)
    watch_neighbour(stage, operator)
    stage.wait(lambda: stage.is_now("Failed", "hostile"), "the end")
    failed = stage.condition("Failed", "hostile")
    assert failed["reason"] == "PyTorchJobFailedValidation"
    assert words in failed["message"]
    assert len(failed["message"].encode()) <= 1024
    reported = [event for event in stage.events("PyTorchJobFailedValidation") if event["message"] == failed["message"]]
    assert len(reported) <= 1
    assert max(map(len, operator.text().splitlines())) < 20_000, "a line of the log"
