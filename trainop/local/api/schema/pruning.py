"""Pruning and defaulting: the two steps that precede the validation of a custom resource.

Sources: apiextensions-apiserver `pkg/apiserver/schema/pruning` and `pkg/apiserver/schema/defaulting`. Both functions
return new values and leave their arguments unchanged.
"""

from __future__ import annotations

from collections.abc import Collection
from copy import deepcopy
from typing import Any

from trainop.local.api.schema.structural import ABSENT, METADATA_FIELDS, Structural
from trainop.runtime import Json

_OBJECT_FIELDS = ("apiVersion", "kind", "metadata")


def prune(root: Structural, value: Json, known: Collection[str] = ()) -> tuple[Json, list[str]]:
    """The object without unknown fields, and the paths of the removed ones: those of metadata first, the others sorted.

    `known` names top-level members that are known to have no unknown fields; they are not walked.
    """
    unknown: list[str] = []
    metadata = _prune_metadata(value.get("metadata"), "metadata", unknown)
    of_metadata, unknown = sorted(unknown), []
    members = _prune_map(root, value, "", unknown, known).items()
    pruned = {name: member for name, member in members if name not in _OBJECT_FIELDS}
    head = {name: metadata if name == "metadata" else value[name] for name in _OBJECT_FIELDS if name in value}
    return head | pruned, of_metadata + sorted(unknown)


def _prune(node: Structural, value: Any, path: str, unknown: list[str]) -> Any:
    if isinstance(value, dict):
        return _prune_map(node, value, path, unknown)
    if isinstance(value, list) and node.items:
        return [_prune(node.items, item, f"{path}[{index}]", unknown) for index, item in enumerate(value)]
    return value


def _prune_map(node: Structural, value: Json, path: str, unknown: list[str], known: Collection[str] = ()) -> Json:
    pruned: Json = {}
    for name, member in value.items():
        inner, at = node.member(name), f"{path}.{name}" if path else name
        if name in known:
            pruned[name] = member
        elif (node.embedded_resource or not path) and name in _OBJECT_FIELDS:
            pruned[name] = _prune_metadata(member, at, unknown) if name == "metadata" and path else member
        elif inner:
            pruned[name] = _prune(inner, member, at, unknown)
        elif node.preserve_unknown_fields:
            pruned[name] = member
        else:
            unknown.append(at)
    return pruned


def _prune_metadata(value: Any, path: str, unknown: list[str]) -> Any:
    if not isinstance(value, dict):
        return value
    unknown += [f"{path}.{name}" for name in value if name not in METADATA_FIELDS]
    return {name: member for name, member in value.items() if name in METADATA_FIELDS}


def fill_defaults(node: Structural, value: Any, known: Collection[str] = ()) -> Any:
    """The value with the defaults of the schema. Nulls of non-nullable fields become the default, or are dropped.

    A whole number such as `1.0` becomes an integer where the schema demands one. `known` names top-level members that
    have their defaults already; they are not walked.
    """
    if isinstance(value, list) and node.items:
        return [fill_defaults(node.items, _or_default_if_null(node.items, item, item)) for item in value]
    if isinstance(value, float) and "integer" in node.types and value.is_integer():
        return int(value)
    if not isinstance(value, dict):
        return value
    filled: Json = {}
    for name, member in value.items():
        inner = node.member(name)
        if inner is None or name in known:
            filled[name] = member
        elif (kept := _or_default_if_null(inner, member, ABSENT)) is not ABSENT:
            filled[name] = fill_defaults(inner, kept)
    for name in node.defaulted:
        if name not in filled:
            inner = node.properties[name]
            filled[name] = fill_defaults(inner, deepcopy(inner.default))
    return filled


def _or_default_if_null(node: Structural, value: Any, otherwise: Any) -> Any:
    """The value; if it is null and the node is not nullable, the default of the node, or `otherwise` without one."""
    if value is not None or node.nullable or not node.types:
        return value
    return otherwise if node.default is ABSENT else deepcopy(node.default)
