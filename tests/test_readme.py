"""The README is short and true, and `docs/evidence.md` has a test for each behaviour."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from e2e.docs.demo import COMMAND, PICTURE, lines_of
from trainop.programs.schemes import FRAMEWORKS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
EVIDENCE = ROOT / "docs" / "evidence.md"
MAX_WORDS = 900


def test_the_readme_is_short():
    assert len(README.split()) <= MAX_WORDS


def section(title: str) -> str:
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_every_kind_has_a_row_with_its_page_and_an_example():
    rows = re.findall(r"^\| \[(\w+)\]\((\S+)\)[^|]*\|[^|]*\| \[[^]]+\]\((\S+)\) \|$", section("Kinds"), re.MULTILINE)
    assert sorted(kind for kind, _, _ in rows) == sorted({*FRAMEWORKS, "MPIJob", "DIJob"})
    for kind, page, example in rows:
        assert page == f"docs/kinds/{kind.lower()}.md"
        assert f"kind: {kind}" in (ROOT / example).read_text(encoding="utf-8")


MEASURED = {
    "memory": "S3: RSS with 10,000 pods, MiB",
    "restart": "S3: restart until a new job's first pod, s",
    "API requests": "S1: API requests per job, creation to Succeeded",
    "operator CPU": "S1: operator CPU per job, ms",
    "200 jobs": "S1: until all jobs run, s",
    "failed pod": "S4: failed pod to replacement, p50, ms",
}
"""Start of a row of the README, and the row of the report with its figures."""


def report() -> str:
    return (ROOT / "e2e" / "bench" / "report" / "README.md").read_text(encoding="utf-8")


def measured(target: str) -> list[float]:
    """The medians of the Go operator and of ours with one Service per replica and per job."""
    (line,) = (line for line in report().splitlines() if line.startswith(f"| {target} |"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    if not cells[1]:  # the requests of the Go operator are no target: those of both phases are listed at the end
        phases = re.findall(r"^- training-operator-tuned s1 [^:]*: \*\*([\d.]+)\*\*", report(), re.MULTILINE)
        cells[1] = f"{sum(map(float, phases))}"
    return [float(cells[index].split()[0]) for index in (1, 2, 6)]


def test_the_figures_are_those_of_the_report():
    rows = [line.strip("| ").split(" | ") for line in section("Figures").splitlines() if line.startswith("| ")][1:]
    assert len(rows) == len(MEASURED)
    for (start, target), (what, *figures) in zip(MEASURED.items(), rows, strict=True):
        assert what.startswith(start)
        for figure, exact in zip(figures, measured(target), strict=True):
            number = figure.split()[0]
            assert abs(float(number) - exact) <= 0.5 * 10 ** -len(number.partition(".")[2]), (what, figure, exact)
            assert f", {figure.split()[-1]}" in target or " " not in figure, (what, figure)
    met = re.search(r"(\d+) of (\d+) targets", section("Figures").replace("\n", " "))
    assert met is not None
    assert met[0] in report()


# The picture ----------------------------------------------------------------------------------------------------------


def words(text: str) -> Counter[str]:
    """Words without what differs from run to run: time, addresses, checksums, and how often a line was printed."""
    text = re.sub(r"weights [0-9a-f]+|at [\w.-]+:\d+|\d{4}-\d\d-\d\dT\S+", "", text)
    return Counter(set(re.findall(r"[A-Za-z][A-Za-z-]+|\d+\.\d{6}", text)))


def shown() -> str:
    """The text of the picture, line by line."""
    svg = PICTURE.read_text(encoding="utf-8")
    texts = re.findall(r'<text class="demo-r\d+"[^>]*>([^<]*)</text>', svg)
    return html.unescape("\n".join(texts)).replace("\xa0", " ")


def test_the_picture_shows_what_the_demo_prints():
    """Written by `python -m e2e.docs.demo` from a run on a terminal; here the same job runs again."""
    command = [sys.executable, "-m", *COMMAND]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    before, now = words(shown().replace("$", "").replace(" ".join(COMMAND), "")), words(done.stdout)
    assert (sorted(before - now), sorted(now - before)) == ([], []), "run `python -m e2e.docs.demo`"


def test_the_picture_shows_what_the_first_paragraph_says():
    """Which replica failed first, why, and its last words."""
    text = " ".join(shown().split())
    cause = r"First failure: Worker 1 \(rank 2, [^)]+\) was ended by SIGKILL \(exit code 137\) at \S+"
    assert re.search(cause + " Last output: .+ as if killed", text)


def test_the_picture_needs_nothing_from_elsewhere():
    svg = PICTURE.read_text(encoding="utf-8")
    assert re.findall(r"url\((?!#)|@import|<image|<script|href=", svg) == []
    assert PICTURE.relative_to(ROOT).as_posix() in README


@pytest.mark.parametrize(
    ("output", "lines"),
    [
        ("a\r\nb\r\n", ["a", "b"]),
        ("table\r\nrow\r\x1b[2K\x1b[1A\x1b[2Kline\r\ntable\r\n", ["line", "table"]),
        ("\x1b[?25l\x1b[32mgreen\x1b[0m\r\n\r\n", ["\x1b[32mgreen\x1b[0m"]),
    ],
)
def test_a_live_table_is_not_in_the_picture(output: str, lines: list[str]):
    assert [line for line in lines_of(output) if line] == lines


# The map --------------------------------------------------------------------------------------------------------------


def test_each_behaviour_has_tests_that_are_there():
    """A file that is named has tests, and no behaviour is without one."""
    text = EVIDENCE.read_text(encoding="utf-8").split("\n## From behaviour to test\n")[1]
    rows = re.findall(r"^\| (?!behaviour|-)([^|]+) \| ([^|]+) \|$", text, re.MULTILINE)
    assert len(rows) >= 60
    assert [name for name, count in Counter(what for what, _ in rows).items() if count > 1] == []
    for what, cell in rows:
        files = re.findall(r"\[([^]]+)\]\(([^)]+)\)", cell)
        assert files, what
        for label, target in files:
            source = (EVIDENCE.parent / target).resolve().read_text(encoding="utf-8")
            assert target.endswith(label)
            assert re.search(r"^ *(?:async )?def test_", source, re.MULTILINE), target


def test_what_works_is_tested_by_something():
    text = EVIDENCE.read_text(encoding="utf-8").split("\n## What works\n")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 30
    for what, state, tested in rows:
        assert state, what
        assert re.search(r"`(?:tests|e2e|make |examples)[^`]*`|\]\(", tested), what
