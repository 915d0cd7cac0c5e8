"""Authorization of metrics requests through the API server: the reviews, their caching, and retries."""

from __future__ import annotations

import random

import aiohttp
import pytest

from tests.runtime.test_server import serving
from tests.runtime.virtual_time import VirtualClock, virtual_time
from trainop.runtime.errors import ApiError, ForbiddenError
from trainop.runtime.metrics.authorize import Authorizer, require_permission
from trainop.runtime.metrics.metrics import Metrics
from trainop.runtime.objects.metadata import Json, Resource
from trainop.runtime.serving.server import Address, HttpServer, metrics_application

ALICE = {"username": "alice", "uid": "1", "groups": ["dev", "system:authenticated"], "extra": {"scopes": ["a", "b"]}}
MALLORY = {"username": "mallory", "uid": "2", "groups": []}
METRICS = {"nonResourceAttributes": {"path": "/metrics", "verb": "get"}}


class Reviewer:
    """Answers TokenReview and SubjectAccessReview: knows two tokens; only alice may read /metrics."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Json]] = []
        self.failures: list[Exception] = []

    async def create(self, resource: Resource, body: Json, *, namespace: str | None = None) -> Json:
        assert namespace is None
        assert (body["apiVersion"], body["kind"]) == (resource.api_version, resource.kind)
        self.asked.append((resource.kind, body["spec"]))
        if self.failures:
            raise self.failures.pop(0)
        spec = body["spec"]
        if resource.kind == "TokenReview":
            user = {"alice-token": ALICE, "mallory-token": MALLORY}.get(spec["token"])
            return {**body, "status": {"authenticated": True, "user": user} if user else {"error": "unknown"}}
        allowed = spec["user"] == "alice" and {"nonResourceAttributes": spec["nonResourceAttributes"]} == METRICS
        return {**body, "status": {"allowed": allowed}}


def make() -> tuple[Authorizer, Reviewer, VirtualClock]:
    reviewer, clock = Reviewer(), VirtualClock()
    return Authorizer(reviewer, clock, random.Random(1)), reviewer, clock


@virtual_time
async def test_the_review_contains_all_user_attributes():
    authorizer, reviewer, _ = make()
    user = await authorizer.user_of("alice-token")
    assert user is not None
    assert await authorizer.allows(user, METRICS)
    assert reviewer.asked == [
        ("TokenReview", {"token": "alice-token"}),
        (
            "SubjectAccessReview",
            {"user": "alice", "uid": "1", "groups": ALICE["groups"], "extra": ALICE["extra"], **METRICS},
        ),
    ]


@virtual_time
async def test_answers_are_cached_until_they_expire():
    authorizer, reviewer, clock = make()

    async def ask(token: str) -> list[str]:
        reviewer.asked.clear()
        user = await authorizer.user_of(token)
        assert user is not None
        assert await authorizer.allows(user, METRICS) == (token == "alice-token")
        return [kind for kind, _ in reviewer.asked]

    assert await ask("alice-token") == ["TokenReview", "SubjectAccessReview"]
    assert await ask("mallory-token") == ["TokenReview", "SubjectAccessReview"]
    await clock.sleep(29)
    assert await ask("alice-token") == await ask("mallory-token") == []
    await clock.sleep(2)
    assert await ask("mallory-token") == ["SubjectAccessReview"]
    await clock.sleep(30)
    assert await ask("alice-token") == ["TokenReview"]
    await clock.sleep(240)
    assert await ask("alice-token") == ["TokenReview", "SubjectAccessReview"]


@virtual_time
async def test_an_unknown_token_is_reviewed_each_time():
    authorizer, reviewer, _ = make()
    assert await authorizer.user_of("nobody") is None
    assert await authorizer.user_of("nobody") is None
    assert len(reviewer.asked) == 2


@virtual_time
async def test_transient_errors_are_retried_and_refusals_are_not():
    authorizer, reviewer, clock = make()
    reviewer.failures = [ApiError(503, "", "", {}), ConnectionResetError(), TimeoutError(), ApiError(429, "", "", {})]
    assert await authorizer.user_of("alice-token") is not None
    exact = 0.5 * (1 + 1.5 + 1.5**2 + 1.5**3)
    assert exact <= clock.monotonic() <= 1.2 * exact
    reviewer.failures = [ForbiddenError(403, "Forbidden", "", {})]
    with pytest.raises(ForbiddenError):
        await authorizer.user_of("mallory-token")
    reviewer.failures = [ConnectionResetError()] * 5
    with pytest.raises(ConnectionResetError):
        await authorizer.user_of("mallory-token")
    assert not reviewer.failures


@virtual_time
async def test_the_cache_of_answers_is_bounded():
    authorizer, _, _ = make()
    user = await authorizer.user_of("alice-token")
    assert user is not None
    for number in range(1100):
        await authorizer.allows(user, {"nonResourceAttributes": {"path": f"/{number}", "verb": "get"}})
    assert len(authorizer._decisions._values) == 1024


@pytest.mark.parametrize(
    ("header", "failure", "status", "text"),
    [
        ("", None, 401, "Unauthorized\n"),
        ("Basic YTpi", None, 401, "Unauthorized\n"),
        ("Bearer ", None, 401, "Unauthorized\n"),
        ("Bearer nobody", None, 401, "Unauthorized\n"),
        ("Bearer mallory-token", None, 403, "Authorization denied for user mallory\n"),
        ("Bearer alice-token", ForbiddenError(403, "Forbidden", "", {}), 500, "Authentication failed\n"),
        ("Bearer alice-token", None, 200, None),
    ],
)
async def test_metrics_are_served_to_authorized_users(
    header: str, failure: Exception | None, status: int, text: str | None
):
    reviewer = Reviewer()
    reviewer.failures = [failure] if failure else []
    application = metrics_application(Metrics().registry, require_permission(Authorizer(reviewer)))
    async with (
        serving(HttpServer("metrics", Address("127.0.0.1", 0), application)) as url,
        aiohttp.ClientSession() as session,
        session.get(url + "/metrics", headers={"Authorization": header} if header else {}) as response,
    ):
        assert response.status == status
        body = await response.text()
        assert body == text if text else "# TYPE runtime_events_written_total counter" in body
