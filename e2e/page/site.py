"""oauth2-proxy with the flags of docs/ui.md in front of the page, and people who use it as browsers do."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from http.cookies import BaseCookie
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from e2e.cluster.certificates import Authority
from e2e.cluster.daemons import DIE_WITH_PARENT, free_ports
from e2e.cluster.places import binary
from e2e.page.provider import Provider
from tests.patience import PATIENCE
from tests.server.page import Page, next_event

DOCUMENT = Path(__file__).parents[2] / "docs" / "ui.md"
ISSUER, ADDRESS, PAGE = (
    "https://issuer.example.com",
    "https://jobs.example.com",
    "http://training-operator-page.kubeflow.svc",
)
FILES = "/etc/oauth2-proxy"


def documented(program: str) -> list[str]:
    """The lines about a program in the page of the documentation: those of the block whose first line names it."""
    block = re.search(rf"```\n# {program}\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert block, f"{DOCUMENT.name} has no flags of {program}"
    return [line.partition(" #")[0].strip() for line in block[1].splitlines()]


def api_server_flags(provider: Provider, authority: Authority) -> tuple[str, ...]:
    """Those of the documentation, for this provider."""
    real = {ISSUER: provider.url, "/etc/kubernetes/issuer-ca.crt": str(authority.cert)}
    return tuple(f"kube-apiserver={_replace(each, real)}" for each in documented("kube-apiserver"))


def _replace(flag: str, real: dict[str, str]) -> str:
    for shown, value in real.items():
        flag = flag.replace(shown, value)
    return flag


@contextmanager
def oauth2_proxy(folder: Path, provider: Provider, authority: Authority, page: str, *more: str) -> Iterator[str]:
    """The URL of an oauth2-proxy with the documented flags, and then `more`."""
    (port,) = free_ports(1)
    url, files = f"https://127.0.0.1:{port}", folder / "proxy"
    files.mkdir()
    certificate, key = authority.issue("proxy", "proxy", hosts=["127.0.0.1"])
    for name, content in {
        "client-secret": provider.secret,
        "cookie-secret": os.urandom(16).hex(),
        "tls.crt": certificate.read_text(),
        "tls.key": key.read_text(),
        "issuer-ca.crt": authority.cert.read_text(),
    }.items():
        (files / name).write_text(content)
    real = {ISSUER: provider.url, ADDRESS: url, PAGE: page, FILES: str(files), "=:4443": f"=127.0.0.1:{port}"}
    flags = [_replace(each, real) for each in documented("oauth2-proxy")]
    log = folder / "proxy.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [binary("oauth2-proxy"), *flags, "--http-address=", *more],
            stdout=output,
            stderr=output,
            preexec_fn=DIE_WITH_PARENT,  # noqa: PLW1509  # see there
        )
    try:
        end = time.monotonic() + PATIENCE
        while not listens(port):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait(PATIENCE)


def listens(port: int) -> bool:
    """Whether something listens on this port of 127.0.0.1."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


class Cookies(aiohttp.CookieJar):
    """Sends all of them as they are, as browsers do. aiohttp itself sends at most 8 KB."""

    def filter_cookies(self, request_url: URL = URL()) -> BaseCookie[str]:  # noqa: B008  # as aiohttp has it
        found: BaseCookie[str] = BaseCookie()
        for each in self:
            if each["domain"] == request_url.host:
                found[each.key] = each.value
        return found


@asynccontextmanager
async def aborted(request: Any) -> AsyncIterator[aiohttp.ClientResponse]:
    """A stream that is left is closed at once: TLS would wait for the other end, and the test ends."""
    async with request as answer:
        try:
            yield answer
        finally:
            if answer.connection is not None and answer.connection.transport is not None:
                answer.connection.transport.abort()


class Visitor(Page):
    """A browser without a screen: cookies, redirects, and the headers that the script of the page sends."""

    def __init__(self, session: aiohttp.ClientSession, base: str) -> None:
        super().__init__(session, base)
        self.session, self.base = session, base

    async def log_in(self, user: str) -> str:
        """Opens the page, logs in where that leads, and returns what is there then."""
        async with self.session.get(f"{self.base}/") as form:
            text = await form.text()
            assert "<title>log in</title>" in text, (form.url, text)
            where = form.url
        async with self.session.post(where, data={"user": user}) as page:
            assert page.status == 200, await page.text()
            assert urlsplit(str(page.url)).netloc == urlsplit(self.base).netloc
            return await page.text()

    def ask(self, path: str, token: str = "", method: str = "GET", last: str = "", **query: str) -> Any:
        """Without a token, as the proxy adds it."""
        headers = {"X-Trainop": "page", "Accept": "application/json, text/event-stream"}
        headers |= {"Last-Event-ID": last} if last else {}
        headers |= {"Authorization": f"Bearer {token}"} if token else {}
        url = f"{self.base}/{path}"
        return aborted(self.session.request(method, url, params=query, headers=headers, allow_redirects=False))

    async def until_listed(self, namespace: str, user: str) -> Any:
        """The jobs of a namespace, once the API server knows the rights."""
        async with asyncio.timeout(PATIENCE):
            while (jobs := (await self.first("jobs", "", namespace=namespace))[0]).get("notes") != []:  # noqa: ASYNC110  # the server is another process
                await asyncio.sleep(0.2)
        assert jobs["title"] == f"{user}, namespace {namespace}"
        return jobs


@asynccontextmanager
async def visitor(base: str, authority: Authority) -> AsyncIterator[Visitor]:
    """Somebody who is not logged in."""
    trust = ssl.create_default_context(cafile=str(authority.cert))
    connector = aiohttp.TCPConnector(ssl=trust, limit=0)
    jar = Cookies(unsafe=True)  # of an address that is a number, too
    async with aiohttp.ClientSession(connector=connector, cookie_jar=jar) as session:
        yield Visitor(session, base)


@asynccontextmanager
async def people(site: str, authority: Authority, *names: str) -> AsyncIterator[list[Visitor]]:
    """Who has logged in."""
    async with AsyncExitStack() as opened:
        found = [await opened.enter_async_context(visitor(site, authority)) for _ in names]
        for each, name in zip(found, names, strict=True):
            assert 'id="where">' in await each.log_in(name)
        yield found


async def ends_with_login(stream: aiohttp.ClientResponse) -> None:
    await next_event(stream, "login")
    assert await stream.content.read() == b""
