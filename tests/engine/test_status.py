"""Merging of conditions, and parsing and formatting of times."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.builders import NOW, at, condition, stamp
from trainop.engine.status import Status, format_time
from trainop.runtime.clock import EARLIEST, LATEST, read_time


def types(status: Status) -> list[tuple[str, str]]:
    return [(entry["type"], entry["status"]) for entry in status.conditions]


@pytest.mark.case("job-engine-26", "ab")
def test_running_and_restarting_exclude_each_other_and_failure_is_final():
    status = Status(None, NOW)
    for type_ in ("Created", "Running", "Restarting", "Running", "Failed"):
        assert status.set(type_, f"X{type_}", "text")
    assert types(status) == [("Created", "True"), ("Running", "False"), ("Failed", "True")]
    assert not status.set("Running", "XRunning", "again")
    assert not status.set("Succeeded", "XSucceeded", "text")
    assert not status.set("Failed", "other", "text")
    assert types(status) == [("Created", "True"), ("Running", "False"), ("Failed", "True")]


@pytest.mark.case("job-engine-26", "c")
def test_the_same_again_keeps_the_first_message_and_times():
    status = Status({"conditions": [condition("Running", reason="R", message="first")]}, at(60))
    assert not status.set("Running", "R", "second")
    assert status.changed() is None


def test_another_reason_keeps_the_transition_time():
    status = Status({"conditions": [condition("Running", reason="R"), condition("Created")]}, at(60))
    assert status.set("Running", "S", "second")
    assert types(status) == [("Created", "True"), ("Running", "True")]
    entry = status.conditions[-1]
    assert (entry["lastTransitionTime"], entry["lastUpdateTime"]) == (stamp(), stamp(60))


def test_another_status_sets_both_times():
    status = Status({"conditions": [condition("Suspended", reason="R")]}, at(60))
    assert status.set("Suspended", "R", "text", status="False")
    entry = status.conditions[-1]
    assert (entry["lastTransitionTime"], entry["lastUpdateTime"]) == (stamp(60), stamp(60))


@pytest.mark.parametrize("end", ["Succeeded", "Failed"])
def test_the_end_turns_running_false_and_drops_restarting(end: str):
    running = Status({"conditions": [condition("Running", message="m")]}, at(60))
    running.set(end, "R", "text")
    assert running.conditions[0] == {**condition("Running", message="m"), "status": "False"}
    restarting = Status({"conditions": [condition("Restarting")]}, NOW)
    restarting.set(end, "R", "text")
    assert types(restarting) == [(end, "True")]


def test_a_condition_without_times_gets_them():
    status = Status({"conditions": [{"type": "Running", "status": "True"}]}, NOW)
    status.set("Running", "R", "text")
    assert status.conditions[0]["lastTransitionTime"] == stamp()


@pytest.mark.parametrize(
    "raw", [None, 7, [], "x", {"conditions": 3}, {"conditions": [1, None, {}]}, {"conditions": {}}]
)
def test_a_status_of_any_shape_is_read(raw: Any):
    status = Status(raw, NOW)
    assert not status.finished
    assert status.start_time is None
    status.retire_active()
    assert status.set("Created", "R", "text")
    again = Status(status.changed(), NOW)
    assert again.is_true("Created")
    assert again.changed() is None


def test_an_untouched_status_is_not_written():
    raw = {"conditions": [condition("Created")], "startTime": stamp(), "odd": 1}
    assert Status(raw, NOW).changed() is None
    assert Status(None, NOW).changed() is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2025-06-01T12:00:00Z", NOW),
        ("2025-06-01T14:00:00+02:00", NOW),
        ("2025-06-01T12:00:00.000000Z", NOW),
        ("2025-06-01T12:00:00", NOW),
        ("2025-06-01T12:00:00.123456789Z", NOW.replace(microsecond=123456)),
        # Python holds the years 1 to 9999; Go also writes 0000, and offsets that lead beyond them.
        ("0000-01-01T00:00:00Z", EARLIEST),
        ("0000-02-29T23:59:59.5-07:00", EARLIEST),
        ("0001-01-01T00:00:00Z", EARLIEST),
        ("0001-01-01T00:00:00+01:00", EARLIEST),
        ("9999-12-31T23:59:59-01:00", LATEST),
        ("0000-13-01T00:00:00Z", None),
        ("0000-02-30T00:00:00Z", None),
        ("10000-01-01T00:00:00Z", None),
        ("2025-06-01", None),
        ("2025-06-01T12:00:00+99:00", None),
        ("\uff12025-06-01T12:00:00Z", None),
        ("yesterday", None),
        ("", None),
        (None, None),
        (7, None),
    ],
)
def test_times_are_read_or_none(text: object, expected: datetime | None):
    assert read_time(text) == expected


def test_times_are_written_in_utc_and_whole_seconds():
    moment = datetime(2025, 1, 2, 3, 4, 5, 678_900, tzinfo=timezone(timedelta(hours=2)))
    assert format_time(moment) == "2025-01-02T01:04:05Z"
    assert format_time(datetime(2025, 1, 2, tzinfo=UTC)) == "2025-01-02T00:00:00Z"
    assert format_time(EARLIEST) == "0001-01-01T00:00:00Z"


@given(st.text(max_size=40) | st.from_regex(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", fullmatch=True))
def test_no_text_makes_the_reading_of_times_raise(text: str):
    at = read_time(text)
    assert at is None or EARLIEST <= at <= LATEST
    if at is not None:
        assert read_time(format_time(at)) == at.replace(microsecond=0)
