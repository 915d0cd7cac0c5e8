"""What the commands about jobs of a cluster have in common: options, and how they end."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, NoReturn, TypeVar

import click

from trainop.logs import LogSettings, configure_logs
from trainop.runtime import ApiError
from trainop.runtime.lowlevel import cut, loop_factory, printable, tune_garbage_collector

F = TypeVar("F", bound=Callable[..., Any])


def cluster_options(command: F) -> F:
    """Adds --kubeconfig, --context and --namespace."""
    for option in (
        click.option("-n", "--namespace", help="The namespace. Default: that of the kubeconfig's context."),
        click.option("--context", help="The context of the kubeconfig."),
        click.option("--kubeconfig", help="The kubeconfig. Default: as kubectl."),
    ):
        command = option(command)
    return command


def output_option(text: str) -> Callable[[F], F]:
    """Adds --output, text or json; `text` is its help."""
    return click.option(
        "-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help=text
    )


def run_command(work: Coroutine[Any, Any, int], *, serves: bool = False) -> None:
    """Runs it and exits with its code. An API server that refuses or cannot be reached is one line on stderr and exit
    code 1; Ctrl-C is 130; a closed pipe is 141. `serves`: it goes on for long, and gets the event loop of a server."""
    configure_logs(LogSettings(level="error"))  # on stderr; without settings, each retried request is a line on stdout
    if serves:
        tune_garbage_collector()
    try:
        with asyncio.Runner(loop_factory=loop_factory() if serves else None) as runner:
            code = runner.run(work)
        sys.stdout.flush()
    except (ApiError, ConnectionError, TimeoutError) as error:
        if isinstance(error, BrokenPipeError):
            end_with_closed_pipe()
        click.echo(f"trainop: {printable(str(error))}", err=True)
        code = 1
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def end_with_closed_pipe() -> NoReturn:
    """Ends the process as one that nobody reads any more, `trainop plan FILE | head`, without a word."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(141)


def print_lines(lines: Iterable[str]) -> None:
    """Prints to stdout; ends the process if nobody reads it any more."""
    try:
        for line in lines:
            click.echo(line)
        sys.stdout.flush()
    except BrokenPipeError:
        end_with_closed_pipe()


def clean(text: str, limit: int = 900) -> str:
    """A text of the cluster in one line for the terminal: printable, and of at most `limit` bytes."""
    return cut(printable(" ".join(text.split())), limit)
