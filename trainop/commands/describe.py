"""`trainop describe`: the story of a job as a timeline, with the duration of each phase and step."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import datetime

import click

from trainop.commands.evidence import Collector
from trainop.commands.jobs import complete_run, open_job
from trainop.commands.options import clean, cluster_options, output_option, run_command
from trainop.explain.story import Step, Story, tell
from trainop.explain.story.timeline import lasted

FIRST_STEPS, LAST_STEPS = 20, 40
"""Steps on the screen of a story with more of them. `-o json` has all."""

_COLOURS = {"succeeded": "green", "running": "green", "failed": "red", "restarting": "yellow", "suspended": "yellow"}


@click.command("describe")
@click.argument("job", shell_complete=complete_run)
@cluster_options
@output_option("A timeline for people, or everything for programs.")
def describe_command(job: str, output: str, **cluster: str | None) -> None:
    """Tell the story of JOB (NAME, KIND/NAME, or a kept run): when it was created, queued, scheduled, started,
    restarted and why, and how long each of that took.

    Exit code: 0, whatever the state of the job; 1 if it cannot be read; 2 for wrong usage.
    """

    async def show() -> int:
        async with open_job(job, cluster) as (connection, target):
            story = tell(await Collector(connection, target).collect_story())
        if output == "json":
            names = {"kind": target.type.resource.kind, "namespace": target.namespace, "name": target.name}
            click.echo(json.dumps({**names, **story.as_json()}, indent=2))
        else:
            for line in render(f"{target.title} in namespace {target.namespace}", story, colours=sys.stdout.isatty()):
                click.echo(line)
        return 0

    run_command(show())


def render(title: str, story: Story, *, colours: bool = False) -> Iterator[str]:
    """The lines of the screen."""
    yield f"{clean(title)}: {story.state}, {lasted(story.seconds)} after its creation"
    yield ""
    yield f"{'TIME (UTC)':19} {'TOOK':>12}  WHAT"
    steps, day = story.steps, ""
    hidden = len(steps) - FIRST_STEPS - LAST_STEPS
    for index, step in enumerate(steps):
        if hidden > 0 and FIRST_STEPS <= index < FIRST_STEPS + hidden:
            if index == FIRST_STEPS:
                yield f"{'':32}  ... {hidden:,} more steps; -o json has all"
            continue
        shown = step.at.strftime("%Y-%m-%d") if step.at else day
        yield from _line(step, step.at, shown != day, colours=colours)
        day = shown
    for head, texts in (("", story.notes), ("could not read ", story.unread)):
        if texts:
            yield ""
        yield from (f"{head}{clean(text)}" for text in texts)


def _line(step: Step, at: datetime | None, has_new_day: bool, *, colours: bool) -> Iterator[str]:
    time = "unknown" if at is None else f"{at:%Y-%m-%d %H:%M:%S}" if has_new_day else f"{at:%H:%M:%S}"
    took = "" if step.seconds is None else f"{lasted(step.seconds)}{' ...' if step.open else ''}"
    until = f", until {step.until:%H:%M:%S}" if step.until else ""
    text = clean(step.text) + until
    if step.of_replicas:
        text = f"  {text}"
    elif colours and step.name in _COLOURS:
        text = click.style(text, fg=_COLOURS[step.name])
    yield f"{time:>19} {took:>12}  {text}"
    for line in step.evidence:
        yield f"{'':32}  | {clean(line)}"
