"""`trainop ps` and `trainop top`: a table of jobs, once or live."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import click

from trainop.commands.connection import Connection, connect
from trainop.commands.options import cluster_options, run_command
from trainop.commands.runs import run_lines
from trainop.commands.target import JobType, job_types
from trainop.engine.fields import as_list, as_object
from trainop.engine.restart_history import RestartHistory
from trainop.errors import StartError
from trainop.explain.why.reported import read_reported
from trainop.runtime import ApiError, ForbiddenError, Json, NotFoundError
from trainop.runtime.lowlevel import printable, read_time

REFRESH = 2.0
"""Seconds between two tables of `trainop top`."""

_COLOURS = {"Running": "green", "Succeeded": "green", "Failed": "red", "Restarting": "yellow", "Suspended": "yellow"}


@dataclass(frozen=True, slots=True)
class Row:
    """One job."""

    namespace: str
    kind: str
    name: str
    state: str
    replicas: str
    restarts: int
    age: str
    progress: str
    reason: str

    @property
    def cells(self) -> tuple[str, ...]:
        head = (self.namespace, self.kind, self.name, self.state, self.replicas)
        return (*head, str(self.restarts), self.age, self.progress, self.reason)


HEADINGS = ("NAMESPACE", "KIND", "NAME", "STATE", "REPLICAS", "RESTARTS", "AGE", "PROGRESS", "REASON")


@click.command("ps")
@cluster_options
@click.option("-A", "--all-namespaces", is_flag=True, help="The jobs of all namespaces.")
def ps_command(all_namespaces: bool, **cluster: str | None) -> None:
    """List the runs that are kept on this machine, and the jobs of all kinds in the cluster of the kubeconfig.

    A job has state, replicas, restarts, age, progress where it is reported, and the reason of the state. With an option
    the runs are left out; without a kubeconfig there are only runs.
    """

    async def show() -> int:
        asked = all_namespaces or any(cluster.values())
        runs = [] if asked else list(run_lines(shutil.get_terminal_size().columns if sys.stdout.isatty() else 0))
        for line in runs:
            click.echo(line)
        try:
            return await show_jobs(after_runs=bool(runs))
        except StartError as error:
            if not runs or "no cluster is configured" not in str(error):
                raise
            return 0

    async def show_jobs(*, after_runs: bool) -> int:
        async with connect(cluster["kubeconfig"], cluster["context"]) as connection:
            lines, notes = await _table(
                connection, None if all_namespaces else cluster["namespace"] or connection.namespace
            )
        for line in ([""] if after_runs else []) + lines:
            click.echo(line)
        for note in notes:
            click.echo(f"trainop: {note}", err=True)
        return 1 if notes else 0

    run_command(show())


@click.command("top")
@cluster_options
@click.option("-A", "--all-namespaces", is_flag=True, help="The jobs of all namespaces.")
def top_command(all_namespaces: bool, **cluster: str | None) -> None:
    """The table of `trainop ps`, made anew every two seconds until Ctrl-C."""

    async def show() -> int:
        async with connect(cluster["kubeconfig"], cluster["context"]) as connection:
            while True:
                namespace = None if all_namespaces else cluster["namespace"] or connection.namespace
                lines, notes = await _table(connection, namespace)
                if sys.stdout.isatty():
                    click.clear()
                    lines = lines[: shutil.get_terminal_size().lines - 1 - len(notes)]
                for line in (*lines, *notes):
                    click.echo(line)
                await asyncio.sleep(REFRESH)

    run_command(show())


async def _table(connection: Connection, namespace: str | None) -> tuple[list[str], list[str]]:
    """The lines of the table, and what could not be read."""
    rows, notes = await read_rows(connection, namespace)
    if not rows:
        where = f"in namespace {namespace}" if namespace else "in any namespace"
        return [f"no jobs {where}"], notes
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    return list(render(rows, width=width, with_namespace=namespace is None)), notes


async def read_rows(connection: Connection, namespace: str | None) -> tuple[list[Row], list[str]]:
    """The jobs of all kinds whose CRDs are installed, the newest first, and the kinds that may not be read."""
    answers = await asyncio.gather(*(_jobs_of(connection, each, namespace) for each in job_types()))
    now = datetime.now(UTC)
    found: list[tuple[str, Row]] = []
    notes: list[str] = []
    for job_type, answer in zip(job_types(), answers, strict=True):
        if isinstance(answer, ApiError):
            notes.append(f"{job_type.resource.plural} could not be read: {printable(str(answer))}")
        else:
            found += [(str(job["metadata"].get("creationTimestamp")), row_of(job_type, job, now)) for job in answer]
    return [row for _, row in sorted(found, key=lambda each: each[0], reverse=True)], notes


async def _jobs_of(connection: Connection, job_type: JobType, namespace: str | None) -> Sequence[Json] | ApiError:
    try:
        return (await connection.client.list(job_type.resource, namespace)).items
    except NotFoundError:
        return ()
    except ForbiddenError as error:
        return error


def row_of(job_type: JobType, job: Json, now: datetime) -> Row:
    """The row of one job, whatever its status contains."""
    status = as_object(job.get("status"))
    metadata = as_object(job.get("metadata"))
    state, reason = _state(status)
    annotations = {k: v for k, v in as_object(metadata.get("annotations")).items() if isinstance(v, str)}
    history = RestartHistory(str(metadata.get("uid")), annotations)
    return Row(
        namespace=printable(str(metadata.get("namespace", ""))),
        kind=job_type.resource.kind,
        name=printable(str(metadata.get("name", ""))),
        state=state,
        replicas=_replicas(job, status),
        restarts=history.failures + history.disruptions,
        age=_age(metadata.get("creationTimestamp"), now),
        progress=_progress(status),
        reason=reason,
    )


def _state(status: Json) -> tuple[str, str]:
    """The last true condition, as the printer column State, and what it says; of a DIJob its phase."""
    true = [each for each in as_list(status.get("conditions")) if each.get("status") == "True"]
    last = true[-1] if true else {}
    state = str(status.get("phase") or last.get("type") or "New")
    quiet = state in {"Running", "Succeeded", "Created"}
    message = "" if quiet else str(last.get("message") or "")
    return printable(state), printable(" ".join(message.split()))


def _replicas(job: Json, status: Json) -> str:
    """`running/wanted`, of all roles together."""
    counts = [as_object(each) for each in as_object(status.get("replicaStatuses")).values()]
    active = sum(each["active"] for each in counts if isinstance(each.get("active"), int))
    done = sum(each["succeeded"] for each in counts if isinstance(each.get("succeeded"), int))
    wanted = 0
    for name, value in as_object(job.get("spec")).items():
        if name.endswith("ReplicaSpecs"):
            given = [as_object(each).get("replicas", 1) for each in as_object(value).values()]
            wanted += sum(each for each in given if isinstance(each, int))
    if isinstance(status.get("replicas"), int):  # DIJob
        return f"{status.get('readyReplicas') or 0}/{status['replicas']}"
    return f"{active}/{wanted}" + (f" ({done} done)" if done else "") if wanted else "-"


def _progress(status: Json) -> str:
    reported = read_reported(status)
    if reported is None or reported.percent is None:
        return ""
    left = f", {_duration(reported.left)} left" if reported.left is not None and reported.percent < 100 else ""
    return f"{reported.percent}%{left}"


def _age(created: object, now: datetime) -> str:
    since = read_time(created)
    return _duration(max(0, int((now - since).total_seconds()))) if since else "?"


def _duration(seconds: int) -> str:
    """As kubectl: the two largest units."""
    for unit, size, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if seconds >= size:
            rest = seconds % size // part
            return f"{seconds // size}{unit}{rest}{smaller}" if rest else f"{seconds // size}{unit}"
    return f"{seconds}s"


def render(rows: Iterable[Row], *, width: int = 0, with_namespace: bool = True) -> Iterator[str]:
    """The lines of the table; `width` in columns of a terminal, which gets colours and no longer lines. 0: a pipe."""
    skip = 0 if with_namespace else 1
    table = [HEADINGS[skip:], *(row.cells[skip:] for row in rows)]
    empty = {index for index in range(len(table[0])) if not any(cells[index] for cells in table[1:])}
    widths = [max(len(cells[index]) for cells in table) for index in range(len(table[0]))]
    state = 3 - skip
    for number, cells in enumerate(table):
        parts = [cell.ljust(widths[index]) for index, cell in enumerate(cells) if index not in empty]
        line = "  ".join(parts).rstrip()
        if not width:
            yield line
            continue
        line = line if len(line) <= width else f"{line[: width - 1]}…"
        colour = _COLOURS.get(cells[state]) if number else None
        yield line.replace(cells[state], click.style(cells[state], fg=colour), 1) if colour else line
