"""Jobs that are watched, with the operator killed, stopped, frozen and cut off meanwhile."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.examine import examine
from tests.simulation.planting import patch
from tests.simulation.survive_draw import draw_survivor
from trainop.controllers.silence import Silences
from trainop.engine import kind, stalls, startup
from trainop.engine.restart_history import RestartHistory
from trainop.engine.seen import Silence, Snapshot
from trainop.programs.schemes import FRAMEWORKS

SHARE, PORTION = 80, 10
SEEDS = 60
"""Within which each planted bug is found."""


@pytest.mark.parametrize("first", range(0, SHARE, PORTION))
def test_seeds_show_no_problem(first: int):
    for seed in range(first, first + PORTION):
        verdict = examine(draw_survivor(seed))
        assert not verdict.problem, verdict.report()


def test_seeds_draw_both_annotations_every_kind_and_every_fault():
    scripts = [draw_survivor(seed) for seed in range(400)]
    names = {name.partition("/")[2] for script in scripts for job in script.jobs for name in job.annotations}
    assert names == {"stalled-after", "on-stall", "restart-scope", "startup-deadline", "on-startup-deadline"}
    assert {job.kind for script in scripts for job in script.jobs} == set(FRAMEWORKS)
    acts = {step.act for script in scripts for step in script.chaos}
    assert acts == {"report", "kill", "stop", "freeze", "jump", "cut", "lag", "compact", "outage"}


# Planted bugs ---------------------------------------------------------------------------------------------------------


def silence_of_the_status() -> AbstractContextManager[Any]:
    """A process that has just started takes what it finds for silence."""

    def show(_self: Silences, seen: Snapshot) -> Snapshot:
        return replace(seen, silence=Silence(3600.0, None, overdue=True))

    return patch(Silences, "show", show)


def reports_of_others_unheard() -> AbstractContextManager[Any]:
    return patch(Silences, "hear", lambda _self, _job, _pod="": None)


def silent_from_the_beginning() -> AbstractContextManager[Any]:
    """A job stalls although it has never reported."""
    return patch(stalls, "_has_reported", lambda *_: True)


def stall_never_noticed() -> AbstractContextManager[Any]:
    return patch(kind, "watch_for_stalls", lambda _seen, plan, _restart: plan)


def stall_for_ever() -> AbstractContextManager[Any]:
    """No report ends it."""
    has_reported = stalls._has_reported

    def first_only(seen: Snapshot, silence: Silence, stalled: Any) -> bool:
        return stalled is None and has_reported(seen, silence, stalled)

    return patch(stalls, "_has_reported", first_only)


def restart_not_marked() -> AbstractContextManager[Any]:
    """The pods of a restart are not counted, so that the next pass counts it again."""
    return patch(RestartHistory, "mark_counted", lambda _self, _uid: None)


def reports_of_the_run_before() -> AbstractContextManager[Any]:
    """What was reported before a restart counts for the run after it."""

    def any_run(seen: Snapshot, _silence: Silence, _stalled: Any) -> bool:
        return "trainerStatus" in seen.job.raw["status"]

    return patch(stalls, "_has_reported", any_run)


def deadline_at_once() -> AbstractContextManager[Any]:
    return patch(startup, "read_startup_rule", lambda *_args, **_more: startup.StartupRule(1.0))


def deadline_never() -> AbstractContextManager[Any]:
    return patch(kind, "watch_startup", lambda _seen, plan, _give_up, **_more: plan)


@pytest.mark.parametrize(
    ("plant", "rules"),
    [
        (silence_of_the_status, {"silence", "a restart is no silence"}),
        (reports_of_others_unheard, {"silence"}),
        (silent_from_the_beginning, {"only who reports stalls"}),
        (reports_of_the_run_before, {"only who reports stalls", "stalls"}),
        (restart_not_marked, {"restarts for a reason", "restarts once", "clean up after the end"}),
        (stall_never_noticed, {"silence is noticed"}),
        (stall_for_ever, {"stalls"}),
        (deadline_at_once, {"startup deadline"}),
        (deadline_never, {"startup deadline"}),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_planted_bugs_are_found(plant: Any, rules: set[str]):
    with plant():
        for seed in range(SEEDS):
            violations = examine(draw_survivor(seed)).outcome.violations
            if violations:
                assert violations[0].rule in rules, violations[0]
                return
    raise AssertionError(f"not found in {SEEDS} seeds")
