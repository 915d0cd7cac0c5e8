"""Admission reviews as values: what the API server asks, and what a webhook answers (admission.k8s.io).

A handler is a function of an `AdmissionRequest` that returns a `Verdict`; `validating` and `defaulting` make one of a
check or a default that knows objects only. Objects are raw JSON, so that no unknown field is ever lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from trainop.runtime.client.decoding import read
from trainop.runtime.errors import DecodeError
from trainop.runtime.objects.jsonpatch import diff, equal_json
from trainop.runtime.objects.metadata import Change, Json, apply_change
from trainop.runtime.objects.nesting import is_deep_value, prune_value
from trainop.runtime.objects.resource import Resource

VERSIONS = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")
"""Both have the same fields, and an answer has the version of its question."""


class GroupVersionKind(msgspec.Struct, frozen=True):
    group: str = ""
    version: str = ""
    kind: str = ""


class GroupVersionResource(msgspec.Struct, frozen=True):
    group: str = ""
    version: str = ""
    resource: str = ""


class AdmissionRequest(msgspec.Struct, frozen=True, rename="camel"):
    """`operation` is CREATE, UPDATE, DELETE or CONNECT; `object` is absent at DELETE, `old_object` at CREATE.

    With `dry_run` nothing will be stored: a handler must not have effects then, and best never has any.
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
        """Without the objects, which may be Secrets."""
        return f"<{self.operation} {self.kind.kind} {self.namespace}/{self.name}>"


class _Review(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    request: AdmissionRequest


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of the request; `code`, `reason` and `message` are those of a `metav1.Status`, which `status` gives
    whole if it is not empty."""

    allowed: bool
    code: int = 200
    reason: str = ""
    message: str = ""
    warnings: tuple[str, ...] = ()
    patch: tuple[Json, ...] = field(default=(), repr=False)
    status: Json = field(default_factory=dict)


Handler: TypeAlias = Callable[[AdmissionRequest], Verdict | Awaitable[Verdict]]
"""Pure, of what it was given. One that raises `ApiError` answers with its Status; anything else that it raises is a
bug, answered with 500."""

Check: TypeAlias = Callable[[Json, Json | None], Verdict]
"""Judges an object; the second argument is what is stored now, None at creation."""


class MalformedReviewError(ValueError):
    """The body is no AdmissionReview."""


def allow(*warnings: str) -> Verdict:
    """Yes; `warnings` are shown to the user."""
    return Verdict(True, warnings=warnings)


def deny(message: str, *warnings: str) -> Verdict:
    """No, because of what the object says."""
    return Verdict(False, 403, "Forbidden", message, warnings)


def refuse(code: int, message: str) -> Verdict:
    """No, because the request cannot be judged."""
    return Verdict(False, code, message=message)


def amend(before: Json, after: Json) -> Verdict:
    """Yes, with the difference."""
    return Verdict(True, patch=tuple(diff(before, after)))


def validating(check: Check, deleting: Callable[[Json], Verdict] | None = None) -> Handler:
    """The handler for a check of created and updated objects; `deleting` judges deletions, else they pass.

    An update that changes nothing but metadata and status is admitted, whatever the check says: an object that was
    stored before the check existed can still lose its finalizers.
    """

    def judge(request: AdmissionRequest) -> Verdict:
        old = request.old_object
        if request.operation == "DELETE" and old is not None and deleting is not None:
            return deleting(old)
        if request.operation not in ("CREATE", "UPDATE") or request.object is None:
            return allow()
        verdict = check(request.object, old)
        if not verdict.allowed and old is not None and equal_json(_asked(request.object), _asked(old)):
            return allow(*verdict.warnings)
        return verdict

    return judge


def defaulting(default: Change) -> Handler:
    """The handler that adds defaults by a JSON patch against the object as it was sent. `default` gets a copy, and
    changes it in place (and returns None) or returns an object with the defaults."""

    def judge(request: AdmissionRequest) -> Verdict:
        if request.operation not in ("CREATE", "UPDATE") or request.object is None:
            return allow()
        return amend(request.object, apply_change(request.object, default))

    return judge


def _asked(obj: Json) -> Json:
    """The object without what others write into it."""
    return {name: value for name, value in obj.items() if name not in ("metadata", "status")}


def mutating_path(resource: Resource) -> str:
    """`/mutate-kubeflow-org-v1-pytorchjob`, as controller-runtime builds it."""
    return f"/mutate-{_suffix(resource)}"


def validating_path(resource: Resource) -> str:
    return f"/validate-{_suffix(resource)}"


def _suffix(resource: Resource) -> str:
    return f"{resource.group.replace('.', '-')}-{resource.version}-{resource.kind.lower()}"


_decode = msgspec.json.Decoder(_Review).decode
_encode = msgspec.json.Encoder().encode


async def decode_review(body: bytes) -> tuple[str, AdmissionRequest]:
    """The apiVersion to answer with, and the request; raises `MalformedReviewError`. What is too deep in an object to
    be decoded is null."""
    if not body:
        raise MalformedReviewError("request body is empty")
    try:
        review = await read(_decode, body)
    except DecodeError as error:
        raise MalformedReviewError(f"couldn't decode the AdmissionReview: {error.detail}") from error
    if review.kind != "AdmissionReview" or review.api_version not in VERSIONS:
        raise MalformedReviewError(f'no kind "{review.kind}" is registered for version "{review.api_version}"')
    return review.api_version, review.request


def becomes_too_deep(asked: AdmissionRequest) -> bool:
    """Whether the object is nested deeper than code that walks through it can bear, and was not before. One that is
    stored already can be changed and deleted: what is too deep in it becomes null for the handler."""
    deep = [value is not None and is_deep_value(value) for value in (asked.object, asked.old_object)]
    for value in (asked.object, asked.old_object):
        if any(deep) and value is not None:
            prune_value(value)
    return deep == [True, False]


def encode_review(verdict: Verdict, uid: str, api_version: str = VERSIONS[0]) -> bytes:
    """The AdmissionReview that answers request `uid`."""
    said = {"reason": verdict.reason, "message": verdict.message}
    status = verdict.status or {"code": verdict.code, **{name: text for name, text in said.items() if text}}
    response: dict[str, Any] = {"uid": uid, "allowed": verdict.allowed, "status": {"metadata": {}, **status}}
    if verdict.patch:
        # bytes become base64, which is how a patch travels in JSON
        response |= {"patchType": "JSONPatch", "patch": _encode(verdict.patch)}
    if verdict.warnings:
        response["warnings"] = verdict.warnings
    return _encode({"apiVersion": api_version, "kind": "AdmissionReview", "response": response})
