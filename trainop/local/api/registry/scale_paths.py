"""The JSON paths of the scale subresource: reading, writing and validating the replica count."""

from __future__ import annotations

from typing import Any

from trainop.local.api.registry.kinds import Kind
from trainop.local.api.schema.field_errors import invalid
from trainop.runtime import Json
from trainop.runtime.lowlevel import FieldError


def read_path(value: Any, path: str) -> Any:
    """The value at a path such as `.spec.replicas`; None if it is absent."""
    for name in path.strip(".").split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def write_path(value: Json, path: str, number: int) -> None:
    """Set the value at a path in place, and create missing parents."""
    *parents, last = path.strip(".").split(".")
    for name in parents:
        value = value.setdefault(name, {})
    value[last] = number


def validate_replicas(kind: Kind, value: Json) -> list[FieldError]:
    """A field error if the replica count is negative."""
    if kind.scale is None:
        return []
    path = kind.scale["specReplicasPath"]
    replicas = read_path(value, path)
    if isinstance(replicas, int) and replicas < 0:
        return [invalid(path, replicas, "should be a non-negative integer")]
    return []
