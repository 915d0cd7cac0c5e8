"""Follows a run of another process through its API server, as that process itself would."""

from __future__ import annotations

import asyncio
from datetime import datetime

import click
from rich.text import Text

from trainop.explain.stacks import Process
from trainop.kept.folder import Run, read_run
from trainop.logs import LogSettings, configure_logs
from trainop.run.check import JOB_TYPES
from trainop.run.follow import FollowedJob, Follower
from trainop.run.output import Output, Terminal
from trainop.run.screen import JobView, Screen
from trainop.run.silence import SilenceWatch
from trainop.runtime import Cache, Client, ConfigError, HttpTransport, Key, SystemClock, load_config

_POLL = 0.2
"""Seconds between two looks at whether the run has ended."""
_GRACE = 2.0
"""Seconds for the last lines after its end."""


async def attach(run: Run) -> int:
    """Returns the exit code of the run once it has ended; 1 if it was killed."""
    task = asyncio.current_task()
    errors: list[OSError] = []

    def give_up(error: OSError) -> None:
        errors.append(error)
        if task is not None:
            task.cancel()

    configure_logs(LogSettings(level="error"))
    try:
        async with Output(Terminal(highlight=False), give_up) as output:
            await _follow(run, output)
            last = await _wait_for_end(run)
            code = last.record.code if last.record is not None else None
            output.print(Text(f"run {run.name} has ended: {last.state}", style="dim"))
            return 1 if code is None else code
    except asyncio.CancelledError:
        if errors:
            raise errors[0] from None
        click.echo(f"--- run {run.name} goes on: trainop attach {run.name}; trainop stop {run.name}", err=True)
        raise


async def _follow(run: Run, output: Output) -> None:
    """Until its jobs have ended, or the run."""
    if run.record is None:
        return
    types = [(each, JOB_TYPES[each.kind, each.api_version]) for each in run.record.jobs]
    jobs = [FollowedJob(t.resource, Key(j.namespace, j.name), JobView(j.name, j.kind), t.children) for j, t in types]
    try:
        transport = HttpTransport(load_config(str(run.kubeconfig)))
    except ConfigError:  # it ends right now
        return
    client = Client(transport, user_agent="trainop-cli")
    cache = Cache(client)
    with Screen(output, [job.view for job in jobs]) as screen:
        silence = SilenceWatch(SystemClock(), 0, _no_stacks, screen)
        follower = Follower(
            client,
            cache,
            jobs,
            screen,
            save_log=lambda _pod, _container: None,
            start_timeout=0,
            silence=silence,
            since=datetime.fromisoformat(run.record.began),
        )
        tasks = [asyncio.create_task(each) for each in (follower.run(), _see_the_rest(run), cache.run())]
        try:
            await asyncio.wait(tasks[:2], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.wait(tasks)
            await transport.close()
    for job in jobs:
        if job.ended in {"Failed", "Hopeless"}:
            screen.failure(job.view, job.exits)


async def _wait_for_end(run: Run) -> Run:
    """The run after its end."""
    while (last := read_run(run.path)).state == "Running":  # noqa: ASYNC110  # another process sets no event
        await asyncio.sleep(_POLL)
    return last


async def _see_the_rest(run: Run) -> None:
    await _wait_for_end(run)
    await asyncio.sleep(_GRACE)


async def _no_stacks(_replicas: object) -> list[Process]:
    return []
