"""The compiled structural schema of one CRD version: prunes, defaults and validates custom resources.

Entry point of the package. `registry.crds` compiles one `Schema` per served version; writes call `prune`, `default` and
`validate`, in this order, and server-side apply reads `shape`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from trainop.local.api.schema.pruning import fill_defaults, prune
from trainop.local.api.schema.shapes import shape_of_schema
from trainop.local.api.schema.structural import SchemaError, Structural, compile_schema
from trainop.local.api.schema.validation import validate
from trainop.runtime import Json
from trainop.runtime.lowlevel import FieldError

__all__ = ["Schema", "SchemaError", "invalid_message"]

_PROCESSED_LIMIT = 256
"""How many top-level members `_ProcessedMembers` remembers before it starts over."""


class Schema:
    """Compiled once per CRD version. The methods return new values and leave their arguments unchanged."""

    def __init__(self, schema: Json) -> None:
        """`schema` is `openAPIV3Schema`; raises `SchemaError`."""
        self._root = compile_schema(schema)
        self.shape = shape_of_schema(schema)
        """How server-side apply merges objects of this schema."""
        self.warnings = list(_unchecked_rules(self._root))
        """One sentence for each CEL rule that is not evaluated."""
        self._pruned, self._filled = _ProcessedMembers(), _ProcessedMembers()

    def prune(self, value: Json) -> tuple[Json, list[str]]:
        """The object without unknown fields, and the paths of these fields (`spec.foo`) for `fieldValidation`."""
        pruned, unknown = prune(self._root, value, self._pruned.known(value))
        self._pruned.add(pruned)
        return pruned, unknown

    def default(self, value: Json) -> Json:
        """The object with the defaults of the schema, and without nulls in fields that are not nullable."""
        filled: Json = fill_defaults(self._root, value, self._filled.known(value))
        self._filled.add(filled)
        return filled

    def validate(self, value: Json, old: Json | None = None) -> list[FieldError]:
        """The field errors of the object, as an update of `old` if given; empty if the object is valid.

        Parts that an update leaves unchanged are not validated (ratcheting validation, Kubernetes 1.30).
        """
        return validate(self._root, value, old)


class _ProcessedMembers:
    """Encoded top-level members that pruning or defaulting has produced before, and would leave unchanged.

    Most writes change the status and leave a long spec unchanged, so skipping known members saves most of the work.
    """

    def __init__(self) -> None:
        self._seen: dict[bytes, None] = {}

    def known(self, value: Json) -> set[str]:
        """Names of the members of `value` that were added before."""
        return {name for name, member in _object_members(value) if msgspec.json.encode([name, member]) in self._seen}

    def add(self, value: Json) -> None:
        """Remember all members of a processed object."""
        if len(self._seen) > _PROCESSED_LIMIT:
            self._seen.clear()
        self._seen |= {msgspec.json.encode([name, member]): None for name, member in _object_members(value)}


def _object_members(value: Json) -> Iterator[tuple[str, Any]]:
    return ((name, member) for name, member in value.items() if name != "metadata" and isinstance(member, dict))


def _unchecked_rules(node: Structural) -> Iterator[str]:
    yield from (rule.problem for rule in node.rules if rule.problem)
    for inner in (*node.properties.values(), node.additional_properties, node.items):
        if inner and inner.has_rules:
            yield from _unchecked_rules(inner)


def invalid_message(group_kind: str, name: str, errors: list[FieldError]) -> str:
    """The message of the 422 Status: `PyTorchJob.kubeflow.org "j" is invalid: spec.x: Invalid value: …`."""
    messages = list(dict.fromkeys(str(error) for error in errors))
    return f'{group_kind} "{name}" is invalid: {messages[0] if len(messages) == 1 else "[" + ", ".join(messages) + "]"}'
