"""Reviews, which are answered and not stored: access reviews, rules reviews, token reviews.

Every authenticated client has the rights of a cluster administrator, so that access reviews always allow.
"""

from __future__ import annotations

import msgspec

from trainop.local.api.registry.authentication import (
    ADMINISTRATOR,
    API_AUDIENCES,
    Identity,
    NotAuthenticatedError,
    authenticate,
)
from trainop.local.api.registry.backend import Backend
from trainop.local.api.request import bodies
from trainop.local.api.status_errors import bad_request
from trainop.runtime import Json
from trainop.runtime.lowlevel import Request

_ACCESS = {
    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews": "SelfSubjectAccessReview",
    "/apis/authorization.k8s.io/v1/subjectaccessreviews": "SubjectAccessReview",
}
_TOKEN = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
_SELF = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_RULES = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
_EVERYTHING: Json = {
    "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
    "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    "incomplete": False,
}


def review(backend: Backend, request: Request) -> Json | None:
    """The review with its status; None if the request is not a review."""
    if request.method != "POST":
        return None
    path = request.path.rstrip("/")
    if path in _ACCESS or path.endswith("/localsubjectaccessreviews"):
        kind = _ACCESS.get(path, "LocalSubjectAccessReview")
        value = bodies.decode(request, kind)
        return {**_review(value, kind, "authorization.k8s.io/v1"), "status": {"allowed": True}}
    if path == _RULES:
        value = bodies.decode(request, "SelfSubjectRulesReview")
        return {**_review(value, "SelfSubjectRulesReview", "authorization.k8s.io/v1"), "status": _EVERYTHING}
    if path == _SELF:
        value = bodies.decode(request, "SelfSubjectReview")
        info = _requester(backend, request).user_info
        return {**_review(value, "SelfSubjectReview", "authentication.k8s.io/v1"), "status": {"userInfo": info}}
    if path == _TOKEN:
        return _token_review(backend, request)
    return None


class _TokenReviewSpec(msgspec.Struct, omit_defaults=True):
    token: str = ""
    audiences: list[str] | None = None


class _TokenReview(msgspec.Struct):
    spec: _TokenReviewSpec | None = None


def _token_review(backend: Backend, request: Request) -> Json:
    """Source: kubernetes `pkg/registry/authentication/tokenreview/storage.go`."""
    spec = bodies.decode_review(request, "TokenReview", _TokenReview).spec or _TokenReviewSpec()
    if not spec.token:
        raise bad_request("token is required for TokenReview in authentication")
    status: Json
    try:
        found = _reviewed(backend, spec.token, tuple(spec.audiences or API_AUDIENCES))
        status = {"authenticated": True, "user": found.user_info, "audiences": list(found.audiences)}
    except NotAuthenticatedError as error:
        status = {"user": {}, "error": str(error)}
    return {**_review({"spec": msgspec.to_builtins(spec)}, "TokenReview", "authentication.k8s.io/v1"), "status": status}


def _reviewed(backend: Backend, token: str, audiences: tuple[str, ...]) -> Identity:
    """kube-apiserver reviews the header `Authorization: Bearer <token>`. So the text of a token ends at a space, and
    one that begins with a space is no token: the user is then anonymous, and authenticated for every audience."""
    given = token.strip(" ").partition(" ")[0] if not token.startswith(" ") else ""
    if not given:
        return Identity("system:anonymous", ("system:unauthenticated",), audiences)
    return authenticate(backend, given, audiences)


def _requester(backend: Backend, request: Request) -> Identity:
    """The user who sent the request: without a token, a program in this process."""
    _, _, token = request.headers.get("authorization", "").partition(" ")
    return authenticate(backend, token.strip()) if token else ADMINISTRATOR


def _review(value: Json, kind: str, api_version: str) -> Json:
    return {"kind": kind, "apiVersion": api_version, "metadata": {}, "spec": value.get("spec") or {}}
