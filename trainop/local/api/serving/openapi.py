"""OpenAPI v3 documents, for `kubectl explain` and for kubectl's detection of server-side field validation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec

from trainop.local import KUBERNETES
from trainop.local.api.registry.core_types import definition_of
from trainop.local.api.registry.kinds import Kind, Registry
from trainop.runtime import Json
from trainop.runtime.lowlevel import SCHEMA_PREFIX, core_schemas

_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
SWAGGER = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
"""The content type of `/openapi/v2`, which kubectl requests for unknown kinds; an empty body is an empty document."""

_QUERY = (
    ("dryRun", "string"),
    ("fieldManager", "string"),
    ("fieldValidation", "string"),
    ("force", "boolean"),
)


class OpenApiDocuments:
    """The documents of all group versions, rebuilt on demand after a change of the registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._cache: dict[str, bytes] = {}
        self._revision = -1

    def index(self) -> Json:
        """The index at `/openapi/v3`."""
        paths = {
            path: {"serverRelativeURL": f"/openapi/v3/{path}?hash={_digest(body)}"}
            for path, body in self._documents().items()
        }
        return {"paths": paths}

    def document(self, path: str) -> bytes | None:
        """The document of `api/v1` or `apis/<group>/<version>`; None if the version is not served."""
        return self._documents().get(path)

    def _documents(self) -> dict[str, bytes]:
        if self._revision != self._registry.revision:
            kinds: dict[str, list[Kind]] = {}
            for kind in self._registry:
                version = kind.resource.api_version
                kinds.setdefault(f"apis/{version}" if "/" in version else f"api/{version}", []).append(kind)
            self._cache = {path: msgspec.json.encode(_document(found)) for path, found in kinds.items()}
            self._revision = self._registry.revision
        return self._cache


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:32].upper()


def _document(kinds: Iterable[Kind]) -> Json:
    schemas: dict[str, Json] = {}
    paths: dict[str, Json] = {}
    for kind in kinds:
        name = _add_schema(kind, schemas)
        resource = kind.resource
        collection = resource.path("{namespace}") if resource.namespaced else resource.path()
        paths[collection] = {"post": _operation(kind, "post", name), "get": _operation(kind, "list", name)}
        paths[f"{collection}/{{name}}"] = {
            verb: _operation(kind, verb, name) for verb in ("get", "put", "patch", "delete")
        }
    _add_references(schemas)
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": KUBERNETES},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _gvk(kind: Kind) -> Json:
    resource = kind.resource
    return {"group": resource.group, "kind": resource.kind, "version": resource.version}


def _operation(kind: Kind, action: str, schema: str) -> Json:
    response = {"content": {"application/json": {"schema": {"$ref": SCHEMA_PREFIX + schema}}}, "description": "OK"}
    operation: Json = {
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": _gvk(kind),
        "responses": {"200": response},
    }
    if action in {"post", "put", "patch"}:
        operation["parameters"] = [
            {"name": name, "in": "query", "schema": {"type": type_, "uniqueItems": True}} for name, type_ in _QUERY
        ]
    return operation


def _add_schema(kind: Kind, schemas: dict[str, Json]) -> str:
    """Add the schema of a kind to `schemas`; returns its name."""
    resource = kind.resource
    if not kind.custom:
        name = definition_of(resource.group, resource.version, resource.kind)
        if name:
            schemas[name] = core_schemas()[name]
            return name
    name = ".".join([*reversed(resource.group.split(".")), resource.version, resource.kind])
    schema: Json = dict(kind.openapi_schema)
    schema["type"] = "object"
    properties: dict[str, Any] = {
        "apiVersion": {"type": "string", "description": "The version of the schema of this object"},
        "kind": {"type": "string", "description": "The kind of this object"},
        **(schema.get("properties") or {}),
        "metadata": {"description": "Standard object's metadata", "allOf": [{"$ref": SCHEMA_PREFIX + _META}]},
    }
    schemas[name] = {**schema, "properties": properties, "x-kubernetes-group-version-kind": [_gvk(kind)]}
    return name


def _add_references(schemas: dict[str, Json]) -> None:
    """Add all definitions that the schemas refer to, transitively."""
    known = core_schemas()
    wanted = [name for schema in tuple(schemas.values()) for name in _references(schema)]
    while wanted:
        name = wanted.pop()
        if name not in schemas and name in known:
            schemas[name] = known[name]
            wanted += _references(known[name])


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = value.get("$ref")
        found = [own.removeprefix(SCHEMA_PREFIX)] if isinstance(own, str) else []
        return found + [name for part in value.values() for name in _references(part)]
    if isinstance(value, list):
        return [name for part in value for name in _references(part)]
    return []
