"""The house rules that a machine can check, and the tools of the house."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.places import VERSION
from tests.cases import Ledger, read_cases

ROOT = Path(__file__).parent.parent
BUDGETS = {"dijob.py": 350, "mpi_v1.py": 250, "mpi_v2beta1.py": 250}
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
        if lines > BUDGETS.get(path.name, FILE_LINES):
            over.append(f"{path.relative_to(ROOT)}: {lines} lines")
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                length = node.end_lineno - node.lineno + 1
                if length > FUNCTION_LINES:
                    over.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {length} lines")
    assert over == []


def test_only_the_controller_catches_every_exception():
    broad = [
        f"{path.relative_to(ROOT)}"
        for path in modules()
        for node in nodes(path)
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or (isinstance(node.type, ast.Name) and node.type.id == "Exception"))
    ]
    assert broad == ["trainop/runtime/controller.py"]


@pytest.mark.parametrize("module", ["kubernetes", "etcd"])
def test_the_test_cluster_is_pinned_to_the_version_it_says(module: str):
    text = (ROOT / "e2e" / "cluster" / "go" / module / "go.mod").read_text()
    wanted = {"kubernetes": f"k8s.io/kubernetes {VERSION}", "etcd": "go.etcd.io/etcd/server/v3 v3.6.8"}
    assert wanted[module] in text


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


def test_a_case_is_shown_only_if_every_test_that_carries_it_passed():
    ledger = Ledger({"a-1": "first", "a-2": "second", "a-3": "third", "b-1": "other"})
    for case, test in (("a-1", "t1"), ("a-1", "t2"), ("a-2", "t2"), ("a-2", "t3"), ("b-1", "t1")):
        ledger.carry(case, test, part="the queue" if case == "b-1" else "")
    ledger.record(["a-1", "b-1"], "t1", "passed")
    ledger.record(["a-1", "a-2"], "t2", "passed")
    ledger.record(["a-2"], "t3", "skipped")
    assert [case for case in ledger.titles if ledger.shown(case)] == ["a-1"]
    lines = list(ledger.lines())
    assert "    skipped  t3" in lines
    assert "    passed   t1  (only the queue)" in lines
    assert lines[lines.index("shown in part only:") :] == [
        "shown in part only:",
        "    b-1: other",
        "missing (no test carries them):",
        "    a-3: third",
        "a: 1 of 3",
        "b: 0 of 1",
    ]


def test_a_failure_in_any_phase_outweighs_a_pass():
    ledger = Ledger({"a-1": "first"})
    ledger.carry("a-1", "t")
    for result in ("passed", "failed"):
        ledger.record(["a-1"], "t", result)
    assert not ledger.shown("a-1")


PROBE = """
import pytest
@pytest.mark.case("job-engine-1", "job-engine-2")
def test_passes(): pass
@pytest.mark.case("job-engine-2")
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


def test_a_run_ends_with_one_line_for_each_specification(tmp_path: Path):
    done = run_pytest(tmp_path, PROBE, "--cases")
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed, 1 deselected, 1 xfailed" in done.stdout
    assert lines[-5] == "job-engine: 1 of 40"
    assert "    passed   test_probe.py::test_passes" in lines


def test_an_unknown_case_fails_the_collection(tmp_path: Path):
    done = run_pytest(tmp_path, PROBE.replace("job-engine-1", "job-engine-41"), "--cases")
    assert done.returncode != 0
    assert "no such acceptance case: job-engine-41" in done.stderr + done.stdout


LACKING = """
from tests.needs import lack
def test_lacks(): lack("no such program")
"""


@pytest.mark.parametrize(
    ("ci", "outcome"),
    [("", "1 skipped"), ("true", "1 skipped" if os.geteuid() or sys.platform != "linux" else "1 failed")],
)
def test_what_is_missing_is_a_skip_but_in_ci_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ci: str, outcome: str
):
    monkeypatch.setenv("CI", ci)
    done = run_pytest(tmp_path, LACKING, "-rs")
    assert outcome in done.stdout, done.stdout + done.stderr
    assert "no such program" in done.stdout
