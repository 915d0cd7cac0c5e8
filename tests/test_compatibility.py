"""docs/compatibility.md names the releases of Kubernetes that the test cluster is built of, and what differs."""

from __future__ import annotations

import re
from pathlib import Path

from e2e.cluster.releases import DEFAULT, NEWEST, OLDEST, RELEASES
from tests.conformance.rows_releases import ROWS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_the_page_has_a_row_for_each_release():
    found = rows("What was run")
    assert [(row[0], row[1]) for row in found] == [(release.name, release.version) for release in RELEASES]
    run = [row[0] for row in found if row[2] == "yes"]
    assert run == [OLDEST.name, NEWEST.name], "make test-kubernetes runs these"
    assert f"CI runs {DEFAULT.name}" in PAGE
    assert f"Kubernetes {OLDEST.name} to {NEWEST.name}" in PAGE


def test_the_page_has_each_release_since_which_an_answer_differs():
    differing = {row.since for row in ROWS if row.since}
    assert {row[0] for row in rows("What differs")} == differing


def test_make_runs_the_oldest_and_the_newest_release():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = makefile.partition("\ntest-kubernetes:")[2].partition("\n\n")[0]
    assert "e2e.cluster releases" in recipe
    assert "export TRAINOP_KUBERNETES=$$release" in recipe
    suites = re.findall(r"^ON_KUBERNETES := ((?:.*\\\n)*.*)$", makefile, re.MULTILINE)[0].replace("\\\n", " ").split()
    assert {"tests/conformance", "tests/server", "tests/run/test_tour.py"} <= set(suites)
    assert all((ROOT / suite).exists() for suite in suites)
