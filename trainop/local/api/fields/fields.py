"""Sets of fields in the form that `managedFields[].fieldsV1` writes them, and where they come from.

A set is a tree: members of maps are `f:<name>`, items of lists that are maps `k:<key>`, of lists that are sets
`v:<value>`. A node without children is in the set; one with children is, if it has the child `.`. The empty set is
None.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec

from trainop.local.api.schema.shapes import Shape

Fields: TypeAlias = dict[str, Any]
"""One node of a set, which is a set itself."""

ABSENT: Any = object()


class UnmergeableError(ValueError):
    """A list that should be a map or a set is none: a key is missing, or occurs twice."""


# Sets -----------------------------------------------------------------------------------------------------------------


def contains(fields: Fields | None) -> bool:
    """Whether the node itself is in the set, whatever lies below it."""
    return fields is not None and (not fields or "." in fields)


def below(fields: Fields | None) -> Fields:
    """The children of a node."""
    return {name: child for name, child in (fields or {}).items() if name != "."}


def node(member: bool, children: Fields) -> Fields | None:
    """The node with these children, which is in the set itself if `member`; None if nothing is left of it."""
    if not children:
        return {} if member else None
    return {".": {}, **children} if member else children


def union(left: Fields | None, right: Fields | None) -> Fields | None:
    """What is in either set."""
    if left is None or right is None:
        return right if left is None else left
    children = below(left)
    for name, child in below(right).items():
        children[name] = union(children.get(name), child) or {}
    return node(contains(left) or contains(right), children)


def difference(left: Fields | None, right: Fields | None) -> Fields | None:
    """What is in the left set and not in the right one; a node may go while what is below it stays."""
    if left is None or right is None:
        return left
    children = {name: difference(child, right.get(name)) for name, child in below(left).items()}
    return node(contains(left) and not contains(right), {n: c for n, c in children.items() if c is not None})


def intersection(left: Fields | None, right: Fields | None) -> Fields | None:
    """What is in both sets."""
    if left is None or right is None:
        return None
    children = {name: intersection(child, right.get(name)) for name, child in below(left).items()}
    return node(contains(left) and contains(right), {n: c for n, c in children.items() if c is not None})


def paths(fields: Fields | None, prefix: str = "") -> Iterator[str]:
    """The members as messages write them: `.spec.containers[name="a"].image`; in order."""
    for name, child in sorted(below(fields).items()):
        if contains(child):
            yield prefix + _text(name)
    for name, child in sorted(below(fields).items()):
        yield from paths(child, prefix + _text(name))


def _text(element: str) -> str:
    kind, content = element[0], element[2:]
    if kind == "f":
        return f".{content}"
    if kind == "v":
        return f"[={content}]"
    key = msgspec.json.decode(content)
    return "[" + ",".join(f"{name}={msgspec.json.encode(key[name]).decode()}" for name in sorted(key)) + "]"


# Values ---------------------------------------------------------------------------------------------------------------


def element_of(shape: Shape, item: Any) -> str:
    """The name in a set of an item of a list that is a map or a set; raises `UnmergeableError`."""
    if shape.set:
        if isinstance(item, dict | list) or item is None:
            raise UnmergeableError("associative list without keys has an element that's no scalar")
        return f"v:{msgspec.json.encode(item).decode()}"
    if not isinstance(item, dict):
        raise UnmergeableError("associative list with keys may not have non-map elements")
    key = {name: item.get(name, shape.defaults.get(name, ABSENT)) for name in sorted(shape.keys)}
    key = {name: value for name, value in key.items() if value is not ABSENT}
    if not key:
        names = "[" + " ".join(f'"{name}"' for name in shape.keys) + "]"
        raise UnmergeableError(
            f"associative list with keys has an element that omits all key fields {names} "
            "(and doesn't have default values for any key fields)"
        )
    return f"k:{msgspec.json.encode(key).decode()}"


def index_items(shape: Shape, items: list[Any]) -> dict[str, list[Any]]:
    """The items of a list that is a map or a set by their names in a set; more than one where a key repeats."""
    found: dict[str, list[Any]] = {}
    for item in items:
        found.setdefault(element_of(shape, item), []).append(item)
    return found


def merges(shape: Shape, value: Any) -> bool:
    """Whether the value has parts with owners of their own."""
    if isinstance(value, dict):
        return not shape.atomic
    return isinstance(value, list) and (shape.set or bool(shape.keys))


def fields_of(shape: Shape, value: Any) -> Fields | None:
    """The set of all fields that an applied value names."""
    if not merges(shape, value):
        return {}
    children: Fields = {}
    if isinstance(value, dict):
        for name, member in value.items():
            inner = fields_of(shape.member(name), member)
            implied = member is None or member == {} or not shape.declares(name)
            if (child := node(implied or contains(inner), below(inner))) is not None:
                children[f"f:{name}"] = child
        return node(False, children)
    for element, items in index_items(shape, value).items():
        inner = fields_of(shape.item, items[0]) if len(items) == 1 else None
        children[element] = node(True, below(inner)) or {}
    return node(False, children)


def name_parents(fields: Fields | None, shape: Shape) -> Fields | None:
    """The set with every field that a type names and that holds a member: who owns `spec.replicas` has `spec`."""
    if fields is None:
        return None
    children: Fields = {}
    for element, child in below(fields).items():
        name = element[2:]
        is_field = element.startswith("f:")
        inner = name_parents(child, shape.member(name) if is_field else shape.item)
        member = contains(child) or (is_field and shape.declares(name))
        children[element] = node(member, below(inner)) or {}
    return node(contains(fields), children)


def compare(shape: Shape, old: Any, new: Any) -> tuple[Fields | None, Fields | None]:
    """What a change of a value changed or added, and what it removed."""
    if old is not ABSENT and new is not ABSENT and old == new:
        return None, None
    if not _compares_inside(shape, old, new):
        return (None, {}) if new is ABSENT else ({}, None)
    changed: Fields = {}
    removed: Fields = {}
    for element, inner, was, now in _parts(shape, old, new):
        part_changed, part_removed = compare(inner, was, now)
        if part_changed is not None:
            changed[element] = part_changed
        if part_removed is not None:
            removed[element] = part_removed
    return node(old is ABSENT, changed), node(new is ABSENT, removed)


def _compares_inside(shape: Shape, old: Any, new: Any) -> bool:
    """Both sides are maps, or lists with keys, and not both are empty; absent and null count as empty."""
    sides = [side for side in (old, new) if side is not ABSENT and side is not None]
    if not any(sides) or not all(merges(shape, side) for side in sides):
        return False
    return len({type(side) for side in sides}) == 1


def _parts(shape: Shape, old: Any, new: Any) -> Iterator[tuple[str, Shape, Any, Any]]:
    """The parts of two values side by side: name in a set, shape, old and new."""
    old = old if old is not ABSENT else None
    new = new if new is not ABSENT else None
    if isinstance(old, dict) or isinstance(new, dict):
        old, new = old or {}, new or {}
        for name in sorted(old.keys() | new.keys()):
            yield f"f:{name}", shape.member(name), old.get(name, ABSENT), new.get(name, ABSENT)
        return
    before, after = index_items(shape, old or []), index_items(shape, new or [])
    for element in sorted(before.keys() | after.keys()):
        was, now = before.get(element, []), after.get(element, [])
        if len(was) <= 1 and len(now) <= 1:
            yield element, shape.item, was[0] if was else ABSENT, now[0] if now else ABSENT
        else:
            yield element, Shape(atomic=True), was or ABSENT, now or ABSENT


def merge(shape: Shape, live: Any, applied: Any) -> Any:
    """The live value with what is applied brought in; new items of lists stand where the applied list has them."""
    if live is ABSENT or not (merges(shape, applied) and type(live) is type(applied)):
        return live if applied is None and isinstance(live, dict | list) else applied
    if isinstance(applied, dict):
        brought = {name: merge(shape.member(name), live.get(name, ABSENT), value) for name, value in applied.items()}
        return {**live, **brought}
    return _merge_items(shape, live, applied)


def _merge_items(shape: Shape, live: list[Any], applied: list[Any]) -> list[Any]:
    """Items of both lists: shared ones in the applied order, those of the live list alone behind what preceded them."""
    names = [element_of(shape, item) for item in live]
    by_name = dict(zip(names, live, strict=True))
    wanted = dict(zip((element_of(shape, item) for item in applied), applied, strict=True))
    shared = [name for name in wanted if name in by_name]
    merged: list[Any] = []
    place = 0
    for name, item in wanted.items():
        while place < len(live) and names[place] != name:
            if names[place] in wanted and shared and names[place] == shared[0]:
                break
            if names[place] not in wanted:
                merged.append(live[place])
            place += 1
        if shared and shared[0] == name:
            shared.pop(0)
        if place < len(live) and names[place] == name:
            place += 1
        merged.append(merge(shape.item, by_name.get(name, ABSENT), item))
    return merged + [item for name, item in zip(names[place:], live[place:], strict=True) if name not in wanted]


def remove(shape: Shape, value: Any, fields: Fields | None, owned: Fields | None = None) -> Any:
    """The value without the members of the set; what is emptied by that goes too (None), unless it is owned itself."""
    if fields is None or not value or not merges(shape, value):
        return value
    kept: Any
    if isinstance(value, dict):
        members = {
            name: remove(shape.member(name), member, fields.get(f"f:{name}"), (owned or {}).get(f"f:{name}"))
            for name, member in value.items()
            if not contains(fields.get(f"f:{name}"))
        }
        kept = {name: member for name, member in members.items() if member is not None or value[name] is None}
    else:
        kept = [
            remove(shape.item, item, fields.get(element), (owned or {}).get(element))
            for element, item in ((element_of(shape, item), item) for item in value)
            if not contains(fields.get(element))
        ]
    return kept if kept or contains(owned) else None
