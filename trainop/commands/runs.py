"""`trainop attach`, `stop`, `rerun` and `clean`: runs as a whole; and the table of them for `trainop ps`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import click

from trainop.commands.jobs import complete_run, last_moment
from trainop.commands.options import run_command
from trainop.errors import StartError
from trainop.kept.folder import Record, Run, find_run, list_runs
from trainop.kept.process import ProcessIdentity
from trainop.local.node.podman.containers import clean_up
from trainop.runtime.lowlevel import printable, read_time

_POLL = 0.1
"""Seconds between two looks at a process that is to end."""

COLOURS = {"Running": "green", "Succeeded": "green", "Failed": "red", "Killed": "red", "Stopped": "yellow"}
HEADINGS = ("RUN", "STATE", "JOB", "BEGAN", "TOOK", "EXIT", "COMMAND")

_NAME = click.argument("run", shell_complete=complete_run)


def get_run(name: str) -> tuple[Run, Record]:
    """The run of this name. Raises `StartError` if there is none."""
    run = find_run(name)
    if run is None or run.record is None:
        known = ", ".join(each.name for each in list_runs()[:10])
        raise StartError(f"no run {printable(name)}; " + (f"the newest are: {known}" if known else "no run is kept"))
    return run, run.record


@click.command("attach")
@_NAME
def attach_command(run: str) -> None:
    """Follow RUN, one in the background or of another terminal, as if it had been started here.

    Exit code: that of the run, 1 if it was killed. Ctrl-C ends the command, and the run goes on.
    """
    from trainop.run.attach import attach  # noqa: PLC0415  # the others need no screen

    found, _ = get_run(run)
    if found.state != "Running":
        raise StartError(f"run {run} does not run ({found.state}); see trainop logs {run}; trainop why {run}")
    run_command(attach(found))


@click.command("stop")
@_NAME
@click.option("--now", "at_once", is_flag=True, help="Kill the pods, without their grace period.")
def stop_command(run: str, at_once: bool) -> None:
    """Stop RUN as Ctrl-C in its terminal does: pods get SIGTERM and their grace period. Waits until it has ended."""
    found, record = get_run(run)
    if found.state == "Elsewhere":
        raise StartError(f"run {run} is one of machine {record.process.host}; stop it there")
    if found.state != "Running":
        click.echo(f"run {run} does not run any more ({found.state})")
        return
    try:
        for number in range(1 + at_once):
            if number:
                time.sleep(_POLL)  # two signals at once would arrive as one
            _signal(record.process)
        while record.process.lives:
            time.sleep(_POLL)
    except PermissionError as error:
        raise StartError(f"run {run} cannot be stopped: {error}") from error
    except KeyboardInterrupt:
        sys.exit(130)
    click.echo(f"run {run} has ended: trainop logs {run}; trainop rerun {run}")


def _signal(process: ProcessIdentity) -> None:
    """Sends SIGTERM, and never to another process that has got the number meanwhile."""
    try:
        if not hasattr(os, "pidfd_open"):
            if process.lives:
                os.kill(process.pid, signal.SIGTERM)
            return
        descriptor = os.pidfd_open(process.pid)
        try:
            if process.lives:
                signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        finally:
            os.close(descriptor)
    except ProcessLookupError:
        return


@click.command("rerun")
@_NAME
@click.option("-d", "--detach", is_flag=True, help="Run in the background.")
def rerun_command(run: str, detach: bool) -> None:
    """Run the command of RUN again, in its folder, with what its files contain now. It is a new run."""
    from trainop.run.commands import run_command as run_again  # noqa: PLC0415  # the others start nothing

    _, record = get_run(run)
    end = record.command.index("--") if "--" in record.command else len(record.command)
    if "-" in record.command[:end]:
        raise StartError(f"run {run} was read from standard input, which is not kept")
    try:
        os.chdir(record.folder)
    except OSError as error:
        raise StartError(f"the folder of run {run} cannot be entered: {record.folder}: {error.strerror}") from error
    command = [each for each in record.command[:end] if not (detach and each == "--ui")] + record.command[end:]
    if len(command) < len(record.command):
        click.echo("trainop: without --ui, as nobody would be told the address; see trainop ui RUN", err=True)
    page = click.get_current_context().find_root().obj
    run_again.main([*(["-d"] if detach else []), *command], prog_name="trainop run", obj=page)


@click.command("clean")
@click.argument("runs", nargs=-1, shell_complete=complete_run)
def clean_command(runs: Sequence[str]) -> None:
    """Remove the folders of RUNS, or of all runs that have ended. Those that run are never removed.

    Without RUNS, also containers of podman that a run has left whose process was killed.
    """
    if not runs:
        chosen = [each for each in list_runs() if each.record is not None and not each.may_run]
    else:
        every = {each.name: each for each in list_runs()}
        missing = [each for each in runs if each not in every]
        if missing:
            raise StartError(f"no run {printable(missing[0])}; trainop ps lists all")
        chosen = [every[each] for each in dict.fromkeys(runs)]
        if busy := [each.name for each in chosen if each.state == "Running"]:
            raise StartError(f"run {busy[0]} runs; first: trainop stop {busy[0]}")
    for each in chosen:
        each.remove()
        click.echo(f"run {each.name} removed")
    if not chosen:
        click.echo("no run has ended")
    if not runs and (left := asyncio.run(clean_up())):
        click.echo(f"containers of podman removed: {left}")


def run_lines(width: int = 0) -> Iterator[str]:
    """The table of runs, the newest first; `width` in columns of a terminal, 0 for a pipe. No line without runs."""
    found = list_runs()
    if not found:
        return
    now = datetime.now(UTC)
    table = [HEADINGS, *(_cells(run, now) for run in found)]
    widths = [max(len(cells[index]) for cells in table) for index in range(len(HEADINGS) - 1)]
    for number, cells in enumerate(table):
        parts = [cell.ljust(size) for cell, size in zip(cells, widths, strict=False)]
        line = "  ".join([*parts, cells[-1]]).rstrip()
        if not width:
            yield line
            continue
        line = line if len(line) <= width else f"{line[: width - 1]}…"
        colour = COLOURS.get(cells[1]) if number else None
        yield line.replace(cells[1], click.style(cells[1], fg=colour), 1) if colour else line


def _cells(run: Run, now: datetime) -> tuple[str, ...]:
    record = run.record
    if record is None:
        return run.name, run.state, "", "", "", "", printable(run.problem)
    jobs = f"{record.jobs[0].kind} {record.jobs[0].name}" if record.jobs else ""
    more = f" +{len(record.jobs) - 1}" if len(record.jobs) > 1 else ""
    began = read_time(record.began)
    until = now if run.state == "Running" else last_moment(run)
    took = "?" if began is None else lasted(int(max(0, (until - began).total_seconds())))
    shown = "?" if began is None else began.astimezone().strftime("%m-%d %H:%M")
    code = "" if record.code is None else str(record.code)
    return run.name, run.state, printable(jobs + more), shown, took, code, printable(" ".join(record.command))


def lasted(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{seconds:02}s" if minutes else f"{seconds}s"
