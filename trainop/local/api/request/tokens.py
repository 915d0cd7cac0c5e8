"""The subresource `serviceaccounts/token`: TokenRequest, such as from `kubectl create token`.

Tokens are valid until they expire or the server stops. They grant all permissions, because RBAC is not enforced.
"""

from __future__ import annotations

import secrets
from datetime import timedelta
from typing import Any

from trainop.local.api import status_errors
from trainop.local.api.registry.backend import Backend
from trainop.local.api.request import bodies
from trainop.local.api.request.request_info import RequestInfo
from trainop.local.api.schema.field_errors import invalid
from trainop.local.api.status_errors import bad_request
from trainop.runtime.client.transport import Request
from trainop.runtime.clock import timestamp
from trainop.runtime.objects.metadata import Json

_AUDIENCE = "https://kubernetes.default.svc.cluster.local"
_DEFAULT_SECONDS, _MIN_SECONDS, _MAX_SECONDS = 3600, 600, 2**32


def issue_token(backend: Backend, info: RequestInfo, request: Request) -> Json:
    """POST of `serviceaccounts/token`; returns the TokenRequest with a new token in its status."""
    if request.method != "POST":
        raise status_errors.method_not_allowed()
    if backend.store.get(info.kind.table, info.key) is None:
        raise info.not_found()
    spec = bodies.decode(request, "TokenRequest").get("spec") or {}
    seconds = _lifetime(spec)
    token = secrets.token_urlsafe(32)
    backend.add_expiring_token(token, seconds)
    expires = timestamp(backend.clock.now() + timedelta(seconds=seconds))
    return {
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"name": info.name, "namespace": info.namespace, "creationTimestamp": backend.now()},
        "spec": {
            "audiences": spec.get("audiences") or [_AUDIENCE],
            "expirationSeconds": seconds,
            "boundObjectRef": spec.get("boundObjectRef"),
        },
        "status": {"token": token, "expirationTimestamp": expires},
    }


def _lifetime(spec: Any) -> int:
    """The validated lifetime in seconds; raises 400 or 422."""
    seconds = spec.get("expirationSeconds", _DEFAULT_SECONDS) if isinstance(spec, dict) else None
    if not isinstance(seconds, int) or isinstance(seconds, bool):
        raise bad_request('TokenRequest in version "v1" cannot be handled as a TokenRequest: spec is malformed')
    if seconds < _MIN_SECONDS:
        detail = "may not specify a duration less than 10 minutes"
    elif seconds > _MAX_SECONDS:
        detail = "may not specify a duration larger than 2^32 seconds"
    else:
        return seconds
    problem = invalid("spec.expirationSeconds", seconds, detail)
    raise status_errors.invalid("authentication.k8s.io", "TokenRequest", "", [problem])
