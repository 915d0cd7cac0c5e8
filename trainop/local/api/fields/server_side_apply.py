"""Server-side apply, and the managedFields of all other writes (apimachinery `pkg/util/managedfields`).

`apply` implements the apply patch; `track_update` moves the ownership of fields for every other write. Both are pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from trainop.local.api.fields.field_sets import (
    FieldSet,
    UnmergeableError,
    compare,
    difference,
    ensure_named_fields_are_members,
    intersection,
    merge,
    paths,
    remove,
    to_field_set,
    union,
)
from trainop.local.api.fields.managed_fields import ManagedFields, Manager
from trainop.local.api.schema.shapes import Shape
from trainop.runtime import Json

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
"""The annotation in which client-side `kubectl apply` stores the applied object."""

_UNMANAGED_FIELDS: FieldSet = {
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
"""Fields without a manager (`stripmeta.go` upstream)."""


class ApplyConflictError(Exception):
    """409: the applied object would change fields of other managers; `causes` belong into `Status.details`."""

    def __init__(self, message: str, causes: list[Json]) -> None:
        super().__init__(message)
        self.message = message
        self.causes = causes


class InvalidApplyError(Exception):
    """400: the applied object is invalid, such as one with managedFields or with a duplicate key in a list."""


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
    """The object after `manager` applied its full intent `applied` to `current`, which is None if it does not exist.

    Fields that the manager applied before and no longer specifies are removed, unless they have another manager.
    `ignored` are top-level fields that the endpoint does not write, such as `status` where it is a subresource.
    The result has the new managedFields (`time` is RFC 3339); it equals `current` if nothing changed.
    Raises `ApplyConflictError` unless `force`, and `InvalidApplyError`.
    """
    if (applied.get("metadata") or {}).get("managedFields") is not None:
        raise InvalidApplyError("metadata.managedFields must be nil")
    intent = {name: value for name, value in applied.items() if name not in set(ignored)}
    live = _without_managed_fields(current or {})
    managers = ManagedFields.of(current) if current else ManagedFields()
    if current and not managers.entries:
        managers = _initial_managers(live, intent["apiVersion"], shape, time)
    writer = Manager(manager, "Apply", str(intent["apiVersion"]), subresource)
    try:
        merged = _merge(live, intent, managers, writer, shape)
        changed, removed = compare(shape, live, merged)
        forced = force or _upgrades_from_client_side_apply(live, writer, changed, managers, shape)
    except UnmergeableError as error:
        raise InvalidApplyError(f"failed to create typed patch object ({_object_reference(intent)}): {error}") from None
    _take_over_fields(managers, writer, changed, removed, force=forced)
    managers.set_fields(writer, difference(managers.fields(writer), _UNMANAGED_FIELDS))
    if current is None or merged != live:
        managers.set_time(writer, time)
    return managers.written_to(_with_last_applied(merged, applied) if manager == "kubectl" else merged)


def _object_reference(item: Json) -> str:
    """The object in the notation of `failed to create typed patch object`."""
    metadata = item.get("metadata") or {}
    place = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    return f"{place}; {item.get('apiVersion')}, Kind={item.get('kind')}"


def _merge(live: Json, intent: Json, managers: ManagedFields, manager: Manager, shape: Shape) -> Json:
    """The merged object; also sets the fields of `manager` in `managers` to those of the intent."""
    _check_unique_keys(shape, intent, "")
    before = managers.fields(manager)
    managers.set_fields(manager, to_field_set(shape, intent))
    merged: Json = merge(shape, live, intent)
    if before is None:
        return merged
    return _remove_abandoned_fields(merged, managers, ensure_named_fields_are_members(before, shape), shape)


def _remove_abandoned_fields(merged: Json, managers: ManagedFields, before: FieldSet | None, shape: Shape) -> Json:
    """The merged object without the fields of `before`, the last applied set, that no manager owns any more."""

    def full(fields: FieldSet | None) -> FieldSet | None:
        return ensure_named_fields_are_members(fields, shape)

    everything = full(to_field_set(shape, merged))
    kept = full(to_field_set(shape, remove(shape, merged, before)))
    owned: FieldSet | None = None
    for fields in managers.entries.values():
        owned = union(owned, fields)
    gone = difference(intersection(difference(everything, union(kept, full(owned))), before), _UNMANAGED_FIELDS)
    pruned: Json = remove(shape, merged, gone, owned)
    return pruned


def _check_unique_keys(shape: Shape, value: Any, path: str) -> None:
    """Raise `UnmergeableError` if an associative list has a key twice."""
    if isinstance(value, dict) and not shape.atomic:
        for name, member in value.items():
            _check_unique_keys(shape.member(name), member, f"{path}.{name}")
    elif isinstance(value, list) and (shape.keys or shape.set):
        seen: set[str] = set()
        for item in value:
            (element,) = to_field_set(shape, [item]) or {}
            if element in seen:
                shown = next(iter(paths({element: {}})))
                raise UnmergeableError(f"{path}: duplicate entries for key {shown}")
            seen.add(element)
            _check_unique_keys(shape.item, item, f"{path}{next(iter(paths({element: {}})))}")


def _take_over_fields(
    managers: ManagedFields, manager: Manager, changed: FieldSet | None, removed: FieldSet | None, *, force: bool
) -> None:
    """Remove the changed and removed fields from all other managers; raises `ApplyConflictError` unless `force`."""
    conflicts = {
        other: taken
        for other, fields in managers.entries.items()
        if other != manager and (taken := intersection(fields, changed)) is not None
    }
    if conflicts and not force:
        raise _conflict(conflicts)
    for other, fields in list(managers.entries.items()):
        if other != manager:
            managers.set_fields(other, difference(difference(fields, changed), removed))


def _conflict(conflicts: dict[Manager, FieldSet]) -> ApplyConflictError:
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


def _upgrades_from_client_side_apply(
    live: Json, manager: Manager, changed: FieldSet | None, managers: ManagedFields, shape: Shape
) -> bool:
    """Whether kubectl takes over only fields that it applied client-side before and that are unchanged since."""
    text = ((live.get("metadata") or {}).get("annotations") or {}).get(LAST_APPLIED)
    if manager.name != "kubectl" or not text:
        return False
    try:
        last = msgspec.json.decode(text, type=dict)
    except msgspec.MsgspecError:
        return False
    differing, missing = compare(shape, last, live)
    allowed = difference(difference(to_field_set(shape, last), differing), missing)
    taken = [intersection(fields, changed) for other, fields in managers.entries.items() if other != manager]
    return all(difference(fields, allowed) is None for fields in taken)


def _with_last_applied(merged: Json, applied: Json) -> Json:
    """The object with the last-applied annotation updated, if present, so that client-side applies can follow."""
    metadata = merged.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    if not annotations.get(LAST_APPLIED):
        return merged
    plain = dict(applied.get("metadata") or {})
    if "annotations" in plain:
        plain["annotations"] = {name: text for name, text in plain["annotations"].items() if name != LAST_APPLIED}
    text = msgspec.json.encode({**applied, "metadata": plain}, order="deterministic").decode() + "\n"
    return {**merged, "metadata": {**metadata, "annotations": {**annotations, LAST_APPLIED: text}}}


def _initial_managers(live: Json, api_version: str, shape: Shape, time: str) -> ManagedFields:
    """The manager `before-first-apply`, which owns all fields of an object without managedFields."""
    managers, manager = ManagedFields(), Manager("before-first-apply", "Update", api_version)
    changed, _ = compare(shape, dict(shape.zero_value), live)
    managers.set_fields(manager, difference(changed, _UNMANAGED_FIELDS))
    managers.set_time(manager, time)
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
    """`new` with updated managedFields: the manager owns the fields that the write changed, all others lose them.

    For every write except apply: POST, PUT and the other patches. `old` is None at creation. As in kube-apiserver, the
    managedFields of `new` replace those of `old`, because kubectl migrates them this way; an empty list clears them, a
    missing list keeps those of `old`. Writes to a subresource always keep those of `old`.
    """
    managers = _managers_for_update(old, new, subresource)
    if old is not None and not managers.entries:
        return managers.written_to(new)
    before = _without_managed_fields(old) if old is not None else dict(shape.zero_value)
    try:
        changed, removed = compare(shape, before, _without_managed_fields(new))
    except UnmergeableError:  # validation rejects an invalid key
        return managers.written_to(new)
    writer = Manager(manager, operation, str(new.get("apiVersion", "")), subresource)
    taken = difference(changed, _UNMANAGED_FIELDS)
    for other, fields in list(managers.entries.items()):
        managers.set_fields(other, difference(difference(fields, changed), removed))
    if taken is not None:
        managers.set_fields(writer, union(managers.fields(writer), taken))
        managers.set_time(writer, time)
    managers.cap_update_managers(str(new.get("apiVersion", "")))
    return managers.written_to(new)


def _managers_for_update(old: Json | None, new: Json, subresource: str) -> ManagedFields:
    sent = (new.get("metadata") or {}).get("managedFields")
    if not subresource and sent in ([], [{}]):
        return ManagedFields()
    if not subresource and sent:
        managers = ManagedFields.of(new)
        if managers.entries:
            return managers
    return ManagedFields.of(old) if old else ManagedFields()


def _without_managed_fields(item: Json) -> Json:
    """The object without managedFields, which themselves have no manager."""
    metadata = item.get("metadata")
    if not metadata or "managedFields" not in metadata:
        return item
    return {**item, "metadata": {name: value for name, value in metadata.items() if name != "managedFields"}}
