"""`trainop logs` and `trainop ps` beside real pods, and their parts on hostile input."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from tests.commands.conftest import Shell, python_job
from trainop.commands import logs
from trainop.commands.loglines import MAX_LINE, Line, blocks_of
from trainop.commands.logs import LogOptions, Logs
from trainop.commands.ps import HEADINGS, render, row_of
from trainop.commands.target import Target, job_types, replica_of

FAILING = """
import os, pathlib, time
print("hello", os.environ["RANK"], flush=True)
said = pathlib.Path("FOLDER")
(said / os.environ["RANK"]).touch()
if os.environ["RANK"] == "2":
    while len(list(said.iterdir())) < 3:
        time.sleep(0.02)
    raise ValueError("bad shard")
time.sleep(600)
"""
TALKING = """
import time
for step in range(3):
    print("step", step, flush=True)
    time.sleep(0.3)
"""


@pytest.fixture(scope="module")
def failed(shell: Shell, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of a job whose worker 1, of rank 2, has failed after all have said hello."""
    script = FAILING.replace("FOLDER", str(tmp_path_factory.mktemp("said")))
    shell.create(python_job("dead", {"Master": (1, script), "Worker": (2, script)}))
    shell.wait_state("dead", "Failed")
    return "dead"


def test_the_replica_that_failed_first_comes_first(shell: Shell, failed: str):
    done = shell.run("logs", failed)
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert lines[0] == "worker-1 hello 2"
    assert lines[3] == "worker-1 ValueError: bad shard"
    assert sorted(line for line in lines[4:] if "hello" in line) == [
        "master-0 hello 0",
        "worker-0 hello 1",
        "worker-1 hello 2",
    ]
    assert done.stderr.splitlines() == ["--- worker-1 failed first; its last lines:", "--- all replicas by time:"]


def test_lines_are_merged_by_time(shell: Shell, failed: str):
    lines = shell.run("logs", failed, "--timestamps").stdout.splitlines()
    times = [line.split()[1] for line in lines[4:]]
    assert times == sorted(times)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z", time) for time in times)


@pytest.mark.parametrize(
    ("options", "replicas"),
    [
        (["--role", "master"], {"master-0"}),
        (["--role", "Worker"], {"worker-0", "worker-1"}),
        (["--index", "0"], {"master-0", "worker-0"}),
        (["--rank", "1"], {"worker-0"}),
        (["--role", "worker", "--index", "1", "--tail", "1"], {"worker-1"}),
    ],
)
def test_replicas_are_chosen(shell: Shell, failed: str, options: list[str], replicas: set[str]):
    assert {line.split()[0] for line in shell.run("logs", failed, *options).stdout.splitlines()} == replicas


def test_a_choice_without_a_replica_names_those_that_exist(shell: Shell, failed: str):
    done = shell.run("logs", failed, "--rank", "7")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no replica of PyTorchJob dead is selected; it has: master-0 (rank 0), worker-0 (rank 1), " in done.stderr


def test_too_many_replicas_are_left_out_but_not_the_failed_one(shell: Shell, failed: str):
    done = shell.run("logs", failed, "--max-replicas", "1")
    assert {line.split()[0] for line in done.stdout.splitlines()} == {"worker-1"}
    assert "2 replicas are left out" in done.stderr


def test_following_ends_with_the_job(shell: Shell):
    # without a master the job succeeds once both have
    shell.create(python_job("talks", {"Worker": (2, TALKING)}))
    done = shell.run("logs", "pytorchjob/talks", "-f")
    wanted = sorted(f"{name} step {step}" for name in ("worker-0", "worker-1") for step in range(3))
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, wanted)


def test_what_cannot_be_found_says_what_to_do(shell: Shell, failed: str):
    assert "no job nope in namespace default (choose another with -n;" in shell.run("logs", "nope").stderr
    assert "no PyTorchJob dead in namespace other" in shell.run("logs", "pytorchjob/dead", "-n", "other").stderr
    assert (
        "'banana' is no kind of job; known are: dijob, jaxjob, mpijob," in shell.run("logs", f"banana/{failed}").stderr
    )
    assert "expected a duration such as" in shell.run("logs", failed, "--since", "soon").stderr
    assert "dead-master-0 has no container x; it has: pytorch" in shell.run("logs", failed, "-c", "x").stderr


def test_ps_lists_what_there_is(shell: Shell, failed: str):
    lines = shell.run("ps", "-n", "default").stdout.splitlines()
    assert lines[0].split() == ["KIND", "NAME", "STATE", "REPLICAS", "RESTARTS", "AGE", "REASON"]
    row = next(line for line in lines if f" {failed} " in line)
    assert re.match(r"PyTorchJob +dead +Failed +\d/3 +0 +\w+ +PyTorchJob dead is failed because 1 Worker ", row)
    assert shell.run("ps", "-n", "empty").stdout == "no jobs in namespace empty\n"
    assert shell.run("ps", "-A").stdout.splitlines()[0].split()[0] == "NAMESPACE"


def test_a_server_that_is_away_is_one_line(shell: Shell):
    gone = Shell(shell._folder / "none", shell._folder)
    for command in (("ps",), ("logs", "x"), ("top",)):
        done = gone.run(*command)
        assert done.returncode == 1
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
        assert "no such file" in done.stderr


# Lines ----------------------------------------------------------------------------------------------------------------


async def split(*chunks: bytes) -> list[Line]:
    async def send() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    return [line async for lines in blocks_of(send()) for line in lines]


async def test_times_sort_as_text_whatever_their_form():
    stamps = [b"2026-11-25T10:00:00Z", b"2026-11-25T12:00:00.5+02:00", b"2026-11-25T10:00:00.123456789Z"]
    times = [(await split(stamp + b" x\n"))[0].time for stamp in stamps]
    assert times == [
        "2026-11-25T10:00:00.000000000Z",
        "2026-11-25T10:00:00.500000000Z",
        "2026-11-25T10:00:00.123456789Z",
    ]


async def test_lines_are_found_across_chunks_and_without_an_end():
    stamp = b"2026-11-25T10:00:00.000000000Z "
    lines = await split(stamp[:7], stamp[7:] + b"a\n\n" + stamp + b"b \xff", b"\x00c")
    assert [line.text for line in lines] == [b"a", b"", b"b \xff\x00c"]
    assert {line.time for line in lines} == {stamp.decode().strip()}


@pytest.mark.parametrize("size", [1, 7, 40, 10_000])
async def test_lines_are_the_same_however_they_are_cut_into_pieces(size: int):
    usual = [(f"2026-11-25T10:00:{n:02}.123456789Z", f"line {n}\r".encode()) for n in range(60)]
    odd = [
        ("2026-11-25T10:01:00.000000000Z", b""),
        ("2026-11-25T10:01:00.000000000Z", b"2026-11-25T10:00:00.000000000Z is what it printed"),
        ("2026-11-25T10:01:01.000000000Z", b"\xff\x85 \x0b\x1c\xe2\x80\xa8 are no ends"),
    ]
    sent = b"".join(b"%s %s\n" % (time.encode(), text) for time, text in (*usual, *odd, *usual))
    sent += b"2026-11-25T12:00:02+01:00 another form\nnone, and the last"
    expected = [*usual, *odd, *usual]
    expected += [("2026-11-25T11:00:02.000000000Z", text) for text in (b"another form", b"none, and the last")]
    assert await split(*(sent[at : at + size] for at in range(0, len(sent), size))) == expected


async def test_a_line_without_an_end_does_not_fill_the_memory():
    lines = await split(*[b"x" * 1000] * 1000)
    assert sum(len(line.text) for line in lines) == 1_000_000
    assert max(len(line.text) for line in lines) <= MAX_LINE + 1000


# Rows -----------------------------------------------------------------------------------------------------------------

NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)
PYTORCH = next(each for each in job_types() if each.resource.kind == "PyTorchJob")


@pytest.mark.parametrize(
    "job",
    [
        {},
        {"metadata": {"name": "x"}, "status": "no object"},
        {
            "metadata": {"name": "x", "annotations": {"a": 1}},
            "spec": [],
            "status": {"conditions": [1, {"status": "True"}]},
        },
        {
            "metadata": {"name": "x"},
            "spec": {"pytorchReplicaSpecs": {"Worker": 3}},
            "status": {"replicaStatuses": {"a": "b"}},
        },
        {"metadata": {"creationTimestamp": "soon"}, "status": {"trainerStatus": {"progressPercentage": "many"}}},
    ],
)
def test_a_row_is_made_of_any_status(job: dict[str, Any]):
    assert len(row_of(PYTORCH, job, NOW).cells) == len(HEADINGS)


def test_a_row_says_progress_and_reason():
    job = {
        "metadata": {"namespace": "a", "name": "x\x1b[2J", "creationTimestamp": "2026-11-25T10:30:00Z", "uid": "u"},
        "spec": {"pytorchReplicaSpecs": {"Master": {}, "Worker": {"replicas": 7}}},
        "status": {
            "conditions": [
                {"type": "Created", "status": "True", "message": "m"},
                {"type": "Running", "status": "False"},
                {"type": "Restarting", "status": "True", "message": "worker-1\n failed"},
            ],
            "replicaStatuses": {"Master": {"active": 1}, "Worker": {"active": 6}},
            "trainerStatus": {"progressPercentage": 42, "estimatedRemainingSeconds": 3700},
        },
    }
    row = row_of(PYTORCH, job, NOW)
    assert row.cells == ("a", "PyTorchJob", "x", "Restarting", "7/8", "0", "1h30m", "42%, 1h1m left", "worker-1 failed")
    narrow = list(render([row], width=40))
    assert all(len(re.sub(r"\x1b\[\d+m", "", line)) <= 40 for line in narrow)


def test_replicas_are_named_by_their_labels():
    prefix = "training.kubeflow.org/"
    pod: dict[str, Any] = {"metadata": {"name": "p"}, "spec": {"containers": []}}
    assert replica_of(pod).name == "p"
    pod["metadata"]["labels"] = {f"{prefix}replica-type": "worker", f"{prefix}replica-index": "3"}
    assert replica_of(pod).name == "worker-3"
    pod["metadata"]["labels"] = {f"{prefix}job-role": "launcher"}
    assert replica_of(pod).name == "launcher"
    pod["metadata"]["labels"] = {f"{prefix}replica-type": "worker", f"{prefix}replica-index": "9" * 5000}
    assert replica_of(pod).name == "worker"


@pytest.mark.parametrize(("blamed", "first"), [("p-worker-0", "worker-0"), ("gone", "master-0"), (None, "master-0")])
def test_of_failures_in_one_second_that_comes_first_which_the_operator_blames(blamed: str | None, first: str):
    def pod(role: str) -> Any:
        ended = {"terminated": {"exitCode": 143, "finishedAt": "2026-01-01T00:00:00Z"}}
        labels = {"training.kubeflow.org/replica-type": role, "training.kubeflow.org/replica-index": "0"}
        metadata = {"name": f"p-{role}-0", "labels": labels}
        status = {"containerStatuses": [{"name": "c", "state": ended}]}
        return replica_of({"metadata": metadata, "spec": {"containers": [{"name": "c"}]}, "status": status})

    job = {"metadata": {"name": "p", "namespace": "d"}, "status": {"lastFailure": {"pod": blamed}}}
    connection: Any = SimpleNamespace(client=None)
    found = Logs(connection, Target(job_types()[0], job), LogOptions())._failed_first([pod("master"), pod("worker")])
    assert found is not None
    assert found.name == first


async def test_following_says_once_that_replicas_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(logs, "POLL", 0)
    prefix = "training.kubeflow.org/"
    pods = [
        {
            "metadata": {"name": f"p-{index}", "labels": {f"{prefix}replica-type": "worker"}},
            "spec": {"containers": [{"name": "c"}]},
        }
        for index in range(66)
    ]
    looks = iter([{}, {}, {"conditions": [{"type": "Succeeded", "status": "True"}]}])

    class Api:
        async def list(self, *_: Any, **__: Any) -> Any:
            return SimpleNamespace(items=pods)

        async def get(self, *_: Any) -> Any:
            return {"status": next(looks)}

    connection: Any = SimpleNamespace(client=Api())
    target = Target(job_types()[0], {"metadata": {"name": "p", "namespace": "d"}})
    assert await Logs(connection, target, LogOptions()).show(follow=True) == 0
    assert next(looks, None) is None
    note = "2 replicas are left out; choose with --role, --index or --rank, or raise --max-replicas"
    assert capsys.readouterr().err == f"--- {note}\n"
