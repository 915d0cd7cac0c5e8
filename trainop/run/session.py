"""One session: cluster and operator up, objects applied, jobs followed to their end."""

from __future__ import annotations

import asyncio
import shlex
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from trainop.engine.framework import Framework
from trainop.engine.schema.crd import crd
from trainop.local import private
from trainop.local.cluster import ClusterOptions, LocalCluster
from trainop.logs import configure_logs
from trainop.operator import FRAMEWORKS, build
from trainop.run.apply import apply, install
from trainop.run.check import jobs_among
from trainop.run.documents import Document, read
from trainop.run.follow import Followed, Follower
from trainop.run.interrupts import Interrupts
from trainop.run.keeping import kept_logs
from trainop.run.output import Output
from trainop.run.rerun import clear_finished
from trainop.run.screen import JobView, Screen
from trainop.run.starting import DEFAULT_TIMEOUT
from trainop.runtime.cache.cache import Cache
from trainop.settings import LogSettings, Settings


async def run_files(
    paths: Sequence[Path],
    options: ClusterOptions,
    console: Console,
    *,
    keep: bool = False,
    start_timeout: float = DEFAULT_TIMEOUT,
    interrupts: Interrupts | None = None,
) -> int:
    """The exit code of `trainop run`. Raises `BadInputError` for files that make no sense, before anything starts.

    `start_timeout` in seconds: a job of which no container has run by then counts as failed; 0 waits for ever.
    """
    documents = read(paths)
    jobs = jobs_among(documents)
    stops = interrupts or Interrupts()
    async with Output(console, stops.lose_output) as output, _cluster(options, stops) as cluster:
        await clear_finished(cluster.client, jobs, lambda line: output.print(Text(line)))
        async with _operator(cluster):
            await apply(cluster.client, documents)
            code = await _follow(cluster, jobs, output, options.directory, start_timeout)
            if keep:
                output.print(Text(f"The cluster stays up until Ctrl-C.\n{_export(cluster)}"))
                await asyncio.Event().wait()
    return code


async def run_cluster(
    options: ClusterOptions, console: Console, *, with_operator: bool, interrupts: Interrupts | None = None
) -> int:
    """Serves until it is cancelled."""
    stops = interrupts or Interrupts()
    async with Output(console, stops.lose_output) as output, _cluster(options, stops) as cluster:
        output.print(Text(f"# API server {cluster.url}, pods have {_NETWORKS[cluster.node.network]}"))
        output.print(Text(_export(cluster)))
        if with_operator:
            async with _operator(cluster):
                await asyncio.Event().wait()
        await asyncio.Event().wait()
    return 0


_NETWORKS = {
    "namespaces": "a network namespace each",
    "addresses": "a loopback address each and share the network of this machine",
}


def _export(cluster: LocalCluster) -> str:
    """For a shell, in whatever folder."""
    return f"export KUBECONFIG={shlex.quote(str(cluster.kubeconfig))}"


def _say(line: str) -> None:
    """On stderr, where people see it though the output goes to a file; without waiting for one who does not read."""

    def print_line() -> None:
        with suppress(OSError, ValueError):
            click.echo(f"trainop: {line}", err=True)

    if sys.stderr is not None:
        threading.Thread(target=print_line, daemon=True).start()


@asynccontextmanager
async def _cluster(options: ClusterOptions, interrupts: Interrupts) -> AsyncIterator[LocalCluster]:
    """A cluster whose log, and that of the operator in it, is a file beside its data."""
    cluster = LocalCluster(options, say=_say)
    interrupts.on_hurry = cluster.hurry
    with private.open_text(cluster.directory / "trainop.log") as log:
        configure_logs(LogSettings(level="info"), log)
        async with cluster:
            yield cluster


@asynccontextmanager
async def _operator(cluster: LocalCluster) -> AsyncIterator[None]:
    """The operator within this process, with the CRDs of all its kinds installed."""
    await install(cluster.client, [crd(framework) for framework in FRAMEWORKS.values()])
    settings = Settings(metrics_bind_address="0", health_probe_bind_address="0")
    manager = build(settings, cluster.transport, signals=False)
    running = asyncio.create_task(manager.run())
    try:
        yield
    finally:
        manager.stop()
        await running


async def _follow(
    cluster: LocalCluster,
    jobs: Sequence[tuple[Document, Framework]],
    output: Output,
    data: Path | None,
    start_timeout: float,
) -> int:
    followed = [Followed(f.resource, d.key, JobView(d.key.name, d.kind)) for d, f in jobs]
    cache = Cache(cluster.client)
    with (
        kept_logs(cluster.directory / "logs" if data else None, cluster.node.log_file) as logs,
        Screen(output, [job.view for job in followed]) as screen,
    ):
        follower = Follower(cluster.client, cache, followed, screen, keep_log=logs.keep, start_timeout=start_timeout)
        watching = asyncio.create_task(cache.run())
        try:
            await follower.run()
        finally:
            watching.cancel()
    for job in followed:
        if job.ended == "Failed":
            screen.failure(job.view)
    return exit_code(followed)


def exit_code(jobs: Sequence[Followed]) -> int:
    """0 if all succeeded, 2 if one was refused as invalid, else 1."""
    if all(job.ended == "Succeeded" for job in jobs):
        return 0
    return 2 if any(job.reason.endswith("FailedValidation") for job in jobs) else 1
