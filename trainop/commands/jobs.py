"""Opens the job that a command names: one of a cluster, of a run that lives, or of a run that has ended.

A kept run is named as `RUN`, or `RUN/JOB` if it has several jobs. An option that chooses a cluster, and the form
`KIND/NAME`, name a job of a cluster.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime

import click
from click.shell_completion import CompletionItem

from trainop.commands.connection import Connection, connect
from trainop.commands.target import Target, find_job
from trainop.errors import StartError
from trainop.kept.folder import JobName, Run, find_run, list_runs, read_run
from trainop.runtime import Client
from trainop.runtime.lowlevel import read_time

_END = 10.0
"""Seconds from the end of a run's API server to that of the run, at most."""
_POLL = 0.1

_AFTERWARDS = {
    "Killed": "was killed; this is what it left",
    "Stopped": "was stopped",
    "Elsewhere": "runs on machine {host}, or was killed there; this is what it has written",
}


@asynccontextmanager
async def open_job(
    text: str, cluster: Mapping[str, str | None], *, kept: bool = False
) -> AsyncIterator[tuple[Connection, Target]]:
    """Connects, and finds the job. `cluster` has the options `kubeconfig`, `context` and `namespace`. `kept`: reads
    what is kept even if the run lives. Raises `StartError`, and `ApiError` if the API server cannot be asked."""
    name, _, job = text.partition("/")
    run = None if any(cluster.values()) else find_run(name)
    if run is None or run.record is None:
        if kept:
            raise StartError(f"{text} is no kept run, see trainop ps; attempts are kept of runs only")
        async with connect(cluster["kubeconfig"], cluster["context"]) as connection:
            yield connection, await find_job(connection, text, cluster["namespace"] or connection.namespace)
        return
    chosen = _choose(run, run.record.jobs, job)
    async with open_run(run, kept=kept) as connection:
        yield connection, await find_job(connection, f"{chosen.kind}/{chosen.name}", chosen.namespace)


async def has_ended(text: str, cluster: Mapping[str, str | None]) -> bool:
    """Whether the job is one of a run that has ended, or does within some seconds: its API server is gone already."""
    run = None if any(cluster.values()) else find_run(text.partition("/")[0])
    until = time.monotonic() + _END
    while run is not None and run.state == "Running" and time.monotonic() < until:
        await asyncio.sleep(_POLL)
        run = read_run(run.path)
    return run is not None and run.state != "Running"


def open_run(run: Run, *, kept: bool = False) -> AbstractAsyncContextManager[Connection]:
    """Connects to the cluster of a run that lives; else, or if `kept`, to what its folder has."""
    lives = not kept and run.state == "Running" and run.kubeconfig.exists()
    return connect(run.kubeconfig) if lives else _read(run)


def _choose(run: Run, jobs: list[JobName], name: str) -> JobName:
    found = [each for each in jobs if not name or each.name == name]
    if len(found) == 1:
        return found[0]
    ways = ", ".join(f"{run.name}/{each.name}" for each in jobs)
    if found and not name:
        raise StartError(f"run {run.name} has several jobs; name one of: {ways}")
    raise StartError(f"run {run.name} has no single job {name}; it has: {ways}")


@asynccontextmanager
async def _read(run: Run) -> AsyncIterator[Connection]:
    from trainop.kept.reader import open_kept  # noqa: PLC0415  # the API server is not needed for a cluster

    state = run.state
    if state in _AFTERWARDS and run.record is not None:
        text = _AFTERWARDS[state].format(host=run.record.process.host)
        click.echo(f"--- run {run.name} {text}", err=True)
    try:
        transport = open_kept(run)
    except OSError as error:
        raise StartError(f"run {run.name} cannot be read: {error}") from error
    try:
        yield Connection(Client(transport, user_agent="trainop-cli"), "default", run.name, now=last_moment(run))
    finally:
        await transport.close()


def last_moment(run: Run) -> datetime:
    """Until when it is known what the run did."""
    ended = read_time(run.record.ended) if run.record is not None else None
    if ended is not None:
        return ended
    try:
        return datetime.fromtimestamp(run.objects.stat().st_mtime, UTC)
    except OSError:
        return datetime.now(UTC)


def complete_run(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The names of kept runs, for completion in a shell."""
    return [CompletionItem(run.name, help=run.state) for run in list_runs() if run.name.startswith(incomplete)]
