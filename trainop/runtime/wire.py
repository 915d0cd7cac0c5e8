"""HTTP/1.1 for requests whose answers are read whole: connections that are kept, one exchange at a time on each.

aiohttp's client does this and much more; for our twenty requests a job it takes several times as long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias, cast

from trainop.runtime.transport import Response

MAX_HEAD = 64 * 1024
"""Bytes of the head of an answer, and of a line between chunks."""

KEEP = 60.0
"""Seconds that a connection may be idle and used again: API servers close theirs after 90 s, and a request that meets
that end would be lost."""

_BODILESS = frozenset({204, 304})
_IDEMPOTENT = frozenset({"GET", "HEAD", "PUT", "DELETE"})


class BadAnswerError(ConnectionError):
    """What came is no answer in HTTP/1.1."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"the answer is not HTTP: {problem}")


class UnansweredError(ConnectionError):
    """The connection ended before anything came."""


class AnswerReader:
    """The answer to one request, from bytes cut anywhere (RFC 9112). Raises `BadAnswerError`."""

    __slots__ = ("_body", "_chunked", "_headers", "_held", "_is_head", "_last", "_left", "_status", "reusable")

    def __init__(self, method: str) -> None:
        self.reusable = True
        """Whether the connection may have another exchange after this one."""
        self._is_head = method == "HEAD"
        self._held = bytearray()
        self._body = bytearray()
        self._status = 0
        self._headers: dict[str, str] | None = None
        self._chunked = self._last = False
        self._left: int | None = None
        """Bytes that are still to come: of the body, or with their line end of the chunk. None: until the end, or the
        size of the next chunk comes first."""

    @property
    def begun(self) -> bool:
        return bool(self._held) or self._headers is not None

    def feed(self, data: bytes) -> Response | None:
        """The answer, once it is complete."""
        self._held += data
        if self._headers is None and not self._read_head():
            return None
        return self._response() if (self._read_chunks() if self._chunked else self._read_plain()) else None

    def end(self) -> Response | None:
        """The connection has ended; an answer of unknown length is complete then."""
        if self._headers is None or self._chunked or self._left is not None:
            return None
        self._left = len(self._held)
        self._read_plain()
        return self._response()

    def _response(self) -> Response:
        self.reusable = self.reusable and not self._held
        return Response(self._status, self._headers or {}, bytes(self._body))

    def _read_head(self) -> bool:
        held = self._held
        if not held.startswith(b"HTTP/1."[: len(held)]):
            raise BadAnswerError("Bad status line")
        end = held.find(b"\r\n\r\n")
        if end < 0:
            if len(held) > MAX_HEAD:
                raise BadAnswerError("Head is too long")
            return False
        first, *lines = held[:end].decode("latin-1").split("\r\n")
        del held[: end + 4]
        if len(first) < 12 or not first[9:12].isdecimal():
            raise BadAnswerError("Bad status line")
        status = int(first[9:12])
        if status < 200:  # in between, such as 103 Early Hints
            return bool(held) and self._read_head()
        self._status, self._headers = status, _read_headers(lines)
        self.reusable = first.startswith("HTTP/1.1")
        self._find_length(self._headers)
        return True

    def _find_length(self, headers: dict[str, str]) -> None:
        coding, length = headers.get("transfer-encoding"), headers.get("content-length")
        if headers.get("connection", "").lower() == "close":
            self.reusable = False
        if self._is_head or self._status in _BODILESS:
            self._left = 0
        elif coding is not None:
            if coding.lower() != "chunked":
                raise BadAnswerError(f"Transfer-Encoding is {coding}")
            self._chunked = True
        elif length is not None:
            if not (length.isascii() and length.isdecimal()):
                raise BadAnswerError(f"Content-Length is {length}")
            self._left = int(length)
        else:
            self.reusable = False

    def _read_plain(self) -> bool:
        if self._left is None or len(self._held) < self._left:
            return False
        self._body = self._held[: self._left]
        del self._held[: self._left]
        return True

    def _read_chunks(self) -> bool:
        held = self._held
        while True:
            if self._left is None:
                line = self._take_line()
                if line is None:
                    return False
                if self._last:  # after the last chunk come trailers, which nobody reads, and an empty line
                    if not line:
                        return True
                    continue
                size = _read_size(line)
                self._last = size == 0
                self._left = size + 2 if size else None
            else:
                if len(held) < self._left:
                    return False
                self._body += held[: self._left - 2]
                del held[: self._left]
                self._left = None

    def _take_line(self) -> bytes | None:
        end = self._held.find(b"\r\n")
        if end < 0:
            if len(self._held) > MAX_HEAD:
                raise BadAnswerError("Line between chunks is too long")
            return None
        line = bytes(self._held[:end])
        del self._held[: end + 2]
        return line


def _read_headers(lines: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise BadAnswerError("Header without a colon")
        name, value = name.lower(), value.strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _read_size(line: bytes) -> int:
    try:
        return int(line.partition(b";")[0], 16)
    except ValueError:
        raise BadAnswerError("Bad size of a chunk") from None


class Line(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._reader = AnswerReader("")
        self._answer: asyncio.Future[Response] | None = None
        self._ended = asyncio.get_running_loop().create_future()
        self.idle_since = 0.0

    @property
    def open(self) -> bool:
        return not self._ended.done()

    @property
    def reusable(self) -> bool:
        return self.open and self._reader.reusable

    async def exchange(self, method: str, request: bytes) -> Response:
        """Sends the bytes of a request; a connection whose exchange fails or is cancelled is closed."""
        self._reader = AnswerReader(method)
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._answer
        except BaseException:
            self._reader.reusable = False
            self.abort()
            raise
        finally:
            self._answer = None

    def abort(self) -> None:
        self._transport.abort()

    async def wait_ended(self) -> None:
        await self._ended

    # What the event loop tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.abort()  # nobody has asked
            return
        try:
            response = self._reader.feed(data)
        except BadAnswerError as error:
            self._answer.set_exception(error)
        else:
            if response is not None:
                self._answer.set_result(response)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.set_result(None)
        if self._answer is None or self._answer.done():
            return
        response = self._reader.end()
        if response is not None:
            self._answer.set_result(response)
        else:
            kind = ConnectionError if self._reader.begun else UnansweredError
            self._answer.set_exception(kind(str(exc or "") or "Server disconnected"))


Dial: TypeAlias = Callable[[], Awaitable[Line]]


class Lines:
    """At most `limit` connections to one server; `dial` makes them."""

    def __init__(self, dial: Dial, limit: int) -> None:
        self._dial = dial
        self._places = asyncio.Semaphore(limit)
        self._idle: list[Line] = []
        """The one that was used last stands last, and is used first."""
        self._all: set[Line] = set()

    async def exchange(self, method: str, request: bytes) -> Response:
        """Raises `ConnectionError`, and what `dial` raises."""
        async with self._places:
            line = self._take_idle()
            if line is not None:
                try:
                    return await self._exchange(line, method, request)
                except UnansweredError:  # most likely it had been closed already
                    if method not in _IDEMPOTENT:
                        raise
            return await self._exchange(await self._new(), method, request)

    async def _exchange(self, line: Line, method: str, request: bytes) -> Response:
        try:
            return await line.exchange(method, request)
        finally:
            self._give_back(line)

    async def close(self) -> None:
        """Also ends running exchanges."""
        lines = list(self._all)
        for line in lines:
            line.abort()
        for line in lines:
            await line.wait_ended()

    def _take_idle(self) -> Line | None:
        now = asyncio.get_running_loop().time()
        while self._idle:
            line = self._idle.pop()
            if line.open and now - line.idle_since < KEEP:
                return line
            self._drop(line)
        return None

    async def _new(self) -> Line:
        line = await self._dial()
        self._all.add(line)
        return line

    def _give_back(self, line: Line) -> None:
        if line.reusable:
            line.idle_since = asyncio.get_running_loop().time()
            self._idle.append(line)
        else:
            self._drop(line)

    def _drop(self, line: Line) -> None:
        self._all.discard(line)
        line.abort()
