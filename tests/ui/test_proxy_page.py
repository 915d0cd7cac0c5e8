"""The page in a real browser, in a folder of a site whose proxy adds the user's token."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from tests.ui.chromium import chromium, find
from tests.ui.proxied import ALICE, Page, serving
from trainop.ui import server
from trainop.ui.page import Page as Document
from trainop.ui.page import read_page


class Site:
    """A reverse proxy: it knows the user by a cookie, adds the token, and removes the prefix. Who is not logged in is
    sent elsewhere."""

    def __init__(self, page: Page, session: aiohttp.ClientSession) -> None:
        self.logged_in = True
        self.silent = False
        """Whether nothing gets through any more, and connections stay open."""
        self._page, self._session = page, session

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if not self.logged_in:
            raise web.HTTPFound("https://login.example/")
        passed = {name: value for name, value in request.headers.items() if name in {"X-Trainop", "Last-Event-ID"}}
        url = f"{self._page.base}/{request.match_info['rest']}"
        headers = {**passed, "Authorization": f"Bearer {ALICE}"}
        async with self._session.request(request.method, url, params=request.query, headers=headers) as answer:
            kept = {name: answer.headers[name] for name in ("Content-Type", "Content-Security-Policy")}
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                while self.silent:  # noqa: ASYNC110  # a test sets it back
                    await asyncio.sleep(0.05)
                await response.write(chunk)
            return response


@asynccontextmanager
async def site_of(page: Page) -> AsyncIterator[tuple[Site, str]]:
    """The proxy in front of the page, and the address that users know."""
    async with aiohttp.ClientSession() as session:
        site = Site(page, session)
        application = web.Application()
        application.router.add_route("*", "/jobs/{rest:.*}", site.answer)
        runner = web.AppRunner(application, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield site, f"http://127.0.0.1:{runner.addresses[0][1]}/jobs/"
        finally:
            await runner.cleanup()


async def test_users_need_no_token_of_the_page_and_are_told_when_to_log_in_again(tmp_path: Path):
    find()
    async with serving() as page, site_of(page) as (site, url), chromium(tmp_path) as browser, browser.tab() as tab:
        page.api.say("alice", 1, "a line of hers")
        await tab.open(url)
        await tab.wait_for("document.querySelector('#title').textContent === 'alice, all namespaces'")
        await tab.wait_for("document.querySelector('#lines').textContent.includes('a line of hers')")
        await tab.wait_for("document.querySelector('#why').textContent")
        await tab.evaluate("document.querySelector('#ask-yaml').click()")
        await tab.wait_for("document.querySelector('#yaml').textContent.includes('of alice')")
        assert await tab.evaluate("document.querySelector('#login').hidden")
        assert tab.problems == []

        await tab.evaluate(
            "document.querySelector('#namespace').value = 'team',"
            "document.querySelector('#where').dispatchEvent(new Event('submit', {cancelable: true}))"
        )
        await tab.wait_for("document.querySelector('#title').textContent === 'alice, namespace team'")
        assert "ns=team" in await tab.evaluate("location.hash")

        del page.api.users[ALICE]
        await tab.wait_for("!document.querySelector('#login').hidden")
        await tab.wait_for("document.querySelector('#link').textContent.includes('log in again')")
        page.api.users[ALICE] = "alice"  # the proxy has refreshed the token
        await tab.wait_for("document.querySelector('#link').textContent === 'live'")
        assert await tab.evaluate("document.querySelector('#login').hidden")

        site.logged_in = False  # the proxy's session has ended
        del page.api.users[ALICE]  # the stream ends, and the next one is sent to the login
        await tab.wait_for("document.querySelector('#link').textContent.includes('not logged in any more')")
        await tab.wait_for("!document.querySelector('#login').hidden")


async def test_a_network_that_is_silent_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Instead of a page that says "live" and does not move any more. The server says something every 15 s, here 0.5."""
    find()
    monkeypatch.setattr(server, "BEAT", 0.5)
    monkeypatch.setattr(server, "read_page", impatient)
    async with serving() as page, site_of(page) as (site, url), chromium(tmp_path) as browser, browser.tab() as tab:
        await tab.open(url)
        await tab.wait_for("document.querySelector('#link').textContent === 'live'")
        site.silent = True
        await tab.wait_for("document.querySelector('#link').textContent.includes('nothing was heard')")
        site.silent = False
        await tab.wait_for("document.querySelector('#link').textContent === 'live'")


def impatient(*, choose: bool) -> Document:
    """The page, which waits for 3 s instead of 45."""
    whole = read_page(choose=choose)
    (script,) = re.findall(rb"<script>(.*)</script>", whole.body, re.DOTALL)
    assert script.count(b"SILENCE = 45000") == 1
    changed = script.replace(b"SILENCE = 45000", b"SILENCE = 3000")
    before, after = (base64.b64encode(hashlib.sha256(each).digest()).decode() for each in (script, changed))
    headers = {name: value.replace(before, after) for name, value in whole.headers.items()}
    return Document(whole.body.replace(script, changed), headers)
