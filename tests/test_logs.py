"""The format of log lines for each combination of the zap flags."""

from __future__ import annotations

import io
import json
import logging
from datetime import UTC, datetime

import pytest
import structlog

from trainop.logs import TIME_ENCODINGS, LogSettings, configure_logs

AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


class Fixed:
    def now(self) -> datetime:
        return AT

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None: ...


def lines(settings: LogSettings) -> list[str]:
    """The lines of one entry of each level, one from the standard library, and one with an exception."""
    out = io.StringIO()
    configure_logs(settings, out, Fixed())
    log = structlog.get_logger()
    log.debug("looked", pods=3)
    log.info("created", pod="j-worker-0")
    logging.getLogger("aiohttp.server").warning("odd request from %s", "somewhere")
    try:
        int("a bug")
    except ValueError:
        log.exception("reconcile raised")
    return out.getvalue().splitlines()


def test_the_default_is_a_console_format_with_all_fields() -> None:
    entries = lines(LogSettings())
    assert entries[0].startswith("2026-01-02T03:04:05Z [debug    ] looked")
    assert entries[0].endswith("pods=3")
    assert "odd request from somewhere" in entries[2]
    assert "ValueError: invalid literal" in entries[-1]
    assert not any("\x1b" in line for line in entries), "colours are for terminals"


def test_without_devel_they_are_json_from_info_on() -> None:
    entries = [json.loads(line) for line in lines(LogSettings(devel=False))]
    assert entries[0] == {"ts": "2026-01-02T03:04:05Z", "level": "info", "msg": "created", "pod": "j-worker-0"}
    assert [entry["level"] for entry in entries] == ["info", "warning", "error"]
    assert entries[1]["msg"] == "odd request from somewhere"
    assert "ValueError: invalid literal" in entries[2]["exception"]


@pytest.mark.parametrize(
    ("settings", "levels"),
    [
        (LogSettings(encoder="json"), ["debug", "info", "warning", "error"]),
        (LogSettings(encoder="json", level="info"), ["info", "warning", "error"]),
        (LogSettings(encoder="json", level="error"), ["error"]),
        (LogSettings(devel=False, level="debug"), ["debug", "info", "warning", "error"]),
    ],
)
def test_encoder_and_level_go_before_devel(settings: LogSettings, levels: list[str]) -> None:
    assert [json.loads(line)["level"] for line in lines(settings)] == levels


def test_a_console_can_be_asked_for() -> None:
    assert lines(LogSettings(devel=False, encoder="console"))[0].startswith("2026-01-02T03:04:05Z [info     ] created")


@pytest.mark.parametrize(("level", "stacks"), [("panic", [0, 0]), ("error", [0, 0]), ("info", [1, 0])])
def test_stacks_are_shown_from_a_level_on(level: str, stacks: list[int]) -> None:
    entries = [json.loads(line) for line in lines(LogSettings(encoder="json", level="info", stacktrace_level=level))]
    assert ["stack" in entries[0], "stack" in entries[-1]] == [bool(n) for n in stacks], (
        "an exception has its own trace"
    )


def test_an_error_without_an_exception_shows_its_stack_if_asked_for() -> None:
    out = io.StringIO()
    configure_logs(LogSettings(encoder="json", stacktrace_level="error"), out, Fixed())
    structlog.get_logger().error("wrong")
    assert "test_logs" in json.loads(out.getvalue())["stack"]


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("epoch", AT.timestamp()),
        ("millis", AT.timestamp() * 1e3),
        ("nanos", round(AT.timestamp() * 1e9)),
        ("nano", round(AT.timestamp() * 1e9)),
        ("iso8601", "2026-01-02T03:04:05.678Z"),
        ("rfc3339", "2026-01-02T03:04:05Z"),
        ("rfc3339nano", "2026-01-02T03:04:05.678901Z"),
    ],
)
def test_time_is_shown_as_asked_for(encoding: str, shown: object) -> None:
    assert json.loads(lines(LogSettings(encoder="json", time_encoding=encoding))[0])["ts"] == shown
    assert encoding in TIME_ENCODINGS


HUGE: dict[str, object] = {
    "text": "x" * 1_000_000,
    "bytes": b"x" * 1_000_000,
    "list": ["x"] * 100_000,
    "texts": ["x" * 100_000] * 10,
    "dict": {f"k{number}": number for number in range(100_000)},
    "deep": [[[[["x" * 1_000_000]]]]],
    "error": ValueError("x" * 1_000_000),
}


@pytest.mark.parametrize("kind", HUGE)
@pytest.mark.parametrize("encoder", ["json", "console"])
def test_no_value_makes_a_line_long(kind: str, encoder: str) -> None:
    out = io.StringIO()
    configure_logs(LogSettings(encoder=encoder), out, Fixed())
    structlog.get_logger().warning("odd", value=HUGE[kind], pods=3)
    logging.getLogger("aiohttp.server").warning("odd %s", HUGE[kind])
    structlog.get_logger().warning("odd " + "y" * 1_000_000)
    entries = out.getvalue()
    assert len(entries) < 5_000
    assert "3" in entries.splitlines()[0]
    assert entries.count("left out)") >= 2


def test_short_values_are_left_as_they_are() -> None:
    out = io.StringIO()
    configure_logs(LogSettings(encoder="json"), out, Fixed())
    values: dict[str, object] = {"list": ["a", 1, None, 1.5, True, {"a": ["..."]}], "dict": {"b": []}, "none": None}
    structlog.get_logger().warning("odd", **values)
    assert json.loads(out.getvalue()).items() >= values.items()


@pytest.mark.parametrize("encoder", ["json", "console"])
def test_a_traceback_is_cut_in_the_middle(encoder: str) -> None:
    out = io.StringIO()
    configure_logs(LogSettings(encoder=encoder), out, Fixed())
    structlog.get_logger().error("reconcile raised", exc_info=ValueError("x" * 1_000_000 + " the end"))
    entries = out.getvalue()
    assert len(entries) < 20_000
    assert "ValueError: xxx" in entries
    assert "characters left out)xxx" in entries
    assert "xxx the end" in entries
