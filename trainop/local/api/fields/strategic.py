"""The strategic merge patch of Kubernetes: a merge patch that knows which lists are maps by a key."""

from __future__ import annotations

from typing import Any

from trainop.local.api.schema.shapes import Shape
from trainop.runtime.objects.metadata import Json

_ORDER, _DELETE_PRIMITIVES = "$setElementOrder/", "$deleteFromPrimitiveList/"


class PatchError(Exception):
    """A patch that cannot be applied; `code` is the HTTP status that the API server answers with."""

    code = 422


class MalformedPatchError(PatchError):
    """The patch itself is no patch."""

    code = 400


def strategic_merge_patch(value: Json, patch: Json, shape: Shape) -> Json:
    """`value` after the patch: lists merge as `shape` says, directives are obeyed.

    Directives are `$patch: delete|replace|merge`, `$retainKeys`, `$deleteFromPrimitiveList/<list>` and
    `$setElementOrder/<list>`. Raises `MalformedPatchError` for a directive that is none and `PatchError` for a list
    item without its key.
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
            listed = name.removeprefix(_ORDER)
            merged[listed] = _in_order(merged[listed], order, value.get(listed) or [], shape.member(listed))
    return merged


def _merge_member(merged: Json, name: str, change: Any, patch: Json, shape: Shape) -> None:
    """Bring one member of the patch into `merged`; directives that speak of a list count as members of that name."""
    if name.startswith(_DELETE_PRIMITIVES):
        listed = name.removeprefix(_DELETE_PRIMITIVES)
        if listed in merged:
            merged[listed] = [item for item in merged[listed] if item not in change]
        return
    if name in {"$patch", "$retainKeys"} or name.startswith(_ORDER):
        return
    place, old = shape.member(name), merged.get(name)
    if change is None:
        merged.pop(name, None)
    elif isinstance(change, dict):
        new = _merge_map(old if isinstance(old, dict) else {}, change, place)
        if change.get("$patch") == "delete":
            merged.pop(name, None)
        else:
            merged[name] = new
    elif isinstance(change, list):
        merged[name] = _merge_list(old if isinstance(old, list) else [], change, place, name)
    else:
        merged[name] = change


def _merge_list(old: list[Any], patch: list[Any], shape: Shape, name: str) -> list[Any]:
    if shape.merge_key:
        return _merge_items(old, patch, shape, name)
    if shape.set:
        merged = old + [item for item in dict.fromkeys(patch) if item not in old]
        return _in_order(merged, patch, old, shape)
    return [item for item in patch if not (isinstance(item, dict) and "$patch" in item)]


def _merge_items(old: list[Any], patch: list[Any], shape: Shape, name: str) -> list[Any]:
    """The list of maps after the patch, in the order of the patch as far as it goes."""
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
        places = [i for i, item in enumerate(merged) if isinstance(item, dict) and item.get(key) == change[key]]
        if change.get("$patch") == "delete":
            merged = [item for i, item in enumerate(merged) if i not in places]
        elif places and old:
            merged[places[0]] = _merge_map(merged[places[0]], change, shape.item)
        else:
            merged.append(_merge_map({}, change, shape.item))
    return _in_order(merged, [change for change in patch if "$patch" not in change], old, shape) if old else merged


def _in_order(merged: list[Any], wanted: list[Any], old: list[Any], shape: Shape) -> list[Any]:
    """`merged` with the wanted items in the wanted order, and the others where they stood in `old` among those.

    An item that only the server has comes before a wanted one if both are in `old` and it stood before it there.
    """

    def identity(item: Any) -> Any:
        return item.get(shape.merge_key) if isinstance(item, dict) else item

    order = {identity(item): place for place, item in reversed(list(enumerate(wanted)))}
    was = {identity(item): place for place, item in reversed(list(enumerate(old)))}
    ours = sorted((item for item in merged if identity(item) in order), key=lambda item: order[identity(item)])
    theirs = sorted(
        (item for item in merged if identity(item) not in order), key=lambda item: was.get(identity(item), len(old))
    )
    result: list[Any] = []
    for item in ours:
        place = was.get(identity(item), -1)
        while theirs and was.get(identity(theirs[0]), len(old)) < place:
            result.append(theirs.pop(0))
        result.append(item)
    return result + theirs
