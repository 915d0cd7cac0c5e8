"""The subresource `serviceaccounts/token`: TokenRequest, such as from `kubectl create token` and kubelet.

Order of checks, messages and claims are those of kube-apiserver (`pkg/registry/core/serviceaccount/storage/token.go`).
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from trainop.local.api import status_errors
from trainop.local.api.registry.authentication import (
    API_AUDIENCES,
    ISSUER,
    Bound,
    Claims,
    ServiceAccountClaims,
    service_account_name,
)
from trainop.local.api.registry.backend import Backend
from trainop.local.api.request import bodies
from trainop.local.api.request.request_info import RequestInfo
from trainop.local.api.schema.field_errors import invalid
from trainop.local.api.status_errors import bad_request
from trainop.local.api.storage.versioned_store import Stored
from trainop.runtime import NODES, PODS, SECRETS, Json, Resource
from trainop.runtime.lowlevel import Request, timestamp

_MIN_SECONDS, _MAX_SECONDS = 600, 2**32
_EXTENDED, _EXTENDED_TO = 3607, 365 * 24 * 3600
"""The lifetime that tokens of pods ask for unless a user states one, and what they get, because older clients read a
token only once. Kubelet renews the token after the lifetime it asked for (`--service-account-extend-token-expiration`).
"""
_GROUP = "authentication.k8s.io"
_TOKEN_REQUEST = Resource(_GROUP, "v1", "TokenRequest", "TokenRequest")
_BINDABLE = {resource.kind: resource for resource in (PODS, SECRETS, NODES)}


class _Reference(msgspec.Struct):
    kind: str = ""
    apiVersion: str = ""  # noqa: N815 - the name of the field
    name: str = ""
    uid: str = ""


class _Spec(msgspec.Struct):
    audiences: list[str] | None = None
    expirationSeconds: int | None = None  # noqa: N815
    boundObjectRef: _Reference | None = None  # noqa: N815

    @property
    def seconds(self) -> int:
        return 3600 if self.expirationSeconds is None else self.expirationSeconds

    @property
    def wanted(self) -> list[str]:
        return self.audiences or list(API_AUDIENCES)


class _Metadata(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    uid: str = ""


class _TokenRequest(msgspec.Struct):
    metadata: _Metadata | None = None
    spec: _Spec | None = None


class _Binding(NamedTuple):
    """The objects that a token names besides the service account."""

    pod: Bound | None = None
    secret: Bound | None = None
    node: Bound | None = None


def issue_token(backend: Backend, info: RequestInfo, request: Request) -> Json:
    """POST of `serviceaccounts/token`; returns the TokenRequest with a new token in its status."""
    if request.method != "POST":
        raise status_errors.method_not_allowed()
    given = bodies.decode_review(request, "TokenRequest", _TokenRequest)
    account = _account(backend, info, given.metadata or _Metadata())
    spec = given.spec or _Spec()
    _check_lifetime(spec.seconds)
    binding = _bind(backend, info, spec.boundObjectRef) if spec.boundObjectRef is not None else _Binding()
    now = backend.clock.now()
    claims = _claims(backend, account, spec, binding, now)
    metadata = {"name": info.name, "namespace": info.namespace, "uid": account.uid, "creationTimestamp": timestamp(now)}
    return {
        "kind": "TokenRequest",
        "apiVersion": f"{_GROUP}/v1",
        "metadata": metadata,
        "spec": {
            "audiences": spec.wanted,
            "expirationSeconds": spec.seconds,
            "boundObjectRef": _shown(spec.boundObjectRef),
        },
        "status": {
            "token": backend.signer.sign(claims),
            "expirationTimestamp": timestamp(now + timedelta(seconds=spec.seconds)),
        },
    }


def _shown(reference: _Reference | None) -> Json | None:
    given: Json = msgspec.to_builtins(reference) if reference else {}
    return {name: value for name, value in given.items() if value} if reference else None


def _account(backend: Backend, info: RequestInfo, metadata: _Metadata) -> Stored:
    """The service account, if the request's metadata agrees with it."""
    if metadata.namespace and metadata.namespace != info.namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    if metadata.name and metadata.name != info.name:
        problem = invalid("metadata.name", metadata.name, "must match the service account name if specified")
        raise status_errors.invalid(_GROUP, "TokenRequest", info.name, [problem])
    stored = backend.store.get(info.kind.table, info.key)
    if stored is None:
        raise info.not_found()
    if metadata.uid and metadata.uid != stored.uid:
        detail = (
            f"the UID in the token request ({metadata.uid}) does not match the UID of the service account "
            f"({stored.uid})"
        )
        raise status_errors.conflict(_TOKEN_REQUEST, info.name, detail)
    return stored


def _check_lifetime(seconds: int) -> None:
    if seconds < _MIN_SECONDS:
        detail = "may not specify a duration less than 10 minutes"
    elif seconds > _MAX_SECONDS:
        detail = "may not specify a duration larger than 2^32 seconds"
    else:
        return
    problem = invalid("spec.expirationSeconds", seconds, detail)
    raise status_errors.invalid(_GROUP, "TokenRequest", "", [problem])


def _bind(backend: Backend, info: RequestInfo, reference: _Reference) -> _Binding:
    """The claims about the object whose deletion ends the token. Raises the 400, 404 or 409 of a wrong reference."""
    group, _, version = reference.apiVersion.rpartition("/")
    resource = _BINDABLE.get(reference.kind) if not group else None
    if resource is None:
        raise bad_request(f"cannot bind token to object of type {group}/{version}, Kind={reference.kind}")
    if not reference.name:
        raise bad_request("Name parameter required.")
    namespace = info.namespace or "" if resource.namespaced else ""
    stored = backend.store.get(str(resource), (namespace, reference.name))
    if stored is None:
        raise status_errors.not_found(resource, reference.name)
    spec = stored.value.get("spec") or {}
    # Admission sets this name in other clusters; here a pod without one runs as the account `default`, too.
    if resource is PODS and (spec.get("serviceAccountName") or "default") != info.name:
        raise bad_request(
            f'cannot bind token for serviceaccount "{info.name}" to pod running with different serviceaccount name.'
        )
    if reference.uid and reference.uid != stored.uid:
        detail = (
            f"the UID in the bound object reference ({reference.uid}) does not match the UID in record. The object "
            "might have been deleted and then recreated"
        )
        raise status_errors.conflict(Resource("", "v1", resource.kind, resource.kind), reference.name, detail)
    bound = Bound(reference.name, stored.uid)
    if resource is PODS:
        return _Binding(pod=bound, node=_node(backend, spec.get("nodeName") or ""))
    return _Binding(secret=bound) if resource is SECRETS else _Binding(node=bound)


def _node(backend: Backend, name: str) -> Bound | None:
    stored = backend.store.get(str(NODES), ("", name)) if name else None
    return Bound(name, stored.uid if stored else "") if name else None


def _claims(backend: Backend, account: Stored, spec: _Spec, binding: _Binding, now: datetime) -> Claims:
    issued, seconds = int(now.timestamp()), spec.seconds
    extended = seconds == _EXTENDED and binding.pod is not None and set(spec.wanted) <= set(API_AUDIENCES)
    namespace, name = account.key
    own = ServiceAccountClaims(namespace, Bound(name, account.uid), *binding)
    if extended:
        own.warnafter = issued + seconds
    return Claims(
        aud=spec.wanted,
        exp=issued + (_EXTENDED_TO if extended else seconds),
        iat=issued,
        nbf=issued,
        iss=ISSUER,
        sub=service_account_name(namespace, name),
        jti=backend.new_uid(),
        kubernetes=own,
    )
