"""The commands `trainop run` and `trainop cluster`.

Exit codes of `run`: 0 all jobs Succeeded, 1 a job Failed or did not start, 2 invalid input. Of both commands: 130 after
Ctrl-C, 143 after SIGTERM, 129 after the terminal was closed, 141 if the output pipe was closed, 1 if the folder, port
or network is not available.
"""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
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


@click.command("run")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--keep", is_flag=True, help="Keep the cluster running after the jobs have finished, until Ctrl-C.")
@click.option(
    "--start-timeout",
    type=click.FloatRange(min=0),
    default=DEFAULT_TIMEOUT,
    show_default=True,
    help="Seconds after which a job without any started container counts as failed; 0 disables the timeout.",
)
@_NETWORK
@_DIRECTORY
@_PORT
def run_command(files: tuple[Path, ...], keep: bool, start_timeout: float, **options: Any) -> None:
    """Run the jobs in FILES on an embedded cluster in this process, and follow them.

    Containers run as processes in the current environment and folder; images are not used. Ctrl-C and SIGTERM stop pods
    as Kubernetes does, with SIGTERM and their grace period; a second signal kills them. With --data, a job that
    finished in an earlier run is run again, and an unfinished one continues.

    Exit code: 0 if all jobs succeeded, 1 if one failed or did not start, 2 for invalid input, 128+N after signal N.
    """

    def start(console: Console, interrupts: Interrupts) -> Coroutine[Any, Any, int]:
        return run_files(
            list(files), _cluster(**options), console, keep=keep, start_timeout=start_timeout, interrupts=interrupts
        )

    sys.exit(_run(start))


@click.command("cluster")
@click.option("--no-operator", is_flag=True, help="Start only API server and node, to run another operator.")
@click.option("--di-server", is_flag=True, help="Also run di-server, which DIJobs ask for their replicas.")
@_NETWORK
@_DIRECTORY
@_PORT
def cluster_command(no_operator: bool, di_server: bool, **options: Any) -> None:
    """Start an embedded cluster with the operator, and run it until Ctrl-C."""

    def start(console: Console, interrupts: Interrupts) -> Coroutine[Any, Any, int]:
        cluster, with_operator = _cluster(**options), not no_operator
        return run_cluster(cluster, console, with_operator=with_operator, di_server=di_server, interrupts=interrupts)

    sys.exit(_run(start))


def _cluster(*, data: Path | None, network: Any, port: int) -> ClusterOptions:
    return ClusterOptions(directory=data, network=network, port=port)


def _run(start: Callable[[Console, Interrupts], Coroutine[Any, Any, int]]) -> int:
    """Runs a session and returns its exit code. Exits the process directly if the output thread is still blocked."""
    _ensure_standard_streams()
    interrupts = Interrupts()
    try:
        code = asyncio.run(_run_until_interrupted(start(Terminal(highlight=False), interrupts), interrupts))
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
    except BadInputError as error:
        click.echo(f"trainop: {error}", err=True)
        return 2
    except asyncio.CancelledError:
        if interrupts.message:
            click.echo(f"trainop: {interrupts.message}", err=True)
        return interrupts.code
    except (OSError, BaseExceptionGroup) as error:
        click.echo(f"trainop: {'; '.join(_messages(error))}", err=True)
        return interrupts.code or 1


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


def _ensure_standard_streams() -> None:
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
