"""The rows of the migrate pages, and the flags of the replaced operators, of which the defaults are recorded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from e2e.parity import flags
from e2e.parity.children import PAUSE, SCENARIOS, Scenario, recorded
from e2e.parity.rules import Rule, pages, rules
from tests.test_registries import OF_UPSTREAM

ROOT = Path(__file__).parents[1]
RELEASES = flags.releases()


@pytest.mark.parametrize("release", RELEASES)
def test_each_default_is_upstreams_or_has_its_row(release: str) -> None:
    named = {flag.split()[1] for rule in rules() for flag in rule.flags if flag.split()[0] == release}
    program, theirs = RELEASES[release]
    assert flags.differences(program, theirs).keys() == named


def test_rows_name_recorded_releases_only() -> None:
    assert {flag.split()[0] for rule in rules() for flag in rule.flags} <= RELEASES.keys()


def test_a_help_text_is_read() -> None:
    text = """Usage of x:
  -a int
    \tSome number (of things). (default 5)
  -b string
    \tText. (default "c d")
  -flag
    \tOn or off.
    \tMore about it.
  -level value
    \tA level. (default 2)
  -kind value
    \tA kind.
"""
    assert flags.read_help(text) == {"a": "5", "b": '"c d"', "flag": "", "level": "2", "kind": None}


def name_of(rule: Rule) -> str:
    return f"{rule.page}-{rule.cells[0][:40]}"


@pytest.mark.parametrize("rule", rules(), ids=name_of)
def test_each_row_is_shown_by_tests_that_exist(rule: Rule) -> None:
    assert rule.shown_by
    for test in rule.shown_by:
        path, _, name = test.partition("::")
        assert re.search(rf"^(?:async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE), test


def test_the_pages_have_the_rows() -> None:
    """After a change of `e2e/parity/rules.toml`: `make docs`. A row that was added to a page belongs there."""
    for path, text in pages().items():
        assert path.read_text() == text, path


def test_each_scenario_is_recorded() -> None:
    for operator, scenarios in SCENARIOS.items():
        for scenario in scenarios:
            assert set(recorded(operator, scenario.name)) == set(scenario.moments)


KINDS = sorted({*((kind, "v1") for kind in OF_UPSTREAM), ("MPIJob", "v1"), ("MPIJob", "v2beta1")})


def courses(scenario: Scenario) -> set[str]:
    """What a scenario shows."""
    found = set()
    if scenario.ends:
        found.add("failure" if any(scenario.ends.values()) else "success")
    if scenario.ends and scenario.body()["spec"]["runPolicy"]["cleanPodPolicy"] == "All":
        found.add("clean-up")
    if scenario.moments == PAUSE:
        found.add("pause")
    return found


@pytest.mark.parametrize(("kind", "version"), KINDS)
def test_each_kind_is_recorded_with_every_course(kind: str, version: str) -> None:
    """But for the pause of an MXJob: the last release with that kind cannot suspend jobs."""
    every = {"success", "failure", "clean-up"} | ({"pause"} if kind != "MXJob" else set())
    scenarios = (each for group in SCENARIOS.values() for each in group)
    assert set().union(*(courses(each) for each in scenarios if (each.kind, each.version) == (kind, version))) == every
