"""The command line as a process: exit codes, one-line errors without a traceback, and no import without need."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from click.testing import CliRunner

from tests.patience import PATIENCE
from trainop import __version__
from trainop.cli import LAZY, cli, run_operator
from trainop.errors import StartError, UnknownSchemeError
from trainop.programs.operator import build, run
from trainop.programs.schemes import KINDS, enabled_schemes
from trainop.programs.settings import Settings
from trainop.runtime.client.transport import NotConnectedError, Request, Response, Stream

KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "x",
    "clusters": [{"name": "x", "cluster": {"server": "https://127.0.0.1:1"}}],
    "users": [{"name": "x", "user": {"token": "t"}}],
    "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
}
NO_PORTS = ("--metrics-bind-address=0", "--health-probe-bind-address=0")


def trainop(*args: str, program: str | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    start = [program] if program else [sys.executable, "-m", "trainop"]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path.cwd()), "HOME": "/nonexistent"} | environ
    return subprocess.run([*start, *args], capture_output=True, text=True, env=env, timeout=PATIENCE, check=False)


def write_program(path: Path) -> Path:
    """The script that an installation makes of an entry point, also where the path of Python has a space."""
    call = "from trainop.cli import main\nmain()\n"
    path.write_text(f"""#!/bin/sh\n'''exec' "{sys.executable}" "$0" "$@"\n' '''\n{call}""")
    path.chmod(0o755)
    return path


def kubeconfig(path: Path) -> str:
    """A kubeconfig whose API server does not exist."""
    path.write_text(json.dumps(KUBECONFIG))
    return f"--kubeconfig={path}"


@pytest.fixture(autouse=True)
def logs_restored() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers, root.level
    yield
    root.handlers, root.level = before
    structlog.reset_defaults()


def test_an_unknown_flag_gives_usage_on_stderr_and_exit_2() -> None:
    done = trainop("operator", "--nope")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("flag provided but not defined: -nope\nUsage of trainop operator:\n")


@pytest.mark.parametrize("args", [["--leader-elect=perhaps"], ["-controller-threads", "x"], ["--namespace"]])
def test_a_bad_value_gives_usage_and_exit_2(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_operator(args, "/manager") == 2
    assert "Usage of /manager:" in capsys.readouterr().err


def test_help_shows_the_flags_and_exits_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_operator(["--help"], "trainop operator") == 0
    assert "--gang-scheduler-name" in capsys.readouterr().err


def test_a_program_called_manager_is_the_operator(tmp_path: Path) -> None:
    manager = write_program(tmp_path / "manager")
    done = trainop("--nope", program=str(manager))
    assert (done.returncode, f"Usage of {manager}:" in done.stderr) == (2, True)
    done = trainop("--enable-scheme=dummyjob", program=str(manager))
    assert (done.returncode, done.stderr) == (1, "manager: scheme dummyjob is not supported yet\n")


@pytest.mark.case("job-engine-34", "b")
def test_an_unknown_scheme_ends_the_process_with_one_line() -> None:
    done = trainop("operator", "--enable-scheme=DummyJob")
    assert done.returncode == 1
    assert done.stderr == "trainop: scheme dummyjob is not supported yet\n"


@pytest.mark.case("job-engine-34", "ac")
def test_schemes_are_chosen_in_any_case_and_once() -> None:
    def kinds(*schemes: str) -> list[str]:
        return enabled_schemes(schemes)

    assert kinds() == list(KINDS)
    assert kinds("tfjob", "PyTorchJob") == ["TFJob", "PyTorchJob"]
    assert kinds("pytorchjob", "PyTorchJob", "PYTORCHJOB") == ["PyTorchJob"]
    with pytest.raises(UnknownSchemeError, match="scheme dummyjob is not supported yet"):
        kinds("PyTorchJob", "dummyjob")


def test_a_scheme_that_is_not_enabled_is_not_imported() -> None:
    """In a process of its own, because this one has imported everything."""
    program = """
import sys
from trainop.programs import operator
from trainop.programs.settings import Settings

def found():
    return [name for name in sys.modules if name.startswith("trainop.kinds.dijob")]

assert found() == [], found()
settings = Settings(schemes=("TFJob", "MPIJob"), metrics_bind_address="0", health_probe_bind_address="0")
operator.build(settings, transport=None, signals=False)
assert found() == [], found()
operator.build(Settings(schemes=("DIJob",), metrics_bind_address="0", health_probe_bind_address="0"), transport=None)
assert found()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "no-such-file"),
        ("{", "config"),
        ("{}", "config"),
        (json.dumps(KUBECONFIG | {"current-context": "other"}), "other"),
    ],
)
def test_a_wrong_kubeconfig_is_reported_in_one_line(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / ("no-such-file" if text is None else "config")
    if text is not None:
        path.write_text(text)
    with pytest.raises(StartError) as caught:
        run(Settings(kubeconfig=str(path)))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_process_reports_errors_without_a_traceback(tmp_path: Path) -> None:
    done = trainop("operator", f"--kubeconfig={tmp_path}/no-such-file", *NO_PORTS)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("trainop: ")


def test_a_port_in_use_is_reported_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = trainop("operator", kubeconfig(tmp_path / "config"), f"--metrics-bind-address={address}", NO_PORTS[1])
    assert done.returncode == 1
    assert f"cannot listen on {address} for metrics" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (Settings(metrics_bind_address="nowhere"), "--metrics-bind-address"),
        (Settings(health_probe_bind_address=":x"), "--health-probe-bind-address"),
        (Settings(leader_elect=True), "--leader-election-namespace"),
        (Settings(schemes=("nope",)), "scheme nope is not supported yet"),
    ],
)
async def test_a_failure_to_start_is_reported(settings: Settings, words: str) -> None:
    with pytest.raises(StartError, match=words):
        build(settings, Away(), signals=False)


class Away:
    """The transport of an API server that cannot be reached."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def send(self, request: Request) -> Response:
        self.asked.set()
        raise NotConnectedError(f"{request.path}: connection refused")

    async def open(self, request: Request) -> Stream:
        self.asked.set()
        raise NotConnectedError(f"{request.path}: connection refused")

    async def close(self) -> None: ...


async def test_an_unreachable_server_is_waited_for() -> None:
    away = Away()
    manager = build(Settings(metrics_bind_address="0", health_probe_bind_address="0"), away, signals=False)
    running = asyncio.create_task(manager.run())
    await away.asked.wait()
    assert (await manager.ready.all())[0] == 500
    assert (await manager.health.all())[0] == 200
    assert not running.done()
    manager.stop()
    assert await running == 0


def test_the_operator_does_not_load_what_it_does_not_need() -> None:
    code = "import sys, trainop.programs.operator, trainop.cli; print(*sorted(sys.modules))"
    loaded = trainop("-c", code, program=sys.executable).stdout.split()
    heavy = {"kubernetes_asyncio", "cryptography", "pyroute2", "trainop.run", "trainop.local", "numpy"}
    assert heavy & set(loaded) == set()


def test_the_group_lists_all_commands_without_loading_them() -> None:
    done = trainop("--help")
    assert done.returncode == 0
    assert all(f"  {name} " in done.stdout for name in (*LAZY, "operator"))
    assert trainop("--version").stdout == f"trainop, version {__version__}\n"


def test_an_unknown_command_is_bad_usage() -> None:
    assert CliRunner().invoke(cli, ["nope"]).exit_code == 2


@pytest.mark.parametrize("name", LAZY)
def test_each_command_is_there(name: str) -> None:
    done = CliRunner().invoke(cli, [name, "--help"])
    assert done.exit_code == 0, done.output
