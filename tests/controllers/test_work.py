"""The cost of a plan grows linearly with the number of pods, measured in bytecode instructions instead of seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from tests.controllers.kinds import KINDS, SHAPES, last_role, make, world_of
from tests.engine.builders import pod_created
from tests.engine.world import World
from trainop.engine.plan import plan
from trainop.engine.seen import Snapshot
from trainop.programs.schemes import FRAMEWORKS

SIZES = (50, 100, 200)
"""Of the last role; one plan creates no more than 500 pods."""


def instructions(work: Callable[[], object]) -> int:
    """How many bytecode instructions it takes; loops inside of C functions count as one."""
    count = 0

    def trace(frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def growth(kind: str, snapshots: list[Snapshot]) -> float:
    """The growth factor of the cost when the number of added pods doubles: 2 if linear, 4 if quadratic."""
    framework = FRAMEWORKS[kind]
    plan(framework, snapshots[0])  # caches between plans are not part of the cost
    small, middle, large = (instructions(lambda seen=seen: plan(framework, seen)) for seen in snapshots)  # type: ignore[misc]  # of a lambda with a default
    return (large - middle) / (middle - small)


def sized(kind: str, count: int) -> dict[str, int | None]:
    return {**SHAPES[kind], last_role(kind): count}


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_plan_of_a_job(kind: str):
    worlds = [World(make(kind, sized(kind, size)), framework=FRAMEWORKS[kind]) for size in SIZES]
    assert growth(kind, [world.snapshot() for world in worlds]) < 2.1
    made = plan(FRAMEWORKS[kind], worlds[-1].snapshot())
    assert sum(pod_created(action) for action in made.actions) >= SIZES[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_the_plan_of_a_job_that_runs(kind: str):
    worlds = [world_of(kind, sized(kind, size)) for size in SIZES]
    for world in worlds:
        world.run()
        world.settle()
    assert growth(kind, [world.snapshot() for world in worlds]) < 2.1


@pytest.mark.parametrize("kind", KINDS)
def test_the_plan_of_a_job_all_of_whose_pods_failed(kind: str):
    worlds = [world_of(kind, sized(kind, size), policy="OnFailure") for size in SIZES]
    for world in worlds:
        for name in world.pods:
            world.end(name, 1)
    assert growth(kind, [world.snapshot() for world in worlds]) < 2.1


def test_instructions_of_a_loop_in_a_loop_are_seen():
    """Checks the measurement itself."""
    small, middle, large = (instructions(lambda n=n: [1 for _ in range(n) for _ in range(n)]) for n in SIZES)  # type: ignore[misc]  # of a lambda with a default
    assert (large - middle) / (middle - small) > 3.9
