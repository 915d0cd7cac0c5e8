"""The simulation finds each planted bug within a bounded number of seeds."""

from __future__ import annotations

import pytest

from tests.simulation import (  # noqa: F401  # each plants its own
    bugs,
    bugs_of_checkpoints,
    bugs_of_di,
    bugs_of_gangs,
    bugs_of_in_place,
    bugs_of_jobs,
    bugs_of_mpi,
    bugs_of_ownership,
    bugs_of_waiting,
)
from tests.simulation.__main__ import MOST_SEEDS
from tests.simulation.planting import BUGS, BrokenPlantError, Bug, hunt, patch
from trainop.engine import plan


def test_there_are_enough_bugs():
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 40


@pytest.mark.parametrize("bug", [bug for bug in BUGS if not bug.rare], ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: Bug):
    assert hunt(bug, MOST_SEEDS) is not None


def test_a_plant_that_makes_the_operator_raise_is_no_find():
    """Such as one whose signature is no longer that of the function it replaces."""
    with pytest.raises(BrokenPlantError, match=r"plant: .*takes 0 positional arguments"):
        hunt(Bug("plant", "", lambda: patch(plan, "ignored", lambda: False)), MOST_SEEDS)
