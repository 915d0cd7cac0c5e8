"""Field errors with the messages of kube-apiserver (apimachinery `pkg/util/validation/field/errors.go`).

Every function returns one `FieldError`; validation collects them and `status_errors.invalid` makes the 422 Status.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from trainop.runtime.lowlevel import DUPLICATE, FORBIDDEN, INVALID, NOT_FOUND, NOT_SUPPORTED, REQUIRED, FieldError


def quote(value: Any) -> str:
    """A rejected value as messages show it: JSON, strings in double quotes."""
    return msgspec.json.encode(value).decode()


def required(path: str, detail: str = "") -> FieldError:
    """`field.Required`: a missing value."""
    return FieldError(path, REQUIRED, detail)


def invalid(path: str, value: Any, detail: str) -> FieldError:
    """`field.Invalid`: a malformed or disallowed value."""
    return FieldError(path, INVALID, detail, quote(value))


def duplicate(path: str, value: Any) -> FieldError:
    """`field.Duplicate`: a value that must be unique."""
    return FieldError(path, DUPLICATE, "", quote(value))


def forbidden(path: str, detail: str) -> FieldError:
    """`field.Forbidden`: a field that must not be set or changed."""
    return FieldError(path, FORBIDDEN, detail)


def not_supported(path: str, value: Any, supported: Iterable[str]) -> FieldError:
    """`field.NotSupported`: a value outside of an enumeration."""
    choices = ", ".join(quote(choice) for choice in supported)
    return FieldError(path, NOT_SUPPORTED, f"supported values: {choices}", quote(value))


def not_found(path: str, value: Any) -> FieldError:
    """`field.NotFound`: a reference to something that does not exist."""
    return FieldError(path, NOT_FOUND, "", quote(value))


def from_message(path: str, reason: str, message: str) -> FieldError:
    """An error whose whole message, beginning with the type, is worded by the caller as upstream words it."""
    type_, _, detail = message.partition(": ")
    return FieldError(path, type_, detail, cause_reason=reason)


def immutable(path: str, value: Any) -> FieldError:
    """The error of `ValidateImmutableField`."""
    return invalid(path, value, "field is immutable")
