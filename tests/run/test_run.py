"""`trainop run` and `trainop cluster` as processes: their output and exit codes."""

import asyncio
import copy
import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from tests.patience import PATIENCE
from trainop.local.cluster import ClusterOptions
from trainop.run.documents import BadInputError, read
from trainop.run.session import run_cluster, run_documents
from trainop.run.submit import install
from trainop.runtime import Client, Json


def job(name: str, script: str, *, workers: int = 0, policy: str = "Never", **spec: object) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "pytorch", "image": "python:3", "command": ["sh", "-c", script]}]}}
    roles = {"Master": {"replicas": 1, "restartPolicy": policy, "template": template}}
    if workers:
        roles["Worker"] = {"replicas": workers, "restartPolicy": policy, "template": template}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {"pytorchReplicaSpecs": roles, **spec},
    }


def write(folder: Path, *objects: dict[str, Any]) -> Path:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump_all(objects))
    return path


async def run(path: Path, *, data: Path | None = None, start_timeout: float = 0) -> tuple[int, str]:
    """Exit code and output of the command without a terminal."""
    out = io.StringIO()
    console = Console(file=out, width=200, highlight=False)
    async with asyncio.timeout(PATIENCE):
        options = ClusterOptions(network="addresses", directory=data)
        code = await run_documents(read([path]), options, console, start_timeout=start_timeout)
    return code, out.getvalue()


async def test_logs_carry_the_replica_and_success_is_0(tmp_path: Path):
    without_master = job("a", "echo one of $PET_NNODES", workers=2)
    del without_master["spec"]["pytorchReplicaSpecs"]["Master"]
    code, shown = await run(write(tmp_path, without_master))
    assert code == 0
    assert re.search(r"^worker-0 +one of 2$", shown, re.MULTILINE)
    assert re.search(r"^worker-1 +one of 2$", shown, re.MULTILINE)
    assert shown.splitlines()[-1] == "a Succeeded PyTorchJob default/a successfully completed."


async def test_a_failure_reports_the_replica_its_exit_code_and_its_last_lines(tmp_path: Path):
    code, shown = await run(
        write(tmp_path, job("a", "test $RANK = 0 && sleep 30; echo so far; echo trouble >&2; exit 3", workers=1))
    )
    assert code == 1
    assert "a Failed PyTorchJob a is failed because 1 Worker replica(s) failed." in shown
    assert "Root cause: Worker 0 (rank 1, pod a-worker-0 on node local) exited with code 3 at " in shown
    assert shown.endswith("; last log lines:\n  so far\n  trouble\n")
    assert shown.index("worker-0   trouble") < shown.index("a Failed"), "a line is printed after what happened before"


async def test_replicas_that_the_operator_stops_are_not_blamed(tmp_path: Path):
    """The failed worker restarts the whole job: the other two end with 143, and so does its own successor."""
    script = 'trap "exit 143" TERM; if test $RANK = 2; then echo boom; exit 9; fi; sleep 60 & wait'
    spec = {"runPolicy": {"backoffLimit": 1, "cleanPodPolicy": "All"}}
    made = job("a", script, workers=2, policy="ExitCode", **spec)
    made["metadata"]["annotations"] = {"trainop.kubeflow.org/restart-scope": "job"}
    text = script.replace("exit 9", "exit 139")
    for role in made["spec"]["pytorchReplicaSpecs"].values():
        role["template"]["spec"]["containers"][0]["command"] = ["sh", "-c", text]
    code, shown = await run(write(tmp_path, made))
    assert code == 1
    report = shown[shown.index("Root cause: ") :]
    assert "Worker 1 (rank 2, pod a-worker-1 on node local) was ended by SIGSEGV (exit code 139)" in report
    assert "143" not in report
    assert "boom" in report
    assert re.search(r"^a Restarting .*Worker 1 .* \(it goes on at once\)$", shown, re.MULTILINE)


@pytest.mark.parametrize("command", ["no-such-program", "python /no/such/file.py"])
async def test_a_job_that_cannot_start_here_ends_after_the_second_failure(tmp_path: Path, command: str):
    code, shown = await run(write(tmp_path, job("a", command, policy="OnFailure")))
    assert code == 1
    assert "PyTorchJob a cannot succeed here: master-0 has failed twice in the same way" in shown
    assert "Root cause: Master 0 " in shown
    assert shown.rstrip().endswith("or change the command.")


async def test_a_job_that_has_only_an_image_ends_at_once(tmp_path: Path):
    made = job("a", "", policy="OnFailure")
    del made["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]["command"]
    code, shown = await run(write(tmp_path, made))
    assert code == 1
    assert "master-0: container pytorch cannot start: CreateContainerError: no command specified" in shown


async def test_every_line_is_printed_and_the_error_after_them(tmp_path: Path):
    code, shown = await run(write(tmp_path, job("a", "seq 60000; echo the error >&2; exit 3")))
    assert code == 1
    assert re.findall(r"^master-0 +(\d+)$", shown, re.MULTILINE) == [str(number) for number in range(1, 60001)]
    assert re.search(r"^master-0 +the error$", shown, re.MULTILINE)
    assert shown.endswith("  60000\n  the error\n")


async def test_a_job_that_cannot_start_reports_the_reason_and_ends(tmp_path: Path):
    missing = job("a", "true")
    container = missing["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]
    container["envFrom"] = [{"configMapRef": {"name": "settings"}}]
    code, shown = await run(write(tmp_path, missing), start_timeout=3)
    assert code == 1
    assert "PyTorchJob a has not started within 3 s: master-0 waits: " in shown
    assert 'configmap "settings" not found' in shown


async def test_a_finished_job_runs_again_with_the_same_data(tmp_path: Path):
    """It runs again whether the file, the code that it calls, or nothing has changed."""
    data = tmp_path / "data"
    code, shown = await run(write(tmp_path, job("a", "echo first")), data=data)
    assert (code, bool(re.search(r"^master-0 +first$", shown, re.MULTILINE))) == (0, True)
    code, shown = await run(write(tmp_path, job("a", "echo second; exit 4")), data=data)
    assert code == 1
    assert re.search(
        r"^PyTorchJob a finished in an earlier run \(Succeeded at .*\): it is run again$", shown, re.MULTILINE
    )
    assert re.search(r"^master-0 +second$", shown, re.MULTILINE)
    assert "first" not in shown
    code, shown = await run(write(tmp_path, job("a", "echo third")), data=data)
    assert code == 0
    assert "finished in an earlier run (Failed at " in shown


async def test_a_command_that_does_not_exist_is_named(tmp_path: Path):
    wrong = job("a", "")
    wrong["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]["command"] = ["pythn"]
    code, shown = await run(write(tmp_path, wrong))
    assert code == 1
    assert 'exec: "pythn": executable file not found in $PATH' in shown


async def test_several_jobs_share_the_cluster_and_one_failure_is_1(tmp_path: Path):
    code, shown = await run(write(tmp_path, job("a", "echo from a"), job("b", "exit 4")))
    assert code == 1
    assert re.search(r"^a/master-0 +from a$", shown, re.MULTILINE)
    assert re.search(r"Root cause: Master 0 .*pod b-master-0.* exited with code 4", shown)


async def test_other_objects_are_there_before_the_job(tmp_path: Path):
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"word": "open sesame"}}
    reader = job("a", "echo $WORD")
    reader["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]["env"] = [
        {"name": "WORD", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "word"}}}
    ]
    code, shown = await run(write(tmp_path, settings, reader))
    assert (code, "open sesame" in shown) == (0, True)


async def test_a_job_that_is_deleted_is_over(tmp_path: Path):
    """Its time to live is 0; its result counts, although the job is deleted."""
    code, _ = await run(write(tmp_path, job("a", "true", runPolicy={"ttlSecondsAfterFinished": 0})))
    assert code == 0


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"kind": "PytorchJob"}, "no job found, only PytorchJob (kubeflow.org/v1); supported kinds of jobs:"),
        ({"spec": {}}, "spec.pytorchReplicaSpecs: Required value: must be required"),
        ({"metadata": {"name": "A"}}, "metadata.name: Invalid value: "),
    ],
)
async def test_an_error_is_reported_before_anything_starts(tmp_path: Path, change: dict[str, object], reported: str):
    with pytest.raises(BadInputError) as caught:
        await run(write(tmp_path, job("a", "true") | change))
    assert reported in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "job.yaml:"))


@pytest.mark.parametrize(
    ("path", "value", "reported"),
    [
        (("Master", "replicas"), -1, "spec.pytorchReplicaSpecs[Master].replicas: Forbidden: must be 1"),
        (("Master", "replicas"), 2, "spec.pytorchReplicaSpecs[Master].replicas: Forbidden: must be 1"),
        (("Worker", "replicas"), -1, "spec.pytorchReplicaSpecs[Worker].replicas: "),
        (
            ("Worker", "template", "spec", "containers"),
            [{"image": "x"}],
            "must have at least one container with name pytorch",
        ),
    ],
)
async def test_a_mistake_in_a_replica_names_its_field(
    tmp_path: Path, path: tuple[str, ...], value: object, reported: str
):
    wrong = copy.deepcopy(job("a", "true", workers=1))
    *parents, last = path
    place = wrong["spec"]["pytorchReplicaSpecs"]
    for parent in parents:
        place = place[parent]
    place[last] = value
    with pytest.raises(BadInputError) as caught:
        await run(write(tmp_path, wrong))
    assert reported in str(caught.value)


async def test_an_object_of_an_unknown_kind_is_reported(tmp_path: Path):
    odd = {"apiVersion": "example.org/v1", "kind": "Gadget", "metadata": {"name": "g"}}
    with pytest.raises(BadInputError, match=r"job.yaml:2:1: error: kind: Gadget is unknown in example.org/v1"):
        await run(write(tmp_path, odd, job("a", "true")))


async def test_a_duplicate_object_is_reported(tmp_path: Path):
    with pytest.raises(BadInputError, match=r"job.yaml:\d+:1: error: PyTorchJob a is already defined at .*job.yaml:1"):
        await run(write(tmp_path, job("a", "true"), job("a", "false")))


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "trainop", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )


def processes_with(mark: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if mark.encode() in words and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


def wait_until(condition: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("with_signal", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_it_is_interrupted(tmp_path: Path, with_signal: signal.Signals):
    mark = f"mark-{os.getpid()}-{with_signal.name}"
    path = write(tmp_path, job("a", f"echo begun; sleep 300 & sleep 300; : {mark}"))
    process = start("run", path)
    assert process.stdout is not None
    assert any("begun" in line for line in process.stdout)
    process.send_signal(with_signal)
    code = process.wait(PATIENCE)
    process.stdout.close()
    assert code == (-signal.SIGKILL if with_signal is signal.SIGKILL else 128 + with_signal)
    assert wait_until(lambda: not processes_with(mark)), processes_with(mark)


def test_bad_input_ends_with_2_and_no_traceback(tmp_path: Path):
    process = start("run", write(tmp_path, {"apiVersion": "v1"}))
    shown, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert shown == f"{tmp_path / 'job.yaml'}:1:1: error: kind is missing; expected for example PyTorchJob\n"


def test_a_cluster_continues_where_it_was(tmp_path: Path):
    """With --data the objects are restored, and a second cluster on the same folder is refused."""
    process = start("cluster", "--data", tmp_path / "data", "--no-operator")
    assert process.stdout is not None
    assert any(line == f"export KUBECONFIG={tmp_path / 'data' / 'kubeconfig'}\n" for line in process.stdout)
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
    for name in ("kubeconfig", "objects.sqlite", "objects.sqlite-wal", "trainop.log", "lock"):
        assert (tmp_path / "data" / name).stat().st_mode & 0o777 == 0o600, name
    second = start("cluster", "--data", tmp_path / "data")
    shown, _ = second.communicate(timeout=PATIENCE)
    assert (second.returncode, shown) == (1, f"trainop: {tmp_path / 'data'} is in use by another cluster\n")
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    process.stdout.close()
    assert (tmp_path / "data" / "objects.sqlite").exists()


async def test_all_kinds_are_served_when_a_cluster_says_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Scripts wait for this line and create jobs at once. The installation lasts until the line could have come."""
    order = []

    class Lines(io.StringIO):
        def write(self, text: str) -> int:
            if "export KUBECONFIG=" in text:
                order.append("printed")
                loop.call_soon_threadsafe(printed.set)
            return len(text)

    async def slow_install(client: Client, definitions: Iterable[Json]) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(printed.wait(), 0.5)
        await install(client, definitions)
        order.append("installed")

    loop, printed = asyncio.get_running_loop(), asyncio.Event()
    monkeypatch.setattr("trainop.run.session.install", slow_install)
    options = ClusterOptions(tmp_path / "data")
    running = asyncio.create_task(run_cluster(options, Console(file=Lines(), width=200), with_operator=True))
    async with asyncio.timeout(PATIENCE):
        await printed.wait()
        assert order == ["installed", "printed"]
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def test_a_port_in_use_is_reported_in_one_line():
    first = start("cluster", "--no-operator")
    assert first.stdout is not None
    url = next(line for line in first.stdout if "API server" in line)
    port = re.search(r":(\d+),", url)
    assert port is not None
    second = start("cluster", "--port", port[1])
    shown, _ = second.communicate(timeout=PATIENCE)
    first.send_signal(signal.SIGINT)
    first.wait(PATIENCE)
    first.stdout.close()
    assert second.returncode == 1
    assert (
        shown
        == f"trainop: port {port[1]} of 127.0.0.1 is not available (Address already in use): choose another port\n"
    )
