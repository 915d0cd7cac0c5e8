"""The structural schema of a CRD version, compiled: prune, default and validate objects as the API server does."""

from __future__ import annotations

from collections.abc import Iterator

from trainop.local.api.fielderror import FieldError
from trainop.local.api.pruning import fill_defaults, prune
from trainop.local.api.shapes import shape_of_schema
from trainop.local.api.structural import Place, SchemaError, compile_schema
from trainop.local.api.validation import validate
from trainop.runtime.objects import Json

__all__ = ["FieldError", "Schema", "SchemaError", "invalid_message"]


class Schema:
    """Compiled once per CRD version; its methods return new values and leave their arguments as they were."""

    def __init__(self, schema: Json) -> None:
        """`schema` is `openAPIV3Schema`; raises `SchemaError`."""
        self._root = compile_schema(schema)
        self.shape = shape_of_schema(schema)
        """How objects of this schema merge."""
        self.warnings = list(_problems(self._root))
        """Rules that are not checked here, one sentence each."""

    def prune(self, value: Json) -> tuple[Json, list[str]]:
        """The object without unknown fields, and their paths as `fieldValidation` reports them (`spec.foo`)."""
        return prune(self._root, value)

    def default(self, value: Json) -> Json:
        """The object with the defaults of the schema filled in, and without nulls that may not stand."""
        filled: Json = fill_defaults(self._root, value)
        return filled

    def validate(self, value: Json, old: Json | None = None) -> list[FieldError]:
        """What is wrong with the object, as an update of `old` if given; empty if nothing is.

        What an update leaves unchanged is not complained about, as in the API server since 1.30 (ratcheting).
        """
        return validate(self._root, value, old)


def _problems(place: Place) -> Iterator[str]:
    yield from (rule.problem for rule in place.rules if rule.problem)
    for inner in (*place.properties.values(), place.additional, place.items):
        if inner and inner.has_rules:
            yield from _problems(inner)


def invalid_message(group_kind: str, name: str, errors: list[FieldError]) -> str:
    """The message of the 422 Status: `PyTorchJob.kubeflow.org "j" is invalid: spec.x: Invalid value: …`."""
    told = list(dict.fromkeys(str(error) for error in errors))
    return f'{group_kind} "{name}" is invalid: {told[0] if len(told) == 1 else "[" + ", ".join(told) + "]"}'
