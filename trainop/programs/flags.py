"""Parser for command-line flags with the syntax of Go's `flag` package, so that arguments of training-operator work.

`-x` equals `--x`, and `--x=v` equals `--x v`. The value of a boolean flag must follow `=`. Parsing stops at the first
non-flag argument or after `--` (Go `src/flag/flag.go`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, TypeVar

from trainop.errors import UsageError

S = TypeVar("S")

_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})


class HelpRequested(Exception):  # noqa: N818  # not an error: the user requested the usage text
    """The arguments include `-h`, `-help` or `--help`."""


@dataclass(frozen=True, slots=True)
class Flag:
    """Definition of a flag.

    `parse` converts the text of the value, and raises `ValueError` with a reason. `kind` is the type name in the usage
    text.
    """

    name: str
    default: Any
    help: str
    parse: Callable[[str], Any]
    kind: str = ""
    boolean: bool = False
    repeatable: bool = False
    """Whether each occurrence appends to a tuple; otherwise the last one is used."""
    field: str = ""
    """The path of the setting that the flag sets, such as `options.gang`, whose default is that of the flag. Empty: the
    program reads the value itself, or ignores it."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """The result of `parse_flags`: values of the given flags by name, and the arguments after the flags."""

    values: dict[str, Any]
    rest: tuple[str, ...]


def parse_boolean(text: str) -> bool:
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError("parse error")


def parse_integer(text: str) -> int:
    """Parses a decimal integer, or a hexadecimal, octal or binary one with its prefix."""
    try:
        return int(text, 0)
    except ValueError:
        raise ValueError("parse error") from None


def parse_port(text: str) -> int:
    port = parse_integer(text)
    if not 0 <= port <= 65535:
        raise ValueError("must be between 0 and 65535")
    return port


def split_names(text: str) -> tuple[str, ...]:
    """The names in a list that commas separate, each once."""
    return tuple(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))


def parse_positive(text: str) -> int:
    number = parse_integer(text)
    if number < 1:
        raise ValueError("must be at least 1")
    return number


def parse_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("parse error") from None


def one_of(*choices: str) -> Callable[[str], str]:
    """A parser that accepts one of `choices` (lower case), ignoring case."""

    def parse(text: str) -> str:
        if text.lower() in choices:
            return text.lower()
        raise ValueError(f"must be one of {', '.join(choices)}")

    return parse


def text_flag(name: str, default: str, text: str) -> Flag:
    return Flag(name, default, text, str, "string")


def boolean_flag(name: str, *, default: bool, text: str) -> Flag:
    return Flag(name, default, text, parse_boolean, boolean=True)


def setting(
    name: str, text: str, parse: Callable[[str], Any] = str, kind: str = "string", *, field: str = "", **more: bool
) -> Flag:
    """A flag of a setting, by default of the same name. `bind` adds its default."""
    return Flag(name, None, text, parse, kind, field=field or name.replace("-", "_"), **more)


def switch(name: str, text: str, *, field: str = "") -> Flag:
    """A boolean `setting`."""
    return setting(name, text, parse_boolean, "", field=field, boolean=True)


def bind(settings: object, flags: Iterable[Flag]) -> tuple[Flag, ...]:
    """The flags, with the defaults that `settings` has."""
    return tuple(replace(flag, default=attrgetter(flag.field)(settings)) if flag.field else flag for flag in flags)


def assign(settings: S, flags: Iterable[Flag], values: Mapping[str, Any]) -> S:
    """The settings with the values of those flags that are given, by name."""
    for flag in flags:
        if flag.field and flag.name in values:
            settings = _put(settings, flag.field.split("."), values[flag.name])
    return settings


def _put(settings: Any, path: Sequence[str], value: object) -> Any:
    name, *rest = path
    return replace(settings, **{name: _put(getattr(settings, name), rest, value) if rest else value})


def parse_flags(flags: Iterable[Flag], args: Sequence[str]) -> Parsed:
    """Parses `args`. Raises `UsageError` with the messages of Go, and `HelpRequested` for `-h`."""
    known = {flag.name: flag for flag in flags}
    values: dict[str, Any] = {}
    queue = list(args)
    while queue and len(queue[0]) > 1 and queue[0].startswith("-"):
        arg = queue.pop(0)
        if arg == "--":
            break
        name, equals, text = arg.removeprefix("-").removeprefix("-").partition("=")
        if not name or name.startswith("-"):
            raise UsageError(f"bad flag syntax: {arg}")
        flag = _find_flag(known, name)
        if not equals:
            text = _take_value(flag, queue)
        _store_value(values, flag, text)
    return Parsed(values, tuple(queue))


def _find_flag(known: dict[str, Flag], name: str) -> Flag:
    flag = known.get(name)
    if flag is None:
        if name in {"help", "h"}:
            raise HelpRequested
        raise UsageError(f"flag provided but not defined: -{name}")
    return flag


def _take_value(flag: Flag, queue: list[str]) -> str:
    if flag.boolean:
        return "true"
    if not queue:
        raise UsageError(f"flag needs an argument: -{flag.name}")
    return queue.pop(0)


def _store_value(values: dict[str, Any], flag: Flag, text: str) -> None:
    try:
        value = flag.parse(text)
    except ValueError as error:
        lead = f'invalid boolean value "{text}" for' if flag.boolean else f'invalid value "{text}" for flag'
        raise UsageError(f"{lead} -{flag.name}: {error}") from None
    values[flag.name] = (*values.get(flag.name, ()), value) if flag.repeatable else value


def usage(program: str, flags: Iterable[Flag]) -> str:
    """The usage text in the format of Go: each flag with its type, help and default."""
    lines = [f"Usage of {program}:"]
    for flag in sorted(flags, key=lambda flag: flag.name):
        lines.append(f"  --{flag.name} {flag.kind}".rstrip())
        shown = f' (default "{flag.default}")' if isinstance(flag.default, str) else f" (default {flag.default})"
        lines.append(f"    \t{flag.help}{shown if flag.default not in (None, '', (), False) else ''}")
    return "\n".join(lines)
