"""The acceptance cases: which there are, which tests carry them, and how those tests ended.

`cases.toml` lists every case by number with a title; a test carries some with `@pytest.mark.case("job-engine-16")`,
or `@pytest.mark.case("job-engine-37", part="the queue")` if it shows only a part.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

LIST = Path(__file__).with_name("cases.toml")
PASSED = "passed"


def read_cases(path: Path = LIST) -> dict[str, str]:
    """Case -> title, such as `job-engine-16`, in the order of the specifications and their numbers."""
    chapters: dict[str, list[str]] = tomllib.loads(path.read_text(encoding="utf-8"))
    return {
        f"{specification}-{number}": title
        for specification, titles in chapters.items()
        for number, title in enumerate(titles, start=1)
    }


@dataclass
class Ledger:
    """What is known of each case after a run."""

    titles: Mapping[str, str]
    results: dict[str, dict[str, str]] = field(default_factory=dict)
    """Case -> test -> `passed`, `failed`, `skipped` or `not run`."""
    parts: dict[tuple[str, str], str] = field(default_factory=dict)
    """Case and test -> what of the case the test shows, where that is not all."""

    def unknown(self, cases: Iterable[str]) -> list[str]:
        return [case for case in cases if case not in self.titles]

    def carry(self, case: str, test: str, part: str = "") -> None:
        """Note that the test carries the case, or a part of it, before it has run."""
        self.results.setdefault(case, {})[test] = "not run"
        if part:
            self.parts[case, test] = part

    def record(self, cases: Iterable[str], test: str, result: str) -> None:
        """Note one phase of a test: of set-up, call and teardown the worst counts."""
        for case in cases:
            before = self.results[case][test]
            self.results[case][test] = result if before in ("not run", PASSED) else before

    def shown(self, case: str) -> bool:
        """A case is shown if every test that carries it passed, and one of them shows all of it."""
        results = self.results.get(case, {})
        passed = all(result == PASSED for result in results.values())
        return passed and self._carried_wholly(case)

    def lines(self) -> Iterator[str]:
        """The report: case -> test -> result, the missing, and one line for each specification at the end."""
        for case in self.titles:
            yield from self._tests_of(case)
        yield "shown in part only:"
        yield from self._list(lambda case: case in self.results and not self._carried_wholly(case))
        yield "missing (no test carries them):"
        yield from self._list(lambda case: case not in self.results)
        chapters: dict[str, list[str]] = {}
        for case in self.titles:
            chapters.setdefault(case.rpartition("-")[0], []).append(case)
        for specification, cases in chapters.items():
            yield f"{specification}: {sum(map(self.shown, cases))} of {len(cases)}"

    def _carried_wholly(self, case: str) -> bool:
        return any((case, test) not in self.parts for test in self.results.get(case, {}))

    def _list(self, wanted: Callable[[str], bool]) -> Iterator[str]:
        return (f"    {case}: {title}" for case, title in self.titles.items() if wanted(case))

    def _tests_of(self, case: str) -> Iterator[str]:
        results = self.results.get(case, {})
        if results:
            yield f"{case}: {self.titles[case]}"
        for test, result in sorted(results.items()):
            part = f"  (only {self.parts[case, test]})" if (case, test) in self.parts else ""
            yield f"    {result:8} {test}{part}"
