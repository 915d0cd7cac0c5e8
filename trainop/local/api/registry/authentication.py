"""Who a bearer token belongs to: an administrator, or a service account by a token that this server has signed.

Claims, checks and messages are those of kube-apiserver (`pkg/serviceaccount/claims.go` and `jwt.go`).
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec

from trainop.local.api.registry.backend import Backend
from trainop.local.api.registry.jwt import BadSignatureError, NotATokenError, parse
from trainop.local.api.schema.field_errors import quote
from trainop.local.api.storage.versioned_store import Stored
from trainop.runtime import NODES, PODS, SECRETS, SERVICE_ACCOUNTS, Json, Resource
from trainop.runtime.lowlevel import read_time

ISSUER = "https://kubernetes.default.svc.cluster.local"
API_AUDIENCES = (ISSUER,)
"""Audiences of tokens for this server; a token for another audience is not accepted in requests."""

_LEEWAY = timedelta(minutes=1)
"""How much the clocks of issuer and verifier may differ, and how long a deleted object is still accepted."""
_EXTRA = "authentication.kubernetes.io/"
_INVALID = "invalid bearer token"
_INVALIDATED = "service account token has been invalidated"


class NotAuthenticatedError(Exception):
    """The token is not accepted; the message is that of kube-apiserver."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(f"[{_INVALID}, {reason}]" if reason else _INVALID)


@dataclass(frozen=True, slots=True)
class Identity:
    """An authenticated user, and for which of the requested audiences."""

    username: str
    groups: tuple[str, ...]
    audiences: tuple[str, ...] = API_AUDIENCES
    uid: str = ""
    extra: dict[str, list[str]] = field(default_factory=dict)

    @property
    def user_info(self) -> Json:
        """The `UserInfo` of authentication.k8s.io/v1."""
        info: Json = {"username": self.username, "uid": self.uid, "groups": list(self.groups), "extra": self.extra}
        return {name: value for name, value in info.items() if value}


ADMINISTRATOR = Identity("system:admin", ("system:masters", "system:authenticated"))


class Bound(msgspec.Struct, omit_defaults=True):
    """An object of which a token is valid, by name and UID."""

    name: str = ""
    uid: str = ""


class ServiceAccountClaims(msgspec.Struct, omit_defaults=True):
    """The claim `kubernetes.io`. `warnafter` (seconds since 1970): when the client should have renewed the token."""

    namespace: str = ""
    serviceaccount: Bound = msgspec.field(default_factory=Bound)
    pod: Bound | None = None
    secret: Bound | None = None
    node: Bound | None = None
    warnafter: int | None = None


class Claims(msgspec.Struct, omit_defaults=True):
    """The claims of a service account token; times in seconds since 1970."""

    aud: list[str] | str = msgspec.field(default_factory=list)
    exp: int | float | None = None
    iat: int | float | None = None
    nbf: int | float | None = None
    iss: str = ""
    sub: str = ""
    jti: str = ""
    kubernetes: ServiceAccountClaims = msgspec.field(name="kubernetes.io", default_factory=ServiceAccountClaims)


def authenticate(backend: Backend, token: str, audiences: Sequence[str] = API_AUDIENCES) -> Identity:
    """The user of a bearer token that is valid for at least one of `audiences`. Raises `NotAuthenticatedError`."""
    if _is_administrator(backend, token):
        if accepted := _intersect(audiences, API_AUDIENCES):
            return Identity(ADMINISTRATOR.username, ADMINISTRATOR.groups, accepted)
        raise NotAuthenticatedError
    claims = _verified_claims(backend, token)
    held = [claims.aud] if isinstance(claims.aud, str) else claims.aud or API_AUDIENCES
    accepted = _intersect(audiences, held)
    if not accepted:
        raise NotAuthenticatedError(
            f"token audiences {_quoted(held)} is invalid for the target audiences {_quoted(audiences)}"
        )
    now = backend.clock.now()
    _check_times(claims, now)
    return _identity(claims, _account(backend, claims.kubernetes, now), accepted)


def _is_administrator(backend: Backend, token: str) -> bool:
    """Compared in constant time. A header may contain bytes that are no UTF-8."""
    given, known = token.encode(errors="surrogatepass"), False
    for held in backend.tokens:
        known = hmac.compare_digest(given, held.encode()) or known
    return known


def _intersect(wanted: Sequence[str], held: Sequence[str]) -> tuple[str, ...]:
    known = frozenset(held)
    return tuple(audience for audience in wanted if audience in known)


def _quoted(audiences: Sequence[str]) -> str:
    return f"[{' '.join(quote(audience) for audience in audiences)}]"


def _verified_claims(backend: Backend, text: str) -> Claims:
    try:
        token = parse(text)
    except NotATokenError:
        raise NotAuthenticatedError from None
    if token.issuer != ISSUER:
        raise NotAuthenticatedError
    try:
        backend.signer.verify(token)
        return msgspec.json.decode(token.payload, type=Claims)
    except BadSignatureError:
        raise NotAuthenticatedError("go-jose/go-jose: error in cryptographic primitive") from None
    except msgspec.DecodeError as error:
        raise NotAuthenticatedError(str(error)) from error


def _check_times(claims: Claims, now: datetime) -> None:
    earliest, latest = (now - _LEEWAY).timestamp(), (now + _LEEWAY).timestamp()
    if claims.nbf is not None and latest < claims.nbf:
        raise NotAuthenticatedError("service account token is not valid yet")
    if claims.exp is not None and earliest > claims.exp:
        raise NotAuthenticatedError("service account token has expired")
    if claims.iat is not None and latest < claims.iat:
        raise NotAuthenticatedError("service account token is issued in the future")


def _account(backend: Backend, claims: ServiceAccountClaims, now: datetime) -> ServiceAccountClaims:
    """The claims, after the check that the account and the object to which the token is bound exist."""
    account, namespace = claims.serviceaccount, claims.namespace
    if not account.name:
        raise NotAuthenticatedError("resource name may not be empty")
    stored = backend.store.get(str(SERVICE_ACCOUNTS), (namespace, account.name))
    if stored is None:
        raise NotAuthenticatedError(f"serviceaccounts {quote(account.name)} not found")
    if stored.uid != account.uid:
        raise NotAuthenticatedError(f"service account UID ({stored.uid}) does not match claim ({account.uid})")
    if _deleted(stored, now):
        raise NotAuthenticatedError(f"service account {namespace}/{account.name} has been deleted")
    _check_bound(backend, claims.secret, SECRETS, namespace, now)
    _check_bound(backend, claims.pod, PODS, namespace, now)
    if claims.pod is None:  # the node of a pod is information only
        _check_bound(backend, claims.node, NODES, "", now)
    return claims


def _check_bound(backend: Backend, bound: Bound | None, resource: Resource, namespace: str, now: datetime) -> None:
    if bound is None:
        return
    stored = backend.store.get(str(resource), (namespace, bound.name))
    if stored is None:
        raise NotAuthenticatedError(_INVALIDATED)
    if stored.uid != bound.uid:
        kind, claim = resource.kind, resource.kind.lower()
        raise NotAuthenticatedError(
            f"{kind if kind == 'Secret' else claim} UID ({stored.uid}) does not match service account {claim} ref "
            f"claim ({bound.uid})"
        )
    if _deleted(stored, now):
        raise NotAuthenticatedError(_INVALIDATED)


def _deleted(stored: Stored, now: datetime) -> bool:
    """Whether the grace period of a deletion is over, but a finalizer or the node holds the object."""
    at = read_time(stored.value["metadata"].get("deletionTimestamp"))
    return at is not None and at < now - _LEEWAY


def _identity(claims: Claims, own: ServiceAccountClaims, audiences: tuple[str, ...]) -> Identity:
    extra = {"credential-id": f"JTI={claims.jti}" if claims.jti else ""}
    for kind, bound in (("node", own.node), ("pod", own.pod)):
        if bound is not None:
            extra |= {f"{kind}-name": bound.name, f"{kind}-uid": bound.uid}
    return Identity(
        service_account_name(own.namespace, own.serviceaccount.name),
        ("system:serviceaccounts", f"system:serviceaccounts:{own.namespace}", "system:authenticated"),
        audiences,
        own.serviceaccount.uid,
        {f"{_EXTRA}{name}": [value] for name, value in extra.items() if value},
    )


def service_account_name(namespace: str, name: str) -> str:
    """The user name of a service account."""
    return f"system:serviceaccount:{namespace}:{name}"
