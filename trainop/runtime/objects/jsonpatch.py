"""Computes the JSON patch (RFC 6902) between two JSON values, such as an admission webhook's mutation of an object."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainop.runtime.objects.metadata import Json


def diff(before: Any, after: Any) -> list[Json]:
    """The patch operations that turn `before` into `after`; empty if both are equal JSON. Mutates neither.

    For lists, the common prefix and the common suffix are left out of the patch.
    """
    return list(_changes("", before, after))


def escape(name: str) -> str:
    """Escapes a field name as one segment of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def equal_json(one: Any, other: Any) -> bool:
    """Whether both values are equal as JSON. Unlike `==` in Python, `true` differs from `1`, and `1` from `1.0`."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal_json(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(equal_json, one, other))
    return type(one) is type(other) and bool(one == other)


def _changes(path: str, before: Any, after: Any) -> Iterator[Json]:
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _changes_of_object(path, before, after)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _changes_of_list(path, before, after)
    elif not equal_json(before, after):
        yield {"op": "replace", "path": path, "value": after}


def _changes_of_object(path: str, before: Json, after: Json) -> Iterator[Json]:
    for name, value in before.items():
        place = f"{path}/{escape(name)}"
        if name in after:
            yield from _changes(place, value, after[name])
        else:
            yield {"op": "remove", "path": place}
    for name, value in after.items():
        if name not in before:
            yield {"op": "add", "path": f"{path}/{escape(name)}", "value": value}


def _changes_of_list(path: str, before: list[Any], after: list[Any]) -> Iterator[Json]:
    shorter = min(len(before), len(after))
    head = 0
    while head < shorter and equal_json(before[head], after[head]):
        head += 1
    tail = 0
    while tail < shorter - head and equal_json(before[-1 - tail], after[-1 - tail]):
        tail += 1
    common = shorter - tail
    for index in range(head, common):
        yield from _changes(f"{path}/{index}", before[index], after[index])
    for index in range(len(before) - tail - 1, common - 1, -1):  # last first, so that the remaining indices stay valid
        yield {"op": "remove", "path": f"{path}/{index}"}
    for index in range(common, len(after) - tail):
        yield {"op": "add", "path": f"{path}/{index}", "value": after[index]}
