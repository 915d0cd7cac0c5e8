"""Seeds whose pods report progress to any replica, and mistakes that the rules about it find."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import count, islice
from typing import Any

import pytest

from tests.simulation.draw import draw_script
from tests.simulation.families import family_of
from tests.simulation.planting import patch
from tests.simulation.script import Script
from tests.simulation.world import Outcome, play
from trainop.controllers.progress import server, writer
from trainop.runtime.objects.metadata import Json

SHARE, PORTION = 120, 30
MOST_SEEDS = 400
"""Within which a mistake has to be found. Most take a few; what the seeds draw changes with the simulation."""


def scripts() -> Iterator[Script]:
    """Of the jobs with replica maps."""
    for seed in count():
        if not family_of(seed):
            yield replace(draw_script(seed), reports=True)


def problem(outcome: Outcome, script: Script) -> str:
    return "\n".join((f"seed {script.seed}: {outcome.violations[0]}", *outcome.lines())) if outcome.failed else ""


@pytest.mark.parametrize("first", range(0, SHARE, PORTION))
def test_reports_show_no_problem(first: int):
    written = 0
    for script in islice(scripts(), first, first + PORTION):
        outcome = play(script)
        assert not outcome.failed, problem(outcome, script)
        written += sum("/status 200" in what and "PATCH" in what for _, _, what in outcome.trace)
    assert written > PORTION


def without_version(job: writer.Job, status: Json, version: str) -> Json:
    body = BODY(job, status, version)
    body["metadata"].pop("resourceVersion")
    return body


def drop_after_conflict(self: writer.ProgressWriter, state: Any, report: object) -> None:
    self._states.pop(state.job.uid)


def keep_oldest(self: writer.ProgressWriter, job: writer.Job, status: Any, version: str) -> None:
    state = self._states.get(job.uid)
    PUT(self, job, (state and state.newest) or status, version)


def write_over(job: writer.Job, status: Json, version: str) -> Json:
    """Owns the conditions, too."""
    body = BODY(job, status, version)
    body["status"]["conditions"] = []
    return body


def enqueue_at_once(self: writer.ProgressWriter, state: Any, **_: Any) -> None:
    self._interval = 1.0
    ENQUEUE(self, state)


BODY, PUT, ENQUEUE = writer.Job.body, writer.ProgressWriter.put, writer.ProgressWriter._enqueue

MISTAKES: dict[str, tuple[AbstractContextManager[Any], str]] = {
    "a report reaches a later job of the same name": (patch(writer.Job, "body", without_version), "its own job"),
    "pods report for other jobs": (patch(server, "_belongs", lambda *_: True), "its own job"),
    "a conflict loses the report": (
        patch(writer.ProgressWriter, "_wait_for_version", drop_after_conflict),
        "the last is written",
    ),
    "a failure loses the report": (patch(writer.ProgressWriter, "_retry", lambda *_: None), "the last is written"),
    "the oldest wins": (patch(writer.ProgressWriter, "put", keep_oldest), "the last is written"),
    "an older report of another replica stays": (patch(writer, "REPEATS", 0.0), "the last is written"),
    "writes are frequent": (patch(writer.ProgressWriter, "_enqueue", enqueue_at_once), "rare writes"),
    "the rest of the status is written, too": (patch(writer.Job, "body", write_over), "only progress"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_found(name: str):
    planted, rule = MISTAKES[name]
    with planted:
        found = next((outcome for outcome in map(play, islice(scripts(), MOST_SEEDS)) if outcome.failed), None)
    assert found is not None
    assert found.violations[0].rule == rule, found.violations[0]
