"""The folders of kept runs: names, limits, versions, owners, and processes that live or are gone."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from trainop.errors import StartError
from trainop.kept import folder
from trainop.kept.folder import JobName, Run, create_run, find_run, limits, list_runs, prune, read_run, runs_folder
from trainop.kept.process import start_of, this_process

JOBS = [JobName("kubeflow.org/v1", "PyTorchJob", "default", "train")]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "trainop" / "runs"


def make(code: int | None = 0, *, size: int = 0, began: str = "") -> Run:
    run = create_run("train", ["train.py"], JOBS)
    assert run.record is not None
    (run.path / "filler").write_bytes(b"x" * size)
    if began:
        run = run.begin(msgspec.structs.replace(run.record, began=began))
    return run if code is None else run.finish(code)


def test_names_are_short_and_never_used_twice(state: Path):
    names = [create_run(stem, [], JOBS).name for stem in ("train", "train", "My Job/../x", "", "a" * 300)]
    assert names == ["train-1", "train-2", "my-job-x-1", "run-1", "a" * 40 + "-1"]
    assert {each.name for each in state.iterdir()} == set(names)


def test_only_the_user_can_read_a_run(state: Path):
    os.umask(mask := os.umask(0))
    os.umask(0)
    try:
        run = make()
    finally:
        os.umask(mask)
    for path in (state, run.path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE((run.path / "run.json").stat().st_mode) == 0o600


def test_a_folder_of_somebody_else_is_refused(state: Path, tmp_path: Path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    state.parent.mkdir()
    state.symlink_to(elsewhere)  # as another user could make it in a folder that both can write
    with pytest.raises(OSError, match="symbolic link"):
        create_run("train", [], JOBS)
    assert list(elsewhere.iterdir()) == []
    state.unlink()
    state.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder to another user")
    os.chown(state, 12345, 12345)
    with pytest.raises(PermissionError, match="belongs to another user"):
        create_run("train", [], JOBS)


@pytest.mark.parametrize("value", ["", "relative/path"])
def test_without_a_state_home_it_is_below_the_home(value: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    assert runs_folder({"XDG_STATE_HOME": value}) == Path("/home/somebody/.local/state/trainop/runs")


@pytest.mark.parametrize(("code", "state"), [(0, "Succeeded"), (1, "Failed"), (2, "Failed"), (129, "Stopped")])
def test_the_state_of_a_run_that_has_ended(code: int, state: str):
    assert read_run(make(code).path).state == state


def test_a_run_without_an_end_lives_or_was_killed():
    run = make(None)
    assert run.record is not None
    assert read_run(run.path).state == "Running"
    own = this_process()
    for other, state in (
        (msgspec.structs.replace(own, start="1"), "Killed"),  # the number belongs to a later process
        (msgspec.structs.replace(own, boot="another"), "Killed"),
        (msgspec.structs.replace(own, pid=2**22 + 1), "Killed"),
        (msgspec.structs.replace(own, host="another"), "Elsewhere"),
    ):
        changed = run.begin(msgspec.structs.replace(run.record, process=other))
        assert read_run(changed.path).state == state


def test_a_zombie_does_not_live():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert start_of(process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert start_of(process.pid) == ""
    process.communicate()


def test_the_oldest_that_have_ended_are_removed():
    oldest = make(None, began="2020-01-01T00:00:00Z")
    runs = [make(began=f"2026-01-0{day}T00:00:00Z") for day in (1, 2, 3)]
    prune(keep=3, max_bytes=1 << 30)
    assert [each.name for each in list_runs()] == [runs[2].name, runs[1].name, oldest.name]
    prune(keep=0, max_bytes=0)
    assert [each.name for each in list_runs()] == [oldest.name]


def test_all_runs_together_have_a_size():
    small, large = make(began="2026-01-01T00:00:00Z"), make(size=100_000, began="2026-01-02T00:00:00Z")
    prune(keep=9, max_bytes=50_000)
    assert list_runs() == []
    assert not small.path.exists()
    assert not large.path.exists()


def test_a_run_of_a_newer_version_is_neither_read_nor_removed():
    run = make()
    (run.path / "run.json").write_text('{"version": 2, "command": "in another form"}')
    with pytest.raises(StartError, match=r"run train-1 cannot be read: it has format 2, and this trainop reads 1"):
        find_run(run.name)
    prune(keep=0, max_bytes=0)
    assert [each.problem != "" for each in list_runs()] == [True]


@pytest.mark.parametrize("content", [b"", b"{", b'{"version": "x"}', b'{"version": 1}', b"\xff\x00", b"[]"])
def test_a_damaged_record_is_said(content: bytes):
    run = make()
    (run.path / "run.json").write_bytes(content)
    with pytest.raises(StartError, match="run train-1 cannot be read"):
        find_run(run.name)
    assert [each.state for each in list_runs()] == ["Unreadable"]


def test_a_folder_that_is_being_made_is_not_removed(state: Path):
    state.mkdir(parents=True)
    (state / "train-1").mkdir()
    prune(keep=0, max_bytes=0)
    assert (state / "train-1").exists()
    old = time.time() - 2 * folder._ABANDONED_AFTER
    os.utime(state / "train-1", (old, old))
    prune(keep=0, max_bytes=0)
    assert not (state / "train-1").exists()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "\0", "x" * 5000, "nothing-1"])
def test_what_is_no_name_of_a_run_is_none(name: str):
    assert find_run(name) is None


def test_two_may_remove_the_same_run():
    run = make()
    again = replace(run)
    run.remove()
    again.remove()
    assert list_runs() == []


def test_the_limits_are_whole_numbers():
    assert limits({}) == (20, 1 << 30)
    assert limits({"TRAINOP_KEEP_RUNS": "3", "TRAINOP_KEEP_BYTES": "4"}) == (3, 4)
    with pytest.raises(ValueError, match="TRAINOP_KEEP_RUNS='many': expected a whole number"):
        limits({"TRAINOP_KEEP_RUNS": "many"})
