"""Reviews, which are answered and not stored: access reviews, rules reviews, token reviews.

Every authenticated client is a cluster administrator, so that access reviews always allow.
"""

from __future__ import annotations

from trainop.local.api.registry.backend import Backend
from trainop.local.api.request import bodies
from trainop.runtime.client.transport import Request
from trainop.runtime.objects.metadata import Json

USER = "system:admin"
_GROUPS = ["system:masters", "system:authenticated"]
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
        user = {"username": USER, "groups": _GROUPS}
        return {**_review(value, "SelfSubjectReview", "authentication.k8s.io/v1"), "status": {"userInfo": user}}
    if path == _TOKEN:
        value = bodies.decode(request, "TokenReview")
        given = (value.get("spec") or {}).get("token") or ""
        known = backend.accepts_token(given)
        status: Json = {"authenticated": True, "user": {"username": USER, "groups": _GROUPS}} if known else {"user": {}}
        return {**_review(value, "TokenReview", "authentication.k8s.io/v1"), "status": status}
    return None


def _review(value: Json, kind: str, api_version: str) -> Json:
    return {"kind": kind, "apiVersion": api_version, "metadata": {}, "spec": value.get("spec") or {}}
