"""Authenticates bearer tokens with TokenReview, and authorizes with SubjectAccessReview; results are cached.

Semantics and durations are those of controller-runtime `pkg/metrics/filters/filters.go`. The service
account needs permission to `create` `tokenreviews` and `subjectaccessreviews`.
"""

from __future__ import annotations

import hashlib
import random
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec
import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from trainop.runtime.clock import Clock, SystemClock
from trainop.runtime.errors import ApiError, describe
from trainop.runtime.objects.metadata import Json, Resource

TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
SUBJECT_ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)

USER_TTL = 60.0
ALLOWED_TTL = 300.0
DENIED_TTL = 30.0
"""Seconds for which a user, a permission and a denial are cached."""

CACHE_SIZE = 1024
MAX_ATTEMPTS = 5
FIRST_DELAY = 0.5
"""Seconds before the second attempt; each further delay is 1.5 times as long."""

V = TypeVar("V")

log = structlog.get_logger(__name__)


class ReviewClient(Protocol):
    """The part of `Client` that `Authorizer` uses."""

    async def create(self, resource: Resource, body: Json, *, namespace: str | None = None) -> Json: ...


@dataclass(frozen=True, slots=True)
class User:
    """The user of a token (`status.user` of a TokenReview). `extra` is JSON text, so that `User` is hashable."""

    name: str
    uid: str
    groups: tuple[str, ...]
    extra: str


class _ExpiringCache(Generic[V]):
    """A cache of at most CACHE_SIZE entries, each with an expiry time. Evicts the oldest entry."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._values: OrderedDict[Hashable, tuple[float, V]] = OrderedDict()

    def get(self, key: Hashable) -> V | None:
        expires_at, value = self._values.get(key, (0.0, None))
        return value if self._clock.monotonic() < expires_at else None

    def put(self, key: Hashable, value: V, seconds: float) -> None:
        self._values[key] = (self._clock.monotonic() + seconds, value)
        self._values.move_to_end(key)
        if len(self._values) > CACHE_SIZE:
            self._values.popitem(last=False)


class Authorizer:
    """Authenticates tokens and checks permissions with the API server.

    All methods raise `ApiError`, `ConnectionError` or `TimeoutError` if the API server cannot decide.
    """

    def __init__(self, client: ReviewClient, clock: Clock | None = None, rng: random.Random | None = None) -> None:
        self._client = client
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()  # noqa: S311  # jitter, not a secret
        self._users: _ExpiringCache[User] = _ExpiringCache(self._clock)
        self._decisions: _ExpiringCache[bool] = _ExpiringCache(self._clock)

    async def user_of(self, token: str) -> User | None:
        """The user that `token` authenticates; None if the token is invalid."""
        digest = hashlib.sha256(token.encode()).digest()  # keeps tokens out of memory dumps
        cached = self._users.get(digest)
        if cached is not None:
            return cached
        status = await self._review_with_retries(TOKEN_REVIEWS, {"token": token})
        if not status.get("authenticated"):
            return None
        info = status.get("user") or {}
        extra = msgspec.json.encode(info.get("extra") or {}, order="deterministic").decode()
        user = User(info.get("username") or "", info.get("uid") or "", tuple(info.get("groups") or ()), extra)
        self._users.put(digest, user, USER_TTL)
        return user

    async def allows(self, user: User, attributes: Json) -> bool:
        """Whether `user` has a permission.

        `attributes` are `{"nonResourceAttributes": {"path": ..., "verb": ...}}` or `{"resourceAttributes": ...}`, as
        in the spec of a SubjectAccessReview.
        """
        key = (user, msgspec.json.encode(attributes, order="deterministic"))
        cached = self._decisions.get(key)
        if cached is not None:
            return cached
        spec = {
            "user": user.name,
            "uid": user.uid,
            "groups": list(user.groups),
            "extra": msgspec.json.decode(user.extra),
            **attributes,
        }
        allowed = bool((await self._review_with_retries(SUBJECT_ACCESS_REVIEWS, spec)).get("allowed"))
        self._decisions.put(key, allowed, ALLOWED_TTL if allowed else DENIED_TTL)
        return allowed

    async def _review_with_retries(self, resource: Resource, spec: Json) -> Json:
        """The status of a review. Retried after any transient failure, because reviews have no side effects."""
        delay = FIRST_DELAY
        for _ in range(MAX_ATTEMPTS - 1):
            try:
                return await self._create_review(resource, spec)
            except (ConnectionError, TimeoutError):
                pass
            except ApiError as error:
                if error.code < 500 and error.code != 429:
                    raise
            await self._clock.sleep(delay * self._rng.uniform(1, 1.2))
            delay *= 1.5
        return await self._create_review(resource, spec)

    async def _create_review(self, resource: Resource, spec: Json) -> Json:
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {}, "spec": spec}
        answer = await self._client.create(resource, body)
        status: Json = answer.get("status") or {}
        return status


def require_permission(authorizer: Authorizer) -> Middleware:
    """A middleware that requires permission for the request's path and verb, as a non-resource URL."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        rejection = await _rejection(authorizer, request)
        return rejection if rejection is not None else await handler(request)

    return check


async def _rejection(authorizer: Authorizer, request: web.Request) -> web.Response | None:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    try:
        user = await authorizer.user_of(token.strip()) if scheme.lower() == "bearer" and token.strip() else None
        if user is None:
            return web.Response(status=401, text="Unauthorized\n")
        attributes = {"nonResourceAttributes": {"path": request.path, "verb": request.method.lower()}}
        if await authorizer.allows(user, attributes):
            return None
    except (ApiError, ConnectionError, TimeoutError) as error:
        log.warning("cannot authorize request", path=request.path, error=describe(error))
        return web.Response(status=500, text="Authentication failed\n")
    return web.Response(status=403, text=f"Authorization denied for user {user.name}\n")
