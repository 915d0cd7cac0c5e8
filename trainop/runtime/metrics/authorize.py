"""May the bearer of this token do that? The API server is asked, and its answers are kept for a while.

Semantics and numbers of controller-runtime `pkg/metrics/filters/filters.go`. The operator's service account needs
`create` on `tokenreviews` and `subjectaccessreviews`.
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
from trainop.runtime.errors import ApiError
from trainop.runtime.objects.metadata import Json
from trainop.runtime.objects.resource import Resource

TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
SUBJECT_ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)

KEEP_USER = 60.0
KEEP_ALLOWED = 300.0
KEEP_DENIED = 30.0
REMEMBERED = 1024
TRIES = 5
FIRST_DELAY = 0.5

V = TypeVar("V")

log = structlog.get_logger(__name__)


class ReviewClient(Protocol):
    """The part of `Client` that is used."""

    async def create(self, resource: Resource, body: Json, *, namespace: str | None = None) -> Json: ...


@dataclass(frozen=True, slots=True)
class User:
    """As TokenReview tells; `extra` is JSON text, so that the value can be a key."""

    name: str
    uid: str
    groups: tuple[str, ...]
    extra: str


class _Kept(Generic[V]):
    """Answers, each with the time until when it may be repeated."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._values: OrderedDict[Hashable, tuple[float, V]] = OrderedDict()

    def get(self, key: Hashable) -> V | None:
        until, value = self._values.get(key, (0.0, None))
        return value if self._clock.monotonic() < until else None

    def put(self, key: Hashable, value: V, seconds: float) -> None:
        self._values[key] = (self._clock.monotonic() + seconds, value)
        self._values.move_to_end(key)
        if len(self._values) > REMEMBERED:
            self._values.popitem(last=False)


class Authorizer:
    """All methods raise `ApiError`, `ConnectionError` or `TimeoutError` if the API server cannot tell."""

    def __init__(self, client: ReviewClient, clock: Clock | None = None, rng: random.Random | None = None) -> None:
        self._client = client
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()  # noqa: S311  # jitter, not a secret
        self._users: _Kept[User] = _Kept(self._clock)
        self._decisions: _Kept[bool] = _Kept(self._clock)

    async def user_of(self, token: str) -> User | None:
        """Whose token it is; None if it is nobody's."""
        digest = hashlib.sha256(token.encode()).digest()  # a dump of the memory need not show tokens
        kept = self._users.get(digest)
        if kept is not None:
            return kept
        status = await self._review(TOKEN_REVIEWS, {"token": token})
        if not status.get("authenticated"):
            return None
        told = status.get("user") or {}
        extra = msgspec.json.encode(told.get("extra") or {}, order="deterministic").decode()
        user = User(told.get("username") or "", told.get("uid") or "", tuple(told.get("groups") or ()), extra)
        self._users.put(digest, user, KEEP_USER)
        return user

    async def allows(self, user: User, attributes: Json) -> bool:
        """`attributes` are `{"nonResourceAttributes": {"path": ..., "verb": ...}}` or `{"resourceAttributes": ...}`."""
        key = (user, msgspec.json.encode(attributes, order="deterministic"))
        kept = self._decisions.get(key)
        if kept is not None:
            return kept
        spec = {
            "user": user.name,
            "uid": user.uid,
            "groups": list(user.groups),
            "extra": msgspec.json.decode(user.extra),
            **attributes,
        }
        allowed = bool((await self._review(SUBJECT_ACCESS_REVIEWS, spec)).get("allowed"))
        self._decisions.put(key, allowed, KEEP_ALLOWED if allowed else KEEP_DENIED)
        return allowed

    async def _review(self, resource: Resource, spec: Json) -> Json:
        """A review has no effect, so that it may be asked again whatever became of it."""
        delay = FIRST_DELAY
        for _ in range(TRIES - 1):
            try:
                return await self._ask(resource, spec)
            except (ConnectionError, TimeoutError):
                pass
            except ApiError as error:
                if error.code < 500 and error.code != 429:
                    raise
            await self._clock.sleep(delay * self._rng.uniform(1, 1.2))
            delay *= 1.5
        return await self._ask(resource, spec)

    async def _ask(self, resource: Resource, spec: Json) -> Json:
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {}, "spec": spec}
        answer = await self._client.create(resource, body)
        status: Json = answer.get("status") or {}
        return status


def require_permission(authorizer: Authorizer) -> Middleware:
    """A middleware that serves a path only to who may use that verb on it as a non-resource URL."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        refusal = await _refusal(authorizer, request)
        return refusal if refusal is not None else await handler(request)

    return check


async def _refusal(authorizer: Authorizer, request: web.Request) -> web.Response | None:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    try:
        user = await authorizer.user_of(token.strip()) if scheme.lower() == "bearer" and token.strip() else None
        if user is None:
            return web.Response(status=401, text="Unauthorized\n")
        attributes = {"nonResourceAttributes": {"path": request.path, "verb": request.method.lower()}}
        if await authorizer.allows(user, attributes):
            return None
    except (ApiError, ConnectionError, TimeoutError) as error:
        log.warning("caller could not be checked", path=request.path, error=f"{type(error).__name__}: {error}")
        return web.Response(status=500, text="Authentication failed\n")
    return web.Response(status=403, text=f"Authorization denied for user {user.name}\n")
