"""Tokens: what is asked of the API server, how often, and what is believed."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any, cast

import pytest

from tests.runtime.virtual_time import VirtualClock, virtual_time
from trainop.controllers.progress.reporters import (
    ACCEPTED_TTL,
    CACHE_SIZE,
    MAX_REVIEWS,
    REFUSED_TTL,
    BusyError,
    Claims,
    Reporter,
    TokenCheck,
    read_claims,
)
from trainop.runtime import Client, Json, Resource

AUDIENCE = "kubeflow.org/v1/namespaces/ns/pytorchjobs/j/status"
POD = Reporter("ns", "j-worker-0", "u1")
EXTRA = {"authentication.kubernetes.io/pod-name": ["j-worker-0"], "authentication.kubernetes.io/pod-uid": ["u1"]}
USER = {"username": "system:serviceaccount:ns:default", "extra": EXTRA}


def token(**claims: Any) -> str:
    pod = {"namespace": "ns", "pod": {"name": "j-worker-0", "uid": "u1"}}
    body = {"aud": [AUDIENCE], "exp": 2e9, "kubernetes.io": pod, **claims}
    return f"head.{base64.urlsafe_b64encode(json.dumps(body).encode()).decode().rstrip('=')}.signature"


class Reviewer:
    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.status: Json = {"authenticated": True, "audiences": [AUDIENCE], "user": USER}
        self.asked: list[Json] = []
        self.takes, self.most, self.now = 0.0, 0, 0

    async def create(self, resource: Resource, body: Json) -> Json:
        assert (resource.kind, body["kind"]) == ("TokenReview", "TokenReview")
        self.asked.append(body["spec"])
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self.clock.sleep(self.takes)
        finally:
            self.now -= 1
        return {"status": self.status}


def make() -> tuple[TokenCheck, Reviewer, VirtualClock]:
    clock = VirtualClock()
    reviewer = Reviewer(clock)
    return TokenCheck(cast("Client", reviewer), clock), reviewer, clock


async def identify(check: TokenCheck, text: str, audience: str = AUDIENCE) -> Reporter | None:
    claims = read_claims(text, audience)
    assert claims is not None
    return await check.identify(text, claims, audience)


@virtual_time
async def test_a_token_is_reviewed_with_its_audience_and_remembered():
    check, reviewer, _ = make()
    for _ in range(100):
        assert await identify(check, token()) == POD
    assert reviewer.asked == [{"token": token(), "audiences": [AUDIENCE]}]
    await asyncio.sleep(ACCEPTED_TTL + 1)
    await identify(check, token())
    assert len(reviewer.asked) == 2


@virtual_time
async def test_an_accepted_token_is_remembered_until_it_expires():
    check, reviewer, clock = make()
    short = token(exp=clock.now().timestamp() + 60)
    await identify(check, short)
    await asyncio.sleep(61)
    reviewer.status = {"authenticated": False, "error": "token has expired"}
    assert await identify(check, short) is None


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"authenticated": False},
        {"authenticated": True, "user": USER},  # an API server that knows no audiences
        {"authenticated": True, "audiences": ["other"], "user": USER},
        {"authenticated": True, "audiences": [AUDIENCE]},
        {"authenticated": True, "audiences": [AUDIENCE], "user": {**USER, "extra": {}}},
        {"authenticated": True, "audiences": [AUDIENCE], "user": {**USER, "username": "alice"}},
    ],
    ids=range(7),
)
@virtual_time
async def test_what_is_not_believed(status: Json):
    check, reviewer, _ = make()
    reviewer.status = status
    assert await identify(check, token()) is None
    assert await identify(check, token()) is None
    assert len(reviewer.asked) == 1
    await asyncio.sleep(REFUSED_TTL + 1)
    await identify(check, token())
    assert len(reviewer.asked) == 2


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "a.b",
        "a.b.c",
        "a.!!!!.c",
        f"a.{base64.urlsafe_b64encode(b'[' * 9000).decode()}.c",
        token(aud="other"),
        token(aud=["other", AUDIENCE[:-1]]),
        token(aud=5),
        token(exp="soon"),
        token(**{"kubernetes.io": {"namespace": "ns"}}),
        token(**{"kubernetes.io": None}),
    ],
    ids=range(12),
)
def test_what_is_not_even_reviewed(text: str):
    assert read_claims(text, AUDIENCE) is None


def test_an_audience_may_be_one_text():
    claims = read_claims(token(aud=AUDIENCE), AUDIENCE)
    assert isinstance(claims, Claims)
    assert claims.reporter == POD


@virtual_time
async def test_forged_tokens_of_one_job_do_not_delay_another():
    check, reviewer, _ = make()
    reviewer.takes = 1.0
    forged = [asyncio.create_task(identify(check, f"{token()}{number}")) for number in range(500)]
    await asyncio.sleep(0)
    other = AUDIENCE.replace("/j/", "/k/")
    began = reviewer.clock.monotonic()
    reviewer.status = {**reviewer.status, "audiences": [other]}
    assert await identify(check, token(aud=other), other) == POD
    assert reviewer.clock.monotonic() - began == 1.0
    ends = await asyncio.gather(*forged, return_exceptions=True)
    assert sum(isinstance(end, BusyError) for end in ends) == 498


@virtual_time
async def test_the_reviews_of_many_jobs_wait_for_each_other():
    check, reviewer, _ = make()
    reviewer.takes = 0.5
    audiences = [AUDIENCE.replace("/j/", f"/j{number}/") for number in range(100)]
    asked = [identify(check, token(aud=each), each) for each in audiences]
    ends = await asyncio.gather(*asked, return_exceptions=True)
    assert reviewer.most == MAX_REVIEWS
    busy = sum(isinstance(end, BusyError) for end in ends)
    assert busy == 100 - 6 * MAX_REVIEWS  # half a second each, in three seconds


@virtual_time
async def test_the_memory_is_bounded():
    check, _, _ = make()
    for number in range(CACHE_SIZE + 100):
        await identify(check, f"{token()}{number}")
    assert len(check._answers) == CACHE_SIZE
