"""The exceptions of the runtime: API errors by HTTP status and reason, reconcile, leadership and health errors.

    ApiError                     any error response of the API server, with its Status
    ├── NotFoundError            404
    ├── ConflictError            409 Conflict: the resourceVersion or another precondition did not match
    ├── AlreadyExistsError       409 AlreadyExists
    ├── GoneError                410 Gone or Expired: the resourceVersion is too old
    ├── InvalidError             422: the object failed validation
    ├── ForbiddenError           403
    ├── UnauthorizedError        401
    ├── TooManyRequestsError     429
    └── DecodeError              a response, or an object in it, that cannot be decoded

Connection failures raise the built-in `ConnectionError` and `TimeoutError` (see `client/transport.py`).
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec

from trainop.runtime.objects.metadata import Json, Key, Unstructured
from trainop.runtime.texts import cut, join_some

MAX_RETRY_AFTER = 60.0
"""Upper limit of Retry-After in seconds. API servers send 1 to 10; a faulty value must not stop a client for hours."""


_TOO_LARGE = ("etcdserver: request is too large", "trying to send message larger than max")
"""Messages of etcd (objects above 1.5 MiB) and its client (above 2 MiB); the API server adds status 500."""


class ApiError(Exception):
    """An error response of the API server.

    `code` is the HTTP status; `status` is the `metav1.Status`, and `reason` and `message` are its fields. The text of
    the exception is `message`, truncated. `retry_after` is the requested delay in seconds, at most 60; None if it is
    missing or not a number of seconds.
    """

    def __init__(self, code: int, reason: str, message: str, status: Json, retry_after: float | None = None) -> None:
        super().__init__(cut(message or reason or f"HTTP {code}"))
        self.code = code
        self.reason = reason
        self.message = message
        self.status = status
        self.retry_after = _seconds_to_wait(retry_after)

    @property
    def causes(self) -> list[dict[str, Any]]:
        """`details.causes[]` of the Status: the invalid fields, or why the request was rejected."""
        causes = _as_dict(self.status.get("details")).get("causes")
        return [cause for cause in causes if isinstance(cause, dict)] if isinstance(causes, list) else []

    @property
    def too_large(self) -> bool:
        """Whether the object exceeds the size limit of the API server or of etcd, so that it is always refused."""
        return self.code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE or any(part in self.message for part in _TOO_LARGE)

    @property
    def too_large_resource_version(self) -> bool:
        """Whether the server's cache has not reached the requested resourceVersion (504 with that cause)."""
        return self.reason == "Timeout" and any(
            cause.get("reason") == "ResourceVersionTooLarge"
            or "Too large resource version" in str(cause.get("message"))
            for cause in self.causes
        )

    @property
    def namespace_terminating(self) -> bool:
        """Whether a create was rejected because the namespace is being deleted."""
        return any(cause.get("reason") == "NamespaceTerminating" for cause in self.causes)


def _seconds_to_wait(seconds: object) -> float | None:
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not seconds >= 0:
        return None
    return float(min(seconds, MAX_RETRY_AFTER))  # `min` first, because `float` overflows on huge integers


class NotFoundError(ApiError): ...


class ConflictError(ApiError): ...


class AlreadyExistsError(ApiError): ...


class GoneError(ApiError): ...


class InvalidError(ApiError): ...


class ForbiddenError(ApiError): ...


class UnauthorizedError(ApiError): ...


class TooManyRequestsError(ApiError): ...


MAX_DETAIL = 512
"""Bytes of the input that a `DecodeError` quotes."""


class DecodeError(ApiError):
    """A response, or one object in it, cannot be decoded.

    `detail` describes the fault at `path` (may be empty). `key` identifies the object if its name can be decoded.
    `remains` is the decodable part of the object as JSON, without values that are nested too deeply (null) and without
    metadata of a wrong type; None unless it includes name, UID and resourceVersion.
    """

    def __init__(self, path: str, detail: str, *, resource: str = "", key: Key | None = None) -> None:
        self.path = cut(path, MAX_DETAIL)
        self.detail = cut(detail, MAX_DETAIL)
        self.resource = resource
        self.key = key
        self.remains: Unstructured | None = None
        about = " ".join(str(part) for part in (resource, key) if part) or "the response"
        super().__init__(200, "DecodeError", f"{about} cannot be read: {self.fault}", {})

    @property
    def fault(self) -> str:
        """`detail`, prefixed with `path`."""
        return f"{self.path}: {self.detail}" if self.path else self.detail


class ReconcileError(Exception):
    """A reconcile failed for an expected reason. It is retried with back-off and logged without a traceback."""


class TerminalError(Exception):
    """A reconcile failed and is not retried until the object changes."""


class LeadershipLostError(Exception):
    """The lease was lost: another process may become leader."""


class NotLeaderError(ReconcileError):
    """A write was rejected before it was sent, because another process may be leader."""


class UnhealthyError(Exception):
    """The reason why a liveness or readiness check fails. It is returned by the endpoint of that check."""


UNREADABLE = (msgspec.MsgspecError, RecursionError, ValueError)
"""Exceptions of decoding arbitrary bytes: invalid JSON, excessive nesting, invalid UTF-8."""

_BY_CODE: dict[int, type[ApiError]] = {
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    422: InvalidError,
    429: TooManyRequestsError,
}


def api_error(code: int, body: bytes, retry_after: float | None = None) -> ApiError:
    """The exception for an error response with status `code`. A body that is not JSON becomes the message."""
    try:
        status = msgspec.json.decode(body, type=dict)
    except UNREADABLE:
        status = {"message": body[:1024].decode(errors="replace")}
    return error_of_status(status, code, retry_after)


def error_of_status(status: Json, code: int = 500, retry_after: float | None = None) -> ApiError:
    """The exception for a `metav1.Status`, such as the object of a watch's ERROR event."""
    given = status.get("code")
    code = given if isinstance(given, int) else code
    reason = str(status.get("reason") or "")
    kind = AlreadyExistsError if reason == "AlreadyExists" else _BY_CODE.get(code, ApiError)
    if retry_after is None:
        retry_after = _as_dict(status.get("details")).get("retryAfterSeconds")
    return kind(code, reason, str(status.get("message") or ""), status, retry_after)


def describe(error: BaseException) -> str:
    """The type and message of an error in one line; for an exception group, those of all its members."""
    if isinstance(error, BaseExceptionGroup):
        return join_some(map(describe, error.exceptions), len(error.exceptions), separator="; ")
    text = str(error) or ("no answer in time" if isinstance(error, TimeoutError) else "")
    return cut(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def _as_dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
