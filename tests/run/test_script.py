"""`trainop run train.py`: the job that is made of a script, and how it runs."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.patience import PATIENCE
from trainop.kinds.mxnet import MXNET
from trainop.programs.schemes import FRAMEWORKS
from trainop.run.script import KINDS, MAX_SCRIPT

IN_PLACE = {"trainop.kubeflow.org/restart-mode": "in-place"}
ONE_SERVICE = {"trainop.kubeflow.org/service-mode": "job"}
SHAPES: dict[str, tuple[str, str, str, str, dict[str, int]]] = {
    "pytorch": ("kubeflow.org/v1", "PyTorchJob", "pytorchReplicaSpecs", "pytorch", {"Master": 1, "Worker": 2}),
    "xgboost": ("kubeflow.org/v1", "XGBoostJob", "xgbReplicaSpecs", "xgboost", {"Master": 1, "Worker": 2}),
    "tensorflow": ("kubeflow.org/v1", "TFJob", "tfReplicaSpecs", "tensorflow", {"Worker": 3}),
    "paddle": ("kubeflow.org/v1", "PaddleJob", "paddleReplicaSpecs", "paddle", {"Worker": 3}),
    "jax": ("kubeflow.org/v1", "JAXJob", "jaxReplicaSpecs", "jax", {"Worker": 3}),
    "mpi": ("kubeflow.org/v2beta1", "MPIJob", "mpiReplicaSpecs", "mpi", {"Launcher": 1, "Worker": 3}),
}
"""Kind -> apiVersion, kind, field of the roles, container, and replicas of `--nproc 3`."""


def trainop(*args: str | Path, cwd: Path, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trainop", *map(str, args)]
    return subprocess.run(command, cwd=cwd, input=given, capture_output=True, text=True, timeout=PATIENCE, check=False)


def run(folder: Path, *args: str | Path) -> tuple[int, list[str]]:
    """Exit code and what the replicas printed, sorted."""
    done = trainop("run", "--network=addresses", *args, cwd=folder)
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    said = re.findall(r"^(?:\w+-\d+) +(.*)$", done.stdout, re.MULTILINE)
    return done.returncode, sorted(said)


def write(folder: Path, text: str, name: str = "train.py") -> Path:
    (folder / name).write_text(text)
    return Path(name)


def manifest(folder: Path, *args: str | Path) -> list[Any]:
    done = trainop("run", "--yaml", *args, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    checked = trainop("check", "-", cwd=folder, given=done.stdout)
    assert (checked.returncode, checked.stderr) == (0, "")
    planned = trainop("plan", "-", cwd=folder, given=done.stdout)
    assert planned.returncode == 0, planned.stderr
    return list(yaml.safe_load_all(done.stdout))


def test_every_kind_that_runs_one_program_can_be_made():
    assert SHAPES.keys() <= KINDS.keys()
    assert {each.name for each in FRAMEWORKS.values()} == {*KINDS, MXNET.name} - {"mpi"}


def test_the_manifest_of_an_isolated_run_is_printed_in_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # which isolated containers must not have
    script = write(tmp_path, "print()")
    refused = trainop("run", "--isolated", script, cwd=tmp_path)
    assert refused.returncode == 2, refused.stderr
    printed, plain = (trainop("run", *more, "--yaml", script, cwd=tmp_path) for more in (["--isolated"], []))
    assert (printed.returncode, printed.stdout, printed.stderr) == (0, plain.stdout, "")


@pytest.mark.parametrize("kind", SHAPES)
def test_a_replica_for_each_process(tmp_path: Path, kind: str):
    script = write(tmp_path, "print()")
    *others, job = manifest(
        tmp_path, script, "--nproc=3", f"--kind={kind}", "--max-restarts=2", "--", "--epochs", "3 x"
    )
    api_version, job_kind, field, container, replicas = SHAPES[kind]
    assert (job["apiVersion"], job["kind"], job["metadata"]["name"]) == (api_version, job_kind, "train")
    specs = job["spec"][field]
    assert {role: spec["replicas"] for role, spec in specs.items()} == replicas
    assert job["spec"]["runPolicy"]["backoffLimit"] == 2
    command = ["python", "train.py", "--epochs", "3 x"]
    if kind == "mpi":
        command = ["mpirun", "-n", "3", *command]
        (client,) = others
        assert "StrictHostKeyChecking no" in client["data"]["pods.conf"]
        assert "command" not in specs["Worker"]["template"]["spec"]["containers"][0]
        specs = {"Launcher": specs["Launcher"]}
    else:
        assert job["metadata"]["annotations"] == IN_PLACE | ONE_SERVICE
        assert others == []
    for spec in specs.values():
        (made,) = spec["template"]["spec"]["containers"]
        assert (made["name"], made["command"], spec["restartPolicy"]) == (container, command, "OnFailure")


def test_a_single_process_is_one_pod_that_is_not_restarted(tmp_path: Path):
    (job,) = manifest(tmp_path, write(tmp_path, "print()"))
    assert "annotations" not in job["metadata"]
    (master,) = job["spec"]["pytorchReplicaSpecs"].values()
    assert (master["replicas"], master["restartPolicy"]) == (1, "Never")


@pytest.mark.parametrize(
    ("options", "replicas", "processes"),
    [
        (("--nnodes=2", "--nproc-per-node=4"), {"Master": 1, "Worker": 1}, "4"),
        (("--nproc-per-node=gpu",), {"Master": 1}, "gpu"),
        (("--nnodes=3",), {"Master": 1, "Worker": 2}, None),
    ],
)
def test_torchrun_starts_the_processes_of_a_node(
    tmp_path: Path, options: tuple[str, ...], replicas: dict[str, int], processes: str | None
):
    (job,) = manifest(tmp_path, write(tmp_path, "print()"), *options, "--", "x")
    specs = job["spec"]["pytorchReplicaSpecs"]
    assert {role: spec["replicas"] for role, spec in specs.items()} == replicas
    assert job["spec"].get("nprocPerNode") == processes
    (container,) = specs["Master"]["template"]["spec"]["containers"]
    assert container["command"] == ["python", "-m", "torch.distributed.run", "train.py", "x"]
    assert not {"RANK", "LOCAL_RANK"} & {each["name"] for each in container.get("env", ())}


def test_with_an_image_the_script_goes_along(tmp_path: Path):
    text = "import os\nprint('a: b')\n"
    config, job = manifest(tmp_path, write(tmp_path, text, "my train.py"), "--image=x/y:1", "--nproc=2")
    assert (config["kind"], config["data"]) == ("ConfigMap", {"my_train.py": text})
    assert job["spec"]["runPolicy"]["cleanPodPolicy"] == "Running"
    for spec in job["spec"]["pytorchReplicaSpecs"].values():
        pod = spec["template"]["spec"]
        (container,), (volume,) = pod["containers"], pod["volumes"]
        (mount,) = container["volumeMounts"]
        assert (container["image"], container["command"]) == ("x/y:1", ["python", f"{mount['mountPath']}/my_train.py"])
        assert (volume["name"], volume["configMap"]["name"]) == (mount["name"], config["metadata"]["name"])


def test_a_module_is_in_the_image(tmp_path: Path):
    (job,) = manifest(tmp_path, "-m", "package.train", "--image=x", "--", "--lr", "1")
    assert job["metadata"]["name"] == "package-train"
    (container,) = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"]
    assert container["command"] == ["python", "-m", "package.train", "--lr", "1"]


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("Train_Model.v2.py", "train-model-v2"),
        ("3d.py", "job-3d"),
        ("--.py", "job"),
        ("größe.py", "gr-e"),
        (f"{'x' * 90}.py", "x" * 40),
    ],
)
def test_the_job_is_named_after_its_script(tmp_path: Path, file: str, name: str):
    (job,) = manifest(tmp_path, f"./{write(tmp_path, 'print()', file)}")
    assert job["metadata"]["name"] == name


def test_the_processes_know_their_ranks(tmp_path: Path):
    program = "import os, sys\nprint(*(os.environ[n] for n in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK')), *sys.argv[1:])"
    code, said = run(tmp_path, write(tmp_path, program), "--nproc=3", "--", "--lr", "0.1")
    assert (code, said) == (0, [f"{rank} 3 0 --lr 0.1" for rank in range(3)])


def test_a_module_runs_from_the_folder(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    write(tmp_path, "import os\nprint('process', os.environ['PROCESS_ID'])", "mine/train.py")
    assert run(tmp_path, "--nproc=2", "--kind=jax", "-m", "mine.train") == (0, ["process 0", "process 1"])


ONCE = """
import os, pathlib, sys
seen = pathlib.Path("rank-" + os.environ["RANK"])
again = seen.exists()
seen.touch()
print("again" if again else "first", flush=True)
sys.exit(0 if again else 3)
"""


@pytest.mark.parametrize(("restarts", "code", "said"), [("1", 0, ["again", "first"]), ("0", 1, ["first"])])
def test_restarts_are_counted_as_by_torchrun(tmp_path: Path, restarts: str, code: int, said: list[str]):
    script = write(tmp_path, ONCE)
    assert run(tmp_path, script, "--max-restarts", restarts) == (code, said)


@pytest.mark.parametrize(("code", "restarts", "ended"), [(0, 0, 0), (5, 0, 1), (5, 3, 1)])
def test_all_processes_have_to_succeed(tmp_path: Path, code: int, restarts: int, ended: int):
    """A PyTorchJob has succeeded when its master has, and the others go on. Nobody counts their restarts then."""
    program = f"""
import os, pathlib, sys, time
if os.environ["RANK"] == "1":
    while not pathlib.Path("go").exists():
        time.sleep(0.05)
    print("later", flush=True)
    sys.exit({code})
print("first", flush=True)
"""
    command = [sys.executable, "-m", "trainop", "run", "--network=addresses", "train.py", "--nproc=2"]
    command.append(f"--max-restarts={restarts}")
    write(tmp_path, program)
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        too_late = threading.Timer(PATIENCE, process.kill)
        too_late.start()
        said = ""
        for line in process.stdout:
            said += line
            if "waiting for worker-0 to end, too" in line:
                (tmp_path / "go").touch()
        too_late.cancel()
    assert process.returncode == ended, said
    assert re.search(r"^worker-0 +later$", said, re.MULTILINE), said
    assert ("worker-0 failed after the job had succeeded" in said) == bool(code), said
    assert ("exited with code 5" in said) == bool(code), said


REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "missing": (("absent.py",), "absent.py: No such file or directory"),
    "a folder": (("folder.py",), "folder.py: Is a directory"),
    "binary": (("binary.py",), "binary.py: not a Python script: it has NUL bytes"),
    "latin-1": (("latin.py",), "latin.py: not UTF-8 text (byte 3)"),
    "too long": (("long.py", "--image=x", "--yaml"), f"long.py: longer than {MAX_SCRIPT} bytes; put it into the image"),
    "an image here": (("train.py", "--image=x"), "trainop submit, or for --runtime podman; here images are not used"),
    "both numbers": (("train.py", "--nproc=2", "--nnodes=2"), "--nproc: not together with --nnodes or"),
    "torchrun of another kind": (("train.py", "--nnodes=2", "--kind=jax"), "use --nproc with --kind jax"),
    "processes": (
        ("train.py", "--nproc-per-node=many"),
        "--nproc-per-node: expected a number from 1, auto, cpu or",
    ),
    "a path as a module": (("-m", "mine/train.py"), "-m: expected the name of a module such as package.train"),
    "a manifest": (
        ("job.yaml", "--nproc=2"),
        "--nproc makes a job of a script; expected FILE.py or -m MODULE",
    ),
    "the YAML of a manifest": (("job.yaml", "--yaml"), "--yaml shows the job of a script; job.yaml is a manifest"),
    "a URL": (
        ("https://example.org/a.yaml",),
        "https://example.org/a.yaml: URLs are not read; expected a file",
    ),
    "a name": (("train.py", "--name=A_B"), 'error: metadata.name: Invalid value: "A_B"'),
    "too many": (("train.py", "--nproc=1000000"), "the job of train.py:"),
    "nothing": ((), "Missing argument 'FILES...': manifests, or a Python script"),
    "arguments of the script": (
        ("train.py", "--lr", "3"),
        "No such option '--lr'. Arguments of the script follow --: trainop run train.py -- --lr",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_say_what_would_be_right(tmp_path: Path, case: str):
    args, words = REFUSED[case]
    write(tmp_path, "print()")
    (tmp_path / "job.yaml").write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n")
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "binary.py").write_bytes(b"\x7fELF\0")
    (tmp_path / "latin.py").write_bytes(b"# \xe4\n"[:2] + b"a\xe4\n")
    (tmp_path / "long.py").write_text("#" * (MAX_SCRIPT + 1))
    done = trainop("run", "--network=addresses", *args, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, ""), done.stdout + done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
