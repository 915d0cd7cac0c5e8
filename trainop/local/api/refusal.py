"""What the API server says when it refuses: `metav1.Status` with the words of the real one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainop.local.api.schema.schema import FieldError, invalid_message
from trainop.runtime.objects.metadata import Json
from trainop.runtime.objects.resource import Resource


class Refusal(Exception):  # noqa: N818 - not an error of ours: an answer
    """An answer other than success; raised anywhere below the router, which turns it into a response."""

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
        seconds = (self.details or {}).get("retryAfterSeconds")
        return {"retry-after": str(seconds)} if seconds else {}


def _about(resource: Resource, name: str) -> Json:
    details: Json = {"name": name} if name else {}
    if resource.group:
        details["group"] = resource.group
    return details | {"kind": resource.plural}


def not_found(resource: Resource, name: str) -> Refusal:
    return Refusal(404, "NotFound", f'{resource} "{name}" not found', _about(resource, name))


def no_such_path() -> Refusal:
    """A resource that is not served, below a group and version that are."""
    return Refusal(404, "NotFound", "the server could not find the requested resource", {})


def already_exists(resource: Resource, name: str, *, going: bool = False) -> Refusal:
    """`going` tells that the one that exists is being deleted."""
    prefix = "object is being deleted: " if going else ""
    return Refusal(409, "AlreadyExists", f'{prefix}{resource} "{name}" already exists', _about(resource, name))


def name_taken(resource: Resource, name: str) -> Refusal:
    """`generateName` met a name in use; clients may simply try again."""
    refusal = already_exists(resource, name)
    message = f"{refusal.message}, the server was not able to generate a unique name for the object"
    return Refusal(409, "AlreadyExists", message, _about(resource, name) | {"retryAfterSeconds": 1})


def conflict(resource: Resource, name: str, why: str = "") -> Refusal:
    why = why or "the object has been modified; please apply your changes to the latest version and try again"
    return Refusal(
        409, "Conflict", f'Operation cannot be fulfilled on {resource} "{name}": {why}', _about(resource, name)
    )


def bad_request(message: str) -> Refusal:
    return Refusal(400, "BadRequest", message)


def internal_error(message: str) -> Refusal:
    """500 in the words of the API server, which are `Internal error occurred`."""
    causes = [{"message": message}]
    return Refusal(500, "InternalError", f"Internal error occurred: {message}", {"causes": causes})


def method_not_allowed() -> Refusal:
    return Refusal(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})


def unsupported_media_type() -> Refusal:
    return Refusal(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})


def unauthorized() -> Refusal:
    return Refusal(401, "Unauthorized", "Unauthorized")


def forbidden(resource: Resource, name: str, why: str, causes: Sequence[Json] = ()) -> Refusal:
    details = _about(resource, name)
    if causes:
        details["causes"] = list(causes)
    return Refusal(403, "Forbidden", f'{resource} "{name}" is forbidden: {why}', details)


def invalid(group: str, kind: str, name: str, errors: Sequence[FieldError]) -> Refusal:
    """422 with one cause per complaint."""
    details: Json = {"name": name} if name else {}
    if group:
        details["group"] = group
    details |= {"kind": kind, "causes": [error.cause for error in errors]}
    group_kind = f"{kind}.{group}" if group else kind
    return Refusal(422, "Invalid", invalid_message(group_kind, name, list(errors)), details)


def expired(message: str, *, metadata: Json | None = None) -> Refusal:
    return Refusal(410, "Expired", message, metadata=metadata)


def too_large(wanted: int, current: int) -> Refusal:
    """The client knows of a version that this server has not reached: it was restarted, or another one."""
    details: Json = {
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    }
    return Refusal(504, "Timeout", f"Timeout: Too large resource version: {wanted}, current: {current}", details)
