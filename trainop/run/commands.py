"""The commands `trainop run` and `trainop cluster`.

Exit codes of `run`: 0 all jobs Succeeded, 1 one Failed, 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from trainop.local.cluster import ClusterOptions
from trainop.run.documents import BadInputError
from trainop.run.session import run_cluster, run_files

_NETWORK = click.option(
    "--network",
    type=click.Choice(["namespaces", "addresses"]),
    help="Give each pod its own network namespace, or only its own loopback address. "
    "Default: namespaces where this user may have them.",
)
_DIRECTORY = click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the cluster's objects, volumes and logs in this folder; a cluster started there again continues.",
)
_PORT = click.option("--port", type=click.IntRange(0, 65535), default=0, help="Of the API server; default: a free one.")


@click.command("run")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--keep", is_flag=True, help="Leave the cluster up when the jobs are over, until Ctrl-C.")
@_NETWORK
@_DIRECTORY
@_PORT
def run_command(files: tuple[Path, ...], keep: bool, network: Any, data: Path | None, port: int) -> None:
    """Run the jobs in FILES here, on a cluster within this process, and follow them.

    Containers run as processes in this environment and folder; images are not used. Exit code: 0 if all jobs
    succeeded, 1 if one failed, 2 for bad input.
    """
    options = ClusterOptions(directory=data, network=network, port=port)
    sys.exit(_run(run_files(list(files), options, Console(highlight=False), keep=keep)))


@click.command("cluster")
@click.option("--no-operator", is_flag=True, help="Only API server and node; bring your own operator.")
@_NETWORK
@_DIRECTORY
@_PORT
def cluster_command(no_operator: bool, network: Any, data: Path | None, port: int) -> None:
    """Start the cluster alone, with the operator in it, until Ctrl-C."""
    options = ClusterOptions(directory=data, network=network, port=port)
    sys.exit(_run(run_cluster(options, Console(highlight=False), with_operator=not no_operator)))


def _run(session: Coroutine[Any, Any, int]) -> int:
    try:
        return asyncio.run(_until_terminated(session))
    except BadInputError as error:
        click.echo(f"trainop: {error}", err=True)
        return 2
    except OSError as error:
        click.echo(f"trainop: {error}", err=True)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130


async def _until_terminated(session: Coroutine[Any, Any, int]) -> int:
    """SIGTERM ends the session as Ctrl-C does: with everything that runs in it."""
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await session
