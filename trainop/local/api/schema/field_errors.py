"""Field errors with the messages of kube-apiserver (apimachinery `pkg/util/validation/field/errors.go`).

Every function returns one `FieldError`; validation collects them and `status_errors.invalid` makes the 422 Status.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from trainop.runtime.objects.metadata import Json


@dataclass(frozen=True, slots=True)
class FieldError:
    """One entry of `Status.details.causes[]`; `reason` is such as FieldValueInvalid, `message` excludes the field."""

    field: str
    reason: str
    message: str

    @property
    def cause(self) -> Json:
        """The `metav1.StatusCause`."""
        return {"reason": self.reason, "message": self.message, "field": self.field}

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


def quote(value: Any) -> str:
    """A rejected value as messages show it: JSON, strings in double quotes."""
    return msgspec.json.encode(value).decode()


def required(field: str, detail: str = "") -> FieldError:
    """`field.Required`: a missing value."""
    return FieldError(field, "FieldValueRequired", f"Required value: {detail}" if detail else "Required value")


def invalid(field: str, value: Any, detail: str) -> FieldError:
    """`field.Invalid`: a malformed or disallowed value."""
    return FieldError(field, "FieldValueInvalid", f"Invalid value: {quote(value)}: {detail}")


def duplicate(field: str, value: Any) -> FieldError:
    """`field.Duplicate`: a value that must be unique."""
    return FieldError(field, "FieldValueDuplicate", f"Duplicate value: {quote(value)}")


def forbidden(field: str, detail: str) -> FieldError:
    """`field.Forbidden`: a field that must not be set or changed."""
    return FieldError(field, "FieldValueForbidden", f"Forbidden: {detail}")


def not_supported(field: str, value: Any, supported: Iterable[str]) -> FieldError:
    """`field.NotSupported`: a value outside of an enumeration."""
    choices = ", ".join(quote(choice) for choice in supported)
    return FieldError(
        field, "FieldValueNotSupported", f"Unsupported value: {quote(value)}: supported values: {choices}"
    )


def not_found(field: str, value: Any) -> FieldError:
    """`field.NotFound`: a reference to something that does not exist."""
    return FieldError(field, "FieldValueNotFound", f"Not found: {quote(value)}")


def immutable(field: str, value: Any) -> FieldError:
    """The error of `ValidateImmutableField`."""
    return invalid(field, value, "field is immutable")
