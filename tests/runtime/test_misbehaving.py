"""Servers that misbehave, as tables: behaviour -> outcome and maximum number of requests.

The first table tests an informer in virtual time: whatever the server does for ten minutes, the request rate stays
low, the cache keeps its objects, and the informer recovers soon after the server. The second one tests the transport
over sockets, where bytes can be wrong in more ways.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import random
import resource
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TypeAlias

import pytest
from aiohttp import web
from msgspec.structs import replace

from tests.runtime.scripted import (
    HANG,
    NO_STREAMED_LISTS,
    RecordingHandler,
    Step,
    Streamed,
    added,
    bookmark,
    event,
    json_response,
    modified,
    page,
    pod,
    refusal,
    status,
    verb_of,
)
from tests.runtime.test_http import serving, transport_of
from tests.runtime.test_informer import DECODE
from tests.runtime.virtual_time import VirtualClock, run_virtual
from trainop.runtime.cache.informer import Informer
from trainop.runtime.client.client import Client
from trainop.runtime.client.credentials import StaticCredentials
from trainop.runtime.client.paging import EndlessListError
from trainop.runtime.client.transport import Request, Response
from trainop.runtime.objects.metadata import PODS, Json

Outcome: TypeAlias = Response | Streamed | Exception

MISBEHAVES = 600.0
WELL_WITHIN = 130.0
"""Maximum seconds to recover: the longest back-off is 60 s, and a silent watch times out after 90 s."""

NUMBERS = itertools.count(100)


def is_watch(request: Request) -> bool:
    return "watch" in request.query


@dataclass(frozen=True)
class Behaviour:
    """A behaviour of the server: its response to a request (None: the healthy response), and the maximum number of
    requests in ten minutes."""

    answer: Callable[[Request], Outcome | None]
    requests: int
    from_the_start: bool = True
    """The behaviour begins before the informer has synced; otherwise after it holds one object."""
    lies: bool = False
    """Its responses claim to be lists but are none."""


def always(outcome: Callable[[], Outcome], *, watches: bool | None = None) -> Callable[[Request], Outcome | None]:
    """The same outcome for all requests, or only for watches, or only for others."""
    return lambda request: outcome() if watches is None or is_watch(request) == watches else None


def steps(*script: Step) -> Callable[[Request], Outcome | None]:
    return always(lambda: Streamed(script), watches=True)


def trickle(step: Step, seconds: float) -> Callable[[Request], Outcome | None]:
    script: list[Step] = []
    for _ in range(700):
        script += [step, seconds]
    return steps(*script)


def pages(answer: Callable[[Request], Response]) -> Callable[[Request], Outcome | None]:
    return lambda request: NO_STREAMED_LISTS if verb_of(request) == "stream" else answer(request)


def asking(retry_after: str, code: int = 429) -> Callable[[Request], Outcome | None]:
    return always(lambda: Response(code, {"retry-after": retry_after}, b"{}"))


def asking_in_body(retry_after: str) -> Callable[[Request], Outcome | None]:
    body = b'{"kind":"Status","code":429,"details":{"retryAfterSeconds":%s}}' % retry_after.encode()
    return always(lambda: Response(429, {}, body))


def one_event_and_close(request: Request) -> Outcome | None:
    if verb_of(request) == "stream" or not is_watch(request):
        return None
    return Streamed([modified("a", next(NUMBERS))])


LIES = {
    "nothing": json_response({}),
    "a Status": json_response(status(200, "") | {"status": "Success", "metadata": {}}),
    "a list of another kind": page(kind="Service"),
    "an object": json_response(pod("a", 1)),
    "a list without a version": page(version=""),
    "a list with null as its version": json_response({"kind": "PodList", "metadata": {"resourceVersion": None}}),
    "items without a name": page(pod("", 9)),
    "items without a UID": page(pod("a", 9) | {"metadata": {"name": "a", "namespace": "ns", "resourceVersion": "9"}}),
    "items that are no objects": json_response(
        {"kind": "PodList", "metadata": {"resourceVersion": "10"}, "items": [1, "a", None, []]}
    ),
    "an object and items without a name": page(pod("a", 1), pod("", 9)),
}
"""Responses with status 200 that must not be taken for an empty list, or for a list without `a`."""


def lying(answer: Response) -> Callable[[Request], Outcome | None]:
    """Answers watches with 410, so that the informer relists, and lists with `answer`."""
    expired = refusal(410, "Expired")
    return lambda request: {"stream": NO_STREAMED_LISTS, "list": answer}.get(verb_of(request), expired)


def lying_in_streams(obj: Json) -> Callable[[Request], Outcome | None]:
    lie = Streamed([event("ADDED", obj), bookmark(10, end=True), HANG])
    return lambda request: lie if verb_of(request) == "stream" else refusal(410, "Expired")


BUSY_FOR_AN_HOUR = event("ERROR", status(429, "TooManyRequests") | {"details": {"retryAfterSeconds": 3600}})

BACKED_OFF = 30
"""Maximum number of requests in ten minutes with a back-off that grows to between 30 and 60 s."""

INFORMER = {
    "refuses connections": Behaviour(always(lambda: ConnectionRefusedError("refused")), BACKED_OFF),
    "resets connections": Behaviour(always(lambda: ConnectionResetError("reset")), BACKED_OFF),
    "resets watches": Behaviour(steps(ConnectionResetError("reset")), BACKED_OFF, from_the_start=False),
    "answers nothing": Behaviour(always(lambda: TimeoutError("no answer")), BACKED_OFF),
    "answers with 500": Behaviour(always(lambda: refusal(500)), BACKED_OFF),
    "answers with 503": Behaviour(always(lambda: refusal(503)), BACKED_OFF),
    "answers with 401": Behaviour(always(lambda: refusal(401)), BACKED_OFF),
    "answers with 403": Behaviour(always(lambda: refusal(403)), BACKED_OFF),
    "answers with 404": Behaviour(always(lambda: refusal(404)), BACKED_OFF),
    "redirects": Behaviour(always(lambda: Response(307, {"location": "http://example.org/"}, b"")), BACKED_OFF),
    "answers with 204": Behaviour(always(lambda: Response(204, {}, b"")), 2 * BACKED_OFF),
    "answers lists with garbage": Behaviour(pages(lambda _: Response(200, {}, b"\x00\xff{")), BACKED_OFF),
    "answers watches with garbage": Behaviour(steps(b"\x00\xff{\n"), 2 * BACKED_OFF, from_the_start=False),
    "ends watches at once": Behaviour(steps(), BACKED_OFF, from_the_start=False),
    "ends watches after one event": Behaviour(one_event_and_close, BACKED_OFF, from_the_start=False),
    "resets watches after one event": Behaviour(
        lambda request: (
            Streamed([modified("a", next(NUMBERS)), ConnectionResetError("reset")])
            if verb_of(request).startswith("watch@")
            else None
        ),
        BACKED_OFF,
        from_the_start=False,
    ),
    "ends watches after six seconds": Behaviour(steps(bookmark(12), 6.0), 100, from_the_start=False),
    "is silent in watches": Behaviour(steps(HANG), 10, from_the_start=False),
    "is silent in watches from the start": Behaviour(steps(HANG), BACKED_OFF),
    "sends blank lines": Behaviour(trickle(b"\n", 1.0), 10, from_the_start=False),
    "never ends a line": Behaviour(trickle(b"x", 1.0), 10, from_the_start=False),
    "never ends a streamed list": Behaviour(trickle(added("a", 1), 20.0), 5),
    "sends ERROR events": Behaviour(steps(event("ERROR", status(500, "Broken"))), 2 * BACKED_OFF, from_the_start=False),
    "sends ERROR events that ask for an hour": Behaviour(steps(BUSY_FOR_AN_HOUR), BACKED_OFF, from_the_start=False),
    "repeats a page for ever": Behaviour(pages(lambda _: page(pod("a", 1), token="t")), 3 * BACKED_OFF),
    "repeats a page for ever with new tokens": Behaviour(
        pages(lambda _: page(pod("a", 1), token=f"t{next(NUMBERS)}")), 4 * BACKED_OFF
    ),
    "sends empty pages for ever": Behaviour(pages(lambda _: page(token=f"t{next(NUMBERS)}")), 4 * BACKED_OFF),
    **{
        f"asks to wait: {asked[:12]}": Behaviour(asking(asked), BACKED_OFF)
        for asked in ("3600", "9" * 400, "-1", "0", "Fri, 31 Dec 9999 23:59:59 GMT", "soon", "٣٦٠٠", "1e9")
    },
    **{f"lists {what}": Behaviour(lying(answer), 3 * BACKED_OFF, lies=True) for what, answer in LIES.items()},
    **{
        f"lists {what} after syncing": Behaviour(lying(answer), 3 * BACKED_OFF, from_the_start=False, lies=True)
        for what, answer in LIES.items()
    },
    **{
        f"streams {what}, {'at the start' if start else 'after syncing'}": Behaviour(
            lying_in_streams(obj), 3 * BACKED_OFF, from_the_start=start, lies=True
        )
        for what, obj in {"a nameless object": pod("", 9), "a Status": status(200, "")}.items()
        for start in (True, False)
    },
    "asks to wait for an hour with 503": Behaviour(asking("3600", 503), BACKED_OFF),
    **{
        f"asks to wait in the body: {asked[:12]}": Behaviour(asking_in_body(asked), BACKED_OFF)
        for asked in ("3600", "9" * 400, "-1", "1e300", '"soon"', "true", "[]")
    },
}


class MisbehavingServer:
    """A server that holds the object `a`, sends bookmarks, and misbehaves on request."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.misbehaves = behaviour.from_the_start
        self.changed = asyncio.Event()
        self.asked = 0

    def misbehave(self, misbehaves: bool) -> None:
        """Start or stop misbehaving; open watches are closed."""
        self.misbehaves = misbehaves
        self.changed.set()
        self.changed = asyncio.Event()

    async def send(self, request: Request) -> Response:
        answer = self._answer(request)
        return answer if isinstance(answer, Response) else page(pod("a", 1))

    async def open(self, request: Request) -> Streamed:
        answer = self._answer(request)
        if isinstance(answer, Response):
            return Streamed([answer.body], answer.status, answer.headers)
        if answer is not None:
            return Streamed(answer._steps, answer.status, answer.headers)
        return Broken([added("a", 1), bookmark(10, end=True)] if verb_of(request) == "stream" else [], self.changed)

    def _answer(self, request: Request) -> Response | Streamed | None:
        if not self.misbehaves:
            return None
        self.asked += 1
        answer = self.behaviour.answer(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None: ...


class Broken(Streamed):
    """A healthy watch with a bookmark every minute, which breaks when the server starts or stops misbehaving."""

    def __init__(self, script: list[Step], changed: asyncio.Event) -> None:
        super().__init__(script)
        self._changed = changed

    async def chunks(self) -> AsyncIterator[bytes]:
        async for chunk in super().chunks():
            yield chunk
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(60):
                    await self._changed.wait()
                    return
            async for chunk in Streamed([bookmark(next(NUMBERS))]).chunks():
                yield chunk


@pytest.mark.parametrize("name", INFORMER)
def test_what_an_informer_does(name: str):
    behaviour = INFORMER[name]

    async def scenario() -> None:
        server, handler = MisbehavingServer(behaviour), RecordingHandler()
        clock = VirtualClock()
        client = Client(server, clock=clock, rng=random.Random(1))
        informer = Informer(client, PODS, DECODE, clock=clock, rng=random.Random(2))
        informer.add_handler(handler)
        running = asyncio.create_task(informer.run())
        if not behaviour.from_the_start:
            await informer.wait_synced()
            await asyncio.sleep(130)
            server.misbehave(True)
        await asyncio.sleep(MISBEHAVES)
        assert not running.done()
        assert 1 <= server.asked <= behaviour.requests
        if behaviour.lies:
            assert informer.synced != behaviour.from_the_start, "no response was accepted as a list"
        if not behaviour.from_the_start:
            assert [obj.metadata.name for obj in informer.store.list()] == ["a"], "cached objects are kept"
        server.misbehave(False)
        async with asyncio.timeout(WELL_WITHIN):
            await informer.wait_synced()
            while not informer.current or len(informer.store) != 1:  # noqa: ASYNC110  # virtual time
                await asyncio.sleep(0.1)
        assert [call for call in handler.calls if call[0] in "+-"] in (["+a@1!"], ["+a@1"]), handler.calls[:10]
        running.cancel()
        await asyncio.wait([running])

    run_virtual(scenario())


@pytest.mark.parametrize(
    "name", ["repeats a page for ever", "repeats a page for ever with new tokens", "sends empty pages for ever"]
)
def test_a_list_that_is_read_at_once_ends(name: str):
    async def scenario() -> None:
        server = MisbehavingServer(INFORMER[name])
        with pytest.raises(EndlessListError, match="does not end"):
            await Client(server, clock=VirtualClock()).list(PODS)
        assert server.asked <= 4

    run_virtual(scenario())


BOMB = gzip.compress(bytes(64 * 1024 * 1024))
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
ELSEWHERE = b"HTTP/1.1 307 Temporary Redirect\r\nLocation: %s/stolen\r\nContent-Length: 0\r\n\r\n"


@dataclass(frozen=True)
class Bytes:
    """The bytes that the server sends for each request, followed by `repeated` until the client disconnects. `outcome`
    is the status or the error of a GET with a timeout of one second."""

    sent: bytes
    outcome: int | type[Exception]
    repeated: bytes = b""
    holds: bool = False
    """The server keeps the connection open and silent afterwards."""
    at_once: bool = False
    """The outcome is reached long before the timeout of the request."""


WIRE = {
    "closes at once": Bytes(b"", ConnectionError),
    "says nothing": Bytes(b"", TimeoutError, holds=True),
    "is no HTTP": Bytes(b"SSH-2.0-OpenSSH_9.6\r\n", ConnectionError),
    "sends garbage": Bytes(b"\x00\xff\xfe" * 1000, ConnectionError),
    "sends a status that is none": Bytes(b"HTTP/1.1 abc OK\r\n\r\n", ConnectionError),
    "ends within the headers": Bytes(HEAD, ConnectionError),
    "sends headers without end": Bytes(HEAD, ConnectionError, repeated=b"X-Flood: 1\r\n" * 100, at_once=True),
    "sends large headers without end": Bytes(
        HEAD, ConnectionError, repeated=b"X-Flood: " + b"x" * 8000 + b"\r\n", at_once=True
    ),
    "sends one header without end": Bytes(HEAD + b"X-Flood: ", ConnectionError, repeated=b"x" * 4096, at_once=True),
    "sends a header's name without end": Bytes(HEAD, ConnectionError, repeated=b"x" * 4096, at_once=True),
    "sends a header in lines without end": Bytes(
        HEAD + b"X-Flood: x\r\n", ConnectionError, repeated=b" x\r\n" * 1000, at_once=True
    ),
    "sends a reason without end": Bytes(b"HTTP/1.1 200 ", ConnectionError, repeated=b"x" * 4096, at_once=True),
    "sends a status without end": Bytes(b"HTTP/1.1 2", ConnectionError, repeated=b"0" * 4096, at_once=True),
    "sends a version without end": Bytes(b"HTTP/1.", ConnectionError, repeated=b"1" * 4096, at_once=True),
    "sends trailers without end": Bytes(
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", ConnectionError, repeated=b"X-T: 1\r\n" * 100, at_once=True
    ),
    "sends 1xx without end": Bytes(b"", TimeoutError, repeated=b"HTTP/1.1 102 Processing\r\n\r\n"),
    "sends large 1xx without end": Bytes(
        b"", TimeoutError, repeated=b"HTTP/1.1 103 Early Hints\r\n" + b"X-Flood: %s\r\n" % (b"x" * 4000) * 16 + b"\r\n"
    ),
    "sends blank lines without end": Bytes(b"", TimeoutError, repeated=b"\r\n" * 1000),
    "sends the size of a chunk without end": Bytes(
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n", TimeoutError, repeated=b"0" * 4096
    ),
    "sends an extension of a chunk without end": Bytes(
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;", TimeoutError, repeated=b"x" * 4096
    ),
    "warns a lot": Bytes(HEAD + b'Warning: 299 - "w"\r\n' * 200 + b"Content-Length: 2\r\n\r\n{}", 200),
    "ends within the body": Bytes(HEAD + b"Content-Length: 10\r\n\r\n{}", ConnectionError),
    "is silent within the body": Bytes(HEAD + b"Content-Length: 10\r\n\r\n{}", TimeoutError, holds=True),
    "sends chunks of garbage": Bytes(HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n", ConnectionError),
    "ends within a chunk": Bytes(HEAD + b"Transfer-Encoding: chunked\r\n\r\n8\r\n{}", ConnectionError),
    "sends a body without end": Bytes(HEAD + b"\r\n", ConnectionError, repeated=b" " * 65536),
    "speaks HTTP/1.0 and closes": Bytes(b"HTTP/1.0 200 OK\r\n\r\n{}", 200),
    "sends a bomb": Bytes(HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(BOMB) + BOMB, 200),
    "redirects elsewhere": Bytes(ELSEWHERE, 307),
}


@pytest.mark.parametrize("name", WIRE)
async def test_what_the_transport_does(name: str):
    case, stolen = WIRE[name], []
    connections = 0

    async def steal(request: web.BaseRequest) -> web.Response:
        stolen.append(request.headers)
        return web.Response()

    async def misbehave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        with contextlib.suppress(OSError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(case.sent.replace(b"%s", elsewhere.encode()) if case.sent is ELSEWHERE else case.sent)
            await writer.drain()
            while case.repeated and not writer.is_closing():
                writer.write(case.repeated)
                await writer.drain()
                await asyncio.sleep(0)  # `drain` alone does not yield to the client while the buffer has room
            if case.holds:
                await reader.read()
        writer.close()

    listener = await asyncio.start_server(misbehave, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    credentials = StaticCredentials.token("secret")
    async with (
        serving(steal) as elsewhere,
        listener,
        transport_of(f"http://127.0.0.1:{port}", credentials=credentials) as transport,
    ):
        request = Request("GET", "/x", timeout=1, max_answer=1024 * 1024)
        if isinstance(case.outcome, int):
            response = await transport.send(request)
            assert response.status == case.outcome
            assert len(response.body) <= len(BOMB), "the body is not decompressed"
        else:
            began, held = asyncio.get_running_loop().time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            with pytest.raises(case.outcome):
                await transport.send(replace(request, timeout=60) if case.at_once else request)
            took = asyncio.get_running_loop().time() - began
            assert not case.at_once or took < 50, "the request did not end by timeout"
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held < 64 * 1024, "KiB"
    assert connections <= 2, "aiohttp retries a GET once whose connection was closed before any response"
    assert stolen == []
