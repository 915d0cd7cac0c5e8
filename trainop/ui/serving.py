"""Serves the page for one command, or beside a run, and says where."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TextIO

from trainop.commands.connection import Connection
from trainop.commands.jobs import open_run
from trainop.kept.folder import Run, read_run
from trainop.runtime import Client, load_config
from trainop.ui.server import serve_alone
from trainop.ui.source import Source

_POLL = 0.5
"""Seconds between two looks at whether a run has ended."""


def others_can_read(stream: TextIO) -> bool:
    """Whether it is a file with access for other users: they must not learn the token."""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(found.st_mode) and bool(found.st_mode & (stat.S_IRGRP | stat.S_IROTH))


@asynccontextmanager
async def run_source(run: Run) -> AsyncIterator[Source]:
    """What is known of a run: from its cluster while it lives, and then from its folder."""
    async with AsyncExitStack() as opened:
        source = Source(await opened.enter_async_context(open_run(run)), None, f"run {run.name}", run)
        watching = asyncio.create_task(_switch_at_the_end(source, run, opened))
        try:
            yield source
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching


async def _switch_at_the_end(source: Source, run: Run, opened: AsyncExitStack) -> None:
    while not source.has_ended:
        await asyncio.sleep(_POLL)
        ended = read_run(run.path)
        if ended.state not in {"Running", "Unreadable"}:
            source.connection = await opened.enter_async_context(open_run(ended))
            source.run = ended


@asynccontextmanager
async def page_of_session(
    client: Client, kubeconfig: Path, run: Run | None, say: Callable[[str], None]
) -> AsyncIterator[None]:
    """The page of `trainop run --ui`, as long as the run lasts. `say` prints the URL."""
    config = load_config(str(kubeconfig))
    title = "this run" if run is None else f"run {run.name}"
    source = Source(Connection(client, "default", title, config), None, title, run)
    async with serve_alone(source) as url:
        if others_can_read(sys.stderr):
            name = "RUN" if run is None else run.name
            say(f"the address of the page is not printed, as other users can read this file; see trainop ui {name}")
        else:
            say(f"page: {url}")
        yield
