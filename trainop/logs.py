"""Applies the `--zap-*` flags of training-operator to the logging configuration of the runtime.

Entries are constant lower-case phrases with keys. Common keys: `controller`, `job` (`<namespace>.<name>`), `uid`,
`replica-type`, `pod`, `service`, `error`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TextIO

from trainop.runtime.clock import Clock
from trainop.runtime.manager.logs import configure_logging, iso8601
from trainop.settings import LogSettings

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "error": logging.ERROR, "panic": logging.CRITICAL}


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
