"""What people see through a real oauth2-proxy, which has the flags of docs/ui.md, of jobs on a real kube-apiserver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from e2e.cluster.certificates import Authority
from e2e.page.provider import Provider, User
from e2e.page.site import Visitor, aborted, people, visitor
from tests.patience import PATIENCE
from tests.server.kubelet import add_pod, kubelet_of
from tests.server.page import Team, lines_until, next_event


async def test_each_user_sees_exactly_their_own_jobs(site: str, authority: Authority, teams: tuple[Team, Team]) -> None:
    async with people(site, authority, "alice", "bob") as visitors:
        for who, name, own, other in zip(visitors, ("alice", "bob"), teams, teams[::-1], strict=True):
            jobs = await who.until_listed(own.name, f"{name}@example.com")
            assert [(each["namespace"], each["name"]) for each in jobs["jobs"]] == [(own.name, "train")]
            status, found = await who.read("yaml", "", job=own.job)
            assert (status, f"namespace: {own.name}" in found["text"]) == (200, True)
            assert (await who.read("why", "", job=own.job))[0] == 200
            for path, method in (("yaml", "GET"), ("why", "GET"), ("stacks", "POST")):
                status, found = await who.read(path, "", method, job=other.job)
                assert (status, "may not be read" in found["error"]) == (502, True)
            refused, _ = await who.first("jobs", "", namespace=other.name)
            assert refused["jobs"] == []
            assert "forbidden" in " ".join(refused["notes"])


async def test_who_has_no_right_is_told_so(site: str, authority: Authority, teams: tuple[Team, Team]) -> None:
    async with people(site, authority, "carol") as (carol,):
        for query, where in (
            ({}, "the jobs of all namespaces"),
            ({"namespace": teams[0].name}, f"jobs in namespace {teams[0].name}"),
        ):
            jobs, _ = await carol.first("jobs", "", **query)
            assert jobs["title"].startswith("carol@example.com, ")
            assert jobs["jobs"] == []
            (note,) = jobs["notes"]
            assert note.startswith(f"you may not list {where}: choose "), note
            assert 'User "carol@example.com" cannot list resource' in note, note


async def test_without_a_login_nothing_is_shown_and_scripts_get_401(
    site: str, page_url: str, authority: Authority, provider: Provider, teams: tuple[Team, Team]
) -> None:
    token = provider.id_token("alice")
    async with visitor(site, authority) as nobody, visitor(page_url, authority) as beside:
        for path in ("events", "yaml", "why"):
            for given in ("", token):  # a token of one's own is no login
                async with nobody.ask(path, given, job=teams[0].job) as answer:
                    assert (answer.status, await answer.text()) == (401, "{}")
            async with beside.ask(path, job=teams[0].job) as answer:  # past the proxy
                assert answer.status == 401
                assert "the proxy in front of this page must log you in" in (await answer.json())["error"]
            for each in (nobody, beside):  # a site that rebinds its name to either of them: the cookies are not its own
                named = {"Host": "evil.example", "X-Trainop": "page", "Accept": "application/json"}
                async with each.session.get(f"{each.base}/{path}", headers=named, allow_redirects=False) as answer:
                    assert answer.status == 401
            for forged in (provider.id_token("alice", audience="another"), f"{token[:-8]}AAAAAAAA"):
                async with beside.ask(path, forged, job=teams[0].job) as answer:
                    assert answer.status == 401


FORGED = {
    "X-Forwarded-User": "admin",
    "X-Forwarded-Email": "bob@example.com",
    "X-Forwarded-Groups": "system:masters",
    "X-Auth-Request-User": "bob",
    "Impersonate-User": "admin",
    "X-Remote-User": "admin",
    "X-Remote-Group": "system:masters",
}


async def test_headers_of_a_user_do_not_make_them_another(
    site: str, authority: Authority, provider: Provider, teams: tuple[Team, Team]
) -> None:
    bobs = provider.id_token("bob")
    async with people(site, authority, "alice") as (alice,):
        await alice.until_listed(teams[0].name, "alice@example.com")
        headers = {"X-Trainop": "page", "Accept": "application/json"}
        for extra in (
            [*FORGED.items()],
            [("Authorization", f"Bearer {bobs}")],
            [("Authorization", f"Bearer {bobs}"), ("Authorization", f"Bearer {bobs}")],
            [("authorization", f"bearer {bobs}"), ("X-Forwarded-Access-Token", bobs)],
        ):
            given = [*headers.items(), *extra]
            query = {"namespace": teams[0].name}
            async with aborted(alice.session.get(f"{site}/events", params=query, headers=given)) as stream:
                jobs, _ = await next_event(stream, "jobs")
            assert jobs["title"] == f"alice@example.com, namespace {teams[0].name}"
            async with alice.session.get(f"{site}/yaml", params={"job": teams[1].job}, headers=given) as answer:
                assert answer.status == 502
                assert "may not be read" in (await answer.json())["error"]
        for name in ("Authorization", "X-Trainop"):  # a header that the proxy is told to leave out
            given = [*headers.items(), ("Connection", name)]
            async with alice.session.get(f"{site}/yaml", params={"job": teams[1].job}, headers=given) as answer:
                assert answer.status in {401, 403, 502}


async def test_another_site_cannot_use_the_cookie(site: str, authority: Authority, teams: tuple[Team, Team]) -> None:
    """Whatever a browser sends along for another site, in the worst case the cookie itself."""
    async with people(site, authority, "alice") as (alice,):
        await alice.until_listed(teams[0].name, "alice@example.com")
        for method, path in (("POST", "stacks"), ("GET", "yaml"), ("GET", "events")):
            url, origin = f"{site}/{path}", {"Origin": "https://evil.example"}
            async with alice.session.request(method, url, params={"job": teams[0].job}, headers=origin) as answer:
                assert answer.status == 403
                assert "only the page may ask" in (await answer.json())["error"]
            asked = {**origin, "Access-Control-Request-Method": method, "Access-Control-Request-Headers": "x-trainop"}
            async with alice.session.options(url, headers=asked) as answer:
                assert not [name for name in answer.headers if name.lower().startswith("access-control")]
        cookies = [each for each in alice.session.cookie_jar if each.key.startswith("_oauth2_proxy")]
        assert cookies
        for each in cookies:
            assert (each["httponly"], each["secure"], each["samesite"].lower()) == (True, True, "lax")


async def test_a_line_gets_through_while_the_stream_is_open(
    start_proxy: Callable[..., str], authority: Authority, teams: tuple[Team, Team], tmp_path: Path
) -> None:
    """The proxy flushes its other answers once in an hour here: streams of events are passed on at once."""
    site = start_proxy("--flush-interval=1h")
    async with people(site, authority, "alice") as (alice,), kubelet_of(teams[0].world, tmp_path) as kubelet:
        await alice.until_listed(teams[0].name, "alice@example.com")
        pod = add_pod(teams[0].world, "train")
        last = ""
        for part in range(2):  # the second stream goes on where the first has ended
            async with alice.ask("events", last=last, job=teams[0].job, namespace=teams[0].name) as stream:
                for number in range(3):
                    await kubelet.say(pod, f"line {part} {number}")
                    lines, last = await lines_until(stream, f"line {part} {number}")
                    assert lines == [f"line {part} {number}"]


async def test_a_closed_tab_gives_its_place_back(site: str, authority: Authority, teams: tuple[Team, Team]) -> None:
    async with people(site, authority, "alice", "bob") as (alice, bob):
        for who, name, team in zip((alice, bob), ("alice", "bob"), teams, strict=True):
            await who.until_listed(team.name, f"{name}@example.com")
        async with AsyncExitStack() as opened:
            tabs = [AsyncExitStack() for _ in range(50)]
            answers = []
            for each in tabs:
                await opened.enter_async_context(each)
                answers.append(await each.enter_async_context(alice.ask("events", namespace=teams[0].name)))
            assert [each.status for each in answers] == [200] * 16 + [503] * 34
            assert "at most 16 tabs of one user" in await answers[-1].text()
            await bob.until_listed(teams[1].name, "bob@example.com")
            await tabs[0].aclose()
            async with asyncio.timeout(PATIENCE):
                while not await has_room(alice, teams[0].name):  # noqa: ASYNC110  # the server is another process
                    await asyncio.sleep(0.1)


async def has_room(who: Visitor, namespace: str) -> bool:
    """Whether there is room for one more tab."""
    async with who.ask("events", namespace=namespace) as answer:
        assert answer.status in {200, 503}
        return bool(answer.status == 200)


async def test_an_upgrade_is_not_made_and_the_connection_serves_others(
    site: str, authority: Authority, teams: tuple[Team, Team]
) -> None:
    async with people(site, authority, "alice", "bob") as (alice, bob):
        for who, name, team in zip((alice, bob), ("alice", "bob"), teams, strict=True):
            await who.until_listed(team.name, f"{name}@example.com")
        for protocol in ("websocket", "h2c"):
            upgrade = {"X-Trainop": "page", "Connection": "Upgrade", "Upgrade": protocol, "Sec-WebSocket-Version": "13"}
            upgrade["Sec-WebSocket-Key"] = "dGhlIHNhbXBsZSBub25jZQ=="
            for _ in range(4):
                async with alice.session.get(f"{site}/yaml", params={"job": teams[0].job}, headers=upgrade) as answer:
                    assert answer.status == 200
                    assert teams[0].name in await answer.text()
                status, found = await bob.read("yaml", "", job=teams[1].job)
                assert (status, teams[1].name in found["text"]) == (200, True)


@pytest.mark.parametrize("size", [4_000, 8_192, 12_000])
async def test_large_tokens_get_through(
    site: str, authority: Authority, provider: Provider, teams: tuple[Team, Team], size: int
) -> None:
    """Those of users in many groups: the proxy keeps them in several cookies, which it passes on, too."""
    provider.users["alice"] = User("alice@example.com", filler=size)
    async with people(site, authority, "alice") as (alice,):
        cookies = [each for each in alice.session.cookie_jar if each.key.startswith("_oauth2_proxy")]
        assert sum(len(each.value) for each in cookies) > 2 * size
        assert len(cookies) > 1
        await alice.until_listed(teams[0].name, "alice@example.com")
        status, found = await alice.read("yaml", "", job=teams[0].job)
        assert (status, teams[0].name in found["text"]) == (200, True)
