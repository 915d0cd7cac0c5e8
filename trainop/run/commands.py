"""The commands `trainop run` and `trainop cluster`.

Exit codes of `run`: 0 all jobs Succeeded, 1 a job Failed or did not start, 2 invalid input. Of
`run` and `cluster`: 130 after Ctrl-C, 143 after SIGTERM, 129 after the terminal was closed, 141 if the output pipe was
closed, 1 if the folder, port or network is not available.
"""

from __future__ import annotations

import asyncio
import io
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console

from trainop.engine.durations import parse_duration
from trainop.kept.folder import runs_folder
from trainop.kinds.mpi.transport import MPI_V2, SSH, expect
from trainop.local.cluster import ClusterOptions
from trainop.local.gpus import find_gpus
from trainop.local.node.agent import PodmanOptions
from trainop.local.node.isolation import Isolation
from trainop.local.scheduler.filters import Leniency
from trainop.run.detached import attached, run_detached
from trainop.run.documents import BadInputError, Document, to_yaml
from trainop.run.interrupts import Interrupts
from trainop.run.output import THREAD, Terminal
from trainop.run.page import Page
from trainop.run.script import GIVEN, Script, ScriptCommand, find_documents, script_options
from trainop.run.session import run_cluster, run_documents
from trainop.run.starting import DEFAULT_TIMEOUT
from trainop.runtime import Unstructured

_OF_IMAGES = ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "proc", "run", "sbin", "sys", "usr")
"""The first parts of paths at which containers have files of their own."""

F = TypeVar("F", bound=Callable[..., Any])

_NETWORK = click.option(
    "--network",
    type=click.Choice(["namespaces", "addresses"]),
    help="Give each pod its own network namespace, or only its own loopback address. "
    "Default: namespaces if this user is permitted to create them.",
)
_DIRECTORY = click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Store the cluster's objects, volumes and logs in this folder. A later run in the same folder continues.",
)
_PORT = click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Port of the API server. Default: a free one."
)
_ALLOW_CPU = click.option(
    "--allow-cpu",
    is_flag=True,
    help="Run pods that request more GPUs, or other devices, than this machine has, without any.",
)
_PROGRESS = click.option(
    "--progress",
    is_flag=True,
    help="The pods of all jobs can report progress, but for those with the annotation "
    'trainop.kubeflow.org/progress: "false". Otherwise, those of jobs whose annotation is "true".',
)


_ISOLATED = click.option(
    "--isolated",
    is_flag=True,
    help="Nothing of this machine can be changed but this folder: the rest is read-only, home, temporary files and "
    "network are the run's own, and tokens in variables are not passed on. Linux only.",
)


_RUNTIME = click.option(
    "--runtime",
    type=click.Choice(["process", "podman"]),
    default="process",
    show_default=True,
    help="What runs containers: processes of this machine, without images, or podman, each from its image.",
)

_OF_CLUSTER = ("data", "network", "port", "allow_cpu", "overcommit", "isolated", "runtime")


def _overcommit(*, default: bool) -> Callable[[F], F]:
    return click.option(
        "--overcommit/--no-overcommit",
        default=default,
        show_default=True,
        help="Give the node to pods whose requests of CPU and memory exceed this machine; otherwise they wait.",
    )


def _read_duration(_context: click.Context, _option: click.Parameter, text: str) -> float:
    """In seconds."""
    with suppress(ValueError):
        if 0 <= (seconds := parse_duration(text)) < math.inf:
            return seconds
    raise click.BadParameter(f"{text!r}: expected a duration such as 90s, 10m or 1h30m, or 0")


@click.command("run", cls=ScriptCommand)
@click.argument("files", nargs=-1)
@script_options
@click.option("--yaml", "as_yaml", is_flag=True, help="Print the manifest of a script's job, and do not run it.")
@click.option("--keep", is_flag=True, help="Keep the cluster running after the jobs have finished, until Ctrl-C.")
@click.option(
    "--start-timeout",
    type=click.FloatRange(min=0),
    default=DEFAULT_TIMEOUT,
    show_default=True,
    help="Seconds after which a job without any started container counts as failed; 0 disables the timeout.",
)
@click.option(
    "--silent-after",
    metavar="DURATION",
    callback=_read_duration,
    default="5m",
    show_default=True,
    help="Show the stacks of the Python processes of a running job that has printed nothing for this long; 0 disables.",
)
@click.option("--ui", "with_page", is_flag=True, help="Serve a page about the run as long as it lasts.")
@click.option("-d", "--detach", is_flag=True, help="Run in the background; `trainop attach` follows it.")
@_PROGRESS
@_ALLOW_CPU
@_overcommit(default=True)
@_ISOLATED
@_RUNTIME
@_NETWORK
@_DIRECTORY
@_PORT
@click.pass_context
def run_command(
    ctx: click.Context,
    /,
    files: tuple[str, ...],
    *,
    as_yaml: bool,
    detach: bool,
    with_page: bool,
    **options: Any,
) -> None:
    """Run the jobs in FILES on an embedded cluster in this process, and follow them.

    FILES are YAML or JSON files with any number of objects, folders of them, or - for standard input. Or the first is a
    Python script, of which a job is made, and its arguments follow --: trainop run train.py --nproc 4 -- --epochs 3

    Containers run as processes in the current environment and folder, without images unless --runtime
    says so. Ctrl-C and SIGTERM stop pods as Kubernetes does, with SIGTERM and their grace period; a second signal kills
    them. With --data, a job that finished in an earlier run is run again, and an unfinished one continues.

    A pod waits while the GPUs that it requests are in use; a request that this machine can never satisfy is refused.

    A run is kept under a name such as train-1: trainop ps lists runs; logs, why, attach, stop, rerun ... take the name.

    Exit code: 0 if all jobs succeeded, 1 if one failed or did not start, 2 for invalid input, 128+N after signal N.
    """
    session = {name: options.pop(name) for name in ("keep", "start_timeout", "silent_after", "progress")}
    of_cluster = {name: options.pop(name) for name in _OF_CLUSTER}
    session["command"] = attached(ctx.meta[GIVEN])
    session["page"] = _find_page(ctx, detach=detach) if with_page else None

    def start(console: Console, interrupts: Interrupts, **more: Any) -> Coroutine[Any, Any, int]:
        cluster = _cluster(**of_cluster | {"isolated": of_cluster["isolated"] and not as_yaml})  # that runs nothing
        documents, cluster, script = _find_documents(files, options, as_yaml, cluster)
        session["every_replica"] = script is not None and script.all_end
        return run_documents(documents, cluster, console, interrupts=interrupts, **session, **more)

    if detach and not as_yaml:
        sys.exit(run_detached(lambda ready: _run(partial(start, ready=ready))))
    sys.exit(_run(start))


def _refuse_ssh(documents: Iterable[Document]) -> None:
    """Raises `BadInputError` for an MPIJob over ssh: sshd needs rights of root, which isolated containers lack."""
    for each in documents:
        if each.raw.get("kind") == MPI_V2.kind and expect(Unstructured(each.raw)) == SSH:
            problem = "an MPIJob over ssh cannot run isolated as root, as its sshd has no right to serve logins"
            raise BadInputError(each.complain(f"{problem}: run it as another user, or without --isolated"))


def _find_page(ctx: click.Context, *, detach: bool) -> Page:
    if detach:
        raise click.UsageError("with -d there is nobody to tell the address; see trainop ui RUN")
    page: Page | None = ctx.find_root().obj
    if page is None:
        raise click.UsageError("--ui is an option of the command trainop")
    return page


def _find_documents(
    files: Sequence[str], options: dict[str, Any], as_yaml: bool, cluster: ClusterOptions
) -> tuple[Sequence[Document], ClusterOptions, Script | None]:
    """The objects to run, the cluster that they need, and the script that they run. With `as_yaml` prints them, and
    exits. Raises `BadInputError`."""
    given, gpus = options.get("gpus") is not None, len(cluster.gpus or ())
    in_folder = cluster.podman is not None and not as_yaml
    documents, script = find_documents(files, options, 0 if as_yaml else gpus, in_folder=in_folder)
    if cluster.isolation is not None and os.geteuid() == 0:
        _refuse_ssh(documents)
    if script is None:
        if as_yaml:
            raise BadInputError(f"--yaml shows the job of a script; {files[0]} is a manifest")
        return documents, cluster, None
    if as_yaml:
        click.echo(to_yaml(each.raw for each in documents), nl=False)
        sys.exit(0)
    if in_folder:
        cluster = replace(cluster, podman=PodmanOptions(_folder_of_containers(), script.image))
    elif script.image:
        raise BadInputError(
            "--image is for a cluster, with --yaml or trainop submit, or for --runtime podman; here images are not used"
        )
    if gpus and not (script.gpus or given):
        few = f"{gpus} {'GPU' if gpus == 1 else 'GPUs'} for {script.replicas} replicas"
        click.echo(f"trainop: {few}: they run without; with --gpus 1 some wait until others have ended", err=True)
    return documents, cluster, script


def _folder_of_containers() -> Path:
    """The current folder. Raises `BadInputError` if it would hide what images have."""
    folder = Path.cwd()
    if folder == Path("/") or folder.parts[1] in _OF_IMAGES:
        raise BadInputError(f"--runtime podman: {folder} is a folder of images, too; run the script in one of your own")
    return folder


@click.command("cluster")
@click.option("--no-operator", is_flag=True, help="Start only API server and node, to run another operator.")
@click.option("--di-server", is_flag=True, help="Also run di-server, which DIJobs ask for their replicas.")
@click.option("--train-jobs", is_flag=True, help="Also run TrainJobs, those of Kubeflow's SDK, with their runtimes.")
@_PROGRESS
@_ALLOW_CPU
@_overcommit(default=False)
@_RUNTIME
@_NETWORK
@_DIRECTORY
@_PORT
def cluster_command(no_operator: bool, di_server: bool, train_jobs: bool, progress: bool, **options: Any) -> None:
    """Start an embedded cluster with the operator, and run it until Ctrl-C."""

    def start(console: Console, interrupts: Interrupts) -> Coroutine[Any, Any, int]:
        cluster, with_operator = _cluster(**options), not no_operator
        return run_cluster(
            cluster,
            console,
            with_operator=with_operator,
            di_server=di_server,
            train_jobs=train_jobs,
            progress=progress,
            interrupts=interrupts,
        )

    sys.exit(_run(start))


def _cluster(
    *,
    data: Path | None,
    network: Any,
    port: int,
    allow_cpu: bool,
    overcommit: bool,
    runtime: str,
    isolated: bool = False,
) -> ClusterOptions:
    """Raises `BadInputError` for an invalid inventory of GPUs, and a folder that an isolated run must not have."""
    if isolated and network == "addresses":
        raise BadInputError("--isolated needs --network namespaces")
    if isolated and runtime != "process":
        raise BadInputError("--isolated is for processes of this machine: leave it out with --runtime podman")
    podman = PodmanOptions() if runtime == "podman" else None
    leniency = Leniency(overcommit=overcommit, allow_cpu=allow_cpu)
    try:
        gpus = find_gpus(os.environ)
        isolation = Isolation.find(Path.cwd(), filter(None, (runs_folder(), data))) if isolated else None
    except OSError as error:
        raise BadInputError(str(error)) from error
    return ClusterOptions(
        directory=data,
        network=network,
        port=port,
        gpus=gpus,
        leniency=leniency,
        isolation=isolation,
        podman=podman,
    )


def _run(start: Callable[[Console, Interrupts], Coroutine[Any, Any, int]]) -> int:
    """Runs a session and returns its exit code. Exits the process directly if the output thread is still blocked."""
    ensure_standard_streams()
    interrupts = Interrupts()
    try:
        code = asyncio.run(_run_until_interrupted(start(Terminal(highlight=False), interrupts), interrupts))
    except BadInputError as error:
        return refuse(error)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT  # before the signal handlers were installed
    if any(thread.name == THREAD for thread in threading.enumerate()):
        os._exit(code)  # the thread is blocked by a reader that does not read; a normal exit would wait for it
    _flush_standard_streams()
    return code


async def _run_until_interrupted(session: Coroutine[Any, Any, int], interrupts: Interrupts) -> int:
    task = asyncio.ensure_future(session)
    interrupts.watch(task)
    try:
        return await task
    except asyncio.CancelledError:
        if interrupts.message:
            click.echo(f"trainop: {interrupts.message}", err=True)
        return interrupts.code
    except (OSError, BaseExceptionGroup) as error:
        click.echo(f"trainop: {'; '.join(_messages(error))}", err=True)
        return interrupts.code or 1


def refuse(error: BadInputError) -> int:
    """In lines that begin with the position in the file, as editors and CI expect."""
    click.echo(str(error), err=True)
    return 2


def _messages(error: BaseException) -> Iterator[str]:
    """The messages of all `OSError`s in `error`. Raises any other exception, which is a bug."""
    match error:
        case BaseExceptionGroup():
            for inner in error.exceptions:
                yield from _messages(inner)
        case OSError():
            yield str(error)
        case _:
            raise error


def _flush_standard_streams() -> None:
    """Discards what cannot be written, such as to a closed terminal. Otherwise Python would exit with 120 instead of
    the code of the session."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
                os.dup2(null, stream.fileno())
                os.close(null)


def ensure_standard_streams() -> None:
    """Opens stdin, stdout and stderr on /dev/null if they are closed.

    Otherwise the next opened file would get such a descriptor, and printed text would be written to it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor, which is `number`
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115  # open until the process exits
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # unencodable characters must not raise
