"""`trainop run` keeps its runs, and other commands take their names: while a run lives and afterwards."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE

Done = subprocess.CompletedProcess[str]
TICKS = "import time\nfor n in range(10_000):\n    print('tick', n, flush=True)\n    time.sleep(0.05)\n"
FAILS = (
    "import os, sys, time\nprint('rank', os.environ['RANK'], flush=True)\n"
    "os.environ['RANK'] == '1' and sys.exit(1)\ntime.sleep(600)\n"
)


class Home:
    """The state folder of one test, and a working folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runs = path / "state" / "trainop" / "runs"
        self.environment = {**os.environ, "XDG_STATE_HOME": str(path / "state"), "HOME": str(path)}
        self.environment.pop("KUBECONFIG", None)

    def command(self, *args: str) -> list[str]:
        more = ["--network=addresses"] if args[0] == "run" else []
        return [sys.executable, "-m", "trainop", args[0], *more, *args[1:]]

    def trainop(self, *args: str, code: int = 0) -> Done:
        done = subprocess.run(
            self.command(*args),
            cwd=self.path,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == code, f"{args}: {done.stdout}{done.stderr}"
        return done

    def script(self, text: str, name: str = "train.py") -> str:
        (self.path / name).write_text(text)
        return name

    def states(self) -> dict[str, str]:
        lines = self.trainop("ps").stdout.splitlines()[1:]
        return {line.split()[0]: line.split()[1] for line in lines if line.split()[0] != "no"}

    def record(self, name: str) -> Any:
        return json.loads((self.runs / name / "run.json").read_text())

    def wait_for(self, condition: Callable[[], Any]) -> Any:
        end = time.monotonic() + PATIENCE
        while not (found := condition()):
            assert time.monotonic() < end
            time.sleep(0.05)
        return found


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    for each in made.runs.glob("*/run.json"):
        record = json.loads(each.read_text())
        if record["code"] is None:
            with suppress(ProcessLookupError):
                os.kill(record["process"]["pid"], signal.SIGKILL)


def test_a_run_that_has_failed_is_explained_afterwards(home: Home):
    printed = home.trainop("run", home.script(FAILS), "--nproc=2", code=1).stdout
    advice = "run train-1 is kept: trainop why train-1; trainop logs train-1; trainop rerun train-1"
    assert printed.splitlines()[-1] == advice
    assert re.search(r"train-1 +Failed +PyTorchJob train .* 1 +\S*--network", home.trainop("ps").stdout)
    assert "rank 1, pod train-worker-0" in home.trainop("why", "train-1", code=1).stdout
    assert "failed: " in home.trainop("describe", "train-1").stdout
    shown = home.trainop("logs", "train-1")
    assert "--- worker-0 failed first" in shown.stderr  # and not the master, which was stopped in the same second
    logs = shown.stdout.splitlines()
    assert {"master-0 rank 0", "worker-0 rank 1"} <= set(logs)
    assert home.trainop("logs", "train-1/train", "--rank=1").stdout.splitlines() == ["worker-0 rank 1"]
    assert "has no single job other" in home.trainop("logs", "train-1/other", code=1).stderr
    assert "has ended, and its processes with it" in home.trainop("stacks", "train-1", code=1).stderr
    assert "does not run any more (Failed)" in home.trainop("stop", "train-1").stdout
    assert "does not run (Failed)" in home.trainop("attach", "train-1", code=1).stderr


def test_a_run_in_the_background(home: Home):
    printed = home.trainop("run", "-d", home.script(TICKS)).stdout
    assert printed.startswith("run train-1 is in the background: trainop attach train-1")
    assert home.states() == {"train-1": "Running"}
    home.wait_for(lambda: "master-0 tick 3\n" in home.trainop("logs", "train-1").stdout)
    assert "Running" in home.trainop("why", "train-1").stdout
    assert (home.runs / "train-1/kubeconfig").stat().st_mode & 0o777 == 0o600
    assert "runs; first: trainop stop train-1" in home.trainop("clean", "train-1", code=1).stderr
    stopped = [subprocess.Popen(home.command("stop", "train-1"), env=home.environment) for _ in range(2)]
    assert [each.wait(PATIENCE) for each in stopped] == [0, 0]  # two at a time
    assert home.states() == {"train-1": "Stopped"}
    assert home.record("train-1")["code"] == 143
    assert not (home.runs / "train-1/kubeconfig").exists()
    done = home.trainop("logs", "train-1")
    assert "master-0 tick 0" in done.stdout
    assert "--- run train-1 was stopped" in done.stderr


@pytest.mark.parametrize("end", ["by itself", "stopped", "killed"])
def test_a_log_is_followed_to_the_end_of_its_run(home: Home, end: str):
    """The API server ends with the run; what it had not sent yet is in the folder."""
    waits = "import os, time\nprint('begun', flush=True)\nwhile not os.path.exists('go'):\n    time.sleep(0.05)\n"
    home.trainop("run", "-d", home.script(waits + "for n in range(2_000):\n    print('line', n, flush=True)\n"))
    output = home.path / "followed"
    with output.open("w") as out:
        following = subprocess.Popen(
            home.command("logs", "-f", "train-1"), env=home.environment, stdout=out, stderr=subprocess.PIPE, text=True
        )
    home.wait_for(lambda: "begun" in output.read_text())
    if end == "stopped":
        home.trainop("stop", "train-1")
    elif end == "killed":
        os.kill(home.record("train-1")["process"]["pid"], signal.SIGKILL)
    else:
        (home.path / "go").touch()
    _, said = following.communicate(timeout=PATIENCE)
    assert (following.returncode, "Traceback" in said, "cannot" in said) == (0, False, False), said
    assert output.read_text() == home.trainop("logs", "train-1").stdout
    assert ("master-0 line 1999\n" in output.read_text()) == (end == "by itself")


def attach(home: Home) -> subprocess.Popen[str]:
    """`trainop attach`, which goes on."""
    command, pipe = home.command("attach", "train-1"), subprocess.PIPE
    return subprocess.Popen(command, env=home.environment, stdout=pipe, stderr=pipe, text=True)


def test_attach_shows_a_run_until_its_end(home: Home):
    waits = "import os, time\nprint('begun', flush=True)\nwhile not os.path.exists('go'):\n    time.sleep(0.05)\n"
    waits += "print('ended')"
    home.trainop("run", "-d", home.script(waits))
    attached = attach(home)
    assert attached.stdout is not None
    first = attached.stdout.readline()
    (home.path / "go").touch()
    rest, errors = attached.communicate(timeout=PATIENCE)
    assert (attached.returncode, errors) == (0, "")
    assert "begun" in first + rest
    assert "ended\n" in rest
    assert rest.splitlines()[-1] == "run train-1 has ended: Succeeded"


def test_attach_is_left_by_ctrl_c_and_the_run_goes_on(home: Home):
    home.trainop("run", "-d", home.script(TICKS))
    attached = attach(home)
    assert attached.stdout is not None
    while "tick" not in attached.stdout.readline():
        pass
    attached.send_signal(signal.SIGINT)
    _, errors = attached.communicate(timeout=PATIENCE)
    assert attached.returncode == 130
    assert errors == "--- run train-1 goes on: trainop attach train-1; trainop stop train-1\n"
    assert home.states() == {"train-1": "Running"}
    home.trainop("stop", "--now", "train-1")


def test_errors_of_a_run_in_the_background_are_shown_at_once(home: Home):
    done = home.trainop("run", "-d", home.script("\0"), code=2)
    assert done.stderr == "train.py: not a Python script: it has NUL bytes\n"
    assert not home.runs.exists()


def test_a_run_can_be_run_again(home: Home):
    script = home.script("import sys\nprint('given', sys.argv[1:])\n")
    home.trainop("run", script, "--", "-d", "x y")
    done = subprocess.run(
        home.command("rerun", "train-1"), env=home.environment, cwd="/", capture_output=True, text=True, check=True
    )
    assert "master-0   given ['-d', 'x y']\n" in done.stdout
    assert home.states() == {"train-1": "Succeeded", "train-2": "Succeeded"}
    assert home.record("train-2")["command"] == home.record("train-1")["command"]
    home.trainop("clean", "train-1")
    assert home.states() == {"train-2": "Succeeded"}
    assert home.trainop("clean").stdout == "run train-2 removed\n"
    assert home.trainop("clean").stdout == "no run has ended\n"
    assert "no run train-2" in home.trainop("rerun", "train-2", code=1).stderr


def test_a_run_with_a_page_is_run_again_in_the_background_without_it_and_says_so(home: Home):
    home.trainop("run", home.script("import sys\nprint('given', sys.argv[1:])\n"), "--ui", "--", "--ui")
    assert home.record("train-1")["command"][1:] == ["train.py", "--ui", "--", "--ui"]
    done = home.trainop("rerun", "-d", "train-1")
    assert done.stderr == "trainop: without --ui, as nobody would be told the address; see trainop ui RUN\n"
    home.wait_for(lambda: home.states()["train-2"] == "Succeeded")
    assert home.record("train-2")["command"][1:] == ["train.py", "--", "--ui"]
    assert "given ['--ui']" in home.trainop("logs", "train-2").stdout
    assert "without --ui" not in home.trainop("rerun", "-d", "train-2").stderr
    home.wait_for(lambda: home.states()["train-3"] == "Succeeded")


def test_kill_9_leaves_what_was_written(home: Home):
    home.trainop("run", "-d", home.script(TICKS), "--nproc=2")
    home.wait_for(lambda: "worker-0 tick 3\n" in home.trainop("logs", "train-1").stdout)
    pid = home.record("train-1")["process"]["pid"]
    os.kill(pid, signal.SIGKILL)
    home.wait_for(lambda: home.states() == {"train-1": "Killed"})
    done = home.trainop("logs", "train-1")
    assert "worker-0 tick 3\n" in done.stdout
    assert "--- run train-1 was killed; this is what it left" in done.stderr
    home.trainop("why", "train-1")
    assert "running" in home.trainop("describe", "train-1").stdout
    assert home.trainop("clean").stdout == "run train-1 removed\n"


def test_two_runs_of_one_file_do_not_meet(home: Home):
    script = home.script(TICKS)
    home.trainop("run", "-d", script)
    home.trainop("run", "-d", script)
    assert home.states() == {"train-1": "Running", "train-2": "Running"}
    home.trainop("stop", "--now", "train-1")
    assert home.states() == {"train-1": "Stopped", "train-2": "Running"}
    home.trainop("stop", "--now", "train-2")


def test_a_closed_terminal_ends_a_run_as_stopped(home: Home):
    process = subprocess.Popen(
        home.command("run", home.script(TICKS)),
        cwd=home.path,
        env=home.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL) and None,  # noqa: PLW1509  # sets a signal only
    )
    assert process.stdout is not None
    while "tick" not in process.stdout.readline():
        pass
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 129
    assert home.states() == {"train-1": "Stopped"}
    assert "tick 0" in home.trainop("logs", "train-1").stdout


def test_binary_output_and_output_without_newlines_come_back(home: Home):
    text = "import sys\nsys.stdout.buffer.write(bytes(range(256)) + b'\\n' + b'z' * 1_000_000)\n"
    home.trainop("run", home.script(text))
    done = subprocess.run(
        home.command("logs", "train-1"), env=home.environment, capture_output=True, timeout=PATIENCE, check=True
    )
    assert bytes(range(256))[11:] in done.stdout
    assert done.stdout.count(b"z") == 1_000_001  # one in the first line


@pytest.mark.parametrize("state", ["/dev/null/state", "/proc/1/nothing"])
def test_a_state_folder_that_cannot_be_written_is_said_in_one_line(home: Home, state: str):
    home.environment["XDG_STATE_HOME"] = state
    done = home.trainop("run", home.script("print('hello')"))
    assert "master-0   hello\n" in done.stdout
    assert "is kept" not in done.stdout
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("trainop: this run is not kept: ")
    assert "has to be kept" in home.trainop("run", "-d", "train.py", code=1).stderr


def test_a_full_state_folder_does_not_end_the_run(home: Home):
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a small file system needs a mount, which only root may make")
    (home.path / "state").mkdir()
    text = "for n in range(100_000): print('line', n)"
    inner = home.command("run", home.script(text))
    mount = f'mount -t tmpfs -o size=200k none {home.path}/state && exec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mount, "sh", *inner],
        env=home.environment,
        cwd=home.path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    if "permission denied" in done.stderr.lower():
        pytest.skip("mounts are not permitted here")
    assert done.returncode == 0, done.stderr
    assert "line 99999" in done.stdout
    assert "is kept" not in done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith("trainop: the rest of run train-1 is not kept: No space left on device")


def test_old_runs_are_removed_and_nothing_is_kept_on_request(home: Home):
    script = home.script("print()")
    home.environment["TRAINOP_KEEP_RUNS"] = "2"
    for _ in range(4):
        home.trainop("run", script)
    assert set(home.states()) >= {"train-3", "train-4"}
    assert len(home.states()) <= 3
    home.environment["TRAINOP_KEEP_RUNS"] = "0"
    assert "is kept" not in home.trainop("run", script).stdout
    home.environment["TRAINOP_KEEP_RUNS"] = "no"
    assert "TRAINOP_KEEP_RUNS='no': expected a whole number" in home.trainop("run", script).stderr
