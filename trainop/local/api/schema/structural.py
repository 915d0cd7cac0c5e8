"""Structural schemas: the OpenAPI schema of a CRD version as a tree of places that say what may stand there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainop.local.api.schema.rules import Rule, compile_rules
from trainop.runtime.objects.metadata import Json

ABSENT: Any = object()
"""No value, where null is one."""

METADATA_FIELDS = frozenset(
    {
        "annotations",
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "finalizers",
        "generateName",
        "generation",
        "labels",
        "managedFields",
        "name",
        "namespace",
        "ownerReferences",
        "resourceVersion",
        "selfLink",
        "uid",
    }
)
"""All that `metadata` of any object may hold."""


_UNBOUNDED = frozenset(
    {
        "additionalProperties",
        "default",
        "description",
        "items",
        "nullable",
        "properties",
        "required",
        "title",
        "type",
        "x-kubernetes-embedded-resource",
        "x-kubernetes-int-or-string",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-list-type",
        "x-kubernetes-map-type",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-validations",
    }
)
"""Keywords that leave a value of the right type, with the right members, as it is."""


class SchemaError(ValueError):
    """The schema is not structural; one sentence that begins with the path inside the schema."""


@dataclass(frozen=True, slots=True)
class Place:
    """One place of an object. `keywords` is the schema as written, for the checks that read it."""

    keywords: Json
    properties: Mapping[str, Place] = field(default_factory=dict)
    additional: Place | None = None
    items: Place | None = None
    types: tuple[str, ...] = ()
    """The JSON types that may stand here; none means any."""
    nullable: bool = False
    preserve: bool = False
    """Unknown fields are kept."""
    embedded: bool = False
    """A whole object with apiVersion, kind and metadata."""
    default: Any = ABSENT
    defaulted: tuple[str, ...] = ()
    """Properties that have a default."""
    map_keys: tuple[str, ...] = ()
    """Of a list that is a map, the fields that make its key."""
    bounded: bool = True
    """More is said of values than their type and members."""
    rules: tuple[Rule, ...] = ()
    has_rules: bool = False
    """A rule stands here or below."""
    has_keys: bool = False
    """Here or below stands a list that is a set or a map."""

    def member(self, name: str) -> Place | None:
        """The place of a member of a map, if the schema knows one."""
        return self.properties.get(name) or self.additional


def compile_schema(schema: Json) -> Place:
    """The tree for an `openAPIV3Schema`; raises `SchemaError`."""
    if schema.get("type") != "object":
        raise SchemaError(f'type: Invalid value: "{schema.get("type", "")}": must be object at the root')
    return _compile(schema, "")


def _compile(schema: Json, path: str) -> Place:
    _check(schema, path)
    properties = {
        name: _compile(member, f"{path}properties[{name}].")
        for name, member in (schema.get("properties") or {}).items()
    }
    items = _compile(schema["items"], f"{path}items.") if isinstance(schema.get("items"), dict) else None
    rules = compile_rules(schema.get("x-kubernetes-validations") or ())
    additional = _additional(schema, path)
    keyed = schema.get("x-kubernetes-list-type") in {"set", "map"}
    below = [*properties.values(), *(place for place in (items, additional) if place)]
    return Place(
        keywords=schema,
        properties=properties,
        additional=additional,
        items=items,
        types=_types(schema),
        nullable=bool(schema.get("nullable")),
        preserve=bool(schema.get("x-kubernetes-preserve-unknown-fields")),
        embedded=bool(schema.get("x-kubernetes-embedded-resource")),
        default=ABSENT if schema.get("default") is None else schema["default"],
        defaulted=tuple(name for name, place in properties.items() if place.default is not ABSENT),
        map_keys=tuple(schema.get("x-kubernetes-list-map-keys") or ()),
        bounded=not schema.keys() <= _UNBOUNDED,
        rules=rules,
        has_rules=bool(rules) or any(place.has_rules for place in below),
        has_keys=keyed or any(place.has_keys for place in below),
    )


def _additional(schema: Json, path: str) -> Place | None:
    additional = schema.get("additionalProperties")
    if isinstance(additional, dict):
        return _compile(additional, f"{path}additionalProperties.")
    return Place({}, preserve=True) if additional is True else None


def _types(schema: Json) -> tuple[str, ...]:
    if schema.get("x-kubernetes-int-or-string"):
        return ("integer", "string")
    return (schema["type"],) if schema.get("type") else ()


def _check(schema: Json, path: str) -> None:
    """That the schema is structural (apiextensions-apiserver `pkg/apiserver/schema/validation.go`)."""
    typeless = schema.get("x-kubernetes-int-or-string") or schema.get("x-kubernetes-preserve-unknown-fields")
    if not schema.get("type") and not typeless:
        raise SchemaError(f"{path}type: Required value: must not be empty for specified object fields")
    if schema.get("type") == "array" and not isinstance(schema.get("items"), dict):
        raise SchemaError(f"{path}items: Required value: must be specified")
    if schema.get("properties") and "additionalProperties" in schema:
        raise SchemaError(f"{path}additionalProperties: Forbidden: properties and additionalProperties are exclusive")
    if schema.get("x-kubernetes-list-type") == "map" and not schema.get("x-kubernetes-list-map-keys"):
        raise SchemaError(
            f"{path}x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map"
        )
