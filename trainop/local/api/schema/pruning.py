"""What the API server does to an object before it looks at it: unknown fields go, defaults come."""

from __future__ import annotations

from collections.abc import Collection
from copy import deepcopy
from typing import Any

from trainop.local.api.schema.structural import ABSENT, METADATA_FIELDS, Place
from trainop.runtime.objects.metadata import Json

_TYPE_FIELDS = ("apiVersion", "kind", "metadata")


def prune(root: Place, value: Json, known: Collection[str] = ()) -> tuple[Json, list[str]]:
    """The object without unknown fields, and their paths: those of its metadata first, then the others sorted. Its
    `known` members have none."""
    unknown: list[str] = []
    metadata = _prune_metadata(value.get("metadata"), "metadata", unknown)
    of_metadata, unknown = sorted(unknown), []
    members = _prune_map(root, value, "", unknown, known).items()
    pruned = {name: member for name, member in members if name not in _TYPE_FIELDS}
    typed = {name: metadata if name == "metadata" else value[name] for name in _TYPE_FIELDS if name in value}
    return typed | pruned, of_metadata + sorted(unknown)


def _prune(place: Place, value: Any, path: str, unknown: list[str]) -> Any:
    if isinstance(value, dict):
        return _prune_map(place, value, path, unknown)
    if isinstance(value, list) and place.items:
        return [_prune(place.items, item, f"{path}[{index}]", unknown) for index, item in enumerate(value)]
    return value


def _prune_map(place: Place, value: Json, path: str, unknown: list[str], known: Collection[str] = ()) -> Json:
    pruned: Json = {}
    for name, member in value.items():
        inner, at = place.member(name), f"{path}.{name}" if path else name
        if name in known:
            pruned[name] = member
        elif (place.embedded or not path) and name in _TYPE_FIELDS:
            pruned[name] = _prune_metadata(member, at, unknown) if name == "metadata" and path else member
        elif inner:
            pruned[name] = _prune(inner, member, at, unknown)
        elif place.preserve:
            pruned[name] = member
        else:
            unknown.append(at)
    return pruned


def _prune_metadata(value: Any, path: str, unknown: list[str]) -> Any:
    if not isinstance(value, dict):
        return value
    unknown += [f"{path}.{name}" for name in value if name not in METADATA_FIELDS]
    return {name: member for name, member in value.items() if name in METADATA_FIELDS}


def fill_defaults(place: Place, value: Any, known: Collection[str] = ()) -> Any:
    """The value with the defaults of the schema; nulls that may not stand and have no default are dropped.

    A whole number written as `1.0` where an integer belongs becomes one. The `known` members have their defaults.
    """
    if isinstance(value, list) and place.items:
        return [fill_defaults(place.items, _unless_null(place.items, item, item)) for item in value]
    if isinstance(value, float) and "integer" in place.types and value.is_integer():
        return int(value)
    if not isinstance(value, dict):
        return value
    filled: Json = {}
    for name, member in value.items():
        inner = place.member(name)
        if inner is None or name in known:
            filled[name] = member
        elif (kept := _unless_null(inner, member, ABSENT)) is not ABSENT:
            filled[name] = fill_defaults(inner, kept)
    for name in place.defaulted:
        if name not in filled:
            inner = place.properties[name]
            filled[name] = fill_defaults(inner, deepcopy(inner.default))
    return filled


def _unless_null(place: Place, value: Any, otherwise: Any) -> Any:
    """The value; where it is a null that may not stand, the default of the place, else `otherwise`."""
    if value is not None or place.nullable or not place.types:
        return value
    return otherwise if place.default is ABSENT else deepcopy(place.default)
