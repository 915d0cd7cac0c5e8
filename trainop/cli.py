"""The command `trainop`. Subcommands are imported only when they are called.

Exit codes: 0 success, 1 failure, 2 usage error. `/manager` in the image is `trainop operator` under the name that the
image of training-operator has.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trainop import __version__, extras
from trainop.errors import TrainopError, UsageError
from trainop.programs.flags import Flag, HelpRequested, usage
from trainop.programs.settings import FLAGS, Settings, read_settings

if TYPE_CHECKING:
    from trainop.programs.di_server import DiServerSettings

S = TypeVar("S")
ReadSettings = Callable[[Sequence[str], Mapping[str, str]], tuple[Settings, tuple[str, ...]]]

LAZY = {
    "run": ("trainop.run.commands", "run_command", "Run jobs from manifests on an embedded cluster and follow them."),
    "check": ("trainop.commands.check", "check_command", "Check the jobs in manifests without running them."),
    "submit": ("trainop.commands.submit", "submit_command", "Create jobs in a cluster, and follow one."),
    "cluster": ("trainop.run.commands", "cluster_command", "Start an embedded cluster without jobs."),
    "plan": ("trainop.commands.plan", "plan_command", "Show what the operator would make of jobs, without a cluster."),
    "why": ("trainop.commands.why", "why_command", "Explain why a job does not run, or how it ended."),
    "describe": ("trainop.commands.describe", "describe_command", "Tell the story of a job as a timeline."),
    "stacks": ("trainop.commands.stacks", "stacks_command", "Show where the Python processes of a job stand."),
    "ui": ("trainop.ui.command", "ui_command", "Serve a page about the jobs of a cluster, or a kept run."),
    "ps": ("trainop.commands.ps", "ps_command", "List the kept runs, and the jobs of a cluster."),
    "attach": ("trainop.commands.runs", "attach_command", "Follow a run in the background."),
    "stop": ("trainop.commands.runs", "stop_command", "Stop a run in the background."),
    "rerun": ("trainop.commands.runs", "rerun_command", "Run the command of a run again."),
    "clean": ("trainop.commands.runs", "clean_command", "Remove the folders of runs that have ended."),
    "version": ("trainop.commands.about", "version_command", "Print the version of trainop."),
    "completion": ("trainop.commands.about", "completion_command", "Print the script for completion in a shell."),
    "top": ("trainop.commands.ps", "top_command", "List the jobs of a cluster, again and again."),
    "logs": ("trainop.commands.logs", "logs_command", "Show the logs of a job's replicas, merged by time."),
    "manifests": ("trainop.manifests.command", "manifests_command", "Write or print CRDs and installation manifests."),
}
"""Subcommands by name: module, attribute, short help. Imported lazily to keep the operator's memory small."""

NEEDS = dict.fromkeys(("run", "rerun", "attach", "check", "cluster"), extras.LOCAL)
"""Commands that need an extra."""


class _Group(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *LAZY])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in LAZY:
            return super().get_command(ctx, cmd_name)
        if cmd_name in NEEDS:
            extras.require(NEEDS[cmd_name], f"trainop {cmd_name}")
        module, attribute, _ = LAZY[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = {name: command.get_short_help_str(100) for name, command in self.commands.items()}
        shown = own | {name: short for name, (_, _, short) in LAZY.items()}
        with formatter.section("Commands"):
            formatter.write_dl(sorted(shown.items()))


class _GoCommand(click.Command):
    """A command with Go flags; click passes its arguments on unparsed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.params["args"] = tuple(args)
        return []


def _page_of_run(*arguments: Any) -> Any:
    """What `trainop run --ui` serves its page with: `trainop.run.page.Page`."""
    from trainop.ui.serving import page_of_session  # noqa: PLC0415  # as LAZY

    return page_of_session(*arguments)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "obj": _page_of_run})
@click.version_option(__version__, prog_name="trainop")
def cli() -> None:
    """A Kubernetes operator for v1 training jobs, and an embedded cluster to run them locally."""


@cli.command(cls=_GoCommand, short_help="Run the operator against a cluster (flags of training-operator).")
def operator(args: Sequence[str]) -> None:
    """Run the operator until SIGTERM or SIGINT."""
    sys.exit(run_operator(args, "trainop operator"))


@cli.command("mpi-operator", cls=_GoCommand, short_help="Run the operator for MPIJobs (flags of mpi-operator).")
def mpi_operator(args: Sequence[str]) -> None:
    """Run the operator for MPIJobs alone until SIGTERM or SIGINT."""
    sys.exit(run_mpi_operator(args, "trainop mpi-operator"))


@cli.command("di-operator", cls=_GoCommand, short_help="Run the operator for DIJobs (flags of DI-orchestrator).")
def di_operator(args: Sequence[str]) -> None:
    """Run the operator for DIJobs alone until SIGTERM or SIGINT."""
    sys.exit(run_di_operator(args, "trainop di-operator"))


def run_di_operator(args: Sequence[str], program: str) -> int:
    """As `run_operator`, with the flags of DI-orchestrator's operator."""
    from trainop.programs.di_operator import DI_FLAGS, read_di_settings  # noqa: PLC0415  # as LAZY

    return run_operator(args, program, DI_FLAGS, read_di_settings)


def run_mpi_operator(args: Sequence[str], program: str) -> int:
    """As `run_operator`, with the flags of mpi-operator."""
    from trainop.programs.mpi_operator import MPI_FLAGS, VersionRequested, read_mpi_settings  # noqa: PLC0415  # as LAZY

    try:
        return run_operator(args, program, MPI_FLAGS, read_mpi_settings)
    except VersionRequested:
        click.echo(f"API Version: v2\nVersion: {__version__}\nGit SHA:\nBuilt:\nGo Version:\nGo OS/Arch:")
        return 0


@cli.command("di-webhook", cls=_GoCommand, short_help="Serve the admission webhooks of DIJobs (flags of di-webhook).")
def di_webhook(args: Sequence[str]) -> None:
    """Serve the admission webhooks of DIJobs until SIGTERM or SIGINT."""
    sys.exit(run_di_webhook(args, "trainop di-webhook"))


def run_di_webhook(args: Sequence[str], program: str) -> int:
    """As `run_operator`, without controllers, with the flags of DI-orchestrator's di-webhook."""
    from trainop.programs.di_webhook import DI_WEBHOOK_FLAGS, read_di_webhook_settings  # noqa: PLC0415  # as LAZY

    return run_operator(args, program, DI_WEBHOOK_FLAGS, read_di_webhook_settings)


@cli.command("di-server", cls=_GoCommand, short_help="Serve the replicas API of DIJobs (flags of di-server).")
def di_server(args: Sequence[str]) -> None:
    """Serve the API by which coordinators of DIJobs change their replicas, until SIGTERM or SIGINT."""
    sys.exit(run_di_server(args, "trainop di-server"))


def run_di_server(args: Sequence[str], program: str) -> int:
    """Runs di-server with the flags of DI-orchestrator and returns its exit code. Raises `TrainopError`."""
    from trainop.programs.di_server import DI_SERVER_FLAGS, read_di_server_settings  # noqa: PLC0415  # as LAZY

    def start(settings: DiServerSettings) -> int:
        from trainop.diserver.server import run  # noqa: PLC0415  # not needed by the other commands

        return run(settings)

    return _run_with(args, program, DI_SERVER_FLAGS, read_di_server_settings, start)


def run_operator(
    args: Sequence[str], program: str, flags: Sequence[Flag] = FLAGS, read: ReadSettings = read_settings
) -> int:
    """Runs the operator with Go flags and returns its exit code. Raises `TrainopError` if it cannot start."""

    def start(settings: Settings) -> int:
        from trainop.programs.operator import run  # noqa: PLC0415  # not needed by the other commands

        return run(settings)

    return _run_with(args, program, flags, read, start)


def _run_with(
    args: Sequence[str],
    program: str,
    flags: Sequence[Flag],
    read: Callable[[Sequence[str], Mapping[str, str]], tuple[S, tuple[str, ...]]],
    start: Callable[[S], int],
) -> int:
    try:
        settings, rest = read(args, os.environ)
    except HelpRequested:
        click.echo(usage(program, flags), err=True)
        return 0
    except UsageError as error:
        click.echo(f"{error}\n{usage(program, flags)}", err=True)
        return error.exit_code
    if rest:  # training-operator ignores them silently; a user who wrote `--leader-elect true` should be warned
        click.echo(f"ignored, because they follow a non-flag argument: {' '.join(rest)}", err=True)
    return start(settings)


def _exit_with(program: str, error: TrainopError) -> None:
    click.echo(f"{program}: {error}", err=True)
    sys.exit(error.exit_code)


def manager() -> None:
    """The entry point `/manager`, as in the image of training-operator."""
    try:
        sys.exit(run_operator(sys.argv[1:], sys.argv[0]))
    except TrainopError as error:
        _exit_with("manager", error)


NAMED: Mapping[str, Callable[[Sequence[str], str], int]] = {
    "mpi-operator": run_mpi_operator,
    "di-operator": run_di_operator,
    "di-webhook": run_di_webhook,
    "di-server": run_di_server,
}
"""Name of a program in the images of other operators -> what it runs with its arguments and its path."""


PLUGIN = "kubectl-trainop"
"""The name by which kubectl finds a plugin: `kubectl trainop ps`."""


def main() -> None:
    """The entry point of `trainop`. A program that is named `manager` or as in `NAMED` runs that command directly."""
    program = Path(sys.argv[0]).name
    if program == "manager":
        manager()
    try:
        if program in NAMED:
            sys.exit(NAMED[program](sys.argv[1:], sys.argv[0]))
        cli.main(prog_name="kubectl trainop" if program == PLUGIN else "trainop")
    except TrainopError as error:
        _exit_with("trainop", error)
