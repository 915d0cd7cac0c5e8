"""What is wrong with one field of an object (apimachinery `pkg/util/validation/field/errors.go`).

Shared by the validation of jobs and by the embedded API server, so that both word errors alike.
"""

from __future__ import annotations

from typing import NamedTuple

from trainop.runtime.objects.metadata import Json

INVALID = "Invalid value"
REQUIRED = "Required value"
FORBIDDEN = "Forbidden"
NOT_SUPPORTED = "Unsupported value"
DUPLICATE = "Duplicate value"
TOO_MANY = "Too many"
TOO_LONG = "Too long"
NOT_FOUND = "Not found"

_REASONS = {
    INVALID: "FieldValueInvalid",
    REQUIRED: "FieldValueRequired",
    FORBIDDEN: "FieldValueForbidden",
    NOT_SUPPORTED: "FieldValueNotSupported",
    DUPLICATE: "FieldValueDuplicate",
    TOO_MANY: "FieldValueTooMany",
    TOO_LONG: "FieldValueTooLong",
    NOT_FOUND: "FieldValueNotFound",
}


class FieldError(NamedTuple):
    """One error; its text is `path: type: value: detail` without the parts that are empty."""

    path: str
    type: str
    """The words of upstream's `field.ErrorType`, such as `Invalid value`. Empty, like `path`, if upstream's message is
    not of this form: the text is then `detail`."""
    detail: str = ""
    value: str = ""
    """The offending value as JSON; empty for Required and Forbidden."""
    cause_reason: str = ""
    """The reason of the `metav1.StatusCause`, where it is not the usual one of the type."""

    @property
    def reason(self) -> str:
        """The machine-readable reason, such as `FieldValueInvalid`."""
        return self.cause_reason or _REASONS[self.type or INVALID]

    @property
    def message(self) -> str:
        """The text without the path."""
        return ": ".join(part for part in (self.type, self.value, self.detail) if part)

    @property
    def cause(self) -> Json:
        """The `metav1.StatusCause`: an entry of `details.causes` of a 422."""
        return {"reason": self.reason, "message": self.message, "field": self.path}

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message
