"""A session of `trainop run` or `trainop cluster`: starts cluster and operator, applies objects, follows jobs."""

from __future__ import annotations

import asyncio
import shlex
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from trainop.engine.progress import ProgressEndpoint
from trainop.engine.seen import Options
from trainop.local import private_files
from trainop.local.cluster import ClusterOptions, LocalCluster
from trainop.local.node.agent import PodmanOptions
from trainop.logs import LogSettings, configure_logs
from trainop.programs.operator import build
from trainop.programs.schemes import TRAIN_JOBS, crds
from trainop.programs.settings import Settings
from trainop.run.check import Job, find_jobs
from trainop.run.di_server import NEEDS_NAMESPACES, start_di_server
from trainop.run.documents import Document
from trainop.run.endpoint import make_endpoint
from trainop.run.follow import FollowedJob, Follower
from trainop.run.interrupts import Interrupts
from trainop.run.keeping import Keeping, kept_run
from trainop.run.output import Output
from trainop.run.page import Page
from trainop.run.rerun import delete_finished
from trainop.run.room import check_room
from trainop.run.saved_logs import saved_logs
from trainop.run.screen import JobView, Screen
from trainop.run.silence import DEFAULT_SILENCE, SilenceWatch, local_dump
from trainop.run.starting import DEFAULT_TIMEOUT
from trainop.run.submit import apply, ensure_namespace, install, install_train_jobs
from trainop.runtime import Cache, SystemClock


async def run_documents(
    documents: Sequence[Document],
    options: ClusterOptions,
    console: Console,
    *,
    keep: bool = False,
    start_timeout: float = DEFAULT_TIMEOUT,
    silent_after: float = DEFAULT_SILENCE,
    progress: bool = False,
    every_replica: bool = False,
    interrupts: Interrupts | None = None,
    command: Sequence[str] | None = None,
    ready: Callable[[str], None] | None = None,
    page: Page | None = None,
) -> int:
    """Runs the jobs among the objects and returns the exit code of `trainop run`.

    Raises `BadInputError` for invalid objects, and pods for which this machine has no room, before anything is started.
    A job without a started container after `start_timeout` seconds counts as failed; the stacks of a running job that
    printed nothing for `silent_after` seconds are shown; 0 disables either. `every_replica`: see `Follower`. The run is
    kept with the arguments `command`; `ready` gets its name once its jobs exist. `page` serves a page about it.
    """
    jobs = find_jobs(documents)
    check_room(jobs, options, _print_status)
    interrupts = interrupts or Interrupts()
    follow = partial(_follow, data=options.directory, start_timeout=start_timeout, silent_after=silent_after)
    with kept_run(command, jobs, interrupts, _print_status) as kept:
        if ready is not None and kept is None:
            raise OSError("a run in the background has to be kept")
        options = replace(options, keep=kept.recorder if kept else None)
        async with Output(console, interrupts.on_output_error) as output, _cluster(options, interrupts) as cluster:
            await delete_finished(cluster.client, jobs, lambda line: output.print(Text(line)))
            async with _operator(cluster, progress, podman=options.podman), _page(page, cluster, kept):
                await _create(cluster, documents, jobs, output)
                _announce(kept, cluster, ready)
                code = await follow(cluster, jobs, output, every_replica=every_replica)
                _advise(kept, code, output)
                if keep:
                    await _wait_for_ever(cluster, output)
    return code


def _page(page: Page | None, cluster: LocalCluster, kept: Keeping | None) -> AbstractAsyncContextManager[None]:
    if page is None:
        return nullcontext()
    return page(cluster.client, cluster.kubeconfig, kept.run if kept is not None else None, _print_status)


async def _wait_for_ever(cluster: LocalCluster, output: Output) -> None:
    output.print(Text(f"The cluster keeps running until Ctrl-C.\n{_export(cluster)}"))
    await asyncio.Event().wait()


async def _create(cluster: LocalCluster, documents: Sequence[Document], jobs: Sequence[Job], output: Output) -> None:
    if any(job.kind == "DIJob" for job, _ in jobs):
        await _serve_replicas(cluster, output)
    await apply(cluster.client, documents)


def _announce(kept: Keeping | None, cluster: LocalCluster, ready: Callable[[str], None] | None) -> None:
    if kept is not None:
        kept.join(cluster)
        if ready is not None:
            ready(kept.name)


def _advise(kept: Keeping | None, code: int, output: Output) -> None:
    if kept is not None:
        kept.code = code
        if kept.lasts:
            output.print(Text(kept.advice(), style="dim"))


async def run_cluster(
    options: ClusterOptions,
    console: Console,
    *,
    with_operator: bool,
    di_server: bool = False,
    train_jobs: bool = False,
    progress: bool = False,
    interrupts: Interrupts | None = None,
) -> int:
    """Runs an embedded cluster until cancelled; `di_server`, `train_jobs` and `progress` have an effect only with the
    operator."""
    interrupts = interrupts or Interrupts()
    async with (
        Output(console, interrupts.on_output_error) as output,
        _cluster(options, interrupts) as cluster,
        _operator(cluster, progress, train_jobs=train_jobs) if with_operator else nullcontext(),
    ):
        await ensure_namespace(cluster.client, UPSTREAM_NAMESPACE)
        # Only here: who reads these lines creates jobs at once, and their kinds must be served.
        output.print(Text(f"# API server {cluster.url}, pods have {_NETWORKS[cluster.node.network]}"))
        output.print(Text(_export(cluster)))
        if with_operator and di_server:
            await start_di_server(cluster)
        await asyncio.Event().wait()
    return 0


async def _serve_replicas(cluster: LocalCluster, output: Output) -> None:
    """Starts di-server. Where it is of no use, DIJobs that do not ask for replicas still run."""
    if cluster.node.network == "addresses":
        output.print(Text(NEEDS_NAMESPACES, style="yellow"))
    else:
        await start_di_server(cluster)


UPSTREAM_NAMESPACE = "kubeflow"
"""The namespace of training-operator, in which its examples and many of its users' scripts create jobs."""

_NETWORKS = {
    "namespaces": "a network namespace each",
    "addresses": "a loopback address each and share the network of this machine",
}


def _export(cluster: LocalCluster) -> str:
    """The shell command that selects the kubeconfig."""
    return f"export KUBECONFIG={shlex.quote(str(cluster.kubeconfig))}"


def _print_status(line: str) -> None:
    """Prints to stderr, visible even if stdout is redirected. Uses a thread, because stderr may block."""

    def print_line() -> None:
        with suppress(OSError, ValueError):
            click.echo(f"trainop: {line}", err=True)

    if sys.stderr is not None:
        threading.Thread(target=print_line, daemon=True).start()


@asynccontextmanager
async def _cluster(options: ClusterOptions, interrupts: Interrupts) -> AsyncIterator[LocalCluster]:
    """Starts a cluster. It and the operator log to `trainop.log` in the cluster's folder."""
    cluster = LocalCluster(options, notify=_print_status)
    interrupts.on_second_signal = cluster.skip_grace_period
    with private_files.open_text(cluster.directory / "trainop.log") as log:
        configure_logs(LogSettings(level="info"), log)
        async with cluster:
            yield cluster


@asynccontextmanager
async def _operator(
    cluster: LocalCluster, progress: bool, *, train_jobs: bool = False, podman: PodmanOptions | None = None
) -> AsyncIterator[None]:
    """Installs the CRDs and runs the operator in this process, with the endpoint for progress."""
    await install(cluster.client, crds())
    if train_jobs:
        await install_train_jobs(cluster.client)
    options = Options(progress=ProgressEndpoint("", everywhere=progress))
    if podman is not None and podman.init_image:
        options = replace(options, pytorch_init_image=podman.init_image)
    schemes = (TRAIN_JOBS,) if train_jobs else ()
    settings = Settings(metrics_bind_address="0", health_probe_bind_address="0", schemes=schemes, options=options)
    manager = build(settings, cluster.transport, signals=False, progress=make_endpoint(cluster))
    running = asyncio.create_task(manager.run())
    try:
        yield
    finally:
        manager.stop()
        await running


async def _follow(
    cluster: LocalCluster,
    jobs: Sequence[Job],
    output: Output,
    *,
    data: Path | None,
    start_timeout: float,
    silent_after: float,
    every_replica: bool,
) -> int:
    followed = [FollowedJob(f.resource, d.key, JobView(d.key.name, d.kind), f.children) for d, f in jobs]
    for job in followed:
        job.exits.directory = str(Path.cwd())
    cache = Cache(cluster.client)
    with (
        saved_logs(cluster.directory / "logs" if data else None, cluster.node.log_file) as logs,
        Screen(output, [job.view for job in followed]) as screen,
    ):
        silence = SilenceWatch(SystemClock(), silent_after, local_dump(cluster.client, cluster.kubeconfig), screen)
        follower = Follower(
            cluster.client,
            cache,
            followed,
            screen,
            save_log=logs.save,
            start_timeout=start_timeout,
            silence=silence,
            every_replica=every_replica,
        )
        watching = asyncio.create_task(cache.run())
        try:
            await follower.run()
        finally:
            watching.cancel()
    for job in followed:
        if job.ended in {"Failed", "Hopeless"}:
            screen.failure(job.view, job.exits)
    return exit_code(followed)


def exit_code(jobs: Sequence[FollowedJob]) -> int:
    """0 if all jobs succeeded, 2 if one failed validation, else 1."""
    if all(job.ended == "Succeeded" for job in jobs):
        return 0
    return 2 if any(job.reason.endswith("FailedValidation") for job in jobs) else 1
