"""Create an object, or patch the one that exists: controller-runtime's `CreateOrPatch`.

The patch names the resourceVersion that it was computed from, so that a write by somebody else is never overwritten.
For fields that several controllers own, or for lists whose items the API server fills with defaults, server-side apply
(`PatchKind.APPLY`) fits better: this function sends such a list again in every call.
"""

from __future__ import annotations

import copy
import enum

from trainop.runtime.client.client import Client
from trainop.runtime.controller.owners import OwnerError
from trainop.runtime.errors import AlreadyExistsError, ConflictError, NotFoundError
from trainop.runtime.objects.jsonpatch import equal_json
from trainop.runtime.objects.metadata import Change, Json, apply_change
from trainop.runtime.objects.resource import Resource

TRIES = 5
"""Reads and writes of one call; each further one follows a write by somebody else in between."""

_Race = (AlreadyExistsError, ConflictError, NotFoundError)
"""The object was created, changed or deleted after it was read."""


class OperationResult(enum.Enum):
    """What `create_or_patch` did (controller-runtime `controllerutil.OperationResult`)."""

    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"


async def create_or_patch(
    client: Client, resource: Resource, desired: Json, change: Change | None = None
) -> tuple[OperationResult, Json]:
    """Makes the object named by `desired["metadata"]` look like `desired`; returns what was done and the object.

    If the object does not exist, `desired` is created. If it does, `desired` is merged into it as by a JSON merge patch
    (RFC 7386): mappings field by field, None removes a field, lists are replaced. Only `metadata.ownerReferences` (by
    UID) and `metadata.finalizers` are added to those that are there. `change` is then applied to the result in both
    cases, for what a merge cannot express; `desired` may be just a name and a namespace then (the mutate function of
    controller-runtime). Whatever differs is sent as one merge patch, `status` as a second one of the subresource;
    `UNCHANGED` means that nothing was sent, or that it made no difference to the API server. An object that is being
    deleted is patched like any other.

    If another client creates, changes or deletes the object in between, all of it starts again, five times in all.
    Raises `ConflictError`, `AlreadyExistsError` or `NotFoundError` then; `ValueError` without a name; `OwnerError` if
    the object has another controller than the one in `desired`; and whatever else `Client` raises.
    """
    metadata = desired.get("metadata") or {}
    if not metadata.get("name"):
        raise ValueError("create_or_patch needs metadata.name")
    desired = {"apiVersion": resource.api_version, "kind": resource.kind, **desired}
    for remaining in reversed(range(TRIES)):
        try:
            return await _try(client, resource, desired, change or _keep)
        except _Race as error:
            if not remaining or _is_final(error):
                raise
    raise AssertionError("unreachable: the last try returns or raises")


def merge(current: Json, desired: Json) -> Json:
    """A new object: `current` after the JSON merge patch `desired` (RFC 7386). Both stay as they are."""
    merged = dict(current)
    for name, value in desired.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, dict):
            before = current.get(name)
            merged[name] = merge(before if isinstance(before, dict) else {}, value)
        else:
            merged[name] = copy.deepcopy(value)
    return merged


def merge_patch(before: Json, after: Json) -> Json:
    """The JSON merge patch that turns `before` into `after`; empty if they are the same. An explicit null in `after`
    cannot be expressed and removes its field."""
    patch: Json = {name: None for name in before if name not in after}
    for name, value in after.items():
        old = before.get(name)
        if isinstance(old, dict) and isinstance(value, dict):
            if inner := merge_patch(old, value):
                patch[name] = inner
        elif name not in before or not equal_json(old, value):
            patch[name] = value
    return patch


async def _try(client: Client, resource: Resource, desired: Json, change: Change) -> tuple[OperationResult, Json]:
    name, namespace = desired["metadata"]["name"], desired["metadata"].get("namespace")
    try:
        current = await client.get(resource, name, namespace)
    except NotFoundError:
        return OperationResult.CREATED, await _create(client, resource, apply_change(merge({}, desired), change))
    wanted = apply_change(_merged(current, desired), change)
    patch = merge_patch(current, wanted)
    status = patch.pop("status", None)
    after = current
    if patch:
        after = await client.patch(resource, name, namespace, _at_version(patch, after))
    if status is not None:
        after = await _patch_status(client, resource, after, status)
    unchanged = after["metadata"].get("resourceVersion") == current["metadata"].get("resourceVersion")
    return OperationResult.UNCHANGED if unchanged else OperationResult.UPDATED, after


async def _create(client: Client, resource: Resource, wanted: Json) -> Json:
    """The API server drops a new object's status if the kind has a status subresource."""
    created = await client.create(resource, wanted)
    status = wanted.get("status")
    if not status or equal_json(merge(created.get("status") or {}, status), created.get("status")):
        return created
    return await _patch_status(client, resource, created, status)


async def _patch_status(client: Client, resource: Resource, current: Json, status: Json) -> Json:
    key = current["metadata"]
    patch = _at_version({"status": status}, current)
    return await client.patch(resource, key["name"], key.get("namespace"), patch, subresource="status")


def _merged(current: Json, desired: Json) -> Json:
    """As the API server's strategic merge does for metadata: owners are told apart by UID, finalizers are a set."""
    merged = merge(current, desired)
    before, wanted = current["metadata"], desired["metadata"]
    if owners := wanted.get("ownerReferences"):
        references = {reference["uid"]: reference for reference in [*(before.get("ownerReferences") or []), *owners]}
        controllers = [reference for reference in references.values() if reference.get("controller")]
        if len(controllers) > 1:
            raise OwnerError(f"already controlled by {controllers[0].get('kind')} {controllers[0].get('name')}")
        merged["metadata"]["ownerReferences"] = list(references.values())
    if finalizers := wanted.get("finalizers"):
        merged["metadata"]["finalizers"] = list(dict.fromkeys([*(before.get("finalizers") or []), *finalizers]))
    return merged


def _at_version(patch: Json, current: Json) -> Json:
    """The same patch, refused with a conflict unless the object is still the one that was read."""
    known = {name: current["metadata"][name] for name in ("uid", "resourceVersion")}
    return {**patch, "metadata": {**(patch.get("metadata") or {}), **known}}


def _is_final(error: Exception) -> bool:
    """A namespace that does not exist is no race."""
    details = error.status.get("details") if isinstance(error, NotFoundError) else None
    return isinstance(details, dict) and details.get("kind") == "namespaces"


def _keep(_obj: Json) -> None:
    """No change."""
