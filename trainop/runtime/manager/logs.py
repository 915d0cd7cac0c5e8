"""Logs: structlog and the standard library's loggers to one stream, one line per entry.

Without a set-up structlog prints tracebacks with the local variables of every frame if `rich` is installed: tokens,
passwords, the content of Secrets. This one prints none, and cuts what is long.
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

_Entry = MutableMapping[str, Any]

LONGEST_STACK = 16 * 1024
"""Bytes of a traceback or a stack; its end says most."""

_STACKS = frozenset({"exception", "stack"})
_SHORTENER = reprlib.Repr()
"""Writes no more of a large list than its beginning, and no more than a few levels of a deep one."""


def iso8601(at: datetime) -> str:
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
    """Send every entry of `level` and above, those of the standard library's loggers included (of these INFO and
    above), to `stream` (standard error): as text, or as JSON with the keys `level`, `ts`, `msg`.

    `time` makes of an instant in UTC what the entry shows. Entries from level `stacks_from` on have the call stack.
    Local variables are never printed.
    """
    out = stream or sys.stderr
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        _stamp("ts" if json else "timestamp", time, clock or SystemClock()),
        _stacks_from(stacks_from),
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
    """The processors that make the line."""
    bounded = [structlog.processors.format_exc_info, _cut_values]  # the traceback alone, without local variables
    if json:
        return [*bounded, structlog.processors.EventRenamer("msg"), structlog.processors.JSONRenderer(default=str)]
    plain = structlog.dev.plain_traceback
    return [*bounded, structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=plain)]


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
