"""What happens on an open page when tokens expire, sessions end and people sign out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp

from e2e.cluster.certificates import Authority
from e2e.page.provider import Provider, User
from e2e.page.site import Visitor, ends_with_login, people
from tests.patience import PATIENCE
from tests.server.page import Team, next_event

LIFETIME = 30.0
"""Seconds of a token: enough to log in on a machine that is busy."""


@asynccontextmanager
async def looking(
    site: str, authority: Authority, provider: Provider, team: Team
) -> AsyncIterator[tuple[Visitor, aiohttp.ClientResponse]]:
    """Alice, whose token expires soon, and the events of the page that she has open."""
    provider.users["alice"] = User("alice@example.com", lifetime=LIFETIME)
    async with people(site, authority, "alice") as (alice,):
        await alice.until_listed(team.name, "alice@example.com")
        async with alice.ask("events", namespace=team.name) as stream:
            yield alice, stream


async def test_an_open_page_is_told_when_its_token_has_expired_and_goes_on_with_the_next(
    start_proxy: Callable[..., str],
    authority: Authority,
    provider: Provider,
    teams: tuple[Team, Team],
) -> None:
    site = start_proxy("--cookie-refresh=5s")
    async with looking(site, authority, provider, teams[0]) as (alice, stream):
        await ends_with_login(stream)
        before = provider.refreshed
        async with alice.ask("events", namespace=teams[0].name) as again:  # as the page does
            assert again.status == 200
            jobs, _ = await next_event(again, "jobs")
            assert [each["name"] for each in jobs["jobs"]] == ["train"]
            assert provider.refreshed > before
            provider.users["alice"].knows = False  # the session at the provider has ended, while a page is open
            await ends_with_login(again)
        async with asyncio.timeout(PATIENCE):
            while True:
                async with alice.ask("events", namespace=teams[0].name) as again:
                    if again.status == 401:
                        break
                await asyncio.sleep(0.5)
        await alice.log_in("alice")
        await alice.until_listed(teams[0].name, "alice@example.com")


async def test_without_a_refresh_an_expired_token_is_refused_and_the_answer_says_what_to_do(
    site: str,
    authority: Authority,
    provider: Provider,
    teams: tuple[Team, Team],
) -> None:
    async with looking(site, authority, provider, teams[0]) as (alice, stream):
        await ends_with_login(stream)
        for path in ("events", "yaml", "why"):
            status, found = await alice.read(path, "", job=teams[0].job)
            assert status == 401
            assert "log in again" in found["error"]


async def test_who_has_signed_out_is_sent_to_the_login_and_an_open_stream_ends_with_its_token(
    site: str,
    authority: Authority,
    provider: Provider,
    teams: tuple[Team, Team],
) -> None:
    async with looking(site, authority, provider, teams[0]) as (alice, stream):
        async with alice.session.get(f"{site}/oauth2/sign_out", allow_redirects=False) as answer:
            assert answer.status == 302
        for path in ("events", "yaml"):
            async with alice.ask(path, job=teams[0].job) as answer:
                assert (answer.status, await answer.text()) == (401, "{}")
        teams[0].world.create_job("second", {"Master": {"replicas": 1, "template": TEMPLATE}})
        while len((jobs := (await next_event(stream, "jobs"))[0])["jobs"]) < 2:
            assert jobs["notes"] == []
        await ends_with_login(stream)
        await alice.log_in("alice")


TEMPLATE = {"spec": {"containers": [{"name": "pytorch", "image": "none"}]}}
