"""Deletion: preconditions, finalizers, grace periods, propagation."""

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
from trainop.local.api.request.route import Route
from trainop.local.api.request.writes import copy, gone
from trainop.local.api.schema.field_errors import not_supported
from trainop.local.api.status_errors import StatusError, bad_request
from trainop.local.api.storage.versioned_store import Stored
from trainop.runtime.client.transport import Request
from trainop.runtime.clock import parse_timestamp, timestamp
from trainop.runtime.objects.metadata import Json
from trainop.runtime.objects.resource import NAMESPACES, Resource

_FINALIZER = {"Foreground": "foregroundDeletion", "Orphan": "orphan"}


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """`metav1.DeleteOptions`, from body and query."""

    dry_run: bool = False
    grace: int | None = None
    propagation: str = ""
    uid: str = ""
    resource_version: str = ""

    @classmethod
    def parse(cls, request: Request) -> DeleteOptions:
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
            wrong = not_supported("propagationPolicy", propagation, supported)
            raise status_errors.invalid("meta.k8s.io", "DeleteOptions", "", [wrong])
        preconditions = body.get("preconditions") or {}
        if not isinstance(preconditions, dict) or isinstance(grace, bool) or not isinstance(grace, int | None):
            raise bad_request('DeleteOptions in version "v1" cannot be handled as a DeleteOptions: mistyped field')
        return cls(
            dry_run=bool(body.get("dryRun") or query.get("dryRun")),
            grace=grace,
            propagation=propagation,
            uid=preconditions.get("uid") or "",
            resource_version=preconditions.get("resourceVersion") or "",
        )


class Deleter:
    """Deletes objects, or marks them for whoever has to finish first."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._store = backend.store

    def delete(self, route: Route, request: Request) -> Json:
        """DELETE of one object: the object, or that it is gone."""
        options = DeleteOptions.parse(request)
        stored = self._store.get(route.kind.table, route.key)
        if stored is None:
            raise route.not_found()
        if route.kind.resource == NAMESPACES and route.name in UNDELETABLE:
            raise status_errors.forbidden(NAMESPACES, route.name, "this namespace may not be deleted")
        value, removed = self.delete_stored(route.kind, stored, options)
        if removed and not route.kind.strategy.returns_deleted:
            return self._success(route, stored)
        return value

    def delete_collection(self, route: Route, request: Request) -> Json:
        """DELETE of everything that the selectors find; the list of what it was."""
        options = DeleteOptions.parse(request)
        wanted = ListOptions.parse(request.query)
        page = list_page(
            self._store, route.kind, route.namespace, wanted, select(route.kind, route.namespace, None, wanted)
        )
        items = []
        for stored in page.items:
            current = self._store.get(route.kind.table, stored.key)
            if current is not None and current.uid == stored.uid:
                self.delete_stored(route.kind, current, options)
                value = route.kind.read(current)
                if not route.kind.custom:
                    value = {name: part for name, part in value.items() if name not in {"kind", "apiVersion"}}
                items.append(value)
        resource = route.kind.resource
        return {
            "kind": route.kind.list_kind,
            "apiVersion": resource.api_version,
            "metadata": page.metadata,
            "items": items,
        }

    def delete_stored(self, kind: Kind, stored: Stored, options: DeleteOptions) -> tuple[Json, bool]:
        """The object as the deletion leaves it, and whether it is gone."""
        value = msgspec.json.decode(stored.body, type=dict)
        meta = value["metadata"]
        self._check_preconditions(kind.resource, meta, options)
        grace = kind.strategy.grace_period(value, options.grace) if kind.strategy.graceful else 0
        finalizers = self._finalizers(kind, meta, options)
        ending = meta.get("deletionTimestamp")
        if ending and options.grace is None:
            grace = meta.get("deletionGracePeriodSeconds") or 0
        if ending and not self._sooner(meta, grace) and finalizers == (meta.get("finalizers") or []):
            return kind.read(stored), False
        removed = not grace and not finalizers and not kind.strategy.blocks_removal(value)
        if kind.strategy.graceful or not removed:
            self._mark(kind, value, grace, finalizers)
        if options.dry_run:
            return value, removed
        if removed:
            if kind.strategy.graceful:  # watches see it marked before they see it gone
                self._store.put(kind.table, stored.key, copy(value))
            final = self._store.remove(kind.table, stored.key)
            meta["resourceVersion"] = str(final.version)
            return value, True
        return kind.read(self._store.put(kind.table, stored.key, value)), False

    def amend(self, kind: Kind, stored: Stored, **metadata: list[Any]) -> None:
        """Set or (empty) remove lists in the metadata; the object goes if that was the last thing it waited for."""
        kept = {name: part for name, part in stored.value["metadata"].items() if name not in metadata}
        given = {name: part for name, part in metadata.items() if part}
        self.change(kind, stored, {**stored.value, "metadata": {**kept, **given}})

    def change(self, kind: Kind, stored: Stored, value: Json) -> None:
        """Store what the server itself changed about an object; what changes nothing is not written.

        Each write wakes the background tasks, so that one that writes without a change would wake itself for ever.
        """
        if gone(value["metadata"]) and not kind.strategy.blocks_removal(value):
            self._store.remove(kind.table, stored.key)
        elif value != stored.value:
            value = {**value, "metadata": dict(value["metadata"])}
            self._store.put(kind.table, stored.key, value)

    def _mark(self, kind: Kind, value: Json, grace: int, finalizers: list[str]) -> None:
        """Set when it ends, by when, and who has to agree."""
        meta = value["metadata"]
        now = self._backend.clock.now()
        if not meta.get("deletionTimestamp") or self._sooner(meta, grace):
            begun = now
            if meta.get("deletionTimestamp"):
                begun = parse_timestamp(meta["deletionTimestamp"]) - timedelta(
                    seconds=meta.get("deletionGracePeriodSeconds") or 0
                )
            meta["deletionTimestamp"] = timestamp(begun + timedelta(seconds=grace))
            meta["deletionGracePeriodSeconds"] = grace
            if "generation" in meta and begun is now:
                meta["generation"] += 1
        if finalizers:
            meta["finalizers"] = finalizers
        else:
            meta.pop("finalizers", None)
        if kind.resource == NAMESPACES:
            meta.pop("deletionGracePeriodSeconds", None)
            value["status"] = {**value.get("status", {}), "phase": "Terminating"}

    def _sooner(self, meta: Json, grace: int) -> bool:
        return grace < (meta.get("deletionGracePeriodSeconds") or 0)

    def _finalizers(self, kind: Kind, meta: Json, options: DeleteOptions) -> list[str]:
        """Those of the object, with those of its kind and of the propagation policy that is asked for."""
        held = list(meta.get("finalizers") or [])
        own = kind.strategy.finalizer
        if own and own not in held and not meta.get("deletionTimestamp"):
            held.append(own)
        if not options.propagation:
            return held
        held = [finalizer for finalizer in held if finalizer not in _FINALIZER.values()]
        if wanted := _FINALIZER.get(options.propagation):
            held.append(wanted)
        return held

    def _check_preconditions(self, resource: Resource, meta: Json, options: DeleteOptions) -> None:
        if options.uid and options.uid != meta["uid"]:
            raise _precondition(
                resource,
                meta["name"],
                f"the UID in the precondition ({options.uid}) does not match the UID in record ({meta['uid']}). "
                "The object might have been deleted and then recreated",
            )
        version = meta["resourceVersion"]
        if options.resource_version and options.resource_version != version:
            raise _precondition(
                resource,
                meta["name"],
                f"the ResourceVersion in the precondition ({options.resource_version}) does not match the "
                f"ResourceVersion in record ({version}). The object might have been modified",
            )

    def _success(self, route: Route, stored: Stored) -> Json:
        resource = route.kind.resource
        details: Json = {"name": route.name}
        if resource.group:
            details["group"] = resource.group
        details |= {"kind": resource.plural, "uid": stored.uid}
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def _precondition(resource: Resource, name: str, why: str) -> StatusError:
    """These complaints name the kind, not the resource."""
    kind = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    details = {"name": name} | ({"group": resource.group} if resource.group else {}) | {"kind": resource.kind}
    return StatusError(409, "Conflict", f'Operation cannot be fulfilled on {kind} "{name}": {why}', details)
