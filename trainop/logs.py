"""Logs: structlog to standard error, one line per entry, as zap did it for the old operators.

Entries are constant lower-case phrases with keys. Common keys: `controller`, `job` (`<ns>.<job>`), `uid`,
`replica-type`, `pod`, `service`, `error`.
"""

from __future__ import annotations

import logging
import reprlib
import sys
from collections.abc import Callable, Mapping, MutableMapping, Sized
from datetime import UTC, datetime
from typing import Any, TextIO

import structlog

from trainop.runtime.clock import Clock, SystemClock
from trainop.runtime.texts import LONGEST, cut
from trainop.settings import LogSettings

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "error": logging.ERROR, "panic": logging.CRITICAL}
_Entry = MutableMapping[str, Any]

LONGEST_STACK = 16 * 1024
"""Bytes of a traceback or a stack; its end says most."""

_STACKS = frozenset({"exception", "stack"})
_SHORTENER = reprlib.Repr()
"""Writes no more of a large list than its beginning, and no more than a few levels of a deep one."""


def configure_logs(settings: LogSettings, stream: TextIO | None = None, clock: Clock | None = None) -> None:
    """Send every entry, those of the standard library's loggers included, to `stream` (standard error)."""
    level = _LEVELS[settings.level or ("debug" if settings.devel else "info")]
    out = stream or sys.stderr
    renderer, shared = _chain(settings, out, clock or SystemClock())
    structlog.configure(
        processors=[*shared, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(out),
    )
    handler = logging.StreamHandler(out)
    final = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer]
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=final, foreign_pre_chain=shared))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(level, logging.INFO))


def _chain(settings: LogSettings, out: TextIO, clock: Clock) -> tuple[list[Any], list[Any]]:
    """The processors that make the line, and those before them."""
    console = (settings.encoder or ("console" if settings.devel else "json")) == "console"
    key = "timestamp" if console else "ts"
    shared = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        _stamp(key, TIME_ENCODINGS[settings.time_encoding], clock),
        _stacks_from(_LEVELS[settings.stacktrace_level]),
        structlog.processors.StackInfoRenderer(),
    ]
    bounded = [structlog.processors.format_exc_info, _cut_values]
    if console:
        plain = structlog.dev.plain_traceback  # the pretty one prints local variables, among them tokens
        return [*bounded, structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=plain)], shared
    return [
        *bounded,
        structlog.processors.EventRenamer("msg"),
        structlog.processors.JSONRenderer(default=str),
    ], shared


def _cut_values(_logger: Any, _method: str, entry: _Entry) -> _Entry:
    """Whatever somebody has written into an object, a line of the log stays readable."""
    for name, value in entry.items():
        if name in _STACKS and isinstance(value, str):
            entry[name] = cut(value, LONGEST_STACK, end=LONGEST_STACK // 2)
        elif isinstance(value, str):
            entry[name] = cut(value)
        elif not _is_short(value):
            entry[name] = cut(_SHORTENER.repr(value) if isinstance(value, Sized) else str(value))
    return entry


def _is_short(value: object) -> bool:
    """Whether the texts in it are no longer than one text may be. No more of it is looked at than that takes."""
    size, stack = 0, [value]
    while stack and size <= LONGEST:
        each = stack.pop()
        if isinstance(each, Mapping):
            stack += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple | set | frozenset):
            stack += each
        size += 2 + (len(each) if isinstance(each, Sized) else len(str(each)))
    return size <= LONGEST


def _iso(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"


TIME_ENCODINGS: Mapping[str, Callable[[datetime], str | float]] = {
    "epoch": datetime.timestamp,
    "millis": lambda at: at.timestamp() * 1e3,
    "nano": lambda at: round(at.timestamp() * 1e9),
    "nanos": lambda at: round(at.timestamp() * 1e9),
    "iso8601": _iso,
    "rfc3339": lambda at: at.strftime("%Y-%m-%dT%H:%M:%SZ"),
    "rfc3339nano": lambda at: at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
}
"""`--zap-time-encoding`: from an instant in UTC to what the entry shows."""


def _stamp(key: str, encode: Callable[[datetime], str | float], clock: Clock) -> Callable[[Any, str, _Entry], _Entry]:
    def stamp(_logger: Any, _method: str, entry: _Entry) -> _Entry:
        entry[key] = encode(clock.now().astimezone(UTC))
        return entry

    return stamp


def _stacks_from(level: int) -> Callable[[Any, str, _Entry], _Entry]:
    """Add the call stack to entries of `level` and above; an entry about an exception has its traceback anyway."""

    def add_stack(_logger: Any, method: str, entry: _Entry) -> _Entry:
        if getattr(logging, method.upper(), logging.ERROR) >= level and not entry.get("exc_info"):
            entry.setdefault("stack_info", True)
        return entry

    return add_stack
