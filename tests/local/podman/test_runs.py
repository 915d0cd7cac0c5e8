"""`trainop run --runtime podman`, as a user starts, interrupts and kills it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.local.podman.conftest import IMAGE, IMAGE_WITH_PYTHON, Engine
from tests.patience import PATIENCE
from trainop.local.node.podman.containers import OWNER
from trainop.local.node.podman.program import is_alive, this_process

Done = subprocess.CompletedProcess[str]
MODES = ["namespaces", "addresses"] if os.geteuid() == 0 else ["addresses"]

MEET = """
import os, socket, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
master, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    with socket.create_server(("", port)) as server:
        peers = [server.accept()[0] for _ in range(world - 1)]
        total = sum(int(peer.recv(10)) for peer in peers)
        for peer in peers:
            peer.sendall(str(total).encode())
    open("total", "w").write(str(total))
else:
    for _ in range(300):
        try:
            peer = socket.create_connection((master, port))
            break
        except OSError:
            time.sleep(0.1)
    peer.sendall(str(rank).encode())
    total = int(peer.recv(10))
print("rank", rank, "total", total, "in", os.getcwd(), "GREETING", os.environ["GREETING"], flush=True)
"""
WAITS = "import signal, time\nprint('begun', flush=True)\nsignal.signal(15, lambda *_: exit(5))\ntime.sleep(1000)\n"


@pytest.fixture
def work(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with scripts, in which commands run."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()))
    folder = tmp_path / "work, mine"
    folder.mkdir()
    (folder / "meet.py").write_text(MEET)
    (folder / "waits.py").write_text(WAITS)
    return folder


def trainop(folder: Path, *arguments: str, code: int = 0) -> Done:
    done = subprocess.run(
        [sys.executable, "-m", "trainop", *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def podman(script: str, *more: str) -> list[str]:
    return ["run", "--runtime", "podman", "--image", IMAGE_WITH_PYTHON, *more, script]


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A run whose first replica has begun."""
    process = subprocess.Popen(
        [sys.executable, "-m", "trainop", *arguments], cwd=folder, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "begun" in line:
                break
        yield process
    finally:
        process.kill()
        process.communicate()


def containers(engine: Engine) -> list[str]:
    """Those of jobs: other tests have nodes that go on."""
    return [each for each in engine.containers() if "-pytorch-" in each]


def until_gone(engine: Engine) -> None:
    deadline = time.monotonic() + PATIENCE
    while left := containers(engine):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


@pytest.mark.parametrize("network", MODES)
def test_replicas_meet_by_name_in_the_folder_of_the_script(engine: Engine, work: Path, network: str) -> None:
    done = trainop(work, *podman("meet.py", "--nproc", "3", "--network", network))
    for rank in range(3):
        assert f"rank {rank} total 3 in {work} GREETING hello" in done.stdout
    assert "Succeeded" in done.stdout
    assert (work / "total").read_text() == "3", "the folder is the user's"
    assert containers(engine) == []


def test_a_manifest_has_nothing_of_the_folder(engine: Engine, work: Path) -> None:
    """Each container runs from its own image; those of the operator, too."""
    script = {"name": "script", "mountPath": "/script"}
    container = {
        "name": "pytorch",
        "image": IMAGE_WITH_PYTHON,
        "command": ["sh", "-c", "pwd && python /script/meet.py && ls /"],
        "volumeMounts": [script],
    }
    volumes = [{"name": "script", "configMap": {"name": "script"}}]
    template = {"spec": {"containers": [container], "volumes": volumes}}
    alpine = "docker.io/library/alpine:3.10"
    engine.call("tag", IMAGE, alpine)  # stands for that with which workers wait
    replicas = {"Master": {"replicas": 1, "template": template}, "Worker": {"replicas": 2, "template": template}}
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "meet"},
        "spec": {"pytorchReplicaSpecs": replicas},
    }
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "script"}, "data": {"meet.py": MEET}}
    (work / "job.yaml").write_text(f"{json.dumps(config)}\n---\n{json.dumps(job)}\n")
    done = trainop(work, "run", "--runtime", "podman", "job.yaml")
    assert "rank 2 total 3 in /tmp GREETING hello" in done.stdout
    assert str(work) not in done.stdout
    engine.call("untag", IMAGE, alpine)


def test_a_failed_script_is_the_exit_code_and_named(work: Path) -> None:
    (work / "fails.py").write_text("import os\nos._exit(41)\n")
    done = trainop(work, *podman("fails.py"), code=1)
    assert "41" in done.stdout
    assert "41" in trainop(work, "why", "fails-1", code=1).stdout


def test_an_image_that_is_not_there_is_named(work: Path) -> None:
    run = ["run", "--runtime", "podman", "--image", "127.0.0.1:1/absent:1", "--start-timeout", "40", "meet.py"]
    done = trainop(work, *run, code=1)
    assert "127.0.0.1:1/absent:1" in done.stdout
    assert "Failed to pull image" in done.stdout
    why = trainop(work, "why", "meet-1", code=3).stdout  # 3: the job waits
    assert "ErrImagePull" in why
    assert "127.0.0.1:1/absent:1" in why


def test_ctrl_c_ends_containers_with_sigterm(engine: Engine, work: Path) -> None:
    with running(work, *podman("waits.py")) as process:
        assert len(containers(engine)) == 1
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
    assert containers(engine) == []


def test_no_container_survives_a_run_that_is_killed(engine: Engine, work: Path) -> None:
    with running(work, *podman("waits.py")) as process:
        assert len(containers(engine)) == 1
        process.kill()
    until_gone(engine)


def keepers() -> list[int]:
    """The processes that remove the containers of a node that is killed."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if words[0] == "sh" and any(word.startswith(f"{OWNER}=") for word in words):
            found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize("by", ["clean", "run"])
def test_what_even_its_keeper_has_left_is_removed_later(engine: Engine, work: Path, by: str) -> None:
    before = set(keepers())
    with running(work, *podman("waits.py")) as process:
        (keeper,) = set(keepers()) - before
        os.kill(keeper, signal.SIGKILL)
        process.kill()
    assert len(containers(engine)) == 1
    if by == "clean":
        assert "containers of podman removed: 1" in trainop(work, "clean").stdout
    else:
        trainop(work, *podman("meet.py"))
    assert containers(engine) == []


def test_containers_of_a_run_that_lives_are_left_alone(engine: Engine, work: Path) -> None:
    with running(work, *podman("waits.py")):
        assert "podman" not in trainop(work, "clean").stdout
        trainop(work, *podman("meet.py"))
        assert len(containers(engine)) == 1
    until_gone(engine)


def test_a_process_is_told_from_one_with_its_number() -> None:
    boot, pid, started = this_process().split(".")
    assert is_alive(this_process())
    assert not is_alive(f"{boot}.{pid}.{int(started) + 1}")
    assert not is_alive(f"another-boot.{pid}.{started}")
    assert not any(map(is_alive, ["", "x", f"{boot}.x.1", f"{boot}.{pid}", f"{boot}..{started}"]))


def test_the_stacks_of_a_silent_script_are_shown(work: Path) -> None:
    """By a signal that the script allows, as in a cluster: py-spy is not in the image."""
    (work / "silent.py").write_text(
        "import faulthandler, signal, time\nfaulthandler.register(signal.SIGUSR1)\n"
        "def waits_here():\n    time.sleep(1000)\nprint('begun', flush=True)\nwaits_here()\n"
    )
    job = json.loads(json.dumps({"env": [{"name": "TRAINOP_STACKS_SIGNAL", "value": "USR1"}]}))
    container = {
        "name": "pytorch",
        "image": IMAGE_WITH_PYTHON,
        "command": ["python", "-c", (work / "silent.py").read_text()],
        **job,
    }
    spec = {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": {"spec": {"containers": [container]}}}}}
    manifest = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "silent"}, "spec": spec}
    (work / "silent.json").write_text(json.dumps(manifest))
    with running(work, "run", "--runtime", "podman", "silent.json"):
        assert "waits_here" in trainop(work, "stacks", "silent-1").stdout


def fake(folder: Path, script: str) -> None:
    """A program that answers as podman does where it cannot be used."""
    (folder / "bin").mkdir()
    program = folder / "bin" / "podman"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


INFO = '{"host": {"serviceIsRemote": %s}, "version": {"Version": "%s"}}'


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("", "podman is not installed"),
        ("echo 'Error: no storage' >&2; exit 125", "podman does not work here: no storage; try: podman info"),
        ("echo nonsense", "says nothing that is understood"),
        (f"echo '{INFO % ('false', '3.4.4')}'", "podman 3.4.4 is too old: install podman 4.3 or newer"),
        (f"echo '{INFO % ('true', '5.0.0')}'", "podman runs on another machine"),
        (
            f"[ $1 = info ] && echo '{INFO % ('false', '4.3.0')}' && exit; echo 'Error: no namespaces' >&2; exit 126",
            "podman cannot run a container on this machine: no namespaces",
        ),
    ],
)
def test_where_podman_cannot_be_used_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    if script:
        fake(tmp_path, script)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "train.py").write_text("")
    sh = tmp_path / "bin" / "sh"
    sh.parent.mkdir(exist_ok=True)
    sh.symlink_to("/bin/sh")
    done = trainop(tmp_path, "run", "--runtime", "podman", "--image", "a:1", "train.py", code=1)
    assert said in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("trainop: --runtime podman: ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--runtime", "podman", "train.py"], "--image"),
        (["--runtime", "podman", "--isolated", "--image", "a:1", "train.py"], "--isolated is for processes"),
        (["--image", "a:1", "train.py"], "--runtime podman"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path: Path, arguments: list[str], said: str) -> None:
    (tmp_path / "train.py").write_text("")
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(
        [sys.executable, "-m", "trainop", "run", *arguments],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("folder", ["/", "/usr", "/etc"])
def test_a_folder_of_the_system_would_hide_that_of_the_image(tmp_path: Path, folder: str) -> None:
    (tmp_path / "train.py").write_text("")
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(
        [sys.executable, "-m", "trainop", "run", "--runtime", "podman", "--image", "a:1", str(tmp_path / "train.py")],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 2
    assert f"{folder} is a folder of images, too" in done.stderr
