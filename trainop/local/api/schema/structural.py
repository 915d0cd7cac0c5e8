"""Structural schemas: the schema of a CRD version as a tree (apiextensions-apiserver `pkg/apiserver/schema`).

`compile_schema` checks that the schema is structural and precomputes what pruning, defaulting and validation read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainop.local.api.schema.cel import Rule, compile_rules
from trainop.runtime import Json

ABSENT: Any = object()
"""A missing value, as opposed to null."""

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
"""The fields of `metav1.ObjectMeta`."""


_STRUCTURE_KEYWORDS = frozenset(
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
"""Keywords that constrain only the type and the members of a value, so that no value check is needed."""


class SchemaError(ValueError):
    """The schema is not structural; the message begins with the path inside the schema."""


@dataclass(frozen=True, slots=True)
class Structural:
    """The schema of one node of an object. `keywords` is the JSON of the schema, for the value checks."""

    keywords: Json
    properties: Mapping[str, Structural] = field(default_factory=dict)
    additional_properties: Structural | None = None
    items: Structural | None = None
    types: tuple[str, ...] = ()
    """The allowed JSON types; empty allows any."""
    nullable: bool = False
    preserve_unknown_fields: bool = False
    """Unknown fields are not pruned."""
    embedded_resource: bool = False
    """The value is an object with apiVersion, kind and metadata."""
    default: Any = ABSENT
    defaulted: tuple[str, ...] = ()
    """Names of the properties that have a default."""
    map_keys: tuple[str, ...] = ()
    """List of type map: the fields that form the key of an item."""
    constrains_values: bool = True
    """A keyword constrains the value beyond its type and members, such as `enum` or `maxLength`."""
    rules: tuple[Rule, ...] = ()
    has_rules: bool = False
    """This node or a descendant has a CEL rule."""
    has_associative_lists: bool = False
    """This node or a descendant is a list of type set or map, whose items must be unique."""

    def member(self, name: str) -> Structural | None:
        """The schema of a member of a map; None if the member is unknown."""
        return self.properties.get(name) or self.additional_properties


def compile_schema(schema: Json) -> Structural:
    """The tree of an `openAPIV3Schema`; raises `SchemaError` if it is not structural."""
    if schema.get("type") != "object":
        raise SchemaError(f'type: Invalid value: "{schema.get("type", "")}": must be object at the root')
    return _compile(schema, "")


def _compile(schema: Json, path: str) -> Structural:
    _check_structural(schema, path)
    properties = {
        name: _compile(member, f"{path}properties[{name}].")
        for name, member in (schema.get("properties") or {}).items()
    }
    items = _compile(schema["items"], f"{path}items.") if isinstance(schema.get("items"), dict) else None
    rules = compile_rules(schema.get("x-kubernetes-validations") or ())
    additional = _additional_properties(schema, path)
    associative = schema.get("x-kubernetes-list-type") in {"set", "map"}
    children = [*properties.values(), *(node for node in (items, additional) if node)]
    return Structural(
        keywords=schema,
        properties=properties,
        additional_properties=additional,
        items=items,
        types=_types(schema),
        nullable=bool(schema.get("nullable")),
        preserve_unknown_fields=bool(schema.get("x-kubernetes-preserve-unknown-fields")),
        embedded_resource=bool(schema.get("x-kubernetes-embedded-resource")),
        default=ABSENT if schema.get("default") is None else schema["default"],
        defaulted=tuple(name for name, node in properties.items() if node.default is not ABSENT),
        map_keys=tuple(schema.get("x-kubernetes-list-map-keys") or ()),
        constrains_values=not schema.keys() <= _STRUCTURE_KEYWORDS,
        rules=rules,
        has_rules=bool(rules) or any(node.has_rules for node in children),
        has_associative_lists=associative or any(node.has_associative_lists for node in children),
    )


def _additional_properties(schema: Json, path: str) -> Structural | None:
    additional = schema.get("additionalProperties")
    if isinstance(additional, dict):
        return _compile(additional, f"{path}additionalProperties.")
    return Structural({}, preserve_unknown_fields=True) if additional is True else None


def _types(schema: Json) -> tuple[str, ...]:
    if schema.get("x-kubernetes-int-or-string"):
        return ("integer", "string")
    return (schema["type"],) if schema.get("type") else ()


def _check_structural(schema: Json, path: str) -> None:
    """Raise `SchemaError` unless structural (apiextensions-apiserver `pkg/apiserver/schema/validation.go`)."""
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
