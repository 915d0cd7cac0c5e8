"""Field errors in the API server's words (apimachinery `pkg/util/validation/field/errors.go`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from trainop.local.api.schema.schema import FieldError


def quote(value: Any) -> str:
    """A bad value as messages show it: JSON, with strings in double quotes."""
    return msgspec.json.encode(value).decode()


def required(field: str, detail: str = "") -> FieldError:
    return FieldError(field, "FieldValueRequired", f"Required value: {detail}" if detail else "Required value")


def wrong(field: str, value: Any, detail: str) -> FieldError:
    return FieldError(field, "FieldValueInvalid", f"Invalid value: {quote(value)}: {detail}")


def duplicate(field: str, value: Any) -> FieldError:
    return FieldError(field, "FieldValueDuplicate", f"Duplicate value: {quote(value)}")


def forbidden(field: str, detail: str) -> FieldError:
    return FieldError(field, "FieldValueForbidden", f"Forbidden: {detail}")


def unsupported(field: str, value: Any, supported: Iterable[str]) -> FieldError:
    choices = ", ".join(quote(choice) for choice in supported)
    return FieldError(
        field, "FieldValueNotSupported", f"Unsupported value: {quote(value)}: supported values: {choices}"
    )


def not_found(field: str, value: Any) -> FieldError:
    return FieldError(field, "FieldValueNotFound", f"Not found: {quote(value)}")


def immutable(field: str, value: Any) -> FieldError:
    return wrong(field, value, "field is immutable")
