"""One HTTP exchange with an API server, whatever carries it: sockets (`http.py`) or a call within the process.

The embedded API server answers the same `Request` values directly, so that simulations need no sockets.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Protocol

import msgspec

MAX_ANSWER = 32 * 1024 * 1024
"""Bytes of a response with one object: twenty times the largest one that etcd takes."""


class Request(msgspec.Struct, frozen=True):
    """`path` without query and unescaped; `query` values are strings; `timeout` in seconds for the whole exchange.

    A response body longer than `max_answer` bytes is an `AnswerTooLongError`. Requests that are `urgent` have
    connections of their own and wait for no other request. `gate` is called whenever the request is about to be sent
    and raises to refuse that (see `leader.py`).
    """

    method: str
    path: str
    query: Mapping[str, str] = {}
    body: bytes = b""
    content_type: str = "application/json"
    accept: str = "application/json"
    timeout: float | None = None
    headers: Mapping[str, str] = {}
    max_answer: int = MAX_ANSWER
    urgent: bool = False
    gate: Callable[[], None] | None = None

    def __repr__(self) -> str:
        """Without headers and body: they hold tokens and Secrets."""
        return f"<{self.method} {self.path}>"


class Response(msgspec.Struct, frozen=True):
    """Header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def __repr__(self) -> str:
        """Without the body, which may be a Secret."""
        return f"<{self.status}, {len(self.body)} bytes>"


class Stream(Protocol):
    """A response whose body arrives over time; `status` and `headers` are known when it is opened."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Body bytes as they arrive, cut anywhere; raises `ConnectionError` or `TimeoutError` when the peer is gone."""
        ...

    async def close(self) -> None: ...


class Transport(Protocol):
    """Raises `ConnectionError` (not established, reset) or `TimeoutError`; HTTP statuses are answers, not errors.

    `NotConnectedError` tells that the request never reached the server, so that even a POST may be sent again.
    """

    async def send(self, request: Request) -> Response: ...
    async def open(self, request: Request) -> Stream: ...
    async def close(self) -> None: ...


class NotConnectedError(ConnectionError):
    """No connection could be made: nothing was sent."""


class AnswerTooLongError(ConnectionError):
    """A response body is longer than `Request.max_answer`; no more of it was read."""
