"""What a machine lacks for a node or MPI: docs/testing.md promises one line that names it, before anything is built."""

from __future__ import annotations

import fcntl
import io
import os
import re
import subprocess
import threading
from pathlib import Path

import pytest

from e2e.cluster import build as building
from e2e.cluster.__main__ import EXIT_NO_GO
from e2e.cluster.build import NODE, NoGoError, Program, build
from e2e.cluster.daemons import wait_until
from e2e.cluster.packages import LINKING, lacking, lacking_for_linking
from e2e.cluster.places import ClusterError
from e2e.mpi.__main__ import missing as missing_for_mpi
from e2e.realnode.__main__ import missing as missing_for_node
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "testing.md"
PRESENT = {"util-linux", "iproute2"}
"""Every Debian machine has them; the page does not mention them."""
OURS = {"ours": Program("ours", "."), "linked": Program("linked", ".", libseccomp=True)}


def promised(command: str) -> set[str]:
    """The packages that the page lists for a command."""
    section = PAGE.read_text().split(f"`{command}`", 1)[1]
    found = re.search(r"Debian's packages ([^.]*?)(?:, installs nothing|;|\.)", section)
    assert found, command
    return set(re.split(r", | and ", found[1]))


def named(line: str) -> set[str]:
    """The packages of the command that the line recommends."""
    assert "\n" not in line
    return set(line.split("apt-get install --no-install-recommends ", 1)[1].split())


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without any program."""
    monkeypatch.setattr("shutil.which", lambda *_args, **_kwargs: None)


@pytest.mark.usefixtures("bare")
def test_one_line_names_all_that_a_node_lacks():
    line = "; ".join(missing_for_node(list(NODE)))
    assert named(line) == promised("make e2e") | PRESENT
    assert "go.dev/dl" in line


@pytest.mark.usefixtures("bare")
def test_a_node_that_is_built_needs_no_compiler():
    assert named("; ".join(missing_for_node([]))) == promised("make e2e") - set(LINKING) | PRESENT


def test_a_machine_with_everything_is_told_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("shutil.which", lambda *_args, **_kwargs: "/bin/true")
    assert missing_for_node([]) == []


@pytest.mark.usefixtures("bare")
def test_one_line_names_all_that_mpi_lacks():
    assert named(missing_for_mpi()) >= promised("make test-mpi") - {"python3-mpi4py"}
    assert named(missing_for_mpi()) <= promised("make test-mpi")


def test_a_package_of_several_programs_is_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert lacking({"no-such-first": "both", "no-such-second": "both", "no-such-third": "own"}) == ["both", "own"]


@pytest.mark.parametrize(("result", "wanted"), [(0, []), (1, list(LINKING))])
def test_the_compiler_tells_whether_libseccomp_links(
    result: int, wanted: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("cc", "pkg-config"):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {result}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert lacking_for_linking() == wanted


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The programs that were compiled, in an empty cache and with Go."""
    names: list[str] = []
    monkeypatch.setenv("TRAINOP_TESTENV", str(tmp_path))
    monkeypatch.setattr(building, "find_go", lambda: "go")
    monkeypatch.setattr(building, "_is_current", lambda *_: False)
    monkeypatch.setattr(building, "_compile", lambda name, *_: names.append(name))
    return names


def test_a_missing_library_is_told_before_a_long_build(compiled: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(building, "lacking_for_linking", lambda: list(LINKING))
    with pytest.raises(NoGoError) as refused:
        build(("ours", "linked"), OURS)
    assert named(str(refused.value)) == set(LINKING)
    assert compiled == []
    build(("ours",), OURS)
    assert compiled == ["ours"]


def test_missing_go_is_told_with_what_needs_it(compiled: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(building, "find_go", lambda: None)
    with pytest.raises(ClusterError, match=r"^ours, linked cannot be built or fetched: Go is not installed"):
        build(("ours", "linked"), OURS)
    assert compiled == []


def test_a_build_says_that_it_waits_for_another(compiled: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    said = io.StringIO()
    monkeypatch.setattr("sys.stderr", said)
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=build, args=(("ours",), OURS), daemon=True)
        thread.start()
        assert wait_until(lambda: said.getvalue().endswith("\n"), PATIENCE)
        assert said.getvalue() == "ours: another process builds programs here; waiting for it\n"
        assert compiled == []
    thread.join(PATIENCE)
    assert compiled == ["ours"]


@pytest.mark.parametrize("ci", ["", "true"])
def test_make_test_says_in_one_line_what_it_leaves_out_without_go(ci: str, tmp_path: Path):
    """Only CI fails then. The programs of the environment are played: the build says that there is no Go."""
    played = f"#!/bin/sh\ncase $2 in e2e.cluster) exit {EXIT_NO_GO} ;; esac\n"
    for name in ("python", "pytest"):
        (tmp_path / name).write_text(played)
        (tmp_path / name).chmod(0o755)
    command = ["make", "--no-print-directory", "--assume-old=.venv/.ready", "test", f"BIN={tmp_path}"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "CI": ci, "MAKEFLAGS": ""}, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[0] == "so the tests that need a real kube-apiserver are skipped"
    assert (done.returncode != 0) == bool(ci)
    assert ("this run fails" in done.stdout) == bool(ci)
