"""Jobs that restart in place, with the operator killed, stopped, frozen and cut off meanwhile."""

from __future__ import annotations

import pytest

from tests.simulation.examine import examine, kills
from tests.simulation.in_place_draw import SHAPES, UNSOUND, draw_in_place, draw_small
from tests.simulation.in_place_node import DROPPED, KEPT

SHARE, PORTION = 100, 10


@pytest.mark.parametrize("first", range(0, SHARE, PORTION))
def test_seeds_show_no_problem(first: int):
    for seed in range(first, first + PORTION):
        verdict = examine(draw_in_place(seed))
        assert not verdict.problem, verdict.report()


@pytest.mark.parametrize(
    ("kind", "serves", "hangs"),
    [
        *((kind, KEPT, kind == "JAXJob") for kind in SHAPES if kind != UNSOUND),
        ("PyTorchJob", DROPPED, False),
    ],
)
def test_an_operator_that_is_killed_at_any_write_counts_each_failure_once(kind: str, serves: str, hangs: bool):
    script = draw_small(kind, serves, hangs=hangs)
    count = 0
    for kill, verdict in kills(script):
        count += 1
        assert not verdict.problem, f"killed {kill.when} write {kill.number}: {verdict.report()}"
    assert count > 20


def test_seeds_draw_every_kind_each_answer_to_the_rules_and_every_fault():
    scripts = [draw_in_place(seed) for seed in range(400)]
    assert {job.kind for script in scripts for job in script.jobs} == set(SHAPES)
    assert {script.restart_rules for script in scripts} == {"kept", "dropped", "refused"}
    acts = {step.act for script in scripts for step in script.chaos}
    of_operators = {"kill", "stop", "freeze", "jump", "cut", "lag", "compact", "outage"}
    assert acts == of_operators | {"crash", "evict", "preempt", "delete pod", "vanish", "drain"}
    assert {step.act for script in scripts for step in script.steps} == {
        "create",
        "suspend",
        "resume",
        "scale",
        "delete",
    }
