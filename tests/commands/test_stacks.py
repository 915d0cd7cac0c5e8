"""`trainop stacks` on a job that hangs, by py-spy and by faulthandler."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.commands.conftest import Shell, python_job
from tests.needs import lack
from trainop.commands.target import Replica
from trainop.explain.stacks import Frame, Process, group, read_faulthandler, read_py_spy, render
from trainop.run.dumper import IN_PODS, read_output
from trainop.run.pod_exec import Output

HANGS = """
import faulthandler, os, signal, time
faulthandler.register(signal.SIGUSR1)
def load_shard():
    time.sleep(1000)
def all_reduce():
    time.sleep(1000)
def train():
    print("begins", flush=True)
    load_shard() if os.environ["RANK"] == "2" else all_reduce()
train()
"""


def started(shell: Shell, name: str, replicas: int) -> None:
    shell.wait_for(f"{replicas} replicas of {name}", lambda: shell.run("logs", name).stdout.count("begins") == replicas)


def test_the_odd_one_out_comes_first(shell: Shell):
    if not (Path(sys.executable).parent / "py-spy").exists() and not shutil.which("py-spy"):
        lack("py-spy is not installed")
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    if os.geteuid() and scope.exists() and scope.read_text().strip() != "0":
        lack("this user may not trace other processes (kernel.yama.ptrace_scope)")
    shell.create(python_job("hangs", {"Master": (1, HANGS), "Worker": (3, HANGS)}))
    started(shell, "hangs", 4)

    def all_found() -> list[str] | None:
        lines = shell.run("stacks", "hangs").stdout.splitlines()
        return lines if lines and "load_shard" in lines[0] and "rank 0, 1, 3" in lines[0] else None

    lines = shell.wait_for("the stacks", all_found)
    assert lines[0] == "rank 2: load_shard <string>:5; rank 0, 1, 3: all_reduce <string>:7"
    assert lines[2:6] == [
        "rank 2:",
        "    load_shard (<string>:5)",
        "    train (<string>:10)",
        "    <module> (<string>:11)",
    ]


def test_without_py_spy_faulthandler_is_asked_if_the_job_allows_it(shell: Shell):
    path = {"PATH": "/usr/bin:/bin"}
    if shutil.which("py-spy", path=path["PATH"]):
        lack("py-spy is installed for all programs")
    shell.create(python_job("allows", {"Master": (1, HANGS)}, {**path, "TRAINOP_STACKS_SIGNAL": "SIGUSR1"}))
    shell.create(python_job("forbids", {"Master": (1, HANGS)}, path))
    started(shell, "allows", 1)
    started(shell, "forbids", 1)
    allowed = shell.wait_for(
        "the dump", lambda: "all_reduce" in (done := shell.run("stacks", "allows")).stdout and done
    )
    assert allowed.stdout.splitlines()[0] == "rank 0: all_reduce <string>:7"
    forbidden = shell.run("stacks", "forbids")
    assert (forbidden.returncode, forbidden.stdout) == (1, f"rank 0: {IN_PODS.missing}\n")
    assert "Running" in shell.run("ps").stdout, "the program goes on"


def test_a_job_without_running_replicas(shell: Shell):
    shell.create(python_job("over", {"Master": (1, "print('begins')")}))
    shell.wait_state("over", "Succeeded")
    done = shell.run("stacks", "over")
    assert (done.returncode, done.stderr) == (
        1,
        "trainop: no running replica of PyTorchJob over; see trainop why over\n",
    )


# Values ---------------------------------------------------------------------------------------------------------------

A, B = Frame("all_reduce", "distributed_c10d.py", 4181), Frame("load_shard", "/job/train.py", 6)


def process(rank: int, *frames: Frame, problem: str = "") -> Process:
    return Process(f"rank {rank}", frames, problem, (rank, ""))


def test_many_ranks_are_named_as_runs():
    lines = list(render([process(rank, A) for rank in range(64) if rank != 7] + [process(7, B)]))
    assert lines[0] == "rank 7: load_shard train.py:6; rank 0-6, 8-63: all_reduce distributed_c10d.py:4181"
    assert [line for line in lines if line.endswith(":") and not line.startswith(" ")] == ["rank 7:", "rank 0-6, 8-63:"]


def test_unknown_stacks_come_last_with_their_reasons():
    lines = list(render([process(0, problem="no answer within 30 s"), process(1, A)]))
    assert lines[0] == "rank 1: all_reduce distributed_c10d.py:4181"
    assert lines[-1] == "rank 0: no answer within 30 s"


def test_groups_are_by_whole_stacks():
    outer = Frame("main", "m.py", 1)
    groups = group([process(0, A, outer), process(1, A), process(2, A, outer)])
    assert [[each.name for each in found.processes] for found in groups] == [["rank 1"], ["rank 0", "rank 2"]]


def test_hostile_names_of_functions_are_cleaned():
    shown = "\n".join(render([process(0, Frame("f\x1b[2J\n" * 500, "x\x07.py", 1))]))
    assert not {"\x1b", "\x07"} & set(shown)
    assert max(map(len, shown.splitlines())) < 700


def spy(*threads: dict[str, Any]) -> str:
    return json.dumps(list(threads))


def test_the_main_thread_counts():
    main = {"thread_name": "MainThread", "frames": [{"name": "f", "short_filename": "a.py", "line": 3}]}
    other = {"thread_name": "worker", "active": True, "frames": [{"name": "g", "short_filename": "b.py", "line": 4}]}
    assert read_py_spy(spy(other, main)) == (Frame("f", "a.py", 3),)
    assert read_py_spy(spy()) == ()
    for wrong in ("", "{}", "[1]", "no"):
        with pytest.raises(ValueError, match=r".*"):
            read_py_spy(wrong)
    assert read_py_spy(spy({"frames": [1, {"name": None, "line": "x"}]})) == (Frame("None", "None", 0),)


def test_the_last_dump_of_faulthandler_counts():
    log = """before
Thread 0x00007f01 (most recent call first):
  File "pool.py", line 1 in wait

Current thread 0x00007f02 (most recent call first):
  File "old.py", line 1 in old
step 4
Thread 0x00007f01 (most recent call first):
  File "pool.py", line 1 in wait

Current thread 0x00007f02 (most recent call first):
  File "train.py", line 6 in load_shard
  File "train.py", line 9 in <module>
step 5
"""
    assert read_faulthandler(log) == (Frame("load_shard", "train.py", 6), Frame("<module>", "train.py", 9))
    assert read_faulthandler("nothing") == ()


POD = {"metadata": {"name": "p", "namespace": "n"}, "spec": {"containers": [{"name": "c"}]}}
FRAMES = spy({"thread_name": "MainThread", "frames": [{"name": "f", "short_filename": "a.py", "line": 3}]})


def output(*sections: str, code: int | None = 0, stderr: str = "") -> Output:
    return Output("".join(f"@process {text}\n" for text in sections).encode(), stderr.encode(), code)


@pytest.mark.parametrize(
    ("found", "names", "problem"),
    [
        (output(f"1\nRANK=3\n@stack\n{FRAMES}"), ["rank 3"], ""),
        (output(f"1\n@stack\n{FRAMES}"), ["worker-3"], ""),
        (
            output(f"1\n@stack\n{FRAMES}", f"7\nRANK=0\n@stack\n{FRAMES}", f"8\nRANK=1\n@stack\n{FRAMES}"),
            ["rank 0", "rank 1"],
            "",
        ),
        (output(f"7\nRANK=0\n@stack\n{FRAMES}", f"9\nRANK=0\n@stack\n{FRAMES}"), ["rank 0"], ""),
        (output("7\nOMPI_COMM_WORLD_RANK=2\n@stack\n@missing"), ["rank 2"], IN_PODS.missing),
        (
            output("7\n@stack\n@failed Permission denied"),
            ["worker-3"],
            "py-spy failed: Permission denied; it needs the capability SYS_PTRACE",
        ),
        (output("7\n@stack\nrubbish"), ["worker-3"], "py-spy printed something that is not understood"),
        (output(code=None), ["worker-3"], "no answer within 30 s"),
        (
            output(code=127, stderr="sh: not found"),
            ["worker-3"],
            "no Python process was found in the container: sh: not found",
        ),
    ],
)
def test_the_output_of_a_pod(found: Output, names: list[str], problem: str):
    processes = list(read_output(Replica(POD, "worker", 3, None), found))
    assert [each.name for each in processes] == names
    assert {each.problem for each in processes} == {problem}
