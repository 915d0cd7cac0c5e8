"""CREATE and UPDATE: the path of every write into the store.

Decodes, checks fields, sets defaults, admits, prepares, validates, tracks managedFields and stores. Patches, scale and
server-side apply end here too. Source: apiserver `pkg/registry/generic/registry/store.go`.
"""

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
from trainop.local.api.request.request_info import RequestInfo
from trainop.local.api.schema.field_errors import invalid, quote
from trainop.local.api.status_errors import StatusError, bad_request
from trainop.local.api.storage.versioned_store import Key, Stored
from trainop.runtime import Json
from trainop.runtime.lowlevel import Request

_TYPE_META_AND_METADATA = ("kind", "apiVersion", "metadata")


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The object after a write, in the requested version, with the HTTP status and warnings of the response."""

    value: Json
    code: int = 200
    stored: Stored | None = None
    """None after a dry run and after the removal of the object."""
    warnings: list[str] = field(default_factory=list)


class Writer:
    """Defaults, validates and stores objects."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._store = backend.store

    def create(self, info: RequestInfo, request: Request) -> WriteResult:
        """POST to a collection."""
        options = WriteOptions.parse(request, "CreateOptions")
        kind = info.kind
        value = bodies.decode(request, kind.resource.kind)
        bodies.match_kind(value, kind)
        value = bodies.check_fields(value, kind, options, request.body)
        return self.create_value(info, value, options)

    def create_value(
        self, info: RequestInfo, value: Json, options: WriteOptions, *, applied: bool = False
    ) -> WriteResult:
        """Store a new object and take ownership of `value`; `applied`: it has its managedFields already."""
        kind = info.kind
        if kind.terminating:
            detail = "create not allowed while custom resource definition is terminating"
            raise StatusError(405, "MethodNotAllowed", detail, {})
        value = with_type_meta(value, kind)
        meta = value["metadata"]
        bodies.match_name(meta, namespace=info.namespace or "", name=info.name, kind=kind)
        if meta.get("resourceVersion"):
            raise StatusError(500, "", "resourceVersion should not be set on objects to be created")
        object_meta.initialize(meta, uid=self._backend.new_uid(), now=self._backend.now())
        generated = not meta.get("name") and bool(meta.get("generateName"))
        if generated:
            meta["name"] = object_meta.generated_name(meta["generateName"], self._backend.rng)
        if kind.strategy.has_status:
            value.pop("status", None)
        if kind.strategy.has_generation:
            meta["generation"] = 1
        value = self._set_defaults(kind, value)
        admit(self._backend, kind, meta)
        object_meta.drop_empty(meta)
        if not applied:
            value = self._track_managed_fields(kind, None, value, options, "")
        kind.strategy.prepare_create(value)
        self._validate(kind, value, None)
        key = (meta.get("namespace", ""), meta["name"])
        if (held := self._store.get(kind.table, key)) is not None:
            if generated:
                raise status_errors.generated_name_conflict(kind.resource, meta["name"])
            going = bool(held.value["metadata"].get("deletionTimestamp"))
            raise status_errors.already_exists(kind.resource, meta["name"], deleting=going)
        return self._put(kind, key, value, options, 201)

    def replace(self, info: RequestInfo, request: Request) -> WriteResult:
        """PUT of an object or of its status."""
        options = WriteOptions.parse(request, "UpdateOptions")
        kind = info.kind
        value = bodies.decode(request, kind.resource.kind)
        bodies.match_kind(value, kind)
        value = with_type_meta(bodies.check_fields(value, kind, options, request.body), kind)
        bodies.match_name(value["metadata"], namespace=info.namespace or "", name=info.name, kind=kind)
        stored = self._store.get(kind.table, info.key)
        if stored is None and kind.strategy.create_on_update and not info.subresource:
            value["metadata"].pop("resourceVersion", None)
            return self.create_value(info, value, options)
        if stored is None:
            raise info.not_found()
        if kind.custom and not value["metadata"].get("resourceVersion"):
            missing = invalid("metadata.resourceVersion", 0, "must be specified for an update")
            raise status_errors.invalid(kind.resource.group, kind.resource.plural, info.name, [missing])
        uid = value["metadata"].get("uid") or stored.uid
        if uid != stored.uid:
            raise self._uid_conflict(info, uid, stored.uid)
        return self.update(info, stored, value, options)

    def update(
        self, info: RequestInfo, stored: Stored, value: Json, options: WriteOptions, *, applied: bool = False
    ) -> WriteResult:
        """Store `value` as the next revision of an object and take ownership of it; `applied` as in `create_value`."""
        kind = info.kind
        old = kind.read(stored)
        meta = value["metadata"]
        self._check_preconditions(info, meta, old["metadata"])
        meta.pop("resourceVersion", None)
        uid = meta.get("uid") or old["metadata"]["uid"]
        object_meta.restore_server_fields(meta, old["metadata"])
        meta["uid"] = uid
        value = self._restrict_to_subresource(kind, info.subresource, value, old)
        value = self._set_defaults(kind, value)
        if info.subresource != "finalize":
            kind.strategy.prepare_update(value, old)
        self._set_generation(kind, value, old)
        self._validate(kind, value, old)
        object_meta.drop_empty(value["metadata"])
        if not applied:
            value = self._track_managed_fields(kind, old, value, options, info.subresource)
        if is_unchanged(value, old):
            return WriteResult(old, 200, stored, options.warnings)
        if deletion_is_due(value["metadata"]) and not kind.strategy.blocks_removal(value):
            return self._remove(kind, stored, value, options)
        return self._put(kind, stored.key, value, options, 200, old_version=old["metadata"]["resourceVersion"])

    def _set_defaults(self, kind: Kind, value: Json) -> Json:
        if kind.schema is not None and kind.custom:
            value = kind.schema.default(value)
        kind.strategy.default(value)
        return value

    def _restrict_to_subresource(self, kind: Kind, subresource: str, value: Json, old: Json) -> Json:
        """The old object with only those parts of `value` that the subresource may change."""
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
            return deep_copy(kept)
        if kind.strategy.has_status:
            value.pop("status", None)
            if "status" in old:
                value["status"] = old["status"]
        return value

    def _set_generation(self, kind: Kind, value: Json, old: Json) -> None:
        if not kind.strategy.has_generation:
            return
        ignored = {"metadata", "status"} if kind.strategy.has_status else {"metadata"}
        before = {name: part for name, part in old.items() if name not in ignored}
        after = {name: part for name, part in value.items() if name not in ignored}
        value["metadata"]["generation"] = old["metadata"].get("generation", 0) + (before != after)

    def _check_preconditions(self, info: RequestInfo, meta: Json, old: Json) -> None:
        version = meta.get("resourceVersion") or "0"
        if version != "0" and version != old["resourceVersion"]:
            raise status_errors.conflict(info.kind.resource, info.name)

    def _uid_conflict(self, info: RequestInfo, sent: str, held: str) -> StatusError:
        resource = info.kind.resource
        place = "/".join(part for part in (resource.plural, *info.key) if part)
        why = (
            f"StorageError: invalid object, Code: 4, Key: /registry/{place}, ResourceVersion: 0, AdditionalErrorMsg: "
            f"Precondition failed: UID in precondition: {sent}, UID in object meta: {held}"
        )
        return status_errors.conflict(resource, info.name, why)

    def _validate(self, kind: Kind, value: Json, old: Json | None) -> None:
        """Raise 422 with all field errors of metadata, schema and strategy."""
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

    def _track_managed_fields(
        self, kind: Kind, old: Json | None, value: Json, options: WriteOptions, subresource: str
    ) -> Json:
        return server_side_apply.track_update(
            old,
            value,
            manager=options.manager,
            shape=kind.shape,
            time=self._backend.now(),
            subresource=subresource,
        )

    def _put(
        self, kind: Kind, key: Key, value: Json, options: WriteOptions, code: int, *, old_version: str = ""
    ) -> WriteResult:
        object_meta.drop_empty(value["metadata"])
        value = with_type_meta(value, kind)
        options.warnings.extend(kind.strategy.warnings(value))
        if options.dry_run:
            if old_version:
                value["metadata"]["resourceVersion"] = old_version
            return WriteResult(value, code, None, options.warnings)
        to_store = kind.to_storage(value) if kind.to_storage is not None else value
        stored = self._store.put(kind.table, key, to_store)
        return WriteResult(kind.read(stored), code, stored, options.warnings)

    def _remove(self, kind: Kind, stored: Stored, value: Json, options: WriteOptions) -> WriteResult:
        """Remove an object whose last finalizer was removed by this write."""
        if not options.dry_run:
            self._store.remove(kind.table, stored.key)
        value["metadata"]["resourceVersion"] = str(stored.version)
        return WriteResult(with_type_meta(value, kind), 200, None, options.warnings)


def with_type_meta(value: Json, kind: Kind) -> Json:
    """A shallow copy with kind, apiVersion and metadata first; metadata is copied too."""
    resource = kind.resource
    meta = value.get("metadata")
    head = {"kind": resource.kind, "apiVersion": resource.api_version}
    if kind.custom:
        head = {"apiVersion": resource.api_version, "kind": resource.kind}
    rest = {name: part for name, part in value.items() if name not in _TYPE_META_AND_METADATA}
    if meta is not None and not isinstance(meta, dict):
        raise bad_request(
            f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: '
            f"metadata must be an object, not {quote(meta)}"
        )
    return {**head, "metadata": dict(meta or {}), **rest}


def deep_copy(value: Json) -> Json:
    """A deep copy, because values in the store must not be shared with mutable ones."""
    return msgspec.json.decode(msgspec.json.encode(value), type=dict)


def is_unchanged(value: Json, old: Json) -> bool:
    """Whether a write changes nothing except resourceVersion and the times of managedFields."""

    def comparable(whole: Json) -> Json:
        meta = {name: part for name, part in whole["metadata"].items() if name != "resourceVersion"}
        if entries := meta.get("managedFields"):
            meta["managedFields"] = [
                {name: part for name, part in entry.items() if name != "time"} for entry in entries
            ]
        return {**whole, "metadata": meta}

    return comparable(value) == comparable(old)


def deletion_is_due(meta: Json) -> bool:
    """Whether a terminating object has neither finalizers nor a grace period left."""
    return (
        bool(meta.get("deletionTimestamp"))
        and not meta.get("finalizers")
        and not meta.get("deletionGracePeriodSeconds")
    )
