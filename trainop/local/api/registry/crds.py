"""CustomResourceDefinitions: their strategy, and the registration of the kinds that they define.

A CRD is established and served within the write that creates it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainop.local.api.printing.table import columns_of_crd
from trainop.local.api.registry.backend import Backend
from trainop.local.api.registry.kinds import Kind, Strategy
from trainop.local.api.schema.crd_schema import Schema, SchemaError
from trainop.local.api.schema.field_errors import invalid, required
from trainop.local.api.storage.versioned_store import Change, Table
from trainop.runtime import CUSTOM_RESOURCE_DEFINITIONS, Json, Resource
from trainop.runtime.lowlevel import FieldError

_VERBS = ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")
CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
"""The finalizer that keeps a CRD until its custom resources are deleted."""


class CustomResourceStrategy(Strategy):
    """Custom resources: the generation counts changes outside of metadata and of a status subresource."""

    has_generation = True

    def __init__(self, *, status: bool) -> None:
        self.has_status = status


class CrdStrategy(Strategy):
    """CustomResourceDefinitions (apiextensions-apiserver `pkg/registry/customresourcedefinition/strategy.go`)."""

    finalizer = CLEANUP_FINALIZER
    has_generation = True
    has_status = True

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def default(self, value: Json) -> None:
        spec = value.get("spec") or {}
        names = spec.get("names") or {}
        spec.setdefault("conversion", {"strategy": "None"})
        if kind := names.get("kind"):
            names.setdefault("singular", kind.lower())
            names.setdefault("listKind", f"{kind}List")

    def prepare_create(self, value: Json) -> None:
        value["status"] = self._initial_status(value)

    def prepare_update(self, value: Json, old: Json) -> None:
        status = value.get("status") or {}
        stored = status.get("storedVersions") or []
        current = _storage_version(value)
        if current and current not in stored:
            value["status"] = {**status, "storedVersions": [*stored, current]}

    def validate(self, value: Json) -> list[FieldError]:
        spec = value.get("spec") or {}
        names = spec.get("names") or {}
        errors = [required(f"spec.{field}") for field in ("group", "scope") if not spec.get(field)]
        errors += [required(f"spec.names.{field}") for field in ("plural", "kind") if not names.get(field)]
        expected = f"{names.get('plural', '')}.{spec.get('group', '')}"
        if value["metadata"].get("name") != expected:
            name = value["metadata"].get("name", "")
            errors.append(invalid("metadata.name", name, 'must be spec.names.plural+"."+spec.group'))
        versions = spec.get("versions") or []
        if sum(bool(version.get("storage")) for version in versions) != 1:
            shown = [version.get("name") for version in versions]
            errors.append(invalid("spec.versions", shown, "must have exactly one version marked as storage version"))
        for index, version in enumerate(versions):
            errors += _validate_schema(version, f"spec.versions[{index}].schema.openAPIV3Schema")
            errors += _validate_columns(version, f"spec.versions[{index}].additionalPrinterColumns")
        return errors

    def warnings(self, value: Json) -> list[str]:
        schemas = ((version.get("schema") or {}).get("openAPIV3Schema") for version in value["spec"]["versions"])
        return [warning for schema in schemas if schema for warning in Schema(schema).warnings]

    def _initial_status(self, value: Json) -> Json:
        now = self._backend.now()
        names = value.get("spec", {}).get("names", {})
        return {
            "conditions": [
                {
                    "type": "NamesAccepted",
                    "status": "True",
                    "lastTransitionTime": now,
                    "reason": "NoConflicts",
                    "message": "no conflicts found",
                },
                {
                    "type": "Established",
                    "status": "True",
                    "lastTransitionTime": now,
                    "reason": "InitialNamesAccepted",
                    "message": "the initial names have been accepted",
                },
            ],
            "acceptedNames": names,
            "storedVersions": [_storage_version(value)],
        }


def _validate_schema(version: Json, path: str) -> list[FieldError]:
    schema = (version.get("schema") or {}).get("openAPIV3Schema")
    if schema is None:
        return [required(path, "schemas are required")]
    try:
        Schema(schema)
    except SchemaError as error:
        return [invalid(path, "<schema>", str(error))]
    return []


def _validate_columns(version: Json, path: str) -> list[FieldError]:
    errors = []
    for index, column in enumerate(version.get("additionalPrinterColumns") or ()):
        try:
            columns_of_crd({"additionalPrinterColumns": [column]})
        except ValueError as error:
            errors.append(invalid(f"{path}[{index}].jsonPath", column.get("jsonPath"), str(error)))
    return errors


def _storage_version(definition: Json) -> str:
    versions = definition.get("spec", {}).get("versions") or []
    return next((str(version["name"]) for version in versions if version.get("storage")), "")


def kinds_of_crd(definition: Json) -> list[Kind]:
    """One kind per served version, in the order of `spec.versions`."""
    spec = definition["spec"]
    storage = _storage_version(definition)
    served = [version for version in spec["versions"] if version.get("served")]
    terminating = bool(definition["metadata"].get("deletionTimestamp"))
    return [_kind(spec, version, storage, terminating=terminating) for version in served]


def _kind(spec: Json, version: Json, storage: str, *, terminating: bool) -> Kind:
    names = spec["names"]
    subresources = version.get("subresources") or {}
    resource = Resource(
        spec["group"], version["name"], names["plural"], names["kind"], namespaced=spec["scope"] == "Namespaced"
    )
    openapi_schema = (version.get("schema") or {}).get("openAPIV3Schema") or {}
    schema = Schema(openapi_schema)
    stored_as = f"{spec['group']}/{storage}"
    is_storage = version["name"] == storage
    return Kind(
        resource=resource,
        singular=names.get("singular") or names["kind"].lower(),
        table=str(resource),
        strategy=CustomResourceStrategy(status="status" in subresources),
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        subresources=tuple(name for name in ("status", "scale") if name in subresources),
        scale=subresources.get("scale"),
        schema=schema,
        openapi_schema=openapi_schema,
        shape=schema.shape,
        columns=columns_of_crd(version),
        custom=True,
        verbs=_VERBS,
        terminating=terminating,
        from_storage=None if is_storage else _convert_for_reading(resource.api_version, schema),
        to_storage=None if is_storage else _with_api_version(stored_as),
    )


def _with_api_version(api_version: str) -> Callable[[Json], Json]:
    """Conversion with strategy None: only the apiVersion changes."""

    def convert(value: Json) -> Json:
        return {**value, "apiVersion": api_version}

    return convert


def _convert_for_reading(api_version: str, schema: Schema) -> Callable[[Json], Json]:
    """Conversion from the storage version for reading: then pruned and defaulted by the schema of the version."""

    def convert(value: Json) -> Json:
        renamed: dict[str, Any] = {**value, "apiVersion": api_version}
        return schema.default(schema.prune(renamed)[0])

    return convert


class CrdRegistrar:
    """A listener of the store that registers and unregisters the kinds of CRDs."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __call__(self, table: Table, change: Change) -> None:
        if table.name != str(CUSTOM_RESOURCE_DEFINITIONS):
            return
        if change.old is not None:
            self._unregister(change.old.value, final=change.new is None)
        if change.new is not None:
            self.register(change.new.value)

    def register(self, definition: Json) -> None:
        """Register the kinds of a CRD."""
        for kind in kinds_of_crd(definition):
            self._backend.registry.add(kind)
            self._backend.store.table(kind.table).closed = False

    def _unregister(self, definition: Json, *, final: bool) -> None:
        for name in {kind.table for kind in kinds_of_crd(definition)}:
            self._backend.registry.remove_table(name)
            if final:
                self._backend.store.table(name).close()
