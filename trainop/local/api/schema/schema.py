"""The structural schema of a CRD version, compiled: prune, default and validate objects as the API server does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from trainop.local.api.schema.field_error import FieldError
from trainop.local.api.schema.pruning import fill_defaults, prune
from trainop.local.api.schema.shapes import shape_of_schema
from trainop.local.api.schema.structural import Place, SchemaError, compile_schema
from trainop.local.api.schema.validation import validate
from trainop.runtime.objects.metadata import Json

__all__ = ["FieldError", "Schema", "SchemaError", "invalid_message"]


REMEMBERED = 256
"""Members of objects."""


class Schema:
    """Compiled once per CRD version; its methods return new values and leave their arguments as they were."""

    def __init__(self, schema: Json) -> None:
        """`schema` is `openAPIV3Schema`; raises `SchemaError`."""
        self._root = compile_schema(schema)
        self.shape = shape_of_schema(schema)
        """How objects of this schema merge."""
        self.warnings = list(_problems(self._root))
        """Rules that are not checked here, one sentence each."""
        self._pruned, self._filled = _Members(), _Members()

    def prune(self, value: Json) -> tuple[Json, list[str]]:
        """The object without unknown fields, and their paths as `fieldValidation` reports them (`spec.foo`)."""
        pruned, unknown = prune(self._root, value, self._pruned.known(value))
        self._pruned.learn(pruned)
        return pruned, unknown

    def default(self, value: Json) -> Json:
        """The object with the defaults of the schema filled in, and without nulls that may not stand."""
        filled: Json = fill_defaults(self._root, value, self._filled.known(value))
        self._filled.learn(filled)
        return filled

    def validate(self, value: Json, old: Json | None = None) -> list[FieldError]:
        """What is wrong with the object, as an update of `old` if given; empty if nothing is.

        What an update leaves unchanged is not complained about, as in the API server since 1.30 (ratcheting).
        """
        return validate(self._root, value, old)


class _Members:
    """Members of whole objects, encoded, that a step has left as they were or made, so that it would leave them again:
    most writes change the status and leave a long spec alone."""

    def __init__(self) -> None:
        self._seen: dict[bytes, None] = {}

    def known(self, value: Json) -> set[str]:
        return {name for name, member in _telling(value) if msgspec.json.encode([name, member]) in self._seen}

    def learn(self, value: Json) -> None:
        if len(self._seen) > REMEMBERED:
            self._seen.clear()
        self._seen |= {msgspec.json.encode([name, member]): None for name, member in _telling(value)}


def _telling(value: Json) -> Iterator[tuple[str, Any]]:
    return ((name, member) for name, member in value.items() if name != "metadata" and isinstance(member, dict))


def _problems(place: Place) -> Iterator[str]:
    yield from (rule.problem for rule in place.rules if rule.problem)
    for inner in (*place.properties.values(), place.additional, place.items):
        if inner and inner.has_rules:
            yield from _problems(inner)


def invalid_message(group_kind: str, name: str, errors: list[FieldError]) -> str:
    """The message of the 422 Status: `PyTorchJob.kubeflow.org "j" is invalid: spec.x: Invalid value: …`."""
    told = list(dict.fromkeys(str(error) for error in errors))
    return f'{group_kind} "{name}" is invalid: {told[0] if len(told) == 1 else "[" + ", ".join(told) + "]"}'
