"""The JSONPath dialect of printer columns, such as `.status.conditions[?(@.type=="Ready")].status`.

Source: client-go `util/jsonpath`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

import msgspec

Step = Callable[[list[Any]], list[Any]]

_STEP = re.compile(
    r"""\.?\[\?\(\s*@(?P<path>[^=!<>]*?)\s*(?:(?P<operator>==|!=|<=|>=|<|>)\s*(?P<literal>.+?)\s*)?\)\]  # [?(@.a=="b")]
    | \.?\[(?P<bounds>-?\d*:-?\d*(?::\d*)?)\]                              # [-1:]
    | \.?\[(?P<index>-?\d+(?:\s*,\s*-?\d+)*)\]                              # [0] and [0,2]
    | \.?\[(?P<quote>['"])(?P<quoted>(?:\\.|(?!(?P=quote)).)*)(?P=quote)\]  # ['a.b']
    | (?P<every>\.\*|\.?\[\*\])
    | (?P<deep>\.\.)
    | \.?(?P<name>(?:\\.|[^.\[\]\\])+)
    """,
    re.VERBOSE,
)
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}


def compile_path(path: str) -> Callable[[Any], list[Any]]:
    """A function that returns all values at `path`, empty if none; raises `ValueError` for an invalid path."""
    text = path.strip().removeprefix("{").removesuffix("}").removeprefix("$").removeprefix("@")
    steps: list[Step] = []
    position = 0
    while position < len(text) and text != ".":
        found = _STEP.match(text, position)
        if not found:
            raise ValueError(f"unrecognized JSONPath {path!r}")
        steps.append(_step(found))
        position = found.end()

    def find(value: Any) -> list[Any]:
        values = [value]
        for step in steps:
            values = step(values)
        return values

    return find


def _step(found: re.Match[str]) -> Step:
    """The evaluation step of one matched path segment."""
    if found["path"] is not None:
        return _filter(found)
    if found["bounds"] is not None:
        bounds = slice(*(int(bound) if bound else None for bound in found["bounds"].split(":")))
        return lambda values: [item for value in values if isinstance(value, list) for item in value[bounds]]
    if found["index"] is not None:
        return _indices([int(index) for index in found["index"].split(",")])
    if found["every"] is not None:
        return lambda values: [member for value in values for member in _members(value)]
    if found["deep"] is not None:
        return lambda values: [inner for value in values for inner in _descendants(value)]
    name = re.sub(r"\\(.)", r"\1", found["quoted"] if found["quoted"] is not None else found["name"])
    return lambda values: [value[name] for value in values if isinstance(value, dict) and name in value]


def _indices(indices: list[int]) -> Step:
    def step(values: list[Any]) -> list[Any]:
        lists = [value for value in values if isinstance(value, list)]
        return [value[index] for value in lists for index in indices if -len(value) <= index < len(value)]

    return step


def _filter(found: re.Match[str]) -> Step:
    inner, comparison = compile_path(found["path"]), _COMPARISONS.get(found["operator"] or "")
    literal = _literal(found["literal"]) if comparison else None

    def matches(item: Any) -> bool:
        values = inner(item)
        return bool(values) and (comparison is None or _holds(comparison, values[0], literal))

    return lambda values: [item for value in values for item in _members(value) if matches(item)]


def _literal(text: str) -> Any:
    if text[0] in "'\"" and text[-1] == text[0]:
        return text[1:-1]
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        raise ValueError(f"unrecognized value in a JSONPath filter: {text}") from None


def _holds(comparison: Callable[[Any, Any], bool], value: Any, literal: Any) -> bool:
    try:
        return comparison(value, literal)
    except TypeError:  # a string cannot be ordered with a number
        return False


def _members(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []


def _descendants(value: Any) -> list[Any]:
    return [value, *(inner for member in _members(value) for inner in _descendants(member))]
