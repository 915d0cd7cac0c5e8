"""Plants bugs in the product, one at a time; the simulation must find each of them.

Each bug patches a few functions of the product for the duration of a context; the product has no hooks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from typing import Any
from unittest import mock

from tests.simulation.examine import examine, first_problem
from tests.simulation.families import ThemeOf, seeds_of
from tests.simulation.logs import NO_BUGS
from tests.simulation.script import Script


@dataclass(frozen=True)
class Bug:
    name: str
    text: str
    """What is wrong, in one sentence."""
    plant: Callable[[], AbstractContextManager[Any]]
    family: str = ""
    """Of the seeds that can show it."""
    theme: ThemeOf | None = None
    """Of those that show it most."""
    rare: bool = False
    """It takes many seeds: `make test` leaves it to unit tests, and `--bugs` finds it."""
    draw: Callable[[int], Script] | None = None
    """Draws its seeds, if they are numbered apart."""


class BrokenPlantError(Exception):
    """A planted bug no longer fits the product, for example because a function has another signature."""


BUGS: list[Bug] = []


def bug(
    text: str,
    family: str = "",
    theme: ThemeOf | None = None,
    *,
    rare: bool = False,
    draw: Callable[[int], Script] | None = None,
) -> Callable[[Callable[[], AbstractContextManager[Any]]], None]:
    def enter(plant: Callable[[], AbstractContextManager[Any]]) -> None:
        BUGS.append(Bug(plant.__name__.replace("_", " "), text, plant, family, theme, rare, draw))

    return enter


def patch(owner: Any, name: str, change: Any) -> AbstractContextManager[Any]:
    return mock.patch.object(owner, name, change)


def hunt(planted: Bug, seeds: int, first: int = 0) -> tuple[int, str] | None:
    """The number of seeds of its family and theme until the bug is found, and the broken rule; None if it is not
    found. Raises `BrokenPlantError` if the operator fails instead of behaving wrongly: nothing but that was found."""
    with planted.plant():
        if (draw := planted.draw) is None:
            found = first_problem(islice(seeds_of(planted.family, first, planted.theme), seeds))
        else:
            found = first_problem(range(first, first + seeds), lambda seed: examine(draw(seed)))
    if found is None:
        return None
    number, verdict = found
    violations = verdict.outcome.violations
    if violations and violations[0].rule == NO_BUGS:
        raise BrokenPlantError(f"{planted.name}: {violations[0]}")
    return number, violations[0].rule if violations else "another end"
