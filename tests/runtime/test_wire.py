"""Answers cut anywhere, and connections that are kept as long as they serve."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest

from trainop.runtime import wire
from trainop.runtime.wire import AnswerReader, BadAnswerError, Line, Lines, UnansweredError

PLAIN = b"HTTP/1.1 201 Created\r\nWarning: a\r\nContent-Length: 5\r\nwarning:  b \r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\nA;x=y\r\nlo\r\n world\r\n0\r\nTrailer: 1\r\n\r\n"
)
HINTED = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + PLAIN


@pytest.mark.parametrize(
    ("text", "status", "headers", "body"),
    [
        (PLAIN, 201, {"warning": "a, b", "content-length": "5"}, b"hello"),
        (CHUNKED, 200, {"transfer-encoding": "chunked"}, b"hello\r\n world"),
        (HINTED, 201, {"warning": "a, b", "content-length": "5"}, b"hello"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, {}, b""),
    ],
    ids=["length", "chunks", "hints", "none"],
)
def test_an_answer_is_read_wherever_it_is_cut(text: bytes, status: int, headers: dict[str, str], body: bytes):
    for at in range(1, len(text)):
        reader = AnswerReader("GET")
        assert reader.feed(text[:at]) is None
        answer = reader.feed(text[at:])
        assert answer is not None
        assert (answer.status, answer.headers, answer.body) == (status, headers, body)
        assert reader.reusable


def test_an_answer_is_read_byte_by_byte():
    reader = AnswerReader("GET")
    *before, last = [reader.feed(CHUNKED[at : at + 1]) for at in range(len(CHUNKED))]
    assert set(before) == {None}
    assert last is not None
    assert last.body == b"hello\r\n world"


def test_the_answer_to_head_has_no_body():
    answer = AnswerReader("HEAD").feed(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n")
    assert answer is not None
    assert answer.body == b""


def test_without_a_length_the_end_completes_the_answer():
    reader = AnswerReader("GET")
    assert reader.end() is None
    assert reader.feed(b"HTTP/1.1 200 OK\r\n\r\nall") is None
    answer = reader.end()
    assert answer is not None
    assert answer.body == b"all"
    assert not reader.reusable


@pytest.mark.parametrize("text", [PLAIN, CHUNKED], ids=["length", "chunks"])
def test_an_answer_cut_short_is_none(text: bytes):
    reader = AnswerReader("GET")
    reader.feed(text[:-1])
    assert reader.end() is None


@pytest.mark.parametrize(
    "text",
    [
        b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: Close\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nmore",
    ],
    ids=["old", "closing", "too-much"],
)
def test_some_answers_are_the_last_of_their_connection(text: bytes):
    reader = AnswerReader("GET")
    assert reader.feed(text) is not None
    assert not reader.reusable


@pytest.mark.parametrize(
    "text",
    [
        b"220 smtp",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nsize\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * wire.MAX_HEAD,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"x" * wire.MAX_HEAD,
    ],
)
def test_what_is_no_answer_is_told(text: bytes):
    with pytest.raises(BadAnswerError):
        AnswerReader("GET").feed(text)


# Connections ----------------------------------------------------------------------------------------------------------


class Server:
    """Answers each request of a connection with the next of `answers`, and hangs up when there are no more."""

    def __init__(self, answers: Sequence[bytes]) -> None:
        self.answers = answers
        self.asked = 0
        self.dialed = 0
        self.port = 0
        self.running: list[asyncio.Task[None] | None] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.dialed += 1
        self.running.append(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            for answer in self.answers:
                await reader.readuntil(b"\r\n\r\n")
                self.asked += 1
                writer.write(answer)
                await writer.drain()
            await reader.readuntil(b"\r\n\r\n")
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async def dial(self) -> Line:
        _, line = await asyncio.get_running_loop().create_connection(Line, "127.0.0.1", self.port)
        return line


@contextlib.asynccontextmanager
async def serving(*answers: bytes, limit: int = 2) -> AsyncIterator[tuple[Server, Lines]]:
    server = Server(answers)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    lines = Lines(server.dial, limit)
    try:
        yield server, lines
    finally:
        await lines.close()
        listening.close()
        await asyncio.gather(*(task for task in server.running if task))


ASK = b"GET / HTTP/1.1\r\n\r\n"
SILENCE = b""


async def test_a_connection_is_used_again():
    async with serving(PLAIN, CHUNKED, PLAIN) as (server, lines):
        assert [(await lines.exchange("GET", ASK)).status for _ in range(3)] == [201, 200, 201]
        assert server.dialed == 1


async def test_of_two_requests_at_once_each_has_its_connection():
    async with serving(PLAIN, PLAIN) as (server, lines):
        await asyncio.gather(*(lines.exchange("GET", ASK) for _ in range(2)))
        assert server.dialed == 2


async def test_there_are_no_more_connections_than_allowed():
    async with serving(PLAIN, PLAIN, PLAIN, limit=1) as (server, lines):
        await asyncio.gather(*(lines.exchange("GET", ASK) for _ in range(3)))
        assert server.dialed == 1


async def test_a_connection_idle_for_long_is_not_used_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(wire, "KEEP", 0.0)
    async with serving(PLAIN, PLAIN) as (server, lines):
        for _ in range(2):
            await lines.exchange("POST", ASK)
        assert server.dialed == 2


@pytest.mark.parametrize(("method", "dialed"), [("GET", 2), ("DELETE", 2), ("POST", 1), ("PATCH", 1)])
async def test_what_meets_the_end_of_a_kept_connection_is_sent_again_if_that_does_no_harm(method: str, dialed: int):
    async with serving(PLAIN) as (server, lines):
        await lines.exchange(method, ASK)
        if dialed == 1:
            with pytest.raises(UnansweredError):
                await lines.exchange(method, ASK)
        else:
            assert (await lines.exchange(method, ASK)).status == 201
        assert server.dialed == dialed


async def test_half_an_answer_is_not_asked_for_again():
    async with serving(PLAIN, PLAIN[:-1], SILENCE) as (server, lines):
        await lines.exchange("GET", ASK)
        running = asyncio.create_task(lines.exchange("GET", ASK))
        (line,) = lines._all
        async with asyncio.timeout(5):
            while server.asked < 2 or not line._reader.begun:  # noqa: ASYNC110  # another task: there is nothing to wait for
                await asyncio.sleep(0)
        line.abort()
        with pytest.raises(ConnectionError) as caught:
            await running
        assert not isinstance(caught.value, UnansweredError)
        assert server.dialed == 1


async def test_who_is_cancelled_leaves_no_connection_behind():
    async with serving(SILENCE, PLAIN) as (server, lines):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await lines.exchange("GET", ASK)
        assert not lines._all
        assert server.dialed == 1


async def test_what_nobody_asked_for_ends_the_connection():
    async with serving(PLAIN + PLAIN, PLAIN) as (server, lines):
        await lines.exchange("POST", ASK)
        await lines.exchange("POST", ASK)
        assert server.dialed == 2


async def test_closing_ends_what_runs():
    async with serving(SILENCE, PLAIN) as (server, lines):
        running = asyncio.create_task(lines.exchange("POST", ASK))
        while not server.asked:  # noqa: ASYNC110  # another task: there is nothing to wait for
            await asyncio.sleep(0)
        await lines.close()
        with pytest.raises(ConnectionError):
            await running
