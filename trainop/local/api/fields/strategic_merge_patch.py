"""The strategic merge patch: merges lists by key (apimachinery `pkg/util/strategicpatch/patch.go`)."""

from __future__ import annotations

from typing import Any

from trainop.local.api.schema.shapes import Shape
from trainop.runtime import Json

_ORDER, _DELETE_PRIMITIVES = "$setElementOrder/", "$deleteFromPrimitiveList/"


class PatchError(Exception):
    """A patch that cannot be applied to the object; `code` is the HTTP status of the response."""

    code = 422


class MalformedPatchError(PatchError):
    """A patch that is invalid whatever the object is."""

    code = 400


def strategic_merge_patch(value: Json, patch: Json, shape: Shape) -> Json:
    """`value` after the patch, with lists merged according to `shape`.

    Supports the directives `$patch: delete|replace|merge`, `$retainKeys`, `$deleteFromPrimitiveList/<list>` and
    `$setElementOrder/<list>`. Raises `MalformedPatchError` for an unknown directive or a list item without its key.
    """
    if not isinstance(patch, dict):
        raise MalformedPatchError("a strategic merge patch must be an object")
    return _merge_map(value, patch, shape)


def _merge_map(value: Json, patch: Json, shape: Shape) -> Json:
    directive = patch.get("$patch")
    if directive in {"replace", "delete"}:
        return {name: change for name, change in patch.items() if name != "$patch"} if directive == "replace" else {}
    if directive not in {None, "merge"}:
        raise MalformedPatchError(f"unknown patch type: {directive}")
    merged = dict(value)
    if "$retainKeys" in patch:
        retained = patch["$retainKeys"]
        merged = {name: member for name, member in merged.items() if name in retained}
    for name, change in patch.items():
        _merge_member(merged, name, change, patch, shape)
    for name, order in patch.items():
        if name.startswith(_ORDER) and name.removeprefix(_ORDER) in merged:
            list_name = name.removeprefix(_ORDER)
            merged[list_name] = _apply_element_order(
                merged[list_name], order, value.get(list_name) or [], shape.member(list_name)
            )
    return merged


def _merge_member(merged: Json, name: str, change: Any, patch: Json, shape: Shape) -> None:
    """Merge one member of the patch, or one directive for a list, into `merged`."""
    if name.startswith(_DELETE_PRIMITIVES):
        list_name = name.removeprefix(_DELETE_PRIMITIVES)
        if list_name in merged:
            merged[list_name] = [item for item in merged[list_name] if item not in change]
        return
    if name in {"$patch", "$retainKeys"} or name.startswith(_ORDER):
        return
    position, old = shape.member(name), merged.get(name)
    if change is None:
        merged.pop(name, None)
    elif isinstance(change, dict):
        new = _merge_map(old if isinstance(old, dict) else {}, change, position)
        if change.get("$patch") == "delete":
            merged.pop(name, None)
        else:
            merged[name] = new
    elif isinstance(change, list):
        merged[name] = _merge_list(old if isinstance(old, list) else [], change, position, name)
    else:
        merged[name] = change


def _merge_list(old: list[Any], patch: list[Any], shape: Shape, name: str) -> list[Any]:
    if shape.merge_key:
        return _merge_items(old, patch, shape, name)
    if shape.set:
        merged = old + [item for item in dict.fromkeys(patch) if item not in old]
        return _apply_element_order(merged, patch, old, shape)
    return [item for item in patch if not (isinstance(item, dict) and "$patch" in item)]


def _merge_items(old: list[Any], patch: list[Any], shape: Shape, name: str) -> list[Any]:
    """The list of maps after the patch; the items of the patch are in the order of the patch."""
    key = shape.merge_key
    for change in patch:
        if not isinstance(change, dict):
            raise MalformedPatchError(f"list element in {name} is no object: {change!r}")
    if any(change.get("$patch") == "replace" for change in patch):
        return [change for change in patch if "$patch" not in change]
    merged = list(old)
    for change in patch:
        if key not in change:
            raise MalformedPatchError(f"map: {change} does not contain declared merge key: {key}")
        positions = [i for i, item in enumerate(merged) if isinstance(item, dict) and item.get(key) == change[key]]
        if change.get("$patch") == "delete":
            merged = [item for i, item in enumerate(merged) if i not in positions]
        elif positions and old:
            merged[positions[0]] = _merge_map(merged[positions[0]], change, shape.item)
        else:
            merged.append(_merge_map({}, change, shape.item))
    return (
        _apply_element_order(merged, [change for change in patch if "$patch" not in change], old, shape)
        if old
        else merged
    )


def _apply_element_order(merged: list[Any], wanted: list[Any], old: list[Any], shape: Shape) -> list[Any]:
    """`merged` with the items of `wanted` in that order, and the server-only items at their old position among these.

    A server-only item precedes a wanted one if both are in `old` and it preceded it there.
    """

    def identity(item: Any) -> Any:
        return item.get(shape.merge_key) if isinstance(item, dict) else item

    order = {identity(item): position for position, item in reversed(list(enumerate(wanted)))}
    old_position = {identity(item): position for position, item in reversed(list(enumerate(old)))}
    ordered = sorted((item for item in merged if identity(item) in order), key=lambda item: order[identity(item)])
    server_only = sorted(
        (item for item in merged if identity(item) not in order),
        key=lambda item: old_position.get(identity(item), len(old)),
    )
    result: list[Any] = []
    for item in ordered:
        position = old_position.get(identity(item), -1)
        while server_only and old_position.get(identity(server_only[0]), len(old)) < position:
            result.append(server_only.pop(0))
        result.append(item)
    return result + server_only
