"""The commands `trainop run` and `trainop cluster`.

Exit codes of `run`: 0 all jobs Succeeded, 1 one Failed or did not start, 2 bad input. Of both: 130 after Ctrl-C,
143 after SIGTERM, 129 when the terminal was closed, 141 when nobody reads the output any more, 1 for a folder, port or
network that cannot be had.
"""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from trainop.local.cluster import ClusterOptions
from trainop.run.documents import BadInputError
from trainop.run.interrupts import Interrupts
from trainop.run.output import THREAD, Terminal
from trainop.run.session import run_cluster, run_files
from trainop.run.starting import DEFAULT_TIMEOUT

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
@click.option(
    "--start-timeout",
    type=click.FloatRange(min=0),
    default=DEFAULT_TIMEOUT,
    show_default=True,
    help="Seconds after which a job of which no container has run counts as failed; 0 waits for ever.",
)
@_NETWORK
@_DIRECTORY
@_PORT
def run_command(files: tuple[Path, ...], keep: bool, start_timeout: float, **options: Any) -> None:
    """Run the jobs in FILES here, on a cluster within this process, and follow them.

    Containers run as processes in this environment and folder; images are not used. Ctrl-C and SIGTERM stop pods as
    Kubernetes does, with SIGTERM and their grace period; a second one kills them. With --data a job that has finished
    there before runs anew, and one that has not continues.

    Exit code: 0 if all jobs succeeded, 1 if one failed or did not start, 2 for bad input, 128+N after signal N.
    """

    def start(console: Console, interrupts: Interrupts) -> Coroutine[Any, Any, int]:
        return run_files(
            list(files), _cluster(**options), console, keep=keep, start_timeout=start_timeout, interrupts=interrupts
        )

    sys.exit(_run(start))


@click.command("cluster")
@click.option("--no-operator", is_flag=True, help="Only API server and node; bring your own operator.")
@_NETWORK
@_DIRECTORY
@_PORT
def cluster_command(no_operator: bool, **options: Any) -> None:
    """Start the cluster alone, with the operator in it, until Ctrl-C."""

    def start(console: Console, interrupts: Interrupts) -> Coroutine[Any, Any, int]:
        return run_cluster(_cluster(**options), console, with_operator=not no_operator, interrupts=interrupts)

    sys.exit(_run(start))


def _cluster(*, data: Path | None, network: Any, port: int) -> ClusterOptions:
    return ClusterOptions(directory=data, network=network, port=port)


def _run(start: Callable[[Console, Interrupts], Coroutine[Any, Any, int]]) -> int:
    """The exit code of a session; the process may end in here, when the reader of its output neither reads nor goes."""
    _open_standard_files()
    interrupts = Interrupts()
    try:
        code = asyncio.run(_attend(start(Terminal(highlight=False), interrupts), interrupts))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT  # before anything was started
    if any(thread.name == THREAD for thread in threading.enumerate()):
        os._exit(code)  # it waits for the reader of the output, and Python would wait for it
    return code


async def _attend(session: Coroutine[Any, Any, int], interrupts: Interrupts) -> int:
    task = asyncio.ensure_future(session)
    interrupts.watch(task)
    try:
        return await task
    except BadInputError as error:
        click.echo(f"trainop: {error}", err=True)
        return 2
    except asyncio.CancelledError:
        if interrupts.why:
            click.echo(f"trainop: {interrupts.why}", err=True)
        return interrupts.code
    except (OSError, BaseExceptionGroup) as error:
        click.echo(f"trainop: {'; '.join(_sentences(error))}", err=True)
        return interrupts.code or 1


def _sentences(error: BaseException) -> Iterator[str]:
    """What the machine refused; raises what is a mistake of the program."""
    match error:
        case BaseExceptionGroup():
            for inner in error.exceptions:
                yield from _sentences(inner)
        case OSError():
            yield str(error)
        case _:
            raise error


def _open_standard_files() -> None:
    """Where the caller closed stdin, stdout or stderr, another file would take its number, and what is printed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free, which is this one
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115  # open as long as we are
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a line in another encoding is no reason to end
