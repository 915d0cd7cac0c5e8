"""The operator killed before and after every write of the small scenarios."""

from __future__ import annotations

import pytest

from tests.simulation.examine import kills
from tests.simulation.script import Script
from tests.simulation.small import scenarios
from trainop.programs.schemes import FRAMEWORKS

WHOLE = "PyTorchJob"
"""The kind of which every scenario is tried here; of each other kind one is, `make simulate` tries all."""


def small_scripts() -> list[Script]:
    scripts = list(scenarios(WHOLE))
    for number, kind in enumerate(kind for kind in FRAMEWORKS if kind != WHOLE):
        others = list(scenarios(kind))
        scripts.append(others[number % len(others)])
    return scripts


@pytest.mark.parametrize("script", small_scripts(), ids=lambda script: script.seed)
def test_the_operator_may_die_at_every_write(script: Script):
    count = 0
    for kill, verdict in kills(script):
        assert not verdict.problem, f"killed {kill.when} write {kill.number}: {verdict.report()}"
        count += 1
    assert count >= 8, "there are writes to die at"
