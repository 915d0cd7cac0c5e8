"""One complaint about one field of an object."""

from __future__ import annotations

from dataclasses import dataclass

from trainop.runtime.objects.metadata import Json


@dataclass(frozen=True, slots=True)
class FieldError:
    """As in `Status.details.causes[]`: `reason` such as FieldValueInvalid, `message` without the field."""

    field: str
    reason: str
    message: str

    @property
    def cause(self) -> Json:
        return {"reason": self.reason, "message": self.message, "field": self.field}

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"
