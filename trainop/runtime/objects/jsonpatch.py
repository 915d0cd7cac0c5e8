"""The difference of two JSON values as a JSON patch (RFC 6902)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainop.runtime.objects.metadata import Json


def diff(before: Any, after: Any) -> list[Json]:
    """The operations that make `after` of `before`; empty if they are the same JSON. Both are left as they are.

    Of lists only the part between their common beginning and their common end is written.
    """
    return list(_changes("", before, after))


def escape(name: str) -> str:
    """One step of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def same(one: Any, other: Any) -> bool:
    """Whether both are the same JSON: unlike in Python, true is not 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


def _changes(path: str, before: Any, after: Any) -> Iterator[Json]:
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _changes_of_object(path, before, after)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _changes_of_list(path, before, after)
    elif not same(before, after):
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
    while head < shorter and same(before[head], after[head]):
        head += 1
    tail = 0
    while tail < shorter - head and same(before[-1 - tail], after[-1 - tail]):
        tail += 1
    common = shorter - tail
    for index in range(head, common):
        yield from _changes(f"{path}/{index}", before[index], after[index])
    for index in range(len(before) - tail - 1, common - 1, -1):  # from the end, so that no index moves
        yield {"op": "remove", "path": f"{path}/{index}"}
    for index in range(common, len(after) - tail):
        yield {"op": "add", "path": f"{path}/{index}", "value": after[index]}
