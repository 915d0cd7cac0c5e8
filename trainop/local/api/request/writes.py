"""Creating and changing objects: the one path that every write takes into the store."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from trainop.local.api import status_errors
from trainop.local.api.fields import server_side_apply
from trainop.local.api.registry import object_meta
from trainop.local.api.registry.backend import Backend
from trainop.local.api.registry.kinds import Kind
from trainop.local.api.registry.namespaces import admit
from trainop.local.api.registry.scale_paths import validate_replicas
from trainop.local.api.request import bodies
from trainop.local.api.request.bodies import WriteOptions
from trainop.local.api.request.route import Route
from trainop.local.api.schema.field_errors import invalid, quote
from trainop.local.api.status_errors import StatusError, bad_request
from trainop.local.api.storage.versioned_store import Key, Stored
from trainop.runtime.client.transport import Request
from trainop.runtime.objects.metadata import Json

_HEAD = ("kind", "apiVersion", "metadata")


@dataclass(frozen=True, slots=True)
class Written:
    """The object after a write, in the version that was asked for."""

    value: Json
    code: int = 200
    stored: Stored | None = None
    """None if it was a dry run."""
    warnings: list[str] = field(default_factory=list)


class Writer:
    """Validates, completes and stores objects."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._store = backend.store

    def create(self, route: Route, request: Request) -> Written:
        """POST to a collection."""
        options = WriteOptions.parse(request, "CreateOptions")
        kind = route.kind
        value = bodies.decode(request, kind.resource.kind)
        bodies.match_kind(value, kind)
        value = bodies.check_fields(value, kind, options, request.body)
        return self.create_value(route, value, options)

    def create_value(self, route: Route, value: Json, options: WriteOptions, *, applied: bool = False) -> Written:
        """Store a new object, which this takes over; `applied` keeps the managed fields that it carries."""
        kind = route.kind
        if kind.terminating:
            said = "create not allowed while custom resource definition is terminating"
            raise StatusError(405, "MethodNotAllowed", said, {})
        value = headed(value, kind)
        meta = value["metadata"]
        bodies.match_name(meta, namespace=route.namespace or "", name=route.name, kind=kind)
        if meta.get("resourceVersion"):
            raise StatusError(500, "", "resourceVersion should not be set on objects to be created")
        object_meta.initialize(meta, uid=self._backend.new_uid(), now=self._backend.now())
        generated = not meta.get("name") and bool(meta.get("generateName"))
        if generated:
            meta["name"] = object_meta.generated_name(meta["generateName"], self._backend.random_suffix())
        if kind.strategy.status:
            value.pop("status", None)
        if kind.strategy.generation:
            meta["generation"] = 1
        value = self._completed(kind, value)
        admit(self._backend, kind, meta)
        object_meta.drop_empty(meta)
        if not applied:
            value = self._tracked(kind, None, value, options, "")
        kind.strategy.prepare_create(value)
        self._check(kind, value, None)
        key = (meta.get("namespace", ""), meta["name"])
        if (held := self._store.get(kind.table, key)) is not None:
            if generated:
                raise status_errors.generated_name_conflict(kind.resource, meta["name"])
            going = bool(held.value["metadata"].get("deletionTimestamp"))
            raise status_errors.already_exists(kind.resource, meta["name"], deleting=going)
        return self._stored(kind, key, value, options, 201)

    def replace(self, route: Route, request: Request) -> Written:
        """PUT of an object or of its status."""
        options = WriteOptions.parse(request, "UpdateOptions")
        kind = route.kind
        value = bodies.decode(request, kind.resource.kind)
        bodies.match_kind(value, kind)
        value = headed(bodies.check_fields(value, kind, options, request.body), kind)
        bodies.match_name(value["metadata"], namespace=route.namespace or "", name=route.name, kind=kind)
        stored = self._store.get(kind.table, route.key)
        if stored is None and kind.strategy.create_on_update and not route.subresource:
            value["metadata"].pop("resourceVersion", None)
            return self.create_value(route, value, options)
        if stored is None:
            raise route.not_found()
        if kind.custom and not value["metadata"].get("resourceVersion"):
            missing = invalid("metadata.resourceVersion", 0, "must be specified for an update")
            raise status_errors.invalid(kind.resource.group, kind.resource.plural, route.name, [missing])
        uid = value["metadata"].get("uid") or stored.uid
        if uid != stored.uid:
            raise self._uid_conflict(route, uid, stored.uid)
        return self.change(route, stored, value, options)

    def change(
        self, route: Route, stored: Stored, value: Json, options: WriteOptions, *, applied: bool = False
    ) -> Written:
        """Store `value`, which this takes over, as the next version of an object."""
        kind = route.kind
        old = kind.read(stored)
        meta = value["metadata"]
        self._check_preconditions(route, meta, old["metadata"])
        meta.pop("resourceVersion", None)
        uid = meta.get("uid") or old["metadata"]["uid"]
        object_meta.restore_server_fields(meta, old["metadata"])
        meta["uid"] = uid
        value = self._confined(kind, route.subresource, value, old)
        value = self._completed(kind, value)
        if route.subresource != "finalize":
            kind.strategy.prepare_update(value, old)
        self._count_generation(kind, value, old)
        self._check(kind, value, old)
        object_meta.drop_empty(value["metadata"])
        if not applied:
            value = self._tracked(kind, old, value, options, route.subresource)
        if same(value, old):
            return Written(old, 200, stored, options.warnings)
        if gone(value["metadata"]) and not kind.strategy.blocks_removal(value):
            return self._finish(kind, stored, value, options)
        return self._stored(kind, stored.key, value, options, 200, old_version=old["metadata"]["resourceVersion"])

    def _completed(self, kind: Kind, value: Json) -> Json:
        if kind.schema is not None and kind.custom:
            value = kind.schema.default(value)
        kind.strategy.default(value)
        return value

    def _confined(self, kind: Kind, subresource: str, value: Json, old: Json) -> Json:
        """Only what the URL's subresource may change is taken from `value`."""
        if subresource == "status":
            kept = {name: part for name, part in old.items() if name != "status"}
            if kind.custom:
                managed = value["metadata"].get("managedFields")
                kept["metadata"] = {**old["metadata"]}
                if managed is not None:
                    kept["metadata"]["managedFields"] = managed
            else:
                kept["metadata"] = value["metadata"]
            if "status" in value:
                kept["status"] = value["status"]
            return copy(kept)
        if kind.strategy.status:
            value.pop("status", None)
            if "status" in old:
                value["status"] = old["status"]
        return value

    def _count_generation(self, kind: Kind, value: Json, old: Json) -> None:
        if not kind.strategy.generation:
            return
        ignored = {"metadata", "status"} if kind.strategy.status else {"metadata"}
        before = {name: part for name, part in old.items() if name not in ignored}
        after = {name: part for name, part in value.items() if name not in ignored}
        value["metadata"]["generation"] = old["metadata"].get("generation", 0) + (before != after)

    def _check_preconditions(self, route: Route, meta: Json, old: Json) -> None:
        version = meta.get("resourceVersion") or "0"
        if version != "0" and version != old["resourceVersion"]:
            raise status_errors.conflict(route.kind.resource, route.name)

    def _uid_conflict(self, route: Route, sent: str, held: str) -> StatusError:
        resource = route.kind.resource
        place = "/".join(part for part in (resource.plural, *route.key) if part)
        why = (
            f"StorageError: invalid object, Code: 4, Key: /registry/{place}, ResourceVersion: 0, AdditionalErrorMsg: "
            f"Precondition failed: UID in precondition: {sent}, UID in object meta: {held}"
        )
        return status_errors.conflict(resource, route.name, why)

    def _check(self, kind: Kind, value: Json, old: Json | None) -> None:
        """Refuse with every complaint at once."""
        found = object_meta.validate(kind, value["metadata"])
        if old is not None:
            found += object_meta.validate_update(value["metadata"], old["metadata"])
        if kind.schema is not None and kind.custom:
            found += kind.schema.validate(value, old)
            found += validate_replicas(kind, value)
        found += kind.strategy.validate(value)
        if old is not None:
            found += kind.strategy.validate_update(value, old)
        if found:
            raise status_errors.invalid(
                kind.resource.group, kind.resource.kind, value["metadata"].get("name", ""), found
            )

    def _tracked(self, kind: Kind, old: Json | None, value: Json, options: WriteOptions, subresource: str) -> Json:
        return server_side_apply.track_update(
            old,
            value,
            manager=options.manager,
            shape=kind.shape,
            time=self._backend.now(),
            subresource=subresource,
        )

    def _stored(
        self, kind: Kind, key: Key, value: Json, options: WriteOptions, code: int, *, old_version: str = ""
    ) -> Written:
        object_meta.drop_empty(value["metadata"])
        value = headed(value, kind)
        options.warnings.extend(kind.strategy.warnings(value))
        if options.dry_run:
            if old_version:
                value["metadata"]["resourceVersion"] = old_version
            return Written(value, code, None, options.warnings)
        form = kind.to_storage(value) if kind.to_storage is not None else value
        stored = self._store.put(kind.table, key, form)
        return Written(kind.read(stored), code, stored, options.warnings)

    def _finish(self, kind: Kind, stored: Stored, value: Json, options: WriteOptions) -> Written:
        """The last finalizer went: the object goes too."""
        if not options.dry_run:
            self._store.remove(kind.table, stored.key)
        value["metadata"]["resourceVersion"] = str(stored.version)
        return Written(headed(value, kind), 200, None, options.warnings)


def headed(value: Json, kind: Kind) -> Json:
    """The object with kind, apiVersion and metadata in front; its own dicts down to metadata."""
    resource = kind.resource
    meta = value.get("metadata")
    head = {"kind": resource.kind, "apiVersion": resource.api_version}
    if kind.custom:
        head = {"apiVersion": resource.api_version, "kind": resource.kind}
    rest = {name: part for name, part in value.items() if name not in _HEAD}
    if meta is not None and not isinstance(meta, dict):
        raise bad_request(
            f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: '
            f"metadata must be an object, not {quote(meta)}"
        )
    return {**head, "metadata": dict(meta or {}), **rest}


def copy(value: Json) -> Json:
    """A deep one: what the store holds must not be shared with what is about to be changed."""
    return msgspec.json.decode(msgspec.json.encode(value), type=dict)


def same(value: Json, old: Json) -> bool:
    """Whether a write would change nothing; the time of managed fields alone is not a change."""

    def essence(whole: Json) -> Json:
        meta = {name: part for name, part in whole["metadata"].items() if name != "resourceVersion"}
        if entries := meta.get("managedFields"):
            meta["managedFields"] = [
                {name: part for name, part in entry.items() if name != "time"} for entry in entries
            ]
        return {**whole, "metadata": meta}

    return essence(value) == essence(old)


def gone(meta: Json) -> bool:
    """Whether a deletion that began has nothing left to wait for."""
    return (
        bool(meta.get("deletionTimestamp"))
        and not meta.get("finalizers")
        and not meta.get("deletionGracePeriodSeconds")
    )
