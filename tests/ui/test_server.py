"""The server of the page, seen from clients: who may ask, and what slow, rude and many of them get."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from tests.patience import PATIENCE
from tests.ui.test_feed import say
from trainop.errors import StartError
from trainop.runtime.lowlevel import Address
from trainop.ui import board, gate, server
from trainop.ui.gate import HOST, TokenGate
from trainop.ui.model import Plots
from trainop.ui.page import read_page
from trainop.ui.server import PageServer
from trainop.ui.source import JobId, Source, read_id

JOB = JobId("team", "PyTorchJob", "train")
SECRET = "the name of a secret project"


class Scripted(Source):
    """A source without a cluster, whose log the test writes."""

    def __init__(self) -> None:
        self.sinks: list[Any] = []
        self.reads = 0

    @property
    def has_ended(self) -> bool:
        return False

    async def jobs(self) -> Any:
        self.reads += 1
        return {"title": SECRET, "jobs": [], "notes": []}

    async def job(self, _wanted: JobId) -> Any:
        return {"name": SECRET}, {}

    def plots(self, _wanted: JobId) -> Plots:
        return Plots()

    async def logs(self, _wanted: JobId, sink: Any, _positions: Any) -> None:
        self.sinks.append(sink)
        await asyncio.Event().wait()

    async def why(self, wanted: JobId) -> Any:
        if wanted.name == "gone":
            raise StartError("no job gone")
        return {"state": SECRET}

    async def yaml(self, _wanted: JobId) -> Any:
        return {"text": SECRET}

    async def stacks(self, _wanted: JobId) -> Any:
        return {"text": SECRET}


class Client:
    def __init__(self, session: aiohttp.ClientSession, url: str, page: TokenGate, source: Scripted) -> None:
        self.session, self.page, self.source = session, page, source
        found = re.fullmatch(r"(http://127\.0\.0\.1:\d+)/#token=(\S{32})", url)
        assert found is not None
        self.base, self.token = found[1], found[2]

    def get(self, path: str, **headers: str) -> Any:
        return self.session.get(self.base + path, headers={"Authorization": f"Bearer {self.token}", **headers})

    async def feed(self) -> Any:
        async with asyncio.timeout(PATIENCE):
            while not self.source.sinks:  # noqa: ASYNC110  # the server sets no event
                await asyncio.sleep(0.01)
        return self.source.sinks[0]


@asynccontextmanager
async def serving() -> AsyncIterator[Client]:
    source = Scripted()
    page = TokenGate(source)
    server = PageServer(page, Address(HOST, 0))
    async with server.serve() as port, aiohttp.ClientSession() as session:
        yield Client(session, f"http://{HOST}:{port}/#token={page.token}", page, source)


async def events(response: aiohttp.ClientResponse, wanted: int) -> list[tuple[str, Any, str]]:
    """So many events: name, data and id."""
    found: list[tuple[str, Any, str]] = []
    async with asyncio.timeout(PATIENCE):
        while len(found) < wanted:
            text = (await response.content.readuntil(b"\n\n")).decode()
            fields = dict(line.split(": ", 1) for line in text.strip().split("\n") if ": " in line)
            if "event" in fields:
                found.append((fields["event"], json.loads(fields["data"]), fields.get("id", "")))
    return found


DATA = ("/events", "/events?job=team/PyTorchJob/train", "/why?job=team/PyTorchJob/train", "/yaml?job=a/PyTorchJob/b")


@pytest.mark.parametrize("path", [*DATA, "/nothing", "//", "/static/page.js", "/../etc/passwd"])
@pytest.mark.parametrize("given", [None, "Bearer ", "Bearer wrong", "Basic x", "Bearer \u00e9" * 3])
async def test_nobody_reads_without_the_token(path: str, given: str | None):
    async with serving() as client:
        headers = {} if given is None else {"Authorization": given}
        async with client.session.get(client.base + path, headers=headers) as answer:
            assert answer.status == 403
            assert SECRET not in await answer.text()
        assert not client.source.reads


async def test_a_token_in_the_address_is_no_token():
    """It would stand in histories and logs; the page has it behind the #."""
    async with serving() as client, client.session.get(f"{client.base}/why?token={client.token}") as answer:
        assert answer.status == 403


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "[::2]:80", "", "10.0.0.1"]
)
@pytest.mark.parametrize("path", ["/", *DATA])
async def test_a_site_that_rebinds_its_name_to_this_machine_gets_nothing(host: str, path: str):
    async with serving() as client, client.get(path, Host=host) as answer:
        assert answer.status in {400, 421}
        assert SECRET not in await answer.text()


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:9999", "[::1]:80"])
async def test_this_machine_has_several_names_and_ports_may_be_forwarded(host: str):
    async with serving() as client, client.get("/why?job=team/PyTorchJob/train", Host=host) as answer:
        assert answer.status == 200


async def test_the_page_is_one_document_without_data_and_with_a_strict_policy():
    async with serving() as client, client.session.get(client.base) as answer:
        body, headers = await answer.text(), answer.headers
    assert SECRET not in body
    assert client.token not in body
    assert re.findall(r"(?:src|href)=[\"'](?!#)|url\(|@import|https?://(?!www\.w3\.org/2000/svg)", body) == []
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
    assert "Set-Cookie" not in headers
    assert "Access-Control-Allow-Origin" not in headers


def test_the_script_makes_no_html_of_texts():
    script = read_page().body.decode()
    assert (
        re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|srcdoc", script) == []
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "train",
        "team/train",
        "team/Pod/p",
        "team/Secret/s",
        "../PyTorchJob/x",
        "team/PyTorchJob/",
        "a/PyTorchJob/..",
    ],
)
async def test_only_jobs_can_be_asked_for(text: str):
    with pytest.raises(ValueError, match="expected NAMESPACE/KIND/NAME of a job"):
        read_id(text)
    async with serving() as client, client.get(f"/why?job={text}") as answer:
        assert answer.status == 400
        assert "expected NAMESPACE/KIND/NAME" in (await answer.json())["error"]


async def test_what_cannot_be_read_is_one_line():
    async with serving() as client, client.get("/why?job=team/PyTorchJob/gone") as answer:
        assert (answer.status, await answer.json()) == (502, {"error": "no job gone"})


async def test_stacks_are_read_by_post_only():
    path = "/stacks?job=team/PyTorchJob/train"
    async with serving() as client:
        async with client.get(path) as answer:
            assert answer.status == 405
        headers = {"Authorization": f"Bearer {client.token}"}
        async with client.session.post(client.base + path, headers=headers) as answer:
            assert await answer.json() == {"text": SECRET}


async def test_a_stream_has_the_jobs_the_job_and_its_log_and_goes_on_where_it_ended():
    async with serving() as client:
        async with client.get("/events?job=team/PyTorchJob/train") as stream:
            assert stream.headers["Content-Type"] == "text/event-stream"
            say(await client.feed(), 1, b"one")
            found = await events(stream, 5)
            assert found[0][0] == "begin"
            assert {each[0] for each in found} == {"begin", "jobs", "job", "plots", "log"}
            (log,) = (each for each in found if each[0] == "log")
            assert log[1]["lines"] == [["2026-11-27T10:00:01.000000000Z", "worker-0", "one"]]
        say(await client.feed(), 2, b"two")
        async with client.get("/events?job=team/PyTorchJob/train", **{"Last-Event-ID": log[2]}) as stream:
            found = await events(stream, 5)
            (log,) = (each for each in found if each[0] == "log")
            assert [line[2] for line in log[1]["lines"]] == ["two"]
            assert found[0][1][1] == 1
        assert len(client.source.sinks) == 1, "the log was followed meanwhile"


async def test_a_viewer_that_was_too_slow_is_told_what_it_missed(monkeypatch: pytest.MonkeyPatch):
    """Its connection is closed, and when it comes back, lines are gone."""
    async with serving() as client:
        async with client.get("/events?job=team/PyTorchJob/train") as stream:
            feed = await client.feed()
            feed._max_bytes = 2 * 2**20
            say(feed, 1, b"first")
            found = await events(stream, 5)
            (log,) = (each for each in found if each[0] == "log")
            patience = server.SLOW
            monkeypatch.setattr(server, "SLOW", 0.5)  # not before: this test may be slow itself
            for _ in range(60):  # 24 MB, which no socket holds
                for _ in range(100):
                    say(feed, 2, b"x" * 4_000)
                feed.flush()
                await asyncio.sleep(0)
            async with asyncio.timeout(PATIENCE):
                while client.page._seat.bells:  # noqa: ASYNC110  # the server sets no event
                    await asyncio.sleep(0.05)
        monkeypatch.setattr(server, "SLOW", patience)
        assert feed._size <= 2 * 2**20 + 500_000
        async with client.get("/events?job=team/PyTorchJob/train", **{"Last-Event-ID": log[2]}) as stream:
            found = await events(stream, 6)
        (skip,) = (each for each in found if each[0] == "skip")
        lines = next(each for each in found if each[0] == "log")[1]
        assert skip[1]["lines"] == lines["first"] - 1 > 5_000


async def test_fifty_viewers_cost_one_read_and_too_many_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gate, "VIEWERS", 50)
    async with serving() as client:
        streams = [await client.get("/events?job=team/PyTorchJob/train") for _ in range(50)]
        feed = await client.feed()
        say(feed, 1, b"one")
        for stream in streams:
            names = [each[0] for each in await events(stream, 5)]
            assert "log" in names
        async with client.get("/events") as refused:
            assert refused.status == 503
        assert len(client.source.sinks) == 1
        assert client.source.reads <= 3
        for stream in streams:
            stream.close()
        async with asyncio.timeout(PATIENCE):
            while client.page._seat.bells:  # noqa: ASYNC110  # the server sets no event
                await asyncio.sleep(0.05)


async def test_a_job_that_nobody_looks_at_is_left(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(board, "LINGER", 0.0)
    async with serving() as client:
        async with client.get("/events?job=team/PyTorchJob/train") as stream:
            await events(stream, 3)
            assert client.page.board._followed
        async with asyncio.timeout(PATIENCE):
            while client.page.board._followed:  # noqa: ASYNC110  # the server sets no event
                await asyncio.sleep(0.05)


async def test_jobs_that_are_followed_at_once_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(board, "MAX_JOBS", 1)
    async with serving() as client, client.get("/events?job=team/PyTorchJob/train") as stream:
        await events(stream, 1)
        async with client.get("/events?job=team/PyTorchJob/other") as refused:
            assert refused.status in {200, 503}
            text = await asyncio.wait_for(refused.text(), PATIENCE)
            assert "at most 1 jobs are followed at once" in text
