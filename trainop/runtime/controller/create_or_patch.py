"""Creates an object, or patches the existing one (controller-runtime `controllerutil.CreateOrPatch`).

The patch carries the resourceVersion from which it was computed, so that a concurrent write is never overwritten. For
fields owned by several controllers, or lists whose items the API server fills with defaults, server-side apply
(`PatchKind.APPLY`) is the better choice: this function would send such a list again in every call.
"""

from __future__ import annotations

import copy
import enum
from typing import overload

from trainop.runtime.client.client import Client
from trainop.runtime.controller.owners import OwnerError
from trainop.runtime.errors import AlreadyExistsError, ConflictError, NotFoundError
from trainop.runtime.objects.jsonpatch import equal_json
from trainop.runtime.objects.metadata import Change, Json, Resource, apply_change
from trainop.runtime.objects.models import M, Model, to_json, to_model

TRIES = 5
"""Maximum attempts of one call; each further attempt follows a concurrent write."""

_Race = (AlreadyExistsError, ConflictError, NotFoundError)
"""The object was created, changed or deleted after it was read."""


class OperationResult(enum.Enum):
    """What `create_or_patch` did (controller-runtime `controllerutil.OperationResult`)."""

    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"


@overload
async def create_or_patch(
    client: Client, resource: Resource, desired: Json, change: Change | None = None
) -> tuple[OperationResult, Json]: ...
@overload
async def create_or_patch(
    client: Client, resource: Resource, desired: M, change: Change | None = None
) -> tuple[OperationResult, M]: ...
async def create_or_patch(
    client: Client, resource: Resource, desired: Json | Model, change: Change | None = None
) -> tuple[OperationResult, Json | Model]:
    """Creates or patches the object named by `desired["metadata"]`; returns the operation and the resulting object.

    `desired` may be a model of kubernetes_asyncio, and the result then is one, too. An attribute that is None is left
    as it is; None as the value of a dict removes the key. `change` works on JSON in any case, because a model lacks the
    fields that its release of the library does not know.

    If the object does not exist, `desired` is created. If it does, `desired` is merged into it as by a JSON merge patch
    (RFC 7386): mappings field by field, None removes a field, lists are replaced. Only `metadata.ownerReferences` (by
    UID) and `metadata.finalizers` are added to the existing ones. In both cases `change` is then applied to the result,
    for mutations that a merge cannot express; `desired` may then be just a name and a namespace (`change` is the mutate
    function of controller-runtime). The difference is sent as one merge patch, and `status` as a second one to the
    subresource. `UNCHANGED` means that nothing was sent, or that it made no difference to the API server. An object
    that is being deleted is patched like any other.

    If another client creates, changes or deletes the object in between, the call starts again, with five attempts in
    all. Raises `ConflictError`, `AlreadyExistsError` or `NotFoundError` if the last one fails; `ValueError` without a
    name; `OwnerError` if the object has another controller than the one in `desired`; and what `Client` raises.
    """
    if not isinstance(desired, dict):
        result, obj = await create_or_patch(client, resource, to_json(desired), change)
        return result, to_model(type(desired), obj)
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
    """The result of the JSON merge patch `desired` on `current` (RFC 7386). Mutates neither."""
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
    """The JSON merge patch that turns `before` into `after`; empty if they are equal. A null in `after` cannot be
    expressed and removes the field."""
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
    """Creates the object. If the kind has a status subresource, the API server drops the status of a new object, which
    is then written separately."""
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
    """Merges like the API server's strategic merge for metadata: owner references are keyed by UID, finalizers are a
    set."""
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
    """Adds UID and resourceVersion to the patch, so that any other object or version causes a conflict."""
    known = {name: current["metadata"][name] for name in ("uid", "resourceVersion")}
    return {**patch, "metadata": {**(patch.get("metadata") or {}), **known}}


def _is_final(error: Exception) -> bool:
    """Whether a retry is pointless, because the namespace does not exist."""
    details = error.status.get("details") if isinstance(error, NotFoundError) else None
    return isinstance(details, dict) and details.get("kind") == "namespaces"


def _keep(_obj: Json) -> None:
    """No change."""
