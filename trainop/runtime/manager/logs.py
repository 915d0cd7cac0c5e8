"""Logging configuration: structlog and the standard library's loggers write one line per entry to one stream.

The default configuration of structlog prints the local variables of every frame in tracebacks if `rich` is installed;
these may contain tokens, passwords and Secrets. This configuration prints none, and truncates long values.
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
from trainop.runtime.texts import LONGEST_TEXT, cut

_Entry = MutableMapping[str, Any]

MAX_STACK = 16 * 1024
"""Bytes of a traceback or stack. Truncation keeps the end, which is the most informative."""

_STACKS = frozenset({"exception", "stack"})
_SHORTENER = reprlib.Repr()
"""Limits the number of items and levels of containers."""


def iso8601(at: datetime) -> str:
    """UTC time with milliseconds, e.g. `2025-06-01T12:00:00.123Z`."""
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"


def configure_logging(
    level: int = logging.INFO,
    *,
    json: bool = False,
    stream: TextIO | None = None,
    time: Callable[[datetime], str | float] = iso8601,
    stacks_from: int = logging.CRITICAL + 1,
    clock: Clock | None = None,
) -> None:
    """Configures structlog and the root logger to write entries of `level` and above to `stream` (default: stderr).

    Entries are text, or JSON with the keys `level`, `ts` and `msg`. Entries of the standard library's loggers are
    included from INFO on. `time` formats a UTC timestamp. Entries of level `stacks_from` and above include the call
    stack. Local variables are never printed.
    """
    out = stream or sys.stderr
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        _add_timestamp("ts" if json else "timestamp", time, clock or SystemClock()),
        _add_stacks(stacks_from),
        structlog.processors.StackInfoRenderer(),
    ]
    renderer = _renderer(json, out)
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


def _renderer(json: bool, out: TextIO) -> list[Any]:
    """The processors that format an entry as a line."""
    shortened = [structlog.processors.format_exc_info, _truncate_values]  # the traceback alone, without local variables
    if json:
        return [*shortened, structlog.processors.EventRenamer("msg"), structlog.processors.JSONRenderer(default=str)]
    plain = structlog.dev.plain_traceback
    return [*shortened, structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=plain)]


def _truncate_values(_logger: Any, _method: str, entry: _Entry) -> _Entry:
    """Limits the length of every value, because values may come from objects that users write."""
    for name, value in entry.items():
        if name in _STACKS and isinstance(value, str):
            entry[name] = cut(value, MAX_STACK, end=MAX_STACK // 2)
        elif isinstance(value, str):
            entry[name] = cut(value)
        elif not _is_short(value):
            entry[name] = cut(_SHORTENER.repr(value) if isinstance(value, Sized) else str(value))
    return entry


def _is_short(value: object) -> bool:
    """Whether all texts in `value` together fit into LONGEST_TEXT characters. Stops at the first that does not fit."""
    size, stack = 0, [value]
    while stack and size <= LONGEST_TEXT:
        each = stack.pop()
        if isinstance(each, Mapping):
            stack += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple | set | frozenset):
            stack += each
        size += 2 + (len(each) if isinstance(each, Sized) else len(str(each)))
    return size <= LONGEST_TEXT


def _add_timestamp(
    key: str, encode: Callable[[datetime], str | float], clock: Clock
) -> Callable[[Any, str, _Entry], _Entry]:
    def add_timestamp(_logger: Any, _method: str, entry: _Entry) -> _Entry:
        entry[key] = encode(clock.now().astimezone(UTC))
        return entry

    return add_timestamp


def _add_stacks(level: int) -> Callable[[Any, str, _Entry], _Entry]:
    """Adds the call stack to entries of `level` and above, unless they have a traceback."""

    def add_stack(_logger: Any, method: str, entry: _Entry) -> _Entry:
        if getattr(logging, method.upper(), logging.ERROR) >= level and not entry.get("exc_info"):
            entry.setdefault("stack_info", True)
        return entry

    return add_stack
