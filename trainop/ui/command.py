"""`trainop ui`: a page about the jobs of a cluster, or of a kept run."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import click

from trainop.commands.connection import connect
from trainop.commands.jobs import complete_run
from trainop.commands.options import cluster_options, run_command
from trainop.commands.runs import get_run
from trainop.errors import StartError, UsageError
from trainop.logs import LogSettings, configure_logs
from trainop.ui.server import PageServer
from trainop.ui.serving import others_can_read, run_source
from trainop.ui.source import Source


@click.command("ui")
@click.argument("run", required=False, shell_complete=complete_run)
@cluster_options
@click.option("-A", "--all-namespaces", is_flag=True, help="The jobs of all namespaces.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Port of the page, on 127.0.0.1. Default: a free one."
)
def ui_command(run: str | None, all_namespaces: bool, port: int, **cluster: str | None) -> None:
    """Serve a page about the jobs of the kubeconfig's cluster, or about RUN, a kept run, until Ctrl-C.

    Prints the address, with a token: whoever has it can read what the page shows, with your rights. The page changes
    nothing. It is served to this machine only.
    """
    if run and (all_namespaces or any(cluster.values())):
        raise UsageError("RUN names a kept run of this machine; it has no namespace, context or kubeconfig")

    async def serve() -> int:
        if others_can_read(sys.stdout):
            raise StartError(
                "stdout is a file that other users can read, and the address has a token: "
                "print it to the terminal, a pipe or a file of mode 600"
            )
        configure_logs(LogSettings(level="info"))
        async with _source(run, cluster, all_namespaces) as source, PageServer(source, port).serve() as url:
            click.echo(url)
            sys.stdout.flush()
            await asyncio.Event().wait()
        return 0

    run_command(serve())


@asynccontextmanager
async def _source(run: str | None, cluster: dict[str, str | None], all_namespaces: bool) -> AsyncIterator[Source]:
    if run:
        found, _ = get_run(run)
        async with run_source(found) as source:
            yield source
        return
    async with connect(cluster["kubeconfig"], cluster["context"]) as connection:
        namespace = None if all_namespaces else cluster["namespace"] or connection.namespace
        where = f"namespace {namespace}" if namespace else "all namespaces"
        yield Source(connection, namespace, f"{connection.server}, {where}")
