"""Errors of the API, as a tree; and those of leadership and health, which several modules raise.

    ApiError                     any refusal by the API server, with its Status
    ├── NotFoundError            404
    ├── ConflictError            409 Conflict: the resourceVersion or another precondition did not hold
    ├── AlreadyExistsError       409 AlreadyExists
    ├── GoneError                410 Gone or Expired: the resourceVersion is too old
    ├── InvalidError             422: validation refused the object
    ├── ForbiddenError           403
    ├── UnauthorizedError        401
    ├── TooManyRequestsError     429
    └── DecodeError              an answer, or an object in it, that cannot be read

Connections that fail raise the built-in `ConnectionError` and `TimeoutError` (see `transport.py`).
"""

from __future__ import annotations

from typing import Any

import msgspec

from trainop.runtime.objects.metadata import Json, Key, Unstructured
from trainop.runtime.texts import cut

MAX_RETRY_AFTER = 60.0
"""Seconds. API servers ask for 1 to 10; what asks for an hour would stop us for an hour after it has recovered."""


class ApiError(Exception):
    """`code` is the HTTP status, `reason` the machine-readable word of `metav1.Status`, `status` all of it. Its text is
    `message`, cut if that is long. `retry_after` is how many seconds the server asks to wait, at most 60; None if it
    does not ask for that or says something else than a number of seconds."""

    def __init__(self, code: int, reason: str, message: str, status: Json, retry_after: float | None = None) -> None:
        super().__init__(cut(message or reason or f"HTTP {code}"))
        self.code = code
        self.reason = reason
        self.message = message
        self.status = status
        self.retry_after = _seconds_to_wait(retry_after)

    @property
    def causes(self) -> list[dict[str, Any]]:
        """`details.causes[]`: what is wrong with which field."""
        causes = _mapping(self.status.get("details")).get("causes")
        return [cause for cause in causes if isinstance(cause, dict)] if isinstance(causes, list) else []

    @property
    def too_large_resource_version(self) -> bool:
        """The server has not yet seen the resourceVersion that was asked for (504 with that cause)."""
        return self.reason == "Timeout" and any(
            cause.get("reason") == "ResourceVersionTooLarge"
            or "Too large resource version" in str(cause.get("message"))
            for cause in self.causes
        )

    @property
    def namespace_terminating(self) -> bool:
        return any(cause.get("reason") == "NamespaceTerminating" for cause in self.causes)


def _seconds_to_wait(asked: object) -> float | None:
    if not isinstance(asked, int | float) or isinstance(asked, bool) or not asked >= 0:
        return None
    return float(min(asked, MAX_RETRY_AFTER))  # in this order: a number of 400 digits is no float


class NotFoundError(ApiError): ...


class ConflictError(ApiError): ...


class AlreadyExistsError(ApiError): ...


class GoneError(ApiError): ...


class InvalidError(ApiError): ...


class ForbiddenError(ApiError): ...


class UnauthorizedError(ApiError): ...


class TooManyRequestsError(ApiError): ...


MAX_DETAIL = 512
"""Bytes of a `DecodeError` that come from what could not be read."""


class DecodeError(ApiError):
    """An answer of the API server, or one object in it, cannot be read: `detail` says what is wrong at `path`, which
    may be empty. `key` names the object if its name can be read. `remains` is all that can be read of it, if that
    includes name, UID and resourceVersion: as JSON, with null where it is too deep and no metadata of a wrong type."""

    def __init__(self, path: str, detail: str, *, resource: str = "", key: Key | None = None) -> None:
        self.path = cut(path, MAX_DETAIL)
        self.detail = cut(detail, MAX_DETAIL)
        self.resource = resource
        self.key = key
        self.remains: Unstructured | None = None
        about = " ".join(str(part) for part in (resource, key) if part) or "the answer"
        super().__init__(200, "DecodeError", f"{about} cannot be read: {self.fault}", {})

    @property
    def fault(self) -> str:
        """What is wrong, and where."""
        return f"{self.path}: {self.detail}" if self.path else self.detail


class ReconcileError(Exception):
    """To be retried with back-off, for a reason that is no bug: told in one line."""


class TerminalError(Exception):
    """Not to be retried before the object changes."""


class LeadershipLostError(Exception):
    """Another process may lead from now on."""


class NotLeaderError(ReconcileError):
    """A write was refused before it was sent, since another process may lead."""


class UnhealthyError(Exception):
    """Why a check of liveness or readiness fails; shown to whoever asks for that one check."""


UNREADABLE = (msgspec.MsgspecError, RecursionError, ValueError)
"""What decoding any bytes may raise: they are no JSON, too deep, or no UTF-8."""

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
    """The error for a response of status `code`; a body that is not a `metav1.Status` becomes its message."""
    try:
        status = msgspec.json.decode(body, type=dict)
    except UNREADABLE:
        status = {"message": body[:1024].decode(errors="replace")}
    return error_of_status(status, code, retry_after)


def error_of_status(status: Json, code: int = 500, retry_after: float | None = None) -> ApiError:
    """The error for a `metav1.Status` object, such as the object of a watch's ERROR event."""
    given = status.get("code")
    code = given if isinstance(given, int) else code
    reason = str(status.get("reason") or "")
    kind = AlreadyExistsError if reason == "AlreadyExists" else _BY_CODE.get(code, ApiError)
    if retry_after is None:
        retry_after = _mapping(status.get("details")).get("retryAfterSeconds")
    return kind(code, reason, str(status.get("message") or ""), status, retry_after)


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
