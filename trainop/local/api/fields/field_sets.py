"""Field sets in the format `fieldsV1` of `managedFields`, and merging of values by field sets.

A port of the parts of structured-merge-diff (`fieldpath`, `typed`) that server-side apply needs. A set is a tree of
path elements: `f:<name>` for a member of a map, `k:<key>` for an item of a list of type map, `v:<value>` for an item of
a list of type set. A leaf is a member of the set; an inner node is one if it has the child `.`. The empty set is None.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec

from trainop.local.api.schema.shapes import Shape

FieldSet: TypeAlias = dict[str, Any]
"""A node of the tree, which is itself a set."""

ABSENT: Any = object()


class UnmergeableError(ValueError):
    """The items of an associative list cannot be identified, such as for a missing key; the message is upstream's."""


# Sets -----------------------------------------------------------------------------------------------------------------


def is_member(fields: FieldSet | None) -> bool:
    """Whether the node itself, as opposed to a descendant, is a member of the set."""
    return fields is not None and (not fields or "." in fields)


def children_of(fields: FieldSet | None) -> FieldSet:
    """The children of a node, without the marker `.`."""
    return {name: child for name, child in (fields or {}).items() if name != "."}


def make_node(member: bool, children: FieldSet) -> FieldSet | None:
    """The node with these children, itself a member of the set if `member`; None if it would be empty."""
    if not children:
        return {} if member else None
    return {".": {}, **children} if member else children


def union(left: FieldSet | None, right: FieldSet | None) -> FieldSet | None:
    """The members of either set."""
    if left is None or right is None:
        return right if left is None else left
    children = children_of(left)
    for name, child in children_of(right).items():
        children[name] = union(children.get(name), child) or {}
    return make_node(is_member(left) or is_member(right), children)


def difference(left: FieldSet | None, right: FieldSet | None) -> FieldSet | None:
    """The members of the left set that are not members of the right one; removing a node keeps its descendants."""
    if left is None or right is None:
        return left
    children = {name: difference(child, right.get(name)) for name, child in children_of(left).items()}
    return make_node(is_member(left) and not is_member(right), {n: c for n, c in children.items() if c is not None})


def intersection(left: FieldSet | None, right: FieldSet | None) -> FieldSet | None:
    """The members of both sets."""
    if left is None or right is None:
        return None
    children = {name: intersection(child, right.get(name)) for name, child in children_of(left).items()}
    return make_node(is_member(left) and is_member(right), {n: c for n, c in children.items() if c is not None})


def paths(fields: FieldSet | None, prefix: str = "") -> Iterator[str]:
    """The members in the notation of conflict messages, such as `.spec.containers[name="a"].image`, in order."""
    for name, child in sorted(children_of(fields).items()):
        if is_member(child):
            yield prefix + _path_element_text(name)
    for name, child in sorted(children_of(fields).items()):
        yield from paths(child, prefix + _path_element_text(name))


def _path_element_text(element: str) -> str:
    kind, content = element[0], element[2:]
    if kind == "f":
        return f".{content}"
    if kind == "v":
        return f"[={content}]"
    key = msgspec.json.decode(content)
    return "[" + ",".join(f"{name}={msgspec.json.encode(key[name]).decode()}" for name in sorted(key)) + "]"


# Values ---------------------------------------------------------------------------------------------------------------


def path_element(shape: Shape, item: Any) -> str:
    """The path element of an item of an associative list; raises `UnmergeableError`."""
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


def items_by_element(shape: Shape, items: list[Any]) -> dict[str, list[Any]]:
    """The items of an associative list by path element; several items where a key is repeated."""
    found: dict[str, list[Any]] = {}
    for item in items:
        found.setdefault(path_element(shape, item), []).append(item)
    return found


def is_granular(shape: Shape, value: Any) -> bool:
    """Whether the parts of the value can have different managers: it is a granular map or an associative list."""
    if isinstance(value, dict):
        return not shape.atomic
    return isinstance(value, list) and (shape.set or bool(shape.keys))


def to_field_set(shape: Shape, value: Any) -> FieldSet | None:
    """The set of all fields that an applied value specifies (`ToFieldSet` upstream)."""
    if not is_granular(shape, value):
        return {}
    children: FieldSet = {}
    if isinstance(value, dict):
        for name, member in value.items():
            inner = to_field_set(shape.member(name), member)
            is_leaf = member is None or member == {} or not shape.declares(name)
            if (child := make_node(is_leaf or is_member(inner), children_of(inner))) is not None:
                children[f"f:{name}"] = child
        return make_node(False, children)
    for element, items in items_by_element(shape, value).items():
        inner = to_field_set(shape.item, items[0]) if len(items) == 1 else None
        children[element] = make_node(True, children_of(inner)) or {}
    return make_node(False, children)


def ensure_named_fields_are_members(fields: FieldSet | None, shape: Shape) -> FieldSet | None:
    """The set plus every declared field that contains a member: with `spec.replicas` also `spec` (as upstream)."""
    if fields is None:
        return None
    children: FieldSet = {}
    for element, child in children_of(fields).items():
        name = element[2:]
        is_field = element.startswith("f:")
        inner = ensure_named_fields_are_members(child, shape.member(name) if is_field else shape.item)
        member = is_member(child) or (is_field and shape.declares(name))
        children[element] = make_node(member, children_of(inner)) or {}
    return make_node(is_member(fields), children)


def compare(shape: Shape, old: Any, new: Any) -> tuple[FieldSet | None, FieldSet | None]:
    """The sets of fields that were changed or added, and of fields that were removed."""
    if old is not ABSENT and new is not ABSENT and old == new:
        return None, None
    if not _both_granular(shape, old, new):
        return (None, {}) if new is ABSENT else ({}, None)
    changed: FieldSet = {}
    removed: FieldSet = {}
    for element, inner, was, now in _paired_children(shape, old, new):
        part_changed, part_removed = compare(inner, was, now)
        if part_changed is not None:
            changed[element] = part_changed
        if part_removed is not None:
            removed[element] = part_removed
    return make_node(old is ABSENT, changed), make_node(new is ABSENT, removed)


def _both_granular(shape: Shape, old: Any, new: Any) -> bool:
    """Whether both sides are granular maps or associative lists, and not both empty; absent and null count as empty."""
    sides = [side for side in (old, new) if side is not ABSENT and side is not None]
    if not any(sides) or not all(is_granular(shape, side) for side in sides):
        return False
    return len({type(side) for side in sides}) == 1


def _paired_children(shape: Shape, old: Any, new: Any) -> Iterator[tuple[str, Shape, Any, Any]]:
    """The children of two values side by side: path element, shape, old value, new value."""
    old = old if old is not ABSENT else None
    new = new if new is not ABSENT else None
    if isinstance(old, dict) or isinstance(new, dict):
        old, new = old or {}, new or {}
        for name in sorted(old.keys() | new.keys()):
            yield f"f:{name}", shape.member(name), old.get(name, ABSENT), new.get(name, ABSENT)
        return
    before, after = items_by_element(shape, old or []), items_by_element(shape, new or [])
    for element in sorted(before.keys() | after.keys()):
        was, now = before.get(element, []), after.get(element, [])
        if len(was) <= 1 and len(now) <= 1:
            yield element, shape.item, was[0] if was else ABSENT, now[0] if now else ABSENT
        else:
            yield element, Shape(atomic=True), was or ABSENT, now or ABSENT


def merge(shape: Shape, live: Any, applied: Any) -> Any:
    """The live value merged with the applied value; new list items take their position from the applied list."""
    if live is ABSENT or not (is_granular(shape, applied) and type(live) is type(applied)):
        return live if applied is None and isinstance(live, dict | list) else applied
    if isinstance(applied, dict):
        merged = {name: merge(shape.member(name), live.get(name, ABSENT), value) for name, value in applied.items()}
        return {**live, **merged}
    return _merge_items(shape, live, applied)


def _merge_items(shape: Shape, live: list[Any], applied: list[Any]) -> list[Any]:
    """The items of both lists: shared items in applied order, live-only items after their live predecessors."""
    names = [path_element(shape, item) for item in live]
    by_name = dict(zip(names, live, strict=True))
    wanted = dict(zip((path_element(shape, item) for item in applied), applied, strict=True))
    shared = [name for name in wanted if name in by_name]
    merged: list[Any] = []
    position = 0
    for name, item in wanted.items():
        while position < len(live) and names[position] != name:
            if names[position] in wanted and shared and names[position] == shared[0]:
                break
            if names[position] not in wanted:
                merged.append(live[position])
            position += 1
        if shared and shared[0] == name:
            shared.pop(0)
        if position < len(live) and names[position] == name:
            position += 1
        merged.append(merge(shape.item, by_name.get(name, ABSENT), item))
    return merged + [item for name, item in zip(names[position:], live[position:], strict=True) if name not in wanted]


def remove(shape: Shape, value: Any, fields: FieldSet | None, owned: FieldSet | None = None) -> Any:
    """The value without the members of the set; a container emptied by that becomes None, unless it is in `owned`."""
    if fields is None or not value or not is_granular(shape, value):
        return value
    kept: Any
    if isinstance(value, dict):
        members = {
            name: remove(shape.member(name), member, fields.get(f"f:{name}"), (owned or {}).get(f"f:{name}"))
            for name, member in value.items()
            if not is_member(fields.get(f"f:{name}"))
        }
        kept = {name: member for name, member in members.items() if member is not None or value[name] is None}
    else:
        kept = [
            remove(shape.item, item, fields.get(element), (owned or {}).get(element))
            for element, item in ((path_element(shape, item), item) for item in value)
            if not is_member(fields.get(element))
        ]
    return kept if kept or is_member(owned) else None
