"""DELETE: preconditions, finalizers, grace periods and propagation policies.

Source: apiserver `pkg/registry/generic/registry/store.go` and `pkg/registry/rest/delete.go`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from trainop.local.api import status_errors
from trainop.local.api.registry.backend import Backend
from trainop.local.api.registry.kinds import Kind
from trainop.local.api.registry.namespaces import UNDELETABLE
from trainop.local.api.request import bodies
from trainop.local.api.request.lists import ListOptions, list_page, parse_int, select
from trainop.local.api.request.request_info import RequestInfo
from trainop.local.api.request.writes import deep_copy, deletion_is_due
from trainop.local.api.schema.field_errors import not_supported
from trainop.local.api.status_errors import StatusError, bad_request
from trainop.local.api.storage.versioned_store import Stored
from trainop.runtime import NAMESPACES, Json, Resource
from trainop.runtime.lowlevel import Request, parse_timestamp, timestamp

_PROPAGATION_FINALIZERS = {"Foreground": "foregroundDeletion", "Orphan": "orphan"}


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """`metav1.DeleteOptions`, from the body or the query."""

    dry_run: bool = False
    grace_period: int | None = None
    propagation: str = ""
    uid: str = ""
    resource_version: str = ""

    @classmethod
    def parse(cls, request: Request) -> DeleteOptions:
        """The options of a DELETE request; those in the body take precedence. Raises 400 or 422."""
        body = bodies.decode(request, "DeleteOptions") if request.body else {}
        query = request.query
        grace = body.get("gracePeriodSeconds")
        if grace is None and query.get("gracePeriodSeconds"):
            grace = parse_int(query["gracePeriodSeconds"])
        propagation = body.get("propagationPolicy") or query.get("propagationPolicy") or ""
        orphan = body.get("orphanDependents")
        if not propagation and orphan is not None:
            propagation = "Orphan" if orphan else "Background"
        if propagation not in ("", "Background", "Foreground", "Orphan"):
            supported = ["Foreground", "Background", "Orphan", "nil"]
            error = not_supported("propagationPolicy", propagation, supported)
            raise status_errors.invalid("meta.k8s.io", "DeleteOptions", "", [error])
        preconditions = body.get("preconditions") or {}
        if not isinstance(preconditions, dict) or isinstance(grace, bool) or not isinstance(grace, int | None):
            raise bad_request('DeleteOptions in version "v1" cannot be handled as a DeleteOptions: mistyped field')
        return cls(
            dry_run=bool(body.get("dryRun") or query.get("dryRun")),
            grace_period=grace,
            propagation=propagation,
            uid=preconditions.get("uid") or "",
            resource_version=preconditions.get("resourceVersion") or "",
        )


class Deleter:
    """Removes objects, or sets their deletionTimestamp if finalizers or a grace period delay the removal."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._store = backend.store

    def delete(self, info: RequestInfo, request: Request) -> Json:
        """DELETE of one object; returns the object, or a Status if it was removed and its kind does not return it."""
        options = DeleteOptions.parse(request)
        stored = self._store.get(info.kind.table, info.key)
        if stored is None:
            raise info.not_found()
        if info.kind.resource == NAMESPACES and info.name in UNDELETABLE:
            raise status_errors.forbidden(NAMESPACES, info.name, "this namespace may not be deleted")
        value, removed = self.delete_stored(info.kind, stored, options)
        if removed and not info.kind.strategy.returns_deleted:
            return self._success(info, stored)
        return value

    def delete_collection(self, info: RequestInfo, request: Request) -> Json:
        """DELETE of a collection, restricted by selectors; returns the list of objects before the deletion."""
        options = DeleteOptions.parse(request)
        wanted = ListOptions.parse(request.query)
        page = list_page(
            self._store, info.kind, info.namespace, wanted, select(info.kind, info.namespace, None, wanted)
        )
        items = []
        for stored in page.items:
            current = self._store.get(info.kind.table, stored.key)
            if current is not None and current.uid == stored.uid:
                self.delete_stored(info.kind, current, options)
                value = info.kind.read(current)
                if not info.kind.custom:
                    value = {name: part for name, part in value.items() if name not in {"kind", "apiVersion"}}
                items.append(value)
        resource = info.kind.resource
        return {
            "kind": info.kind.list_kind,
            "apiVersion": resource.api_version,
            "metadata": page.metadata,
            "items": items,
        }

    def delete_stored(self, kind: Kind, stored: Stored, options: DeleteOptions) -> tuple[Json, bool]:
        """Delete an object; returns its state after the deletion, and whether it was removed from the store."""
        value = msgspec.json.decode(stored.body, type=dict)
        meta = value["metadata"]
        self._check_preconditions(kind.resource, meta, options)
        grace = kind.strategy.grace_period(value, options.grace_period) if kind.strategy.graceful else 0
        finalizers = self._finalizers(kind, meta, options)
        terminating = meta.get("deletionTimestamp")
        if terminating and options.grace_period is None:
            grace = meta.get("deletionGracePeriodSeconds") or 0
        if (
            terminating
            and not self._shortens_grace_period(meta, grace)
            and finalizers == (meta.get("finalizers") or [])
        ):
            return kind.read(stored), False
        removed = not grace and not finalizers and not kind.strategy.blocks_removal(value)
        if kind.strategy.graceful or not removed:
            self._mark_as_deleting(kind, value, grace, finalizers)
        if options.dry_run:
            return value, removed
        if removed:
            if kind.strategy.graceful:  # watches get MODIFIED with deletionTimestamp before DELETED
                self._store.put(kind.table, stored.key, deep_copy(value))
            final = self._store.remove(kind.table, stored.key)
            meta["resourceVersion"] = str(final.version)
            return value, True
        return kind.read(self._store.put(kind.table, stored.key, value)), False

    def update_metadata(self, kind: Kind, stored: Stored, **metadata: list[Any]) -> None:
        """Set lists in the metadata (an empty one removes the field); may remove the object, as `update_stored`."""
        kept = {name: part for name, part in stored.value["metadata"].items() if name not in metadata}
        given = {name: part for name, part in metadata.items() if part}
        self.update_stored(kind, stored, {**stored.value, "metadata": {**kept, **given}})

    def update_stored(self, kind: Kind, stored: Stored, value: Json) -> None:
        """Store a change made by the server itself; removes the object if nothing delays its deletion any more.

        A value without a change is not written: every write wakes the controllers, so that they would loop forever.
        """
        if deletion_is_due(value["metadata"]) and not kind.strategy.blocks_removal(value):
            self._store.remove(kind.table, stored.key)
        elif value != stored.value:
            value = {**value, "metadata": dict(value["metadata"])}
            self._store.put(kind.table, stored.key, value)

    def _mark_as_deleting(self, kind: Kind, value: Json, grace: int, finalizers: list[str]) -> None:
        """Set deletionTimestamp, grace period and finalizers in place."""
        meta = value["metadata"]
        now = self._backend.clock.now()
        if not meta.get("deletionTimestamp") or self._shortens_grace_period(meta, grace):
            started = now
            if meta.get("deletionTimestamp"):
                started = parse_timestamp(meta["deletionTimestamp"]) - timedelta(
                    seconds=meta.get("deletionGracePeriodSeconds") or 0
                )
            meta["deletionTimestamp"] = timestamp(started + timedelta(seconds=grace))
            meta["deletionGracePeriodSeconds"] = grace
            if "generation" in meta and started is now:
                meta["generation"] += 1
        if finalizers:
            meta["finalizers"] = finalizers
        else:
            meta.pop("finalizers", None)
        if kind.resource == NAMESPACES:
            meta.pop("deletionGracePeriodSeconds", None)
            value["status"] = {**value.get("status", {}), "phase": "Terminating"}

    def _shortens_grace_period(self, meta: Json, grace: int) -> bool:
        return grace < (meta.get("deletionGracePeriodSeconds") or 0)

    def _finalizers(self, kind: Kind, meta: Json, options: DeleteOptions) -> list[str]:
        """The finalizers of the object, plus those of its kind and of the requested propagation policy."""
        held = list(meta.get("finalizers") or [])
        own = kind.strategy.finalizer
        if own and own not in held and not meta.get("deletionTimestamp"):
            held.append(own)
        if not options.propagation:
            return held
        held = [finalizer for finalizer in held if finalizer not in _PROPAGATION_FINALIZERS.values()]
        if wanted := _PROPAGATION_FINALIZERS.get(options.propagation):
            held.append(wanted)
        return held

    def _check_preconditions(self, resource: Resource, meta: Json, options: DeleteOptions) -> None:
        if options.uid and options.uid != meta["uid"]:
            raise _precondition_failed(
                resource,
                meta["name"],
                f"the UID in the precondition ({options.uid}) does not match the UID in record ({meta['uid']}). "
                "The object might have been deleted and then recreated",
            )
        version = meta["resourceVersion"]
        if options.resource_version and options.resource_version != version:
            raise _precondition_failed(
                resource,
                meta["name"],
                f"the ResourceVersion in the precondition ({options.resource_version}) does not match the "
                f"ResourceVersion in record ({version}). The object might have been modified",
            )

    def _success(self, info: RequestInfo, stored: Stored) -> Json:
        resource = info.kind.resource
        details: Json = {"name": info.name}
        if resource.group:
            details["group"] = resource.group
        details |= {"kind": resource.plural, "uid": stored.uid}
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def _precondition_failed(resource: Resource, name: str, why: str) -> StatusError:
    """409 for a failed precondition; unlike other conflicts, the message has the kind instead of the resource."""
    kind = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    details = {"name": name} | ({"group": resource.group} if resource.group else {}) | {"kind": resource.kind}
    return StatusError(409, "Conflict", f'Operation cannot be fulfilled on {kind} "{name}": {why}', details)
