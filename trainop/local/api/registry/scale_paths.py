"""The paths of a CRD's scale subresource: reading, writing and checking what they point to."""

from __future__ import annotations

from typing import Any

from trainop.local.api.registry.kinds import Kind
from trainop.local.api.schema.field_errors import FieldError, invalid
from trainop.runtime.objects.metadata import Json


def read_path(value: Any, path: str) -> Any:
    """What stands at `.spec.replicas`; None if there is nothing."""
    for name in path.strip(".").split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def write_path(value: Json, path: str, number: int) -> None:
    """Set it, making the parents that are missing."""
    *parents, last = path.strip(".").split(".")
    for name in parents:
        value = value.setdefault(name, {})
    value[last] = number


def scale_complaints(kind: Kind, value: Json) -> list[FieldError]:
    """A number of replicas that cannot be scaled."""
    if kind.scale is None:
        return []
    path = kind.scale["specReplicasPath"]
    replicas = read_path(value, path)
    if isinstance(replicas, int) and replicas < 0:
        return [invalid(path, replicas, "should be a non-negative integer")]
    return []
