"""Families of seeds: MPIJobs, DIJobs, and any jobs under a gang scheduler. Most seeds have jobs with replica types
without one; a few consecutive ones contain all families."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

MPI, GANG, DI = "mpi", "gang", "di"
EVERY = {MPI: (7, 5), GANG: (11, 6), DI: (13, 3)}
"""Family -> one seed in so many, from this one on. They have no divisor in common, or with the numbers of themes and of
staged sequences, so that each theme loses as many."""


def family_of(seed: int) -> str:
    """Empty for jobs with replica types."""
    return next((family for family, (every, first) in EVERY.items() if seed % every == first), "")


def number_in_family(seed: int) -> int:
    """The how many-th of its family it is, about; counts up by one."""
    every, _ = EVERY[family_of(seed)]
    return seed // every


def seeds_of(family: str, first: int = 0) -> Iterator[int]:
    """The seeds of a family, from `first` on; those of all families if it is `all`."""
    return (seed for seed in count(first) if family in {"all", family_of(seed)})
