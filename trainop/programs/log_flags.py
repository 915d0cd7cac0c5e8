"""The flags of the log, which all programs share: those of controller-runtime (`pkg/log/zap`)."""

from __future__ import annotations

from trainop.programs.flags import one_of, setting, switch


def _parse_level(text: str) -> str:
    """Parses a level, or a verbosity above 0, which means debug."""
    if text.lower() in {"debug", "info", "error"}:
        return text.lower()
    if text.isdecimal() and int(text) > 0:
        return "debug"
    raise ValueError(f'invalid log level "{text}"')


ZAP_FLAGS = (
    switch(
        "zap-devel",
        "Development defaults: encoder console, level debug; if false: json, info.",
        field="logs.devel",
    ),
    setting("zap-encoder", "'json' or 'console'.", one_of("json", "console"), "value", field="logs.encoder"),
    setting(
        "zap-log-level",
        "'debug', 'info', 'error', or a number above 0, which means debug.",
        _parse_level,
        "value",
        field="logs.level",
    ),
    setting(
        "zap-stacktrace-level",
        "The lowest level with stack traces: 'info', 'error' or 'panic'.",
        one_of("info", "error", "panic"),
        "value",
        field="logs.stacktrace_level",
    ),
    setting(
        "zap-time-encoding",
        "'epoch', 'millis', 'nanos', 'iso8601', 'rfc3339' or 'rfc3339nano'.",
        one_of("epoch", "millis", "nano", "nanos", "iso8601", "rfc3339", "rfc3339nano"),
        "value",
        field="logs.time_encoding",
    ),
)
