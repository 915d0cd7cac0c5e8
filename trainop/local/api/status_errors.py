"""Error responses: `metav1.Status` with the messages of kube-apiserver (apimachinery `pkg/api/errors/errors.go`).

Any code below the router raises a `StatusError`; the router turns it into the response.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainop.local.api.schema.crd_schema import invalid_message
from trainop.runtime import Json, Resource
from trainop.runtime.lowlevel import FieldError


class StatusError(Exception):
    """An error response; `code` is the HTTP status, `reason` a `metav1.StatusReason`, `metadata` that of the Status."""

    def __init__(
        self, code: int, reason: str, message: str, details: Json | None = None, metadata: Json | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.metadata = metadata or {}

    @property
    def status(self) -> Json:
        """The `metav1.Status` object."""
        body: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": self.metadata,
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            body["reason"] = self.reason
        if self.details is not None:
            body["details"] = self.details
        return body | {"code": self.code}

    @property
    def headers(self) -> Mapping[str, str]:
        """`Retry-After`, if the details have `retryAfterSeconds`."""
        seconds = (self.details or {}).get("retryAfterSeconds")
        return {"retry-after": str(seconds)} if seconds else {}


def _details(resource: Resource, name: str) -> Json:
    details: Json = {"name": name} if name else {}
    if resource.group:
        details["group"] = resource.group
    return details | {"kind": resource.plural}


def not_found(resource: Resource, name: str) -> StatusError:
    """404 for a missing object."""
    return StatusError(404, "NotFound", f'{resource} "{name}" not found', _details(resource, name))


def resource_not_served() -> StatusError:
    """404 for a resource that is not served, in a group version that is served."""
    return StatusError(404, "NotFound", "the server could not find the requested resource", {})


def already_exists(resource: Resource, name: str, *, deleting: bool = False) -> StatusError:
    """`deleting`: whether the existing object has a deletionTimestamp."""
    prefix = "object is being deleted: " if deleting else ""
    return StatusError(409, "AlreadyExists", f'{prefix}{resource} "{name}" already exists', _details(resource, name))


def generated_name_conflict(resource: Resource, name: str) -> StatusError:
    """The name that was generated from `generateName` exists already; clients may retry."""
    message = (
        f"{already_exists(resource, name).message}, the server was not able to generate a unique name for the object"
    )
    return StatusError(409, "AlreadyExists", message, _details(resource, name) | {"retryAfterSeconds": 1})


def conflict(resource: Resource, name: str, detail: str = "") -> StatusError:
    detail = detail or "the object has been modified; please apply your changes to the latest version and try again"
    return StatusError(
        409, "Conflict", f'Operation cannot be fulfilled on {resource} "{name}": {detail}', _details(resource, name)
    )


def bad_request(message: str) -> StatusError:
    """400."""
    return StatusError(400, "BadRequest", message)


def internal_error(message: str) -> StatusError:
    """500 with the prefix `Internal error occurred`."""
    causes = [{"message": message}]
    return StatusError(500, "InternalError", f"Internal error occurred: {message}", {"causes": causes})


def method_not_allowed() -> StatusError:
    """405 for a verb that the resource does not support."""
    return StatusError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})


def unsupported_media_type() -> StatusError:
    """415 for an unknown patch type."""
    return StatusError(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})


def unauthorized() -> StatusError:
    """401 for a missing or invalid bearer token."""
    return StatusError(401, "Unauthorized", "Unauthorized")


def forbidden(resource: Resource, name: str, detail: str, causes: Sequence[Json] = ()) -> StatusError:
    details = _details(resource, name)
    if causes:
        details["causes"] = list(causes)
    return StatusError(403, "Forbidden", f'{resource} "{name}" is forbidden: {detail}', details)


def invalid(group: str, kind: str, name: str, errors: Sequence[FieldError]) -> StatusError:
    """422 with one cause per field error."""
    details: Json = {"name": name} if name else {}
    if group:
        details["group"] = group
    details |= {"kind": kind, "causes": [error.cause for error in errors]}
    group_kind = f"{kind}.{group}" if group else kind
    return StatusError(422, "Invalid", invalid_message(group_kind, name, list(errors)), details)


def expired(message: str, *, metadata: Json | None = None) -> StatusError:
    """410: the requested resourceVersion is older than the history; `metadata` may have a new continue token."""
    return StatusError(410, "Expired", message, metadata=metadata)


def too_large(wanted: int, current: int) -> StatusError:
    """The requested resourceVersion is higher than the current one, such as after a restart without persistence."""
    details: Json = {
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    }
    return StatusError(504, "Timeout", f"Timeout: Too large resource version: {wanted}, current: {current}", details)
