"""The page behind a proxy: whose token is used, what each user sees, and what they cannot do to others."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import aiohttp
import pytest
import yaml
from structlog.testing import capture_logs

from tests.patience import PATIENCE
from tests.ui.proxied import ALICE, BOB, JOB, MARK, Page, serving
from tests.ui.test_server import events
from trainop.commands.target import job_types
from trainop.manifests.tree import files
from trainop.runtime import ConfigError
from trainop.ui import proxy, server
from trainop.ui.proxy import api_server

DATA = ("events", f"events?{JOB}", f"why?{JOB}", f"yaml?{JOB}", "nothing")


@pytest.mark.parametrize("path", DATA)
@pytest.mark.parametrize(
    "given",
    [
        [],
        [("Authorization", "")],
        [("Authorization", "Bearer ")],
        [("Authorization", "Basic YWxpY2U6cHc=")],
        [("Authorization", "Bearer a b")],
        [("Authorization", f"Bearer {ALICE}, Bearer {BOB}")],
        [("Authorization", f"Bearer {ALICE}"), ("Authorization", f"Bearer {BOB}")],
        [("Cookie", f"token={ALICE}")],
        [("X-Forwarded-Access-Token", ALICE)],
    ],
    ids=str,
)
async def test_without_one_token_nothing_is_asked_and_the_answer_says_what_the_proxy_must_do(
    path: str, given: list[tuple[str, str]]
):
    async with serving() as page, page.session.get(f"{page.base}/{path}", headers=[*MARK.items(), *given]) as answer:
        assert answer.status == 401
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert "the proxy in front of this page must" in (await answer.json())["error"]
        assert page.api.seen == []


@pytest.mark.parametrize("path", ["", "healthz"])
async def test_the_empty_page_and_the_probe_need_no_token_and_have_no_data(path: str):
    async with serving() as page, page.session.get(f"{page.base}/{path}", headers={"Host": "page.example"}) as answer:
        assert answer.status == 200
        text = await answer.text()
        assert text == "ok" if path else 'id="where">' in text
        assert "Set-Cookie" not in answer.headers
        assert page.api.seen == []


@pytest.mark.parametrize(("method", "path"), [("GET", f"yaml?{JOB}"), ("GET", "events"), ("POST", f"stacks?{JOB}")])
async def test_another_site_cannot_ask_with_the_cookie_of_the_proxy(method: str, path: str):
    """The proxy adds the token to whatever a browser sends to it; the page's own header is added by nobody else."""
    async with serving() as page:
        headers = {"Authorization": f"Bearer {ALICE}", "Origin": "https://evil.example"}
        async with page.session.request(method, f"{page.base}/{path}", headers=headers) as answer:
            assert answer.status == 403
            assert "only the page may ask" in (await answer.json())["error"]
        asked = {**headers, "Access-Control-Request-Method": method, "Access-Control-Request-Headers": "x-trainop"}
        async with page.session.options(f"{page.base}/{path}", headers=asked) as answer:  # may it send that header?
            assert answer.status in {403, 405}
            assert not [name for name in answer.headers if name.lower().startswith("access-control")]
        assert page.api.seen == []


async def test_the_users_token_is_sent_and_nothing_else_of_theirs():
    async with serving() as page:
        extra = {"Impersonate-User": "admin", "Cookie": "session=1", "X-Remote-User": "admin", "X-Forwarded-User": "x"}
        async with page.get(f"yaml?{JOB}", ALICE, extra) as answer:
            assert "of alice" in (await answer.json())["text"]
        assert {given for _, given, _ in page.api.seen} == {f"Bearer {ALICE}"}
        for _, _, headers in page.api.seen:
            assert not {"impersonate-user", "cookie", "x-remote-user", "x-forwarded-user"} & {*map(str.lower, headers)}


async def test_each_user_sees_what_their_own_token_reads():
    async with serving() as page:
        for token, user, other in ((ALICE, "alice", "bob"), (BOB, "bob", "alice")):
            async with page.get("events", token) as stream:
                ((name, jobs, _),) = await events(stream, 1)
            assert name == "jobs"
            assert jobs["title"] == f"{user}, all namespaces"
            assert [each["state"] for each in jobs["jobs"]] == [f"Of-{user}"]
            async with page.get(f"yaml?{JOB}", token) as answer:
                text = await answer.text()
            assert f"of {user}" in text
            assert other not in text
        assert len(page.gate.seats) == 2


async def test_the_log_of_one_user_is_never_resumed_by_another():
    """The id of an event is not secret; it is a position in the log that the own token has read."""
    async with serving() as page:
        page.api.say("alice", 1, "alice's first")
        page.api.say("alice", 2, "alice's second")
        mine, last = await page.logged(ALICE, count=2)
        assert mine == ["alice's first", "alice's second"]
        page.api.say("bob", 3, "bob's")
        for stolen in (last, last.rpartition("-")[0] + "-0"):
            assert (await page.logged(BOB, stolen))[0] == ["bob's"]
        page.api.say("alice", 4, "alice's third")
        assert (await page.logged(ALICE, last))[0] == ["alice's third"], "her own goes on where it was"


async def test_a_token_that_the_api_server_refuses_gets_no_seat():
    async with serving() as page:
        for path in DATA:
            async with page.get(path, "forged") as answer:
                assert answer.status == 401
                assert "log in again" in (await answer.json())["error"]
        assert not page.gate.seats
        assert {path for path, _, _ in page.api.seen} == {"/apis/authentication.k8s.io/v1/selfsubjectreviews"}


async def test_when_a_token_expires_its_streams_end_and_nothing_that_was_read_is_shown():
    async with serving() as page:
        page.api.say("alice", 1, "secret")
        await page.logged(ALICE)
        async with page.get("events", ALICE) as stream, page.get("events", BOB) as others:
            await events(stream, 1)
            await events(others, 1)
            del page.api.users[ALICE]
            ((name, _, _),) = [each for each in await events(stream, 1) if each[0] != "jobs"] or await events(stream, 1)
            assert name == "login"
            assert await stream.content.read() == b"", "the stream has ended"
            async with page.get(f"events?{JOB}", ALICE) as answer:
                assert answer.status == 401
                assert "secret" not in await answer.text()
            page.api.users[BOB] = "bob-renamed"  # the other stream lives, and sees what changes
            ((name, jobs, _),) = await events(others, 1)
            assert [each["state"] for each in jobs["jobs"]] == ["Of-bob-renamed"]
        async with asyncio.timeout(PATIENCE):
            while len(page.gate.seats) > 1:  # noqa: ASYNC110  # the server sets no event
                await asyncio.sleep(0.01)


async def test_a_token_that_was_withdrawn_while_nobody_looked_gets_nothing_that_was_read():
    async with serving() as page:
        async with page.get("events", ALICE) as stream:
            await events(stream, 1)
        assert page.gate.seats
        del page.api.users[ALICE]
        async with page.get("events", ALICE) as answer:
            assert (answer.status, await answer.json()) == (401, {"error": proxy.EXPIRED})
        assert not page.gate.seats


async def test_who_gets_no_answer_does_not_keep_others_waiting(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(proxy, "PATIENCE", 2.0)
    async with serving() as page:
        page.api.slow.add("alice")
        waiting = [asyncio.ensure_future(page.get(f"why?{JOB}", ALICE)) for _ in range(8)]
        async with asyncio.timeout(PATIENCE):
            while not page.api.seen:  # noqa: ASYNC110  # the server sets no event
                await asyncio.sleep(0.01)
        async with page.get(f"yaml?{JOB}", BOB) as answer:
            assert answer.status == 200
        assert not any(each.done() for each in waiting)
        for each in waiting:
            async with await each as answer:
                assert answer.status == 502
                assert "cannot be asked who you are" in await answer.text()


@pytest.mark.parametrize("has_seat", [False, True], ids=["a new token", "a token with a seat"])
async def test_a_flood_of_one_user_leaves_connections_for_others(has_seat: bool):
    async with serving() as page:
        if has_seat:
            async with page.get("events", ALICE) as stream:
                await events(stream, 1)
        page.api.slow.add("alice")
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as flood:
            headers = {**MARK, "Authorization": f"Bearer {ALICE}"}
            asked = [
                asyncio.ensure_future(flood.post(f"{page.base}/stacks?{JOB}", headers=headers))
                for _ in range(server.CONNECTIONS)
            ]
            for _ in range(server.CONNECTIONS - proxy.REQUESTS_PER_USER):  # what is more is refused at once
                done, pending = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
                asked = [*pending, *list(done)[1:]]
                async with await next(iter(done)) as answer:
                    assert answer.status == 503
                    assert "at most 48 requests of one user" in await answer.text()
            async with page.get(f"yaml?{JOB}", BOB) as answer:
                assert answer.status == 200
            assert not any(each.done() for each in asked)
            for each in asked:
                each.cancel()
            await asyncio.gather(*asked, return_exceptions=True)


@pytest.mark.parametrize("size", [8_192, 16_384])
async def test_tokens_of_users_in_many_groups_and_the_cookies_of_the_proxy_are_taken(size: int):
    async with serving() as page:
        large = "t" * size
        page.api.users[large] = "alice"
        cookie = "_oauth2_proxy=" + "c" * (2 * size * 4 // 3 * 4 // 3)  # two tokens, encrypted and encoded
        async with page.get(f"yaml?{JOB}", large, {"Cookie": cookie}) as answer:
            assert answer.status == 200, await answer.text()
        assert {given for _, given, _ in page.api.seen} == {f"Bearer {large}"}


async def test_seats_tabs_and_jobs_of_one_user_are_bounded_and_others_have_room(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(proxy, "SEATS_PER_USER", 2)
    monkeypatch.setattr(proxy, "VIEWERS_PER_USER", 3)
    monkeypatch.setattr(proxy, "JOBS_PER_USER", 1)
    async with serving() as page:
        streams = [await page.get(f"events?namespace={each}", ALICE) for each in "aab"]
        assert [each.status for each in streams] == [200, 200, 200]
        for path, words in (("events?namespace=a", "at most 3 tabs"), ("events?namespace=c", "at most 2 logins")):
            async with page.get(path, ALICE) as refused:
                assert refused.status == 503
                assert words in await refused.text()
        async with page.get("events", BOB) as answer:
            assert answer.status == 200
        for each in streams:
            each.close()
        async with asyncio.timeout(PATIENCE):
            while any(each.using for each in page.gate.seats.values()):  # noqa: ASYNC110  # the server sets no event
                await asyncio.sleep(0.01)
        async with page.get(f"events?namespace=c&{JOB}", ALICE) as answer:
            assert answer.status == 200, "in place of a seat that nobody uses"
            async with page.get("events?namespace=c&job=team/PyTorchJob/other", ALICE) as refused:
                assert "at most 1 jobs of one user" in await refused.text()
        assert len(page.gate.seats) == 3


async def test_seats_of_all_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(proxy, "SEATS", 1)
    async with serving() as page:
        async with page.get("events", ALICE) as stream:
            await events(stream, 1)
            async with page.get("events", BOB) as refused:
                assert refused.status == 503
                assert "of all users" in await refused.text()
        async with asyncio.timeout(PATIENCE):
            while any(each.using for each in page.gate.seats.values()):  # noqa: ASYNC110  # the server sets no event
                await asyncio.sleep(0.01)
        async with page.get("events", BOB) as stream:
            await events(stream, 1)
        assert [each.user for each in page.gate.seats.values()] == ["bob"]


async def test_a_seat_that_nobody_uses_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(proxy, "IDLE", 0.0)
    async with serving() as page:
        async with page.get(f"yaml?{JOB}", ALICE) as answer:
            assert answer.status == 200
        async with asyncio.timeout(PATIENCE):
            while page.gate.seats:  # noqa: ASYNC110  # the server sets no event
                await asyncio.sleep(0.05)


async def test_a_namespace_is_chosen_by_the_user_unless_the_page_is_of_one():
    async with serving() as page:
        async with page.get("events?namespace=team", ALICE) as stream:
            ((_, jobs, _),) = await events(stream, 1)
        assert jobs["title"] == "alice, namespace team"
        assert "/apis/kubeflow.org/v1/namespaces/team/pytorchjobs" in {path for path, _, _ in page.api.seen}
        for wrong in ("../x", "A", "a/b", "-", "x" * 64):
            async with page.session.get(
                f"{page.base}/events",
                params={"namespace": wrong},
                headers={**MARK, "Authorization": f"Bearer {ALICE}"},
            ) as answer:
                assert answer.status == 400
    async with serving("own") as page:
        async with page.get("events?namespace=team", ALICE) as stream:
            ((_, jobs, _),) = await events(stream, 1)
        assert jobs["title"] == "alice, namespace own"
        assert not [path for path, _, _ in page.api.seen if "team" in path]
        async with page.session.get(page.base) as answer:
            assert 'id="where" hidden' in await answer.text()


async def test_no_token_is_in_logs_errors_or_answers(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    texts: list[str] = []
    with capture_logs() as entries:
        async with serving() as page:
            for token in (ALICE, "forged-4711"):
                for path in (*DATA, "events?namespace=../x", "why?job=x"):
                    async with page.get(path, token) as answer:
                        texts.append(str(answer.headers))
                        if answer.content_type == "application/json":
                            texts.append(await answer.text())
            refused = await malformed(page)
            assert all(" 400 " in each and each.endswith("malformed request") for each in refused), refused
            assert "alice.token" not in repr([*page.gate.seats.items()])
    said = json.dumps(entries, default=str) + caplog.text + "".join([*texts, *refused])
    assert "alice.token" not in said
    assert "forged-4711" not in said


async def malformed(page: Page) -> list[str]:
    """The answers to heads with a token that are no HTTP."""
    answers = []
    port = int(page.base.rpartition(":")[2])
    for head in (
        f"GET /why HTTP/9.9\r\nAuthorization: Bearer {ALICE}\r\n\r\n",
        f"GET /why HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ALICE}\0\r\n\r\n",
        f"GET /why HTTP/1.1\r\nHost: x\r\nAuthorization Bearer {ALICE}\r\n\r\n",
        f"GET /why HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ALICE}{'x' * 100_000}\r\n\r\n",
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode())
        async with asyncio.timeout(PATIENCE):
            answers.append((await reader.read(2**16)).decode(errors="replace"))
        writer.close()
    return answers


def test_the_pods_own_token_is_never_read(tmp_path: Path):
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}
    with pytest.raises(ConfigError, match="mount the ConfigMap kube-root-ca"):
        api_server(environ=pod, service_account=tmp_path)
    (tmp_path / "ca.crt").write_text("a certificate")
    (tmp_path / "token").write_text("the operator's")
    found = api_server(environ=pod, service_account=tmp_path)
    assert (found.server, found.ca, found.credentials) == ("https://10.0.0.1:6443", tmp_path / "ca.crt", None)
    six = api_server(environ={"KUBERNETES_SERVICE_HOST": "fd00::1"}, service_account=tmp_path)
    assert six.server == "https://[fd00::1]:443"


def test_the_credentials_of_a_kubeconfig_are_left_out(tmp_path: Path):
    kubeconfig = tmp_path / "kubeconfig"
    user = {"token": "the operator's", "as": "admin"}
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": user}],
    }
    kubeconfig.write_text(json.dumps(config))
    found = api_server(str(kubeconfig))
    assert found.server == "https://127.0.0.1:1"
    assert (found.credentials, found.client_certificate, found.client_key, found.headers) == (None, None, None, ())


async def test_the_shipped_role_has_what_the_page_asks_for_and_no_more_of_jobs_and_pods():
    """The page is asked for everything but stacks. Each of its requests is allowed by a rule, and each rule about jobs,
    pods and events is used by a request; the others depend on what else is installed."""
    async with serving() as page:
        page.api.say("alice", 1, "a line")
        await page.logged(ALICE)
        async with page.get("events", ALICE) as stream:
            await events(stream, 1)
        for path in ("why", "yaml"):
            async with page.get(f"{path}?{JOB}", ALICE) as answer:
                assert answer.status == 200
        asked = {right_of(path) for path, _, _ in page.api.seen if "selfsubjectreviews" not in path}
    role = yaml.safe_load_all(files()["components/page-namespaced/page-namespaced.yaml"])
    (rules,) = (each["rules"] for each in role if each["kind"] == "Role")
    granted = {
        (verb, group, resource)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert asked <= granted, asked - granted
    jobs = {("get", each.resource.group, each.resource.plural) for each in job_types()}
    elsewhere = {right for right in granted if "kueue" in right[1] or "scheduling" in right[1]}
    assert granted - elsewhere == asked | jobs


def right_of(path: str) -> tuple[str, str, str]:
    """Verb, group and resource of a GET (https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-uris)."""
    parts = path.strip("/").split("/")
    group, rest = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
    rest = rest[2:] if rest[0] == "namespaces" and len(rest) > 2 else rest
    return ("list" if len(rest) == 1 else "get"), group, "/".join([rest[0], *rest[2:]])
