"""The house rules that a machine can check, and the tools of the house."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.build import PROGRAMS, TESTED
from e2e.cluster.components import ClusterOptions
from e2e.cluster.releases import RELEASES, Release
from tests.cases import Case, Ledger, Tally, read_cases, read_floor, write_floor
from tests.needs import need_built

ROOT = Path(__file__).parent.parent
BUDGETS = {"kinds/dijob": 350, "kinds/mpi": 250, "kinds": 200}
"""Folder below `trainop` -> lines of a file; the first that fits."""
FILE_LINES = 400
FUNCTION_LINES = 40


def modules() -> list[Path]:
    return sorted((ROOT / "trainop").rglob("*.py"))


def nodes(path: Path) -> Iterator[ast.AST]:
    yield from ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def test_no_file_and_no_function_outgrows_its_budget():
    over = []
    for path in modules():
        lines = len(path.read_text(encoding="utf-8").splitlines())
        folder = path.parent.relative_to(ROOT / "trainop").as_posix()
        if lines > next((budget for name, budget in BUDGETS.items() if folder.startswith(name)), FILE_LINES):
            over.append(f"{path.relative_to(ROOT)}: {lines} lines")
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                length = node.end_lineno - node.lineno + 1
                if length > FUNCTION_LINES:
                    over.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {length} lines")
    assert over == []


BOUNDARIES = {
    "trainop/runtime/controller/controller.py": "a reconcile",
    "trainop/runtime/client/decoding.py": "the decoding of one object",
    "trainop/runtime/cache/informer.py": "an event handler: mapper, predicate",
    "trainop/runtime/cache/store.py": "an event handler: index",
}


def test_only_the_boundaries_catch_every_exception():
    broad = [
        f"{path.relative_to(ROOT)}"
        for path in modules()
        for node in nodes(path)
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or (isinstance(node.type, ast.Name) and node.type.id == "Exception"))
    ]
    assert broad == sorted(BOUNDARIES)


def test_the_runtime_names_no_program():
    """The runtime is a library: the field manager and user agent are arguments. Only module paths may say `trainop`."""
    named = [
        f"{path.name}:{node.lineno}: {text}"
        for path in sorted((ROOT / "trainop" / "runtime").rglob("*.py"))
        for node in nodes(path)
        if isinstance(node, ast.Constant | ast.Name | ast.Import)
        for text in [node.id if isinstance(node, ast.Name) else ast.unparse(node)]
        if "trainop" in text.replace("trainop.runtime", "").lower()
    ]
    assert named == []


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
def test_the_test_cluster_is_pinned_to_the_version_it_says(release: Release):
    lines = (ROOT / "e2e" / "cluster" / "go" / release.module / "go.mod").read_text().splitlines()
    assert f"\tk8s.io/kubernetes {release.version} // indirect" in lines
    # the modules that Kubernetes is released with are of the same release
    staged = [line.split(" => ")[1] for line in lines if " => " in line]
    assert {one.split()[1] for one in staged} == {release.version.replace("v1.", "v0.")}


def test_the_test_cluster_has_the_etcd_it_says():
    assert "go.etcd.io/etcd/server/v3 v3.6.8" in (PROGRAMS["etcd"].sources / "go.mod").read_text()


def test_make_help_names_every_target():
    makefile = (ROOT / "Makefile").read_text()
    phony = next(line for line in makefile.splitlines() if line.startswith(".PHONY:")).split()[1:]
    done = subprocess.run(["make", "-C", ROOT, "help"], capture_output=True, text=True, check=True)
    listed = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")]
    assert sorted(listed) == sorted(phony)


def test_every_specification_has_forty_cases():
    chapters = [case.rpartition("-")[0] for case in read_cases()]
    counts = {name: chapters.count(name) for name in chapters}
    assert counts == dict.fromkeys(("job-engine", "frameworks-v1", "runtime", "mpi-v2beta1", "di-orchestrator"), 40)


LETTERS = Case("first", {"a": "its a", "b": "its b"})


def ledger(*results: tuple[str, str, str]) -> Ledger:
    """A ledger of two cases; each result is a clause, a test and its outcome."""
    found = Ledger({"a-1": LETTERS, "a-2": Case("second", {"a": "all of it"}), "b-1": Case("other", {"a": "all"})})
    for clause, test, result in results:
        found.carry([clause], test)
        found.record([clause], test, result)
    return found


def test_a_case_is_whole_only_if_each_clause_is_shown_and_each_test_of_it_passed():
    assert ledger(("a-1a", "t1", "passed")).tallies()["a"] == Tally(0, 1)
    both = [("a-1a", "t1", "passed"), ("a-1b", "t2", "passed")]
    assert ledger(*both).tallies()["a"] == Tally(1, 2)
    for result in ("failed", "skipped", "not run"):
        assert ledger(*both, ("a-1b", "t3", result)).tallies()["a"] == Tally(0, 1)


def test_the_report_says_what_is_missing_of_the_specifications_that_were_begun():
    lines = list(ledger(("a-1a", "t1", "passed"), ("a-1b", "t2", "skipped")).lines())
    assert lines == [
        "a-1: first (1 of 2)",
        "  a passed   its a",
        "        passed   t1",
        "  b skipped  its b",
        "        skipped  t2",
        "not shown:",
        "    a-1 b: first: its b  (skipped)",
        "    a-2 a: second: all of it  (missing)",
        "a: 0 of 2 cases whole, 1 of 3 clauses",
        "b: 0 of 1 cases whole, 0 of 1 clauses",
    ]


def test_a_failure_in_any_phase_outweighs_a_pass():
    found = ledger(("a-2a", "t", "passed"), ("a-2a", "t", "failed"))
    assert found.tallies()["a"] == Tally(0, 0)
    found.record(["a-2a"], "t", "passed")
    assert found.tallies()["a"] == Tally(0, 0)


def test_the_number_of_shown_clauses_must_not_decrease(tmp_path: Path):
    floor = tmp_path / "floor.toml"
    before = ledger(("a-1a", "t1", "passed"), ("a-1b", "t1", "passed"))
    write_floor(before.tallies(), floor)
    assert (before.below(read_floor(floor)), before.above(read_floor(floor))) == ([], False)
    less = ledger(("a-1a", "t1", "passed"))
    assert less.below(read_floor(floor)) == [
        "a: 0 cases are shown, 1 were before",
        "a: 1 clauses are shown, 2 were before",
    ]
    more = ledger(("a-1a", "t1", "passed"), ("a-1b", "t1", "passed"), ("b-1a", "t2", "passed"))
    assert (more.below(read_floor(floor)), more.above(read_floor(floor))) == ([], True)


def test_the_floor_is_no_more_than_there_is():
    counts = {
        name: sum(len(c.clauses) for case, c in read_cases().items() if case.startswith(name)) for name in read_floor()
    }
    assert len(counts) == 5
    assert all(read_floor()[name].clauses <= clauses for name, clauses in counts.items())


def test_every_clause_has_a_text_of_its_own():
    for name, case in read_cases().items():
        texts = list(case.clauses.values())
        assert texts, name
        assert all(texts), name
        assert len(set(texts)) == len(texts), name


PROBE = """
import pytest
@pytest.mark.case("job-engine-5", "a")
@pytest.mark.case("job-engine-2", "ab")
def test_passes(): pass
@pytest.mark.case("job-engine-2", "b")
@pytest.mark.xfail(reason="shows that an expected failure shows nothing")
def test_fails(): assert False
def test_carries_nothing(): assert False
"""


def run_pytest(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_probe.py").write_text(text)
    command = [sys.executable, "-m", "pytest", f"--rootdir={folder}", "-p", "tests.conftest", "-q"]
    return subprocess.run(
        [*command, "-p", "no:cacheprovider", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("processes", [[], ["--numprocesses=2"]], ids=["alone", "spread"])
def test_a_run_of_the_cases_reports_and_fails_below_the_floor(tmp_path: Path, processes: list[str]):
    done = run_pytest(tmp_path, PROBE, "--cases", *processes)
    lines = done.stdout.splitlines()
    assert "1 passed" in done.stdout
    assert "1 xfailed" in done.stdout
    assert "  a passed   slashes and capitals are replaced" in lines
    assert "    job-engine-2 b: labels of a replica: the service selects by the same four  (failed)" in lines
    clauses = sum(len(case.clauses) for name, case in read_cases().items() if name.startswith("job-engine"))
    assert f"job-engine: 1 of 40 cases whole, 2 of {clauses} clauses" in lines
    assert f"job-engine: 2 clauses are shown, {read_floor()['job-engine'].clauses} were before" in lines
    assert done.returncode == 1, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("wrong", "reported"),
    [
        ('"job-engine-41", "a"', "no such acceptance case: job-engine-41"),
        ('"job-engine-5", "ab"', "no such clause of job-engine-5: b"),
        ('"job-engine-5"', "missing 1 required positional argument: 'letters'"),
    ],
)
def test_an_unknown_case_or_clause_fails_the_collection(tmp_path: Path, wrong: str, reported: str):
    done = run_pytest(tmp_path, PROBE.replace('"job-engine-5", "a"', wrong))
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert reported in done.stderr + done.stdout


LACKING = """
from tests.needs import lack
def test_lacks(): lack("no such program")
"""


@pytest.mark.parametrize(
    ("ci", "outcome"),
    [("", "1 skipped"), ("true", "1 skipped" if os.geteuid() or sys.platform != "linux" else "1 failed")],
)
def test_a_missing_requirement_is_a_skip_but_in_ci_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ci: str, outcome: str
):
    monkeypatch.setenv("CI", ci)
    done = run_pytest(tmp_path, LACKING, "-rs")
    assert outcome in done.stdout, done.stdout + done.stderr
    assert "no such program" in done.stdout


def test_make_test_builds_every_program_that_a_test_needs():
    """On a new machine nothing else has built it."""
    files = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")]
    named = {name for text in files for name in re.findall(r'need_program\("([^"]+)"\)', text)}
    assert {"helm"} <= named <= set(TESTED)
    with pytest.raises(pytest.fail.Exception, match="make test does not build kwok"):
        need_built(ClusterOptions(("scheduler", "kwok")))
