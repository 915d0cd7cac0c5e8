"""Server-side apply: who owns which field (`metadata.managedFields`), and what that means for the next write."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from trainop.local.api.fields.fields import (
    Fields,
    UnmergeableError,
    compare,
    difference,
    fields_of,
    intersection,
    merge,
    name_parents,
    paths,
    remove,
    union,
)
from trainop.local.api.fields.managers import Manager, Managers
from trainop.local.api.schema.shapes import Shape
from trainop.runtime.objects.metadata import Json

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
"""The annotation in which `kubectl apply` without `--server-side` keeps what it sent."""

_UNOWNED: Fields = {
    "f:apiVersion": {},
    "f:kind": {},
    "f:metadata": {
        ".": {},
        "f:name": {},
        "f:namespace": {},
        "f:creationTimestamp": {},
        "f:selfLink": {},
        "f:uid": {},
        "f:generation": {},
        "f:managedFields": {},
        "f:resourceVersion": {},
    },
}
"""Fields that nobody owns."""


class ApplyConflictError(Exception):
    """409: other managers own fields that the applied object would change; `causes` go into `Status.details`."""

    def __init__(self, message: str, causes: list[Json]) -> None:
        super().__init__(message)
        self.message = message
        self.causes = causes


class MalformedApplyError(Exception):
    """400: the applied object cannot be read, such as one that carries managedFields or a key twice."""


def apply(
    current: Json | None,
    applied: Json,
    *,
    manager: str,
    force: bool,
    shape: Shape,
    time: str,
    subresource: str = "",
    ignored: Iterable[str] = (),
) -> Json:
    """The object after `manager` applied `applied` (its full intent) to `current`; None is an object not there yet.

    Fields that the manager applied before, that nobody else owns and that it no longer names, are removed.
    `ignored` are top-level fields that this endpoint does not write, such as `status` where it is a subresource.
    The result carries the new managedFields (`time` is RFC 3339); it equals `current` if nothing changed.
    Raises `ApplyConflictError` unless `force`, and `MalformedApplyError`.
    """
    if (applied.get("metadata") or {}).get("managedFields") is not None:
        raise MalformedApplyError("metadata.managedFields must be nil")
    intent = {name: value for name, value in applied.items() if name not in set(ignored)}
    live = _unmanaged(current or {})
    managers = Managers.of(current) if current else Managers()
    if current and not managers.entries:
        managers = _before_first_apply(live, intent["apiVersion"], shape, time)
    who = Manager(manager, "Apply", str(intent["apiVersion"]), subresource)
    try:
        merged = _merge(live, intent, managers, who, shape)
        changed, removed = compare(shape, live, merged)
        forced = force or _was_client_side(live, who, changed, managers, shape)
    except UnmergeableError as error:
        raise MalformedApplyError(f"failed to create typed patch object ({_named(intent)}): {error}") from None
    _yield_fields(managers, who, changed, removed, force=forced)
    managers.set_fields(who, difference(managers.fields(who), _UNOWNED))
    if current is None or merged != live:
        managers.set_time(who, time)
    return managers.written_to(_with_last_applied(merged, applied) if manager == "kubectl" else merged)


def _named(item: Json) -> str:
    """The object as the API server names it in such complaints."""
    metadata = item.get("metadata") or {}
    place = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    return f"{place}; {item.get('apiVersion')}, Kind={item.get('kind')}"


def _merge(live: Json, intent: Json, managers: Managers, who: Manager, shape: Shape) -> Json:
    """The new object; `who` owns what it names now, and in `managers` already does."""
    _refuse_repeated_keys(shape, intent, "")
    before = managers.fields(who)
    managers.set_fields(who, fields_of(shape, intent))
    merged: Json = merge(shape, live, intent)
    return _prune(merged, managers, name_parents(before, shape), shape) if before is not None else merged


def _prune(merged: Json, managers: Managers, before: Fields | None, shape: Shape) -> Json:
    """The merged object without what the manager named before, unless somebody names it now."""

    def full(fields: Fields | None) -> Fields | None:
        return name_parents(fields, shape)

    everything = full(fields_of(shape, merged))
    kept = full(fields_of(shape, remove(shape, merged, before)))
    owned: Fields | None = None
    for fields in managers.entries.values():
        owned = union(owned, fields)
    gone = difference(intersection(difference(everything, union(kept, full(owned))), before), _UNOWNED)
    pruned: Json = remove(shape, merged, gone, owned)
    return pruned


def _refuse_repeated_keys(shape: Shape, value: Any, path: str) -> None:
    """An applied list may name each key once."""
    if isinstance(value, dict) and not shape.atomic:
        for name, member in value.items():
            _refuse_repeated_keys(shape.member(name), member, f"{path}.{name}")
    elif isinstance(value, list) and (shape.keys or shape.set):
        seen: set[str] = set()
        for item in value:
            (element,) = fields_of(shape, [item]) or {}
            if element in seen:
                shown = next(iter(paths({element: {}})))
                raise UnmergeableError(f"{path}: duplicate entries for key {shown}")
            seen.add(element)
            _refuse_repeated_keys(shape.item, item, f"{path}{next(iter(paths({element: {}})))}")


def _yield_fields(
    managers: Managers, who: Manager, changed: Fields | None, removed: Fields | None, *, force: bool
) -> None:
    """Take the changed and removed fields from all others; raises `ApplyConflictError` if that needs force."""
    conflicts = {
        other: taken
        for other, fields in managers.entries.items()
        if other != who and (taken := intersection(fields, changed)) is not None
    }
    if conflicts and not force:
        raise _conflict(conflicts)
    for other, fields in list(managers.entries.items()):
        if other != who:
            managers.set_fields(other, difference(difference(fields, changed), removed))


def _conflict(conflicts: dict[Manager, Fields]) -> ApplyConflictError:
    by_manager = {other: list(paths(fields)) for other, fields in sorted(conflicts.items(), key=lambda c: str(c[0]))}
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {other}", "field": path}
        for other, taken in by_manager.items()
        for path in taken
    ]
    if len(causes) == 1:
        message = f"Apply failed with 1 conflict: {causes[0]['message']}: {causes[0]['field']}"
    else:
        lines = (
            f"conflicts with {other}:\n" + "\n".join(f"- {p}" for p in taken) for other, taken in by_manager.items()
        )
        message = f"Apply failed with {len(causes)} conflicts: " + "\n".join(lines)
    return ApplyConflictError(message, causes)


def _was_client_side(live: Json, who: Manager, changed: Fields | None, managers: Managers, shape: Shape) -> bool:
    """Whether kubectl takes over only what it had applied client-side before, and nobody changed since."""
    text = ((live.get("metadata") or {}).get("annotations") or {}).get(LAST_APPLIED)
    if who.name != "kubectl" or not text:
        return False
    try:
        last = msgspec.json.decode(text, type=dict)
    except msgspec.MsgspecError:
        return False
    differing, missing = compare(shape, last, live)
    allowed = difference(difference(fields_of(shape, last), differing), missing)
    taken = [intersection(fields, changed) for other, fields in managers.entries.items() if other != who]
    return all(difference(fields, allowed) is None for fields in taken)


def _with_last_applied(merged: Json, applied: Json) -> Json:
    """The object with kubectl's annotation renewed, if it has one: client-side applies may follow."""
    metadata = merged.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    if not annotations.get(LAST_APPLIED):
        return merged
    plain = dict(applied.get("metadata") or {})
    if "annotations" in plain:
        plain["annotations"] = {name: text for name, text in plain["annotations"].items() if name != LAST_APPLIED}
    text = msgspec.json.encode({**applied, "metadata": plain}, order="deterministic").decode() + "\n"
    return {**merged, "metadata": {**metadata, "annotations": {**annotations, LAST_APPLIED: text}}}


def _before_first_apply(live: Json, api_version: str, shape: Shape, time: str) -> Managers:
    """Who owns an object that has no managers yet."""
    managers, who = Managers(), Manager("before-first-apply", "Update", api_version)
    changed, _ = compare(shape, dict(shape.zero_value), live)
    managers.set_fields(who, difference(changed, _UNOWNED))
    managers.set_time(who, time)
    return managers


def track_update(
    old: Json | None,
    new: Json,
    *,
    manager: str,
    shape: Shape,
    time: str,
    subresource: str = "",
    operation: str = "Update",
) -> Json:
    """`new` with managedFields moved on: the manager owns what the write changed, others lose it.

    For every write but apply: POST, PUT and the other patches. `old` is None at creation. Managed fields that come
    with `new` count, as in the API server, so that clients can hand them over (kubectl does): an empty list clears
    them, none at all means those of `old`. Below a subresource those of `old` count.
    """
    managers = _managers_of_update(old, new, subresource)
    if old is not None and not managers.entries:
        return managers.written_to(new)
    before = _unmanaged(old) if old is not None else dict(shape.zero_value)
    try:
        changed, removed = compare(shape, before, _unmanaged(new))
    except UnmergeableError:  # a list that names a key badly is for validation to refuse
        return managers.written_to(new)
    who = Manager(manager, operation, str(new.get("apiVersion", "")), subresource)
    taken = difference(changed, _UNOWNED)
    for other, fields in list(managers.entries.items()):
        managers.set_fields(other, difference(difference(fields, changed), removed))
    if taken is not None:
        managers.set_fields(who, union(managers.fields(who), taken))
        managers.set_time(who, time)
    managers.cap(str(new.get("apiVersion", "")))
    return managers.written_to(new)


def _managers_of_update(old: Json | None, new: Json, subresource: str) -> Managers:
    sent = (new.get("metadata") or {}).get("managedFields")
    if not subresource and sent in ([], [{}]):
        return Managers()
    if not subresource and sent:
        managers = Managers.of(new)
        if managers.entries:
            return managers
    return Managers.of(old) if old else Managers()


def _unmanaged(item: Json) -> Json:
    """The object without managedFields, whose own changes nobody owns."""
    metadata = item.get("metadata")
    if not metadata or "managedFields" not in metadata:
        return item
    return {**item, "metadata": {name: value for name, value in metadata.items() if name != "managedFields"}}
