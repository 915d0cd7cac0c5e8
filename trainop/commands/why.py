"""`trainop why`: the cause of a job's state in plain words, the evidence, and the next step."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import click

from trainop.commands.evidence import Collector
from trainop.commands.jobs import complete_run, open_job
from trainop.commands.options import clean, cluster_options, output_option, run_command
from trainop.explain.why import Cause, Diagnosis, State, diagnose

MAX_CAUSES = 6

_COLOURS = {
    State.SUCCEEDED: "green",
    State.RUNNING: "green",
    State.FAILED: "red",
    State.WAITING: "yellow",
    State.TROUBLED: "yellow",
}


@click.command("why")
@click.argument("job", shell_complete=complete_run)
@cluster_options
@output_option("One screen for people, or everything for programs.")
def why_command(job: str, output: str, **cluster: str | None) -> None:
    """Explain why JOB (NAME, KIND/NAME, or a kept run) does not run, or how it ended.

    Exit code: 0 it runs or has succeeded, 1 it has failed, 3 it waits, 4 it runs with a problem. 2 for wrong usage.
    """

    async def show() -> int:
        async with open_job(job, cluster) as (connection, target):
            found = diagnose(await Collector(connection, target).collect())
        if output == "json":
            click.echo(
                json.dumps({"kind": target.type.resource.kind, "name": target.name, **found.as_json()}, indent=2)
            )
        else:
            for line in render(f"{target.title} in namespace {target.namespace}", found, colours=sys.stdout.isatty()):
                click.echo(line)
        return found.state.exit_code

    run_command(show())


def render(title: str, found: Diagnosis, *, colours: bool = False) -> Iterator[str]:
    """The lines of the screen: the heaviest cause with its evidence and the next step, then the others."""
    state = click.style(found.state.value, fg=_COLOURS[found.state], bold=True) if colours else found.state.value
    yield f"{clean(title)}: {state}"
    first, *others = found.causes
    yield from _explain(first)
    shown = others[: MAX_CAUSES - 1]
    if shown:
        yield ""
        yield "Also:"
    for cause in shown:
        yield from _explain(cause, mark="- ")
    if len(others) > len(shown):
        yield f"({len(others) - len(shown)} more; -o json has all)"
    if found.unread:
        yield ""
    for text in found.unread:
        yield f"could not read {clean(text)}"


def _explain(cause: Cause, mark: str = "") -> Iterator[str]:
    text = clean(cause.text)
    yield f"{mark or '  '}{text[:1].upper()}{text[1:]}."
    for line in cause.evidence:
        yield f"    | {clean(line)}"
    if cause.next:
        yield f"    -> {clean(cause.next)}"
