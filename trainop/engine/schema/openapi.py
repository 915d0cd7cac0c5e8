"""Constructors of OpenAPI schemas: each call returns one structural schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainop.runtime import Json

_QUANTITY = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)


def text(description: str, **more: Any) -> Json:
    return {"type": "string", "description": description, **more}


def int32(description: str, **more: Any) -> Json:
    return {"type": "integer", "format": "int32", "description": description, **more}


def int64(description: str, **more: Any) -> Json:
    return {"type": "integer", "format": "int64", "description": description, **more}


def flag(description: str, **more: Any) -> Json:
    return {"type": "boolean", "description": description, **more}


def moment(description: str) -> Json:
    return {"type": "string", "format": "date-time", "description": description}


def fields(description: str, properties: Mapping[str, Json], *, required: Sequence[str] = (), **more: Any) -> Json:
    """An object with exactly these fields; unknown ones are pruned."""
    return {
        "type": "object",
        "description": description,
        **({"required": list(required)} if required else {}),
        "properties": dict(properties),
        **more,
    }


def anything(description: str) -> Json:
    """An object with arbitrary fields, which are neither validated nor pruned."""
    return {"type": "object", "description": description, "x-kubernetes-preserve-unknown-fields": True}


def open_fields(description: str, properties: Mapping[str, Json], *, required: Sequence[str] = ()) -> Json:
    """An object with these fields; unknown ones are kept."""
    kept = {"x-kubernetes-preserve-unknown-fields": True}
    return fields(description, properties, required=required, **kept)


def mapping(description: str, values: Json) -> Json:
    return {"type": "object", "description": description, "additionalProperties": values}


def texts(description: str) -> Json:
    return mapping(description, {"type": "string"})


def items(description: str, of: Json, *, keys: Sequence[str] = ()) -> Json:
    """A list. With `keys` it has list type `map`: these fields identify an item, and field managers own single
    items."""
    by_key = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)} if keys else {}
    return {"type": "array", "description": description, "items": of, **by_key}


def words(description: str) -> Json:
    return items(description, {"type": "string"})


def quantities(description: str) -> Json:
    """A map from resource names to quantities, such as `cpu: 500m`."""
    amount = {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "pattern": _QUANTITY,
        "x-kubernetes-int-or-string": True,
    }
    return mapping(description, amount)
