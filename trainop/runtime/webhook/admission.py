"""AdmissionReview requests and responses as values (API group admission.k8s.io, v1 and v1beta1).

A handler is a function from `AdmissionRequest` to `AdmissionResponse`. `validating` and `defaulting` build a handler
from a function that sees only objects. Objects stay raw JSON, so that unknown fields are preserved. Everything here
is pure except that decoding a large body yields to the event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from trainop.runtime.client.decoding import read
from trainop.runtime.errors import UNREADABLE, DecodeError
from trainop.runtime.objects.jsonpatch import diff, equal_json
from trainop.runtime.objects.metadata import Change, Json, Resource, apply_change
from trainop.runtime.objects.nesting import (
    TooManyValuesError,
    check_value_counts,
    is_deep_value,
    prune_value,
    share_of_limits,
)

VERSIONS = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")
"""Supported versions. Both have the same fields; a response uses the version of its request."""


class GroupVersionKind(msgspec.Struct, frozen=True):
    group: str = ""
    version: str = ""
    kind: str = ""


class GroupVersionResource(msgspec.Struct, frozen=True):
    group: str = ""
    version: str = ""
    resource: str = ""


class AdmissionRequest(msgspec.Struct, frozen=True, rename="camel"):
    """The `request` of an AdmissionReview (k8s.io/api `admission/v1`).

    `operation` is CREATE, UPDATE, DELETE or CONNECT. `object` is None for DELETE, `old_object` is None for CREATE.
    If `dry_run` is true, nothing is stored and the handler must not have side effects.
    """

    uid: str
    operation: str
    kind: GroupVersionKind = GroupVersionKind()
    resource: GroupVersionResource = GroupVersionResource()
    sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    user_info: Json = {}
    object: Json | None = None
    old_object: Json | None = None
    dry_run: bool = False
    options: Json | None = None

    def __repr__(self) -> str:
        """Omits the objects, because they may be Secrets."""
        return f"<{self.operation} {self.kind.kind} {self.namespace}/{self.name}>"


class _Review(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    request: AdmissionRequest


class _Objects(msgspec.Struct, frozen=True, rename="camel"):
    uid: str
    object: msgspec.Raw = msgspec.Raw(b"null")
    old_object: msgspec.Raw = msgspec.Raw(b"null")


class _Envelope(msgspec.Struct, frozen=True, rename="camel"):
    """A review whose objects are not decoded."""

    api_version: str
    request: _Objects


@dataclass(frozen=True, slots=True)
class AdmissionResponse:
    """The `response` of an AdmissionReview (k8s.io/api `admission/v1`).

    `code`, `reason` and `message` are the fields of the `metav1.Status`; a non-empty `status` replaces them with a
    complete `metav1.Status`. `warnings` are shown to the user; `patch` is a JSON patch (RFC 6902).
    """

    allowed: bool
    code: int = 200
    reason: str = ""
    message: str = ""
    warnings: tuple[str, ...] = ()
    patch: tuple[Json, ...] = field(default=(), repr=False)
    status: Json = field(default_factory=dict)


AdmissionHandler: TypeAlias = Callable[[AdmissionRequest], AdmissionResponse | Awaitable[AdmissionResponse]]
"""Must not modify the request. An `ApiError` that it raises is returned as its Status; any other exception is a bug
and returns 500."""

Check: TypeAlias = Callable[[Json, Json | None], AdmissionResponse]
"""Validates an object. The second argument is the stored object, None for CREATE."""


class MalformedReviewError(ValueError):
    """The request body is not a valid AdmissionReview."""


def allow(*warnings: str) -> AdmissionResponse:
    """Admits the request. `warnings` are shown to the user."""
    return AdmissionResponse(True, warnings=warnings)


def deny(message: str, *warnings: str) -> AdmissionResponse:
    """Rejects the object as invalid or not permitted (403 Forbidden)."""
    return AdmissionResponse(False, 403, "Forbidden", message, warnings)


def refuse(code: int, message: str) -> AdmissionResponse:
    """Rejects a request that cannot be evaluated, with HTTP status `code`."""
    return AdmissionResponse(False, code, message=message)


def amend(before: Json, after: Json) -> AdmissionResponse:
    """Admits the request with the JSON patch that turns `before` into `after`."""
    return AdmissionResponse(True, patch=tuple(diff(before, after)))


def validating(check: Check, deleting: Callable[[Json], AdmissionResponse] | None = None) -> AdmissionHandler:
    """A handler that validates CREATE and UPDATE with `check`, and DELETE with `deleting` (admitted by default).

    An UPDATE that changes only metadata and status is admitted even if `check` rejects the object. Otherwise the
    finalizers of an object that was stored before the check existed could not be removed.
    """

    def judge(request: AdmissionRequest) -> AdmissionResponse:
        old = request.old_object
        if request.operation == "DELETE" and old is not None and deleting is not None:
            return deleting(old)
        if request.operation not in ("CREATE", "UPDATE") or request.object is None:
            return allow()
        response = check(request.object, old)
        if response.allowed or old is None:
            return response
        if equal_json(_without_metadata(request.object), _without_metadata(old)):
            return allow(*response.warnings)
        return response

    return judge


def defaulting(default: Change) -> AdmissionHandler:
    """A handler that returns defaults as a JSON patch against the submitted object.

    `default` receives a copy. It either modifies the copy and returns None, or returns a new object.
    """

    def judge(request: AdmissionRequest) -> AdmissionResponse:
        if request.operation not in ("CREATE", "UPDATE") or request.object is None:
            return allow()
        return amend(request.object, apply_change(request.object, default))

    return judge


def _without_metadata(obj: Json) -> Json:
    """The object without `metadata` and `status`, which finalizers and controllers change."""
    return {name: value for name, value in obj.items() if name not in ("metadata", "status")}


def mutating_path(resource: Resource) -> str:
    """The path of a mutating webhook, e.g. `/mutate-kubeflow-org-v1-pytorchjob` (as in controller-runtime)."""
    return f"/mutate-{_suffix(resource)}"


def validating_path(resource: Resource) -> str:
    """The path of a validating webhook, e.g. `/validate-kubeflow-org-v1-pytorchjob`."""
    return f"/validate-{_suffix(resource)}"


def _suffix(resource: Resource) -> str:
    return f"{resource.group.replace('.', '-')}-{resource.version}-{resource.kind.lower()}"


_decode = msgspec.json.Decoder(_Review).decode
_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_encode = msgspec.json.Encoder().encode


async def decode_review(body: bytes) -> tuple[str, AdmissionRequest]:
    """The apiVersion for the response, and the request. Raises `MalformedReviewError`.

    Values that are nested too deeply to decode are replaced by null.
    """
    if not body:
        raise MalformedReviewError("request body is empty")
    try:
        review = await read(_decode, body)
    except DecodeError as error:
        raise MalformedReviewError(f"couldn't decode the AdmissionReview: {error.detail}") from error
    if review.kind != "AdmissionReview" or review.api_version not in VERSIONS:
        raise MalformedReviewError(f'no kind "{review.kind}" is registered for version "{review.api_version}"')
    return review.api_version, review.request


def answer_crowded(body: bytes) -> bytes | None:
    """The AdmissionReview that answers a review with too many values to decode; None for any other review.

    Such objects are not passed to handlers. A new one is refused. One that is stored already can still be updated and
    deleted.
    """
    if share_of_limits(body) <= 1:
        return None
    try:
        review = _decode_envelope(body)
    except UNREADABLE:
        return None  # `decode_review` says what is wrong
    faults = [_find_crowding(raw) for raw in (review.request.object, review.request.old_object)]
    if not any(faults):
        return None
    response = allow() if faults[1] else deny(f"the object {faults[0]}")
    return encode_review(response, review.request.uid, review.api_version)


def _find_crowding(raw: msgspec.Raw) -> str:
    try:
        check_value_counts(bytes(raw))
    except TooManyValuesError as error:
        return str(error)
    return ""


def becomes_too_deep(request: AdmissionRequest) -> bool:
    """Whether the new object exceeds the nesting limit while the stored object does not.

    An object that is already stored with too much nesting can still be updated and deleted: values nested too deeply
    are replaced by null, in place, before the handler sees them.
    """
    deep = [value is not None and is_deep_value(value) for value in (request.object, request.old_object)]
    for value in (request.object, request.old_object):
        if any(deep) and value is not None:
            prune_value(value)
    return deep == [True, False]


def encode_review(response: AdmissionResponse, uid: str, api_version: str = VERSIONS[0]) -> bytes:
    """The AdmissionReview (JSON) that carries the response to request `uid`."""
    texts = {"reason": response.reason, "message": response.message}
    status = response.status or {"code": response.code, **{name: text for name, text in texts.items() if text}}
    encoded: dict[str, Any] = {"uid": uid, "allowed": response.allowed, "status": {"metadata": {}, **status}}
    if response.patch:
        # msgspec encodes bytes as base64, the format of `patch`
        encoded |= {"patchType": "JSONPatch", "patch": _encode(response.patch)}
    if response.warnings:
        encoded["warnings"] = response.warnings
    return _encode({"apiVersion": api_version, "kind": "AdmissionReview", "response": encoded})
