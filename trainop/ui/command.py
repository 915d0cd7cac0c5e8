"""`trainop ui`: a page about the jobs of a cluster, or of a kept run."""

from __future__ import annotations

import asyncio
import os
import signal
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
from trainop.runtime import ConfigError, HttpTransport
from trainop.runtime.lowlevel import Address, parse_address
from trainop.ui.proxy import ProxyGate, api_server
from trainop.ui.server import PageServer, serve_alone
from trainop.ui.serving import others_can_read, run_source
from trainop.ui.source import Source

LISTEN = ":8080"


@click.command("ui")
@click.argument("run", required=False, shell_complete=complete_run)
@cluster_options
@click.option("-A", "--all-namespaces", is_flag=True, help="The jobs of all namespaces.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port of the page, on 127.0.0.1. Default: a free one.")
@click.option("--behind-proxy", is_flag=True, help="For many users: each request must have its user's own token.")
@click.option("--listen", help=f"With --behind-proxy: where the proxy reaches the page. Default: {LISTEN}.")
def ui_command(
    run: str | None,
    all_namespaces: bool,
    port: int | None,
    behind_proxy: bool,
    listen: str | None,
    **cluster: str | None,
) -> None:
    """Serve a page about the jobs of the kubeconfig's cluster, or about RUN, a kept run, until Ctrl-C.

    Prints the address, with a token: whoever has it can read what the page shows, with your rights. The page changes
    nothing. It is served to this machine only.

    With --behind-proxy it is served in a cluster, to users whom a proxy logs in: what each of them sees is read with
    the Kubernetes token in their own requests, and never with credentials of yours. -n limits it to one namespace.
    """
    if run and (all_namespaces or any(cluster.values())):
        raise UsageError("RUN names a kept run of this machine; it has no namespace, context or kubeconfig")
    if behind_proxy:
        if run or all_namespaces or port is not None:
            raise UsageError("--behind-proxy shows a cluster to its users, at --listen: without RUN, -A and --port")
        run_command(_serve_behind_proxy(cluster, _address(listen or LISTEN)), serves=True)
    if listen is not None:
        raise UsageError("--listen needs --behind-proxy: without a proxy, the page is served to this machine only")

    async def serve() -> int:
        if others_can_read(sys.stdout):
            raise StartError(
                "stdout is a file that other users can read, and the address has a token: "
                "print it to the terminal, a pipe or a file of mode 600"
            )
        configure_logs(LogSettings(level="info"))
        async with _source(run, cluster, all_namespaces) as source, serve_alone(source, port or 0) as url:
            click.echo(url)
            sys.stdout.flush()
            await asyncio.Event().wait()
        return 0

    run_command(serve(), serves=True)


def _address(text: str) -> Address:
    try:
        found = parse_address(text)
    except ValueError as error:
        raise UsageError(f"--listen: {error}") from None
    if found is None:
        raise UsageError(f"--listen: {text!r} is not of the form host:port or :port")
    return found


async def _serve_behind_proxy(cluster: dict[str, str | None], address: Address) -> int:
    configure_logs(LogSettings(level="info", devel="KUBERNETES_SERVICE_HOST" not in os.environ))  # a pod logs JSON
    try:
        config = api_server(cluster["kubeconfig"], cluster["context"])
        HttpTransport(config)  # without connections: only to find a CA that cannot be used
    except ConfigError as error:
        raise StartError(str(error)) from None
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)  # the first process of a container
    async with PageServer(ProxyGate(config, cluster["namespace"]), address).serve():
        await ended.wait()
    return 0


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
