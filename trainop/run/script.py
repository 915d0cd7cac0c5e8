"""A job made of a Python script or module: `trainop run train.py --nproc 4 -- --epochs 3`.

The options mean what they mean to torchrun. By itself each process is one replica, with a log of its own; with
`--nproc-per-node` each replica runs torchrun, which starts its processes.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from trainop.engine.extensions import IN_PLACE, RESTART_MODE, SERVICE_MODE
from trainop.engine.framework import GROUP, Framework
from trainop.engine.leaders import MASTER, WORKER
from trainop.kinds.mxnet import MXNET
from trainop.kinds.pytorch import PYTORCH
from trainop.programs.schemes import FRAMEWORKS
from trainop.run.documents import BadInputError, Document, from_objects, read
from trainop.runtime import Json

F = TypeVar("F", bound=Callable[..., Any])

GIVEN = "trainop.run.given"
"""Key of `click.Context.meta`: the arguments as they were given."""

MPI = "mpi"
KINDS: dict[str, Framework | None] = {
    **{each.name: each for each in FRAMEWORKS.values() if each is not MXNET},  # its roles run different programs
    MPI: None,
}
"""What `--kind` accepts."""

GPU = "nvidia.com/gpu"
LOCAL_IMAGE = "python:3"
"""Stands where images are not used."""
FOLDER = "/script"
"""Where a cluster's containers have the script."""
MAX_SCRIPT = 512 * 1024
"""Bytes of a script that fits into a ConfigMap, together with what client tools add to it."""
_MAX_NAME = 40
_SSH = "ssh-client"
_SSH_CLIENT = "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n"
"""What images of MPI jobs contain, for the ssh of this machine: workers have new keys each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What the user asked for. `nproc`, `nnodes` and `nproc_per_node` are None if not given."""

    target: str
    """The path of the script, or the name of the module."""
    module: bool = False
    args: tuple[str, ...] = ()
    kind: str = PYTORCH.name
    name: str = ""
    """Of the job; empty: from the target."""
    nproc: int | None = None
    nnodes: int | None = None
    nproc_per_node: str | None = None
    max_restarts: int = 0
    gpus: int | None = None
    """Of each replica; None if not given."""
    image: str = ""
    """Of containers; empty: the job runs here, without images."""
    in_folder: bool = False
    """Whether containers have the folder of the script at the same path, as those of this machine."""

    @property
    def job_name(self) -> str:
        if self.name:
            return self.name
        stem = self.target if self.module else Path(self.target).stem
        words = re.sub("[^a-z0-9]+", "-", stem.lower())[:_MAX_NAME].strip("-")
        return words if words[:1].isalpha() else f"job-{words}".rstrip("-")

    @property
    def remote(self) -> bool:
        """Whether containers have no files of this machine."""
        return bool(self.image) and not self.in_folder

    @property
    def all_end(self) -> bool:
        """Whether each replica runs the script, and ends with it."""
        return self.kind != MPI

    @property
    def replicas(self) -> int:
        return self.nproc or self.nnodes or 1


class ScriptCommand(click.Command):
    """Says where the arguments of a script belong."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = [*args]
        ctx.meta[GIVEN] = given
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            script = next((each for each in given if each.endswith(".py")), None)
            if script is not None:
                right = f"{ctx.command_path} {script} -- {error.option_name}"
                text = f"{error.message} Arguments of the script follow --: {right}"
                raise click.NoSuchOption(error.option_name, text, ctx=ctx) from None
            raise


def script_options(command: F) -> F:
    """Adds the options that make a job of a script. They arrive as `script_options`, those that were given."""
    for option in (
        click.option("--kind", type=click.Choice(sorted(KINDS)), help="The kind of job. Default: pytorch."),
        click.option("--name", help="The name of the job. Default: that of the script."),
        click.option("--nproc", type=click.IntRange(min=1), help="Processes, each of them a replica. Default: 1."),
        click.option("--nnodes", type=click.IntRange(min=1), help="Replicas that run torchrun. Default: 1."),
        click.option("--nproc-per-node", metavar="N|auto|cpu|gpu", help="Processes that each torchrun starts."),
        click.option("--max-restarts", type=click.IntRange(min=0), help="After so many restarts the job fails."),
        click.option(
            "--gpus", type=click.IntRange(min=0), help="GPUs of each replica. Default: an equal share of all."
        ),
        click.option("--image", help="The image for a cluster, with --yaml, or for --runtime podman."),
        click.option("--module", "-m", help="Run this module, as python -m; all arguments are its own."),
    ):
        command = option(command)
    return command


def find_documents(
    paths: Sequence[str], options: dict[str, Any], gpus: int = 0, *, in_folder: bool = False
) -> tuple[list[Document], Script | None]:
    """The objects in manifests; or those of a script, and the script. `gpus` is the number that its replicas share
    unless the user said how many each has. `in_folder`: its containers have an image and the current folder. Raises
    `BadInputError`."""
    script = _find_script(paths, options)
    if script is not None:
        if in_folder and not script.image:
            raise BadInputError(
                "--runtime podman: a script needs the image that it runs in, such as --image python:3.12"
            )
        script = replace(script, in_folder=in_folder)
        if script.gpus is None:
            script = replace(script, gpus=gpus // script.replicas)
        return from_objects(make_objects(script), f"the job of {script.target}"), script
    if not paths:
        raise click.UsageError("Missing argument 'FILES...': manifests, or a Python script")
    return read(map(Path, paths)), None


def _find_script(paths: Sequence[str], given: dict[str, Any]) -> Script | None:
    """The script that the command line names, with its options; None if it names manifests. Raises `BadInputError`."""
    module = given.pop("module")
    asked = {name: value for name, value in given.items() if value is not None}
    if module is None and (not paths or Path(paths[0]).suffix != ".py"):
        if asked:
            option = f"--{next(iter(asked)).replace('_', '-')}"
            found = paths[0] if paths else "nothing"
            raise BadInputError(f"{option} makes a job of a script; expected FILE.py or -m MODULE, found {found}")
        return None
    target, args = (module, tuple(paths)) if module is not None else (paths[0], tuple(paths[1:]))
    script = Script(target=target, module=module is not None, args=args, **asked)
    _check(script)
    return script


def _check(script: Script) -> None:
    per_node = script.nproc_per_node
    if script.nproc is not None and (script.nnodes is not None or per_node is not None):
        raise BadInputError("--nproc: not together with --nnodes or --nproc-per-node, which ask for torchrun")
    if (script.nnodes is not None or per_node is not None) and script.kind != PYTORCH.name:
        raise BadInputError(f"--nnodes and --nproc-per-node: only with torchrun; use --nproc with --kind {script.kind}")
    if per_node is not None and not re.fullmatch("auto|cpu|gpu|[1-9][0-9]*", per_node):
        raise BadInputError(f"--nproc-per-node: expected a number from 1, auto, cpu or gpu, found {per_node!r}")
    if script.module:
        if not re.fullmatch(r"\w+(\.\w+)*", script.target):
            raise BadInputError(f"-m: expected the name of a module such as package.train, found {script.target!r}")
        return
    read_script(Path(script.target))


def read_script(path: Path) -> str:
    """The text of the script. Raises `BadInputError`."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInputError(f"{path}: {error.strerror}") from error
    if b"\0" in content:
        raise BadInputError(f"{path}: not a Python script: it has NUL bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInputError(f"{path}: not UTF-8 text (byte {error.start})") from error


def make_objects(script: Script) -> list[Json]:
    """The job, after the ConfigMap with the script where an image needs it. Raises `BadInputError`."""
    objects = []
    if script.remote and not script.module:
        text = read_script(Path(script.target))
        if len(text.encode()) > MAX_SCRIPT:
            raise BadInputError(f"{script.target}: longer than {MAX_SCRIPT} bytes; put it into the image and use -m")
        metadata = {"name": _config_map(script)}
        objects.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {_key(script): text}})
    framework = KINDS[script.kind]
    if framework is None and not script.image:
        metadata = {"name": f"{script.job_name}-{_SSH}"}
        objects.append(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"pods.conf": _SSH_CLIENT}}
        )
    objects.append(_mpi_job(script) if framework is None else _job(script, framework))
    return objects


def _config_map(script: Script) -> str:
    """Another name for another text, so that no job that runs gets the script of the next one."""
    digest = hashlib.blake2s(read_script(Path(script.target)).encode(), digest_size=4).hexdigest()
    return f"{script.job_name}-script-{digest}"


def _key(script: Script) -> str:
    return re.sub("[^-._a-zA-Z0-9]", "_", Path(script.target).name)


def _job(script: Script, framework: Framework) -> Json:
    replicas = script.replicas
    policy = "OnFailure" if script.max_restarts else "Never"
    replica = {"restartPolicy": policy, "template": _template(script, framework.container, _command(script))}
    master = framework.roles.get(MASTER)
    specs: Json = {}
    if master is not None and master.maximum == 1:
        specs[MASTER] = {"replicas": 1, **replica}
        replicas -= 1
    if replicas:
        specs[WORKER] = {"replicas": replicas, **replica}
    spec: Json = {"runPolicy": _run_policy(script), framework.replica_specs: specs}
    if script.nproc_per_node is not None:
        spec["nprocPerNode"] = script.nproc_per_node
    annotations = {RESTART_MODE: IN_PLACE} if script.max_restarts else {}
    if script.replicas > 1:
        annotations[SERVICE_MODE] = "job"  # one Service, whose names resolve before their pods are ready
    return _object(framework.resource.api_version, framework.kind, script, spec, annotations)


def _mpi_job(script: Script) -> Json:
    command = ["mpirun", "-n", str(script.replicas), *_command(script)]
    policy = "OnFailure" if script.max_restarts else "Never"
    launcher = _template(replace(script, gpus=0), MPI, command)
    if not script.image:
        _mount(launcher, _SSH, f"{script.job_name}-{_SSH}", "/etc/ssh/ssh_config.d")
    roles = {
        "Launcher": {"replicas": 1, "restartPolicy": policy, "template": launcher},
        WORKER: {"replicas": script.replicas, "template": _template(script, MPI, [])},
    }
    spec = {"launcherCreationPolicy": "WaitForWorkersReady", "runPolicy": _run_policy(script), "mpiReplicaSpecs": roles}
    return _object(f"{GROUP}/v2beta1", "MPIJob", script, spec, {})


def _object(api_version: str, kind: str, script: Script, spec: Json, annotations: Json) -> Json:
    metadata = {"name": script.job_name, **({"annotations": annotations} if annotations else {})}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}


def _run_policy(script: Script) -> Json:
    return {"cleanPodPolicy": "Running" if script.remote else "None", "backoffLimit": script.max_restarts}


def _command(script: Script) -> list[str]:
    runner = [] if not _with_torchrun(script) else ["-m", "torch.distributed.run"]
    if script.module:
        return ["python", *runner, "-m", script.target, *script.args]
    path = f"{FOLDER}/{_key(script)}" if script.remote else script.target
    return ["python", *runner, path, *script.args]


def _with_torchrun(script: Script) -> bool:
    return script.nnodes is not None or script.nproc_per_node is not None


def _template(script: Script, container_name: str, command: list[str]) -> Json:
    container: Json = {"name": container_name, "image": script.image or LOCAL_IMAGE}
    if script.in_folder:
        container |= {"imagePullPolicy": "IfNotPresent"}  # an image built here has no registry
    if command:
        container |= {"command": command}
    if script.gpus:
        container |= {"resources": {"limits": {GPU: script.gpus}}}
    if command and (environment := _environment(script)):
        container |= {"env": [{"name": name, "value": value} for name, value in environment.items()]}
    spec: Json = {"containers": [container]}
    if script.remote and not script.module:
        _mount({"spec": spec}, "script", _config_map(script), FOLDER)
    return {"spec": spec}


def _mount(template: Json, volume: str, config_map: str, path: str) -> None:
    """Adds the files of a ConfigMap to a template that has no volume yet."""
    (container,) = template["spec"]["containers"]
    container["volumeMounts"] = [{"name": volume, "mountPath": path}]
    template["spec"]["volumes"] = [{"name": volume, "configMap": {"name": config_map}}]


def _environment(script: Script) -> dict[str, str]:
    """What torchrun would set, besides the variables of the operator."""
    if script.kind != PYTORCH.name:
        environment = {"PYTHONUNBUFFERED": "1"}  # the operator gives it to PyTorchJobs
        if script.kind == MPI:  # Open MPI refuses root, who is alone in a container
            environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    elif _with_torchrun(script):
        environment = {}
    else:
        environment = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    if script.replicas > 1 and not script.remote and (script.in_folder or "OMP_NUM_THREADS" not in os.environ):
        environment["OMP_NUM_THREADS"] = "1"  # the replicas share the processors of this machine
    return environment
