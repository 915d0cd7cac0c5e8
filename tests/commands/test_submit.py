"""`trainop submit` beside real pods: what it creates, what it says, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.commands.conftest import Shell, python_job
from tests.patience import PATIENCE
from trainop.commands.connection import connect
from trainop.programs.schemes import FRAMEWORKS
from trainop.runtime import Json, Resource
from trainop.runtime.lowlevel import Request

CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
JOBS = FRAMEWORKS["PyTorchJob"].resource


def ask(shell: Shell, path: str, method: str = "GET", body: Json | None = None) -> Json:
    async def get() -> Json:
        async with connect(shell.environment["KUBECONFIG"]) as connection:
            given = b"" if body is None else json.dumps(body).encode()
            query = {} if body is None else {"fieldManager": "another"}
            answer = await connection.client.request(Request(method, path, query, given))
            found: Json = json.loads(answer.body)
            return found

    return asyncio.run(get())


def find(shell: Shell, resource: Resource, start: str) -> list[Any]:
    listed = ask(shell, resource.path("default"))["items"]
    return [each for each in listed if each["metadata"]["name"].startswith(start)]


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_a_script_runs_in_the_cluster_and_its_logs_follow(shell: Shell, tmp_path: Path):
    script = write(tmp_path, "good.py", "import os, sys\nprint('rank', os.environ['RANK'], *sys.argv[1:])")
    done = shell.run("submit", script, "--image=none", "--nproc=2", "--", "--lr", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    created, applied, *lines = done.stdout.splitlines()
    assert created == "PyTorchJob good created in namespace default"
    assert re.fullmatch(r"ConfigMap good-script-[0-9a-f]{8} applied", applied)
    assert "master-0 rank 0 --lr 1" in lines
    assert done.stderr.startswith("--- PyTorchJob good Succeeded: ")
    (job,), (config,) = find(shell, JOBS, "good"), find(shell, CONFIG_MAPS, "good-script-")
    assert [owner["uid"] for owner in config["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]]


def test_a_failure_says_what_to_do_next(shell: Shell, tmp_path: Path):
    script = write(tmp_path, "bad.py", "raise ValueError('bad shard')")
    done = shell.run("submit", script, "--image=none")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "master-0 ValueError: bad shard" in done.stdout
    ended, more = done.stderr.splitlines()[-2:]
    assert ended.startswith("--- PyTorchJob bad Failed: ")
    assert more == "--- more: trainop why -n default pytorchjob/bad; trainop logs -n default pytorchjob/bad"


def test_a_job_that_exists_keeps_its_script(shell: Shell, tmp_path: Path):
    script = write(tmp_path, "kept.py", "print('first')")
    assert shell.run("submit", script, "--image=none", "-d").returncode == 0
    before = find(shell, CONFIG_MAPS, "kept-script-")
    write(tmp_path, "kept.py", "print('second')")
    again = shell.run("submit", script, "--image=none", "-d")
    assert (again.returncode, again.stdout) == (2, "")
    assert "metadata.name: PyTorchJob kept exists already in namespace default; choose another name, or: kubectl" in (
        again.stderr
    )
    assert find(shell, CONFIG_MAPS, "kept-script-") == before


def test_several_jobs_are_created_and_not_followed(shell: Shell, tmp_path: Path):
    texts = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "texts"}, "data": {"a": "b"}}
    jobs = [yaml.safe_load(python_job(name, {"Master": (1, "print()")})) for name in ("one", "two")]
    done = shell.run("submit", write(tmp_path, "jobs.yaml", yaml.safe_dump_all([texts, *jobs])))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "ConfigMap texts applied",
        "PyTorchJob one created in namespace default",
        "PyTorchJob two created in namespace default",
        "trainop logs -f -n default pytorchjob/one",
        "trainop logs -f -n default pytorchjob/two",
    ]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("script.py",), "--image is missing; expected an image of the cluster"),
        (("absent.py", "--image=x"), "absent.py: No such file or directory"),
        (("there.yaml", "-n", "here"), "metadata.namespace: is there, and -n is here; leave one out"),
        (("there.yaml",), "namespaces"),
        (("strange.yaml",), "no job found, only ConfigMap (v1)"),
        ((), "Missing argument 'FILES...'"),
    ],
)
def test_refusals(shell: Shell, tmp_path: Path, args: tuple[str, ...], words: str):
    write(tmp_path, "script.py", "print()")
    job = yaml.safe_load(python_job("refused", {"Master": (1, "print()")}))
    job["metadata"]["namespace"] = "there"
    write(tmp_path, "there.yaml", yaml.safe_dump(job))
    write(
        tmp_path, "strange.yaml", yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}})
    )
    given = [str(tmp_path / each) if each.endswith((".py", ".yaml")) else each for each in args]
    done = shell.run("submit", *given)
    assert (done.returncode, done.stdout) == (2, ""), done.stdout + done.stderr
    assert words in done.stderr


def follow(shell: Shell, *args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "trainop", "submit", *args]
    streams: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, env={**shell.environment, "PYTHONUNBUFFERED": "1"}, **streams)


def test_ctrl_c_ends_the_command_and_the_job_goes_on(shell: Shell, tmp_path: Path):
    script = write(tmp_path, "long.py", "import time\nprint('begins', flush=True)\ntime.sleep(600)")
    with follow(shell, script, "--image=none") as command:
        assert command.stdout is not None
        said = ""
        for line in command.stdout:
            said += line
            if "begins" in line:
                os.kill(command.pid, signal.SIGINT)
        assert command.wait(PATIENCE) == 130
    assert said.endswith("--- PyTorchJob long goes on: trainop logs -f -n default pytorchjob/long\n")
    shell.wait_state("long", "Running")


def test_who_waits_is_told_why(shell: Shell, tmp_path: Path):
    job = yaml.safe_load(python_job("held", {"Master": (1, "print()")}, suspend=True))
    with follow(shell, write(tmp_path, "job.yaml", yaml.safe_dump(job))) as command:
        assert command.stdout is not None
        said = ""
        for line in command.stdout:
            said += line
            if "Waiting" in line:
                ask(shell, JOBS.path("default", "held"), "DELETE")
        assert command.wait(PATIENCE) == 1
    assert "--- PyTorchJob held Waiting: " in said
    assert "suspend" in said
    assert said.endswith("--- PyTorchJob held was deleted\n")


def test_a_script_that_is_refused_takes_its_job_back(shell: Shell, tmp_path: Path):
    """Its pods would wait for the ConfigMap for ever."""
    script = write(tmp_path, "mine.py", "print()")
    text = shell.run("run", script, "--image=none", "--yaml").stdout
    config = next(yaml.safe_load_all(text))
    config["data"] = {"mine.py": "of somebody else"}
    ask(shell, CONFIG_MAPS.path("default"), "POST", config)  # with a field manager of its own
    done = shell.run("submit", script, "--image=none")
    assert done.returncode == 2, done.stdout + done.stderr
    said, why = done.stderr.splitlines()
    assert said == "--- PyTorchJob mine deleted again, as it lacks what follows"
    assert "conflict" in why
    shell.wait_for("the end of the job", lambda: not find(shell, JOBS, "mine"))
