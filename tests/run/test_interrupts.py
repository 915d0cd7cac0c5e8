"""The end of `trainop run` and `trainop cluster`: signals, and stdout that is closed or not read."""

from __future__ import annotations

import errno
import http.client
import json
import os
import pty
import shlex
import signal
import ssl
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlsplit

import pytest
import yaml

from tests.patience import PATIENCE
from trainop.run.interrupts import Interrupts

SAVES = "trap 'echo saved > {0}; exit 0' TERM; echo up; while :; do sleep 0.1; done"
"""A program that saves a checkpoint at SIGTERM, as a trainer does."""
DEAF = "trap '' TERM; echo up; while :; do sleep 0.1; done"


def write(folder: Path, script: str) -> Path:
    container = {"name": "pytorch", "image": "i", "command": ["sh", "-c", script]}
    master = {"replicas": 1, "restartPolicy": "Never", "template": {"spec": {"containers": [container]}}}
    job = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "a"}}
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump({**job, "spec": {"pytorchReplicaSpecs": {"Master": master}}}))
    return path


def listen() -> None:
    """A caller in the background may have ignored signals, which a child inherits."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def started(*arguments: str | Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Run the command with readable stdout and stderr; kill it at the end if it still runs."""
    command = [sys.executable, "-m", "trainop", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    process = subprocess.Popen(command, text=True, preexec_fn=listen, **pipes)  # noqa: PLW1509  # sets signals only
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def read_until(process: subprocess.Popen[str], text: str) -> str:
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if text in line:
            return line
    raise AssertionError(f"{text!r} is not in {seen}")


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def running(mark: str) -> bool:
    """Whether any process has `mark` in its command line."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "cmdline").read_bytes():
                return True
        except OSError:
            continue
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_pods_may_save_what_they_have_when_it_is_interrupted(tmp_path: Path, number: signal.Signals):
    with started("run", write(tmp_path, SAVES.format(tmp_path / "checkpoint"))) as process:
        read_until(process, " up")
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number
    assert errors == "trainop: stopping 1 pod, up to 30 s; Ctrl-C again to kill\n"
    assert (tmp_path / "checkpoint").read_text() == "saved\n"


def test_a_closed_terminal_leaves_nothing_behind(tmp_path: Path):
    """No pod survives, and no temporary file for a flood of output is kept."""
    path = write(tmp_path, SAVES.format(tmp_path / "checkpoint"))
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TMPDIR"] = str(tmp_path)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        os.execv(sys.executable, [sys.executable, "-m", "trainop", "run", str(path)])  # noqa: S606  # in a terminal
    seen = b""
    while b"up" not in seen:
        seen += os.read(terminal, 4096)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 128 + signal.SIGHUP
    assert sorted(one.name for one in tmp_path.iterdir()) == ["checkpoint", "job.yaml"]


def test_hanging_up_twice_lets_pods_save(tmp_path: Path):
    """As by a shell whose terminal is closed: it sends SIGHUP to its jobs, and the kernel does when it exits."""
    slow = SAVES.replace("trap 'echo", "trap 'sleep 2; echo").format(tmp_path / "checkpoint")
    with started("run", write(tmp_path, slow)) as process:
        read_until(process, " up")
        process.send_signal(signal.SIGHUP)
        assert process.stderr is not None
        assert process.stderr.readline().startswith("trainop: stopping 1 pod, up to 30 s")
        process.send_signal(signal.SIGHUP)
        _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (129, "")
    assert (tmp_path / "checkpoint").read_text() == "saved\n"


UNWRITABLE = OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize(
    ("events", "code", "killed"),
    [
        ([signal.SIGHUP, UNWRITABLE, signal.SIGHUP], 129, False),
        ([UNWRITABLE, signal.SIGHUP, signal.SIGHUP, signal.SIGHUP], 129, False),
        ([UNWRITABLE], 1, False),
        ([BrokenPipeError(), signal.SIGHUP], 141, False),
        ([signal.SIGINT, signal.SIGHUP], 130, False),
        ([signal.SIGHUP, signal.SIGTERM], 129, True),
        ([UNWRITABLE, signal.SIGHUP, signal.SIGINT], 129, True),
    ],
    ids=str,
)
async def test_the_parts_of_a_closed_terminal_are_one_interruption(
    events: list[signal.Signals | OSError], code: int, killed: bool
):
    """Whichever comes first: the signal, or the error of a write. What is stopped is cancelled only once, because that
    would cut its end short."""
    kills: list[bool] = []
    cancelled = Mock()
    interrupts = Interrupts()
    interrupts.on_second_signal = lambda: kills.append(True)
    interrupts._task = cancelled
    for event in events:
        if isinstance(event, OSError):
            interrupts.on_output_error(event)
        else:
            interrupts._on_signal(event)
    assert (interrupts.code, bool(kills), cancelled.cancel.call_count) == (code, killed, 1)
    assert bool(interrupts.message) == (code == 1), "there is no terminal that could show it"


def test_a_second_signal_kills(tmp_path: Path):
    mark = f"mark-{os.getpid()}-{tmp_path.name}"
    with started("run", write(tmp_path, f": {mark}; {DEAF}")) as process:
        read_until(process, " up")
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert process.stderr.readline().startswith("trainop: stopping 1 pod, up to 30 s")
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline() == "trainop: killing the pods that still run\n"
        begun = time.monotonic()
        process.communicate(timeout=PATIENCE)
        assert time.monotonic() - begun < 25, "it does not wait for the rest of the grace period"
    assert process.returncode == 128 + signal.SIGINT
    wait_until(lambda: not running(mark))


def test_a_cluster_stops_its_pods_too(tmp_path: Path):
    with started("cluster", "--no-operator", "--data", "my data", cwd=tmp_path) as process:
        line = read_until(process, "export KUBECONFIG=")
        (assignment,) = shlex.split(line.removeprefix("export "))
        path = Path(assignment.removeprefix("KUBECONFIG="))
        assert path == tmp_path / "my data" / "kubeconfig", "absolute, and one word of the shell"
        container = {"name": "main", "image": "i", "command": ["sh", "-c", SAVES.format(tmp_path / "checkpoint")]}
        pods = "/api/v1/namespaces/default/pods"
        ask(path, pods, {"metadata": {"name": "p"}, "spec": {"containers": [container], "restartPolicy": "Never"}})
        wait_until(lambda: "up" in ask(path, f"{pods}/p/log"))
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, errors.count("\n")) == (143, 1)
    assert (tmp_path / "checkpoint").read_text() == "saved\n"
    with started("cluster", "--no-operator", "--data", "my data", cwd=tmp_path) as process:
        read_until(process, "export KUBECONFIG=")
        status = json.loads(ask(path, f"{pods}/p"))["status"]
        assert (status["phase"], status["reason"]) == ("Failed", "Terminated")
        (disrupted,) = [one for one in status["conditions"] if one["type"] == "DisruptionTarget"]
        assert (disrupted["status"], disrupted["reason"]) == ("True", "TerminationByKubelet")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, errors) == (130, ""), "there was nothing to stop"


def ask(kubeconfig: Path, path: str, body: dict[str, Any] | None = None) -> str:
    """The response body of the API server; empty if it refuses, as for the log of a pod without one."""
    config = json.loads(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    trusted = ssl.create_default_context(cadata=b64decode(cluster["certificate-authority-data"]).decode())
    headers = {"Authorization": f"Bearer {user['token']}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    connection = http.client.HTTPSConnection(urlsplit(cluster["server"]).netloc, context=trusted, timeout=PATIENCE)
    try:
        connection.request("GET" if data is None else "POST", path, data, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
    finally:
        connection.close()
    assert answer.status in {200, 201, 400}, text
    return "" if answer.status == 400 else text


def test_a_closed_stdout_ends_it_quietly(tmp_path: Path):
    """The reader closes the pipe, as `| head` does."""
    path = write(
        tmp_path, f"trap 'echo saved > {tmp_path}/checkpoint; exit 0' TERM; while :; do echo up; sleep 0.1; done"
    )
    with started("run", path) as process:
        read_until(process, " up")
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(PATIENCE) == 128 + signal.SIGPIPE
        assert process.stderr is not None
        assert process.stderr.read() == "trainop: stopping 1 pod, up to 30 s; Ctrl-C again to kill\n"
    assert (tmp_path / "checkpoint").read_text() == "saved\n"


def test_output_that_cannot_be_written_is_an_error(tmp_path: Path):
    with (
        Path("/dev/full").open("w") as full,
        started("run", write(tmp_path, SAVES.format("/dev/null")), stdout=full) as process,
    ):
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert errors.splitlines()[-1] == "trainop: the output cannot be written: No space left on device"
    assert "Traceback" not in errors


def test_a_blocked_stdout_does_not_prevent_the_end(tmp_path: Path):
    script = f"yes up & trap 'kill $!; exit 0' TERM; echo begun > {tmp_path}/begun; wait"
    with started("run", write(tmp_path, script), stderr=subprocess.DEVNULL) as process:
        wait_until((tmp_path / "begun").exists)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 128 + signal.SIGTERM


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_files_change_nothing(tmp_path: Path, closed: str):
    """No file may get the descriptor numbers of closed streams, because it would receive the output."""
    path = write(tmp_path, f"echo done > {tmp_path}/done; echo words")
    command = shlex.join([sys.executable, "-m", "trainop", "run", str(path), "--data", str(tmp_path / "data")])
    whole = ["sh", "-c", f"{command} {closed}"]
    done = subprocess.run(whole, check=False, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "done").exists()
    assert ("words" in done.stdout) == (">&-" not in closed.replace("2>&-", ""))


def test_the_folder_of_a_cluster_is_its_own(tmp_path: Path):
    (tmp_path / "thesis.tex").touch()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for folder, words in ((tmp_path, "holds other files (job.yaml)"), (tmp_path / "link", "is a symbolic link")):
        with started("run", write(tmp_path, "true"), "--data", folder) as process:
            _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 1
        assert words in errors
        assert errors.count("\n") == 1
    assert not (tmp_path / "elsewhere").exists()
