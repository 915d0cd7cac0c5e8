"""Jobs that fall silent: their stacks are printed once for each silence, and never in the way of anything else."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from tests.needs import lack
from tests.patience import PATIENCE
from tests.run.leaping import Leaping
from trainop.explain.stacks import Frame, Process
from trainop.run import dumper
from trainop.run.dumper import LOCALLY, Target
from trainop.run.screen import JobView
from trainop.run.silence import MAX_LINES, MAX_REPORTS, SilenceWatch

HANGS = """
import faulthandler, os, signal, sys, time
faulthandler.register(signal.SIGUSR1)
def load_shard():
    print("begins", flush=True)
    time.sleep(1000)
def all_reduce():
    print("begins", flush=True)
    time.sleep(1000)
load_shard() if os.environ["RANK"] == "1" else all_reduce()
"""


def job(path: Path, command: list[str], variables: dict[str, str] | None = None) -> Path:
    env = [{"name": name, "value": value} for name, value in (variables or {}).items()]
    container = {"name": "pytorch", "image": "python:3", "command": command, "env": env}
    role = {"replicas": 1, "restartPolicy": "Never", "template": {"spec": {"containers": [container]}}}
    made = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "hangs"}}
    made |= {"spec": {"pytorchReplicaSpecs": {"Master": role, "Worker": role}}}
    file = path / "job.yaml"
    file.write_text(yaml.safe_dump(made))
    return file


async def run_until(
    file: Path, words: str, *more: str, then: Callable[[asyncio.subprocess.Process], None] | None = None
) -> list[str]:
    """The output of `trainop run`. Calls `then` at a line that matches `words`; the default interrupts the command."""
    command = [sys.executable, "-m", "trainop", "run", "--network", "addresses", *more, str(file)]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, "COLUMNS": "200"}
    )
    lines: list[str] = []
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            async for line in process.stdout:
                lines.append(line.decode().rstrip("\n"))
                if re.search(words, lines[-1]):
                    (then or _interrupt)(process)
            await process.wait()
    except TimeoutError:
        raise AssertionError("\n".join(lines)) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return lines


def _interrupt(process: asyncio.subprocess.Process) -> None:
    process.send_signal(signal.SIGINT)


def need_py_spy() -> None:
    if not (Path(sys.executable).parent / "py-spy").exists() and not shutil.which("py-spy"):
        lack("py-spy is not installed")
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    if os.geteuid() and scope.exists() and scope.read_text().strip() != "0":
        lack("this user may not trace other processes (kernel.yama.ptrace_scope)")


async def test_the_stacks_of_two_ranks_that_hang_are_printed(tmp_path: Path):
    need_py_spy()
    file = job(tmp_path, [sys.executable, "-c", HANGS])
    lines = await run_until(
        file, r"rank 0: all_reduce <string>:9; rank 1: load_shard <string>:6", "--silent-after", "2s"
    )
    head = next(line for line in lines if "has printed nothing" in line)
    assert re.fullmatch(r"PyTorchJob hangs has printed nothing for \d+ s\. Stacks of its Python processes:", head)
    assert lines.index(head) > lines.index("master-0   begins")


async def test_where_py_spy_fails_a_job_can_allow_faulthandler(tmp_path: Path):
    broken = tmp_path / "bin"
    broken.mkdir()
    (broken / "py-spy").write_text("#!/bin/sh\nexit 1\n")
    (broken / "py-spy").chmod(0o755)
    file = job(
        tmp_path,
        [sys.executable, "-c", HANGS],
        {"PATH": f"{broken}:/usr/bin:/bin", "TRAINOP_STACKS_SIGNAL": "USR1"},
    )
    lines = await run_until(file, r"^  rank 0: all_reduce <string>:9; rank 1: load_shard", "--silent-after", "2s")
    assert any("most recent call first" in line for line in lines), "the dump is in the log"


@pytest.mark.parametrize("other", [("j-worker-10", "abc"), ("j-worker-1", "abcd"), ("my-j-worker-1", "abc")])
def test_processes_of_other_pods_are_left_out(other: tuple[str, str]):
    """Pods without a process namespace see all processes of the machine, those of other clusters, too."""
    program = [sys.executable, "-c", "print(flush=True); import time; time.sleep(1000)"]
    hosts = [("j-worker-1", "abc"), other]
    variables = [{**os.environ, "HOSTNAME": name, "TRAINOP_POD_UID": uid} for name, uid in hosts]
    with ExitStack() as stack:
        started = [
            stack.enter_context(subprocess.Popen(program, env=each, stdout=subprocess.PIPE, text=True))
            for each in variables
        ]
        for each in started:
            stack.callback(each.kill)
            assert each.stdout is not None
            assert each.stdout.readline() == "\n"
        done = subprocess.run(
            ["sh", "-c", dumper._SCRIPT, "stacks", ""], env=variables[0], capture_output=True, text=True, check=True
        )
    found = set(re.findall(r"^@process (\d+)$", done.stdout, re.MULTILINE))
    assert found & {str(each.pid) for each in started} == {str(started[0].pid)}


async def test_a_job_without_python_is_left_alone(tmp_path: Path):
    go = tmp_path / "go"
    file = job(tmp_path, ["sh", "-c", f"echo begins; until test -e {go}; do sleep 0.1; done; echo still here"])
    found = "  master-0, worker-0: no Python process was found in the container"
    lines = await run_until(file, f"^{found}$", "--silent-after", "1s", then=lambda _: go.touch())
    assert "  rank" not in "\n".join(lines)
    assert lines.count("worker-0   still here") == 1
    assert "hangs Succeeded PyTorchJob hangs is successfully completed." in lines


@pytest.mark.parametrize("text", ["-1s", "soon", "", "1e9", "5 m"])
def test_what_is_no_duration_is_refused(text: str, tmp_path: Path):
    command = [sys.executable, "-m", "trainop", "run", f"--silent-after={text}", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 2
    assert "expected a duration such as 90s, 10m or 1h30m, or 0" in " ".join(done.stderr.split())


# The watch, in virtual time -------------------------------------------------------------------------------------------


class Paper:
    """What a screen prints, with the time."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str, style: str = "") -> None:
        del style
        self.lines.append(text)

    async def drained(self) -> None:
        pass


def running() -> JobView:
    view = JobView("a", "PyTorchJob", started=True)
    for number in range(2):
        replica = view.replica(f"worker-{number}")
        replica.phase, replica.pod = "Running", {"metadata": {}, "spec": {"containers": [{}]}}
    return view


async def stacks(replicas: Sequence[Target]) -> list[Process]:
    return [Process(each.name, (Frame("wait", "a.py", 1),)) for each in replicas]


async def watch(
    view: JobView,
    end: float,
    events: dict[float, Callable[[], None]] | None = None,
    *,
    after: float = 100.0,
    dump: Callable[[Sequence[Target]], object] = stacks,
    jobs: Callable[[], list[JobView]] | None = None,
) -> list[str]:
    """The heads of the reports until `end`."""
    paper = Paper()
    silence = SilenceWatch(Leaping(end, events or {}), after, dump, paper)  # type: ignore[arg-type]
    with pytest.raises(asyncio.CancelledError):
        await silence.run(jobs or (lambda: [view]))
    return paper.lines


def heads(lines: list[str]) -> list[str]:
    return [line for line in lines if "has printed nothing" in line]


def speak(view: JobView, at: float) -> dict[float, Callable[[], None]]:
    return {at: lambda: setattr(view.replica("worker-1"), "heard", at)}


async def test_a_silence_is_reported_once_and_a_new_line_begins_another():
    view = running()
    assert len(heads(await watch(view, 900))) == 1
    view = running()
    assert len(heads(await watch(view, 900, speak(view, 500)))) == 2


async def test_output_of_one_replica_is_output_of_the_job():
    view = running()
    events = {at: event for step in range(20) for at, event in speak(view, 50.0 * step).items()}
    assert heads(await watch(view, 990, events)) == []


async def test_a_few_reports_are_enough():
    view = running()
    events = {at: event for step in range(1, 20) for at, event in speak(view, 200.0 * step).items()}
    lines = await watch(view, 4000, events)
    assert len(heads(lines)) == MAX_REPORTS
    assert lines[-1] == "  Further silences of a are not reported."


async def test_jobs_that_do_not_run_are_not_silent():
    view = running()
    for replica in view.replicas.values():
        replica.phase = "Pending"
    assert await watch(view, 900) == []
    assert await watch(running(), 900, jobs=list) == []


async def test_a_job_that_ends_or_speaks_meanwhile_is_not_reported():
    view = running()
    ended: list[bool] = []

    async def end(replicas: Sequence[Target]) -> list[Process]:
        ended.append(True)
        return await stacks(replicas)

    assert await watch(view, 900, dump=end, jobs=lambda: [] if ended else [view]) == []
    assert ended == [True]

    async def hear(replicas: Sequence[Target]) -> list[Process]:
        view.replica("worker-0").heard = 700
        return await stacks(replicas)

    view = running()
    assert await watch(view, 790, dump=hear) == []


async def test_what_faulthandler_writes_to_the_log_ends_no_silence():
    view = running()

    async def dump(replicas: Sequence[Target]) -> list[Process]:
        view.replica("worker-0").heard += 101
        return [Process(each.name, (Frame("wait", "a.py", 1),), signalled=True) for each in replicas]

    assert len(heads(await watch(view, 2000, dump=dump))) == 1


async def test_a_report_is_bounded_and_an_error_is_one_line():
    async def many(replicas: Sequence[Target]) -> list[Process]:
        return [Process(f"rank {each}", (Frame("wait", "a.py", each),)) for each in range(10_000)]

    lines = await watch(running(), 900, dump=many)
    assert len(lines) == MAX_LINES + 2
    assert lines[-1] == "  ... and more; trainop stacks shows all"

    async def refused(replicas: Sequence[Target]) -> list[Process]:
        raise ConnectionError("no route")

    assert (await watch(running(), 900, dump=refused))[1:] == ["  stacks: no route"]


async def test_what_to_install_is_said_once_for_all_replicas():
    async def missing(replicas: Sequence[Target]) -> list[Process]:
        return [Process(each.name, problem=LOCALLY.missing) for each in replicas]

    lines = await watch(running(), 900, dump=missing)
    assert lines[1] == f"  worker-0, worker-1: {LOCALLY.missing}"
    assert "pip install 'trainop[stacks]'" in lines[1]


async def test_zero_disables_the_watch_and_the_end_waits_for_no_stacks():
    asked = asyncio.Event()

    async def never(replicas: Sequence[Target]) -> list[Process]:
        asked.set()
        await asyncio.Event().wait()
        return []

    view = running()
    off = SilenceWatch(Leaping(900, {}), 0, never, Paper())
    async with off.watching(lambda: [view]):
        for _ in range(100):
            await asyncio.sleep(0)
    assert not asked.is_set()
    on = SilenceWatch(Leaping(900, {}), 10, never, Paper())
    async with asyncio.timeout(PATIENCE), on.watching(lambda: [view]):
        await asked.wait()
