"""The acceptance cases: the list of cases, the tests that prove their clauses, and the results of those tests.

`cases.toml` lists every case with a title and its clauses a, b, c ...; a test names the clauses that it proves:
`@pytest.mark.case("job-engine-16", "ab")`. A clause is shown if at least one test names it and every test that names it
has passed; a case is whole if all its clauses are shown. `cases-floor.toml` holds the numbers that a run must reach.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import ascii_lowercase
from typing import NamedTuple

LIST = Path(__file__).with_name("cases.toml")
FLOOR = Path(__file__).with_name("cases-floor.toml")
PASSED = "passed"
NOT_RUN = "not run"


class CaseError(Exception):
    """A test names a case or clause that does not exist; the message says which."""


@dataclass(frozen=True, slots=True)
class Case:
    title: str
    clauses: Mapping[str, str]
    """Letter -> title."""


class Tally(NamedTuple):
    """Numbers of whole cases and of shown clauses of one specification."""

    cases: int
    """Cases of which every clause is shown."""
    clauses: int


def read_cases(path: Path = LIST) -> dict[str, Case]:
    """Case such as `job-engine-16` -> its title and clauses, in the order of the specifications."""
    chapters: dict[str, list[list[str]]] = tomllib.loads(path.read_text(encoding="utf-8"))
    return {
        f"{specification}-{number}": Case(title, dict(zip(ascii_lowercase, clauses, strict=False)))
        for specification, cases in chapters.items()
        for number, (title, *clauses) in enumerate(cases, start=1)
    }


def read_floor(path: Path = FLOOR) -> dict[str, Tally]:
    """Specification -> the tally recorded in the floor file."""
    return {name: Tally(**counts) for name, counts in tomllib.loads(path.read_text(encoding="utf-8")).items()}


def write_floor(tallies: Mapping[str, Tally], path: Path = FLOOR) -> None:
    lines = [f"{name} = {{ cases = {tally.cases}, clauses = {tally.clauses} }}\n" for name, tally in tallies.items()]
    path.write_text(
        "# What `make cases` must reach; `make cases-floor` raises it.\n" + "".join(lines), encoding="utf-8"
    )


@dataclass
class Ledger:
    """The test results of each clause in one run. A clause is written as its case and letter: `job-engine-16b`."""

    cases: Mapping[str, Case]
    results: dict[str, dict[str, str]] = field(default_factory=dict)
    """Clause -> test -> `passed`, `failed`, `skipped` or `not run`."""

    def clauses_of(self, case: str, letters: str) -> list[str]:
        """The clauses that a marker names; raises CaseError if a case or clause does not exist."""
        if case not in self.cases:
            raise CaseError(f"no such acceptance case: {case} (see cases.toml)")
        if unknown := [letter for letter in letters if letter not in self.cases[case].clauses]:
            raise CaseError(f"no such clause of {case}: {', '.join(unknown)} (see cases.toml)")
        return [f"{case}{letter}" for letter in letters]

    def carry(self, clauses: Iterable[str], test: str) -> None:
        """Register, before a test runs, the clauses that it names."""
        for clause in clauses:
            self.results.setdefault(clause, {}).setdefault(test, NOT_RUN)

    def record(self, clauses: Iterable[str], test: str, result: str) -> None:
        """Record the result of one phase of a test; the worst of set-up, call and teardown counts."""
        for clause in clauses:
            tests = self.results.setdefault(clause, {})
            before = tests.get(test, NOT_RUN)
            tests[test] = result if before in {NOT_RUN, PASSED} else before

    def state(self, case: str, letter: str) -> str:
        """`missing` if no test names the clause, else the worst result of the tests that name it."""
        results = set(self.results.get(f"{case}{letter}", {"": "missing"}).values())
        return next((result for result in ("failed", "skipped", NOT_RUN) if result in results), results.pop())

    def shown(self, case: str) -> int:
        """The number of shown clauses of a case."""
        return sum(self.state(case, letter) == PASSED for letter in self.cases[case].clauses)

    def tallies(self) -> dict[str, Tally]:
        """Specification -> numbers of whole cases and of shown clauses."""
        found: dict[str, Tally] = {}
        for name, case in self.cases.items():
            specification = name.rpartition("-")[0]
            before = found.get(specification, Tally(0, 0))
            shown = self.shown(name)
            found[specification] = Tally(before.cases + (shown == len(case.clauses)), before.clauses + shown)
        return found

    def lines(self) -> Iterator[str]:
        """The lines of the report: case -> clause -> tests, the clauses that are not shown, a line per specification.

        A specification without any test contributes only its summary line.
        """
        for name, case in self.cases.items():
            if any(f"{name}{letter}" in self.results for letter in case.clauses):
                yield f"{name}: {case.title} ({self.shown(name)} of {len(case.clauses)})"
                yield from self._clauses_of(name)
        yield from self.not_shown()
        yield from self.totals()

    def not_shown(self) -> Iterator[str]:
        """A line for each clause that is not shown, of the specifications that have tests."""
        begun = {name.rpartition("-")[0] for name in self.results}
        yield "not shown:"
        for name, case in self.cases.items():
            for letter, title in case.clauses.items() if name.rpartition("-")[0] in begun else ():
                if (state := self.state(name, letter)) != PASSED:
                    yield f"    {name} {letter}: {case.title}: {title}  ({state})"

    def totals(self) -> Iterator[str]:
        """A line for each specification."""
        totals = self._totals()
        for specification, tally in self.tallies().items():
            cases, clauses = totals[specification]
            yield f"{specification}: {tally.cases} of {cases} cases whole, {tally.clauses} of {clauses} clauses"

    def above(self, floor: Mapping[str, Tally]) -> bool:
        """Whether any number is higher than the floor."""
        pairs = [(tally, floor.get(name, Tally(0, 0))) for name, tally in self.tallies().items()]
        return any(now > before for pair in pairs for now, before in zip(*pair, strict=True))

    def below(self, floor: Mapping[str, Tally]) -> list[str]:
        """A line for each number that is lower than the floor."""
        return [
            f"{name}: {now} {what} are shown, {before} were before"
            for name, tally in self.tallies().items()
            for what, now, before in zip(Tally._fields, tally, floor.get(name, Tally(0, 0)), strict=True)
            if now < before
        ]

    def _totals(self) -> dict[str, Tally]:
        found: dict[str, Tally] = {}
        for name, case in self.cases.items():
            before = found.get(name.rpartition("-")[0], Tally(0, 0))
            found[name.rpartition("-")[0]] = Tally(before.cases + 1, before.clauses + len(case.clauses))
        return found

    def _clauses_of(self, case: str) -> Iterator[str]:
        for letter, title in self.cases[case].clauses.items():
            yield f"  {letter} {self.state(case, letter):8} {title}"
            for test, result in sorted(self.results.get(f"{case}{letter}", {}).items()):
                yield f"        {result:8} {test}"
