"""Families of seeds: MPIJobs, DIJobs, any jobs under a gang scheduler, and jobs that cannot go on. Most seeds have jobs
with replica types without one; a few consecutive ones contain all families."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

MPI, GANG, DI, STILL = "mpi", "gang", "di", "still"
SURVIVE = "survive"
"""Jobs that are watched; their scripts are numbered apart (`survive_draw.py`)."""
IN_PLACE = "in-place"
"""Jobs that restart in place; their scripts, too, are numbered apart (`in_place_draw.py`)."""
EVERY = {MPI: (7, 5), GANG: (11, 6), DI: (13, 3), STILL: (17, 9)}
"""Family -> one seed in so many, from this one on. They have no divisor in common, or with the numbers of themes and of
staged sequences, so that each theme loses as many."""


def family_of(seed: int) -> str:
    """Empty for jobs with replica types."""
    return next((family for family, (every, first) in EVERY.items() if seed % every == first), "")


def number_in_family(seed: int) -> int:
    """The how many-th of its family it is, about; counts up by one."""
    every, _ = EVERY[family_of(seed)]
    return seed // every


class ThemeOf(NamedTuple):
    """One of the themes of a family, which alternate."""

    number: int
    themes: int

    def includes(self, seed: int) -> bool:
        return number_in_family(seed) % self.themes == self.number


def seeds_of(family: str, first: int = 0, theme: ThemeOf | None = None) -> Iterator[int]:
    """The seeds of a family, from `first` on, and of the `theme` if it is given; those of all families if it is
    `all`."""
    found = (seed for seed in count(first) if family in {"all", family_of(seed)})
    return found if theme is None else filter(theme.includes, found)
