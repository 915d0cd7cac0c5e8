"""`docs/new-kind.md`, followed to the letter in a copy of the tree, gives a kind that passes the tests of all kinds."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from e2e.new_kind import MARK, PAGE, rename, steps_of

ROOT = Path(__file__).parent.parent
FOLDERS = ("docs", "e2e", "examples", "manifests", "tests", "trainop")
GENERATE = """
import sys
from e2e.docs.__main__ import main as write_docs
from tests.controllers import test_stories
from tests.engine import test_golden
from trainop.manifests.command import manifests_command
from trainop.programs.schemes import FRAMEWORKS

manifests_command([], standalone_mode=False)
sys.argv[1:] = []
write_docs()
test_stories.write("FooJob")
for mode in test_golden.FILES:
    test_golden.write(FRAMEWORKS["FooJob"], mode)
"""
"""What the page lists under "Generated files", in one process: each of them starts for seconds."""

SIMULATE = """
from itertools import count, islice
from tests.simulation.draw import draw_script
from tests.simulation.examine import first_problem
from trainop.engine.framework import PodAdditions, Progress, variable
from trainop.kinds.foo import FOO

def simulate(fault):
    kinds = ({job.kind for job in draw_script(seed).jobs} for seed in count())
    found = first_problem(islice((seed for seed, drawn in enumerate(kinds) if drawn == {"FooJob"}), 20))
    print(f"{fault}: {found[1].problem if found else 'all is well'}")

simulate("as written")
right = FOO.additions
wrong = lambda _role, _index: [variable("FOO_PEERS", ""), variable("FOO_RANK", 0)]
object.__setattr__(FOO, "additions", lambda job, options: right(job, options)._replace(variables=wrong))
simulate("wrong rank")
object.__setattr__(FOO, "additions", right)
object.__setattr__(FOO, "progress", lambda _job, _tallies: Progress(running=True, succeeded=True))
simulate("instant success")
"""

TESTS = {
    "foo": ("controllers/test_admission.py", "controllers/test_contract.py", "controllers/test_stories.py"),
    "foo or golden": ("engine/test_crd.py", "engine/test_golden.py", "kinds/test_foo.py", "simulation/test_oracle.py"),
    "registries or manifests": ("test_registries.py", "test_manifests.py"),
}
"""`-k` -> the tests that show most of the kind. The others that all kinds share stand on the same tables."""


def run(tree: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    return subprocess.run(
        [sys.executable, *command], cwd=tree, env=environment, capture_output=True, text=True, check=False
    )


def run_tests(tree: Path, tests: Sequence[str], *options: str) -> tuple[int, list[str], str]:
    """The exit code, the tests that failed, and all that was printed."""
    paths = [tree / "tests" / each for each in tests]
    done = run(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *paths)
    return done.returncode, re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE), done.stdout + done.stderr


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree after `make new-kind NAME=Foo`, and with its generated files."""
    copy = tmp_path_factory.mktemp("house")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, copy)
    written = run(copy, "-m", "e2e.new_kind", "Foo")
    assert written.returncode == 0, written.stderr
    generated = run(copy, "-c", GENERATE)
    assert generated.returncode == 0, generated.stderr
    return copy


def test_a_name_that_no_kind_can_have_is_refused(tmp_path: Path):
    for name in ("foo", "FooJob", "Foo-Bar"):
        done = run(ROOT, "-m", "e2e.new_kind", name)
        assert done.returncode == 2
        assert "names no kind" in done.stderr


def test_it_is_written_once_only(tree: Path):
    done = run(tree, "-m", "e2e.new_kind", "Foo")
    assert done.returncode == 2
    assert re.search(r"trainop/kinds/foo\.py is there already", done.stderr)


def test_each_spelling_is_renamed_and_no_other_word():
    assert rename("MyJob my MY_PEERS myReplicaSpecs tests/kinds/test_<name>.py <kind> myriad enemy", "Foo") == (
        "FooJob foo FOO_PEERS fooReplicaSpecs tests/kinds/test_foo.py foojob myriad enemy"
    )


def test_the_only_tests_that_fail_ask_for_what_only_its_author_knows(tree: Path):
    """And none is left when the marks are gone."""
    with_marks = run_tests(tree, ["test_registries.py"])
    assert [name.rpartition("::")[2] for name in with_marks[1]] == [
        "test_nothing_that_a_new_kind_brought_is_left_to_do"
    ], with_marks[2]
    steps = steps_of((ROOT / PAGE).read_text(encoding="utf-8"))
    marked = {tree / rename(step.file, "Foo") for step in steps if step.file.startswith(("trainop/kinds/", "tests/"))}
    page = tree / "docs" / "kinds" / "foojob.md"  # shows the example
    for path in {*marked, *(tree / "examples" / "foo").iterdir(), page}:
        text = path.read_text(encoding="utf-8")
        assert text.count(MARK) >= 1, path
        path.write_text(re.sub(rf"^.*{re.escape(MARK)}.*\n", "", text, flags=re.MULTILINE), encoding="utf-8")
    for words, tests in TESTS.items():
        code, failed, output = run_tests(tree, tests, "-k", words)
        assert (code, failed) == (0, []), output


def test_the_simulation_finds_what_is_wrong_with_it(tree: Path):
    done = run(tree, "-c", SIMULATE)
    assert done.returncode == 0, done.stderr
    found = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    assert found["as written"] == "all is well"
    assert "pods as specified" in found["wrong rank"]
    assert "ends for a reason" in found["instant success"]
