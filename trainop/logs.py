"""The settings of the log, which all programs share, and how they are applied to the logging of the runtime.

Entries are constant lower-case phrases with keys. Common keys: `controller`, `job` (`<namespace>.<name>`), `uid`,
`replica-type`, `pod`, `service`, `error`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TextIO

from trainop.runtime import Clock, configure_logging
from trainop.runtime.lowlevel import iso8601

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "error": logging.ERROR, "panic": logging.CRITICAL}


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The `--zap-*` flags of controller-runtime, as far as they apply."""

    devel: bool = True
    encoder: str | None = None
    """`json` or `console`; None is console if `devel`, else json."""
    level: str | None = None
    """`debug`, `info` or `error`; None is debug if `devel`, else info."""
    stacktrace_level: str = "panic"
    time_encoding: str = "rfc3339"


def configure_logs(settings: LogSettings, stream: TextIO | None = None, clock: Clock | None = None) -> None:
    """Configures structlog and the standard library's loggers to write to `stream` (default: stderr)."""
    configure_logging(
        _LEVELS[settings.level or ("debug" if settings.devel else "info")],
        json=(settings.encoder or ("console" if settings.devel else "json")) == "json",
        stream=stream,
        time=TIME_ENCODINGS[settings.time_encoding],
        stacks_from=_LEVELS[settings.stacktrace_level],
        clock=clock,
    )


TIME_ENCODINGS: Mapping[str, Callable[[datetime], str | float]] = {
    "epoch": datetime.timestamp,
    "millis": lambda at: at.timestamp() * 1e3,
    "nano": lambda at: round(at.timestamp() * 1e9),
    "nanos": lambda at: round(at.timestamp() * 1e9),
    "iso8601": iso8601,
    "rfc3339": lambda at: at.strftime("%Y-%m-%dT%H:%M:%SZ"),
    "rfc3339nano": lambda at: at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
}
"""Formatters of UTC timestamps by the value of `--zap-time-encoding`."""
