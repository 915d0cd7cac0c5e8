"""Who may report for a job: its own pods, by tokens that are bound to them.

A token has the audience of one job, so that no other service accepts it. Anybody in the namespace who may create tokens
can make one with that audience; so it counts only if it is also bound to a pod, and that pod, by UID, is the job's. The
kubelet makes such tokens for projected volumes.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec

from trainop.runtime import Client, Clock, Json
from trainop.runtime.lowlevel import TOKEN_REVIEWS, UNREADABLE

ACCEPTED_TTL, REFUSED_TTL = 600.0, 30.0
"""Seconds for which the answer about a token is kept, at most until the token expires. Whether its pod still exists is
asked of the cache each time."""
CACHE_SIZE = 16_384
"""Tokens whose answers are kept, 0.3 KiB each."""
MAX_REVIEWS, MAX_REVIEWS_OF_JOB = 8, 2
"""Reviews in flight: of all, which others wait for, and of the tokens for one job, so that forged ones keep no other
job from reporting."""
MAX_WAIT = 3.0
"""Seconds that a report waits for its review. Clients wait for 5 seconds."""

_POD_NAME, _POD_UID = "authentication.kubernetes.io/pod-name", "authentication.kubernetes.io/pod-uid"
_ACCOUNT = "system:serviceaccount:"


class Reporter(NamedTuple):
    """The pod that a token is bound to."""

    namespace: str
    pod: str
    uid: str


class BusyError(Exception):
    """Too many tokens are being reviewed."""


class _PodClaim(msgspec.Struct, frozen=True):
    name: str = ""
    uid: str = ""


class _KubernetesClaims(msgspec.Struct, frozen=True):
    namespace: str = ""
    pod: _PodClaim = _PodClaim()


class Claims(msgspec.Struct, frozen=True):
    """What a service account token says of itself. Nobody has checked its signature."""

    aud: str | tuple[str, ...] = ()
    exp: float = 0.0
    kubernetes: _KubernetesClaims = msgspec.field(default=_KubernetesClaims(), name="kubernetes.io")

    @property
    def reporter(self) -> Reporter:
        pod = self.kubernetes.pod
        return Reporter(self.kubernetes.namespace, pod.name, pod.uid)


_decode_claims = msgspec.json.Decoder(Claims).decode


def read_claims(token: str, audience: str) -> Claims | None:
    """The claims of a token; None if it is not for this audience, or not bound to a pod: a review is not needed."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = _decode_claims(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except UNREADABLE:
        return None
    audiences = (claims.aud,) if isinstance(claims.aud, str) else claims.aud
    return claims if audience in audiences and claims.reporter.uid else None


class TokenCheck:
    """Asks the API server about tokens (TokenReview), and keeps the answers for a while."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._answers: OrderedDict[bytes, tuple[float, Reporter | None]] = OrderedDict()
        self._reviews: Counter[str] = Counter()
        """Audience -> reviews in flight, and those that wait."""
        self._places = asyncio.Semaphore(MAX_REVIEWS)

    async def identify(self, token: str, claims: Claims, audience: str) -> Reporter | None:
        """The pod that a valid token for this audience is bound to; None for any other. `claims` are its own. Raises
        `BusyError`, and errors of the API server."""
        digest = hashlib.sha256(f"{audience} {token}".encode()).digest()  # keeps tokens out of memory dumps
        known = self._answers.get(digest)
        if known is not None and self._clock.monotonic() < known[0]:
            return known[1]
        async with self._place(audience):
            reporter = await self._review(token, audience)
        left = claims.exp - self._clock.now().timestamp()
        self._keep(digest, reporter, min(ACCEPTED_TTL, left) if reporter else REFUSED_TTL)
        return reporter

    @asynccontextmanager
    async def _place(self, audience: str) -> AsyncIterator[None]:
        if self._reviews[audience] >= MAX_REVIEWS_OF_JOB:
            raise BusyError
        self._reviews[audience] += 1
        try:
            async with asyncio.timeout(MAX_WAIT):
                await self._places.acquire()
            try:
                yield
            finally:
                self._places.release()
        except TimeoutError:
            raise BusyError from None
        finally:
            self._reviews[audience] -= 1
            self._reviews += Counter()  # forgets those without any

    async def _review(self, token: str, audience: str) -> Reporter | None:
        spec = {"token": token, "audiences": [audience]}
        body = {"apiVersion": TOKEN_REVIEWS.api_version, "kind": TOKEN_REVIEWS.kind, "metadata": {}, "spec": spec}
        answer = await self._client.create(TOKEN_REVIEWS, body)
        return _read_review(answer.get("status") or {}, audience)

    def _keep(self, digest: bytes, reporter: Reporter | None, seconds: float) -> None:
        self._answers[digest] = (self._clock.monotonic() + seconds, reporter)
        self._answers.move_to_end(digest)
        if len(self._answers) > CACHE_SIZE:
            self._answers.popitem(last=False)


def _read_review(status: Json, audience: str) -> Reporter | None:
    """An API server that knows no audiences names none, and has not checked them (KEP-1205)."""
    if not status.get("authenticated") or audience not in (status.get("audiences") or ()):
        return None
    user = status.get("user") or {}
    name, extra = str(user.get("username") or ""), user.get("extra") or {}
    if not name.startswith(_ACCOUNT) or not extra.get(_POD_UID) or not extra.get(_POD_NAME):
        return None
    return Reporter(name.removeprefix(_ACCOUNT).partition(":")[0], extra[_POD_NAME][0], extra[_POD_UID][0])
