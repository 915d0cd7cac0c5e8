"""The interface for one HTTP exchange with an API server.

`HttpTransport` implements it over sockets. The embedded API server implements it in the same process, so that
local clusters and simulations need no sockets.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Protocol

import msgspec

MAX_ANSWER = 32 * 1024 * 1024
"""Default maximum bytes of a response: twenty times the largest object that etcd accepts."""


class Request(msgspec.Struct, frozen=True):
    """An HTTP request. `path` is unescaped and without query; `timeout` in seconds limits the whole exchange.

    A response body longer than `max_answer` bytes raises `AnswerTooLongError`. `urgent` requests use separate
    connections and never wait for others. `gate` is called each time the request is about to be sent, and raises to
    refuse it (see `manager/leader.py`). `warned` receives each warning of the API server. A streamed body is read every
    `pace` seconds, with one step for all that has arrived; 0: as it arrives.
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
    warned: Callable[[str], None] | None = None
    pace: float = 0.0

    def __repr__(self) -> str:
        """Omits headers and body, which may contain tokens and Secrets."""
        return f"<{self.method} {self.path}>"


class Response(msgspec.Struct, frozen=True):
    """An HTTP response; header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def __repr__(self) -> str:
        """Omits the body, which may be a Secret."""
        return f"<{self.status}, {len(self.body)} bytes>"


class Stream(Protocol):
    """A response whose body arrives over time; `status` and `headers` are available at once."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Body bytes as they arrive, in chunks of any size. Raises `ConnectionError` or `TimeoutError` if the peer is
        lost."""
        ...

    async def close(self) -> None: ...


class Transport(Protocol):
    """Carries requests to an API server. Raises `ConnectionError` or `TimeoutError`; an HTTP error status is a normal
    response, not an exception.

    `NotConnectedError` means that the request was not sent, so that even a POST is safe to retry.
    """

    async def send(self, request: Request) -> Response:
        """Sends the request and reads the whole response."""
        ...

    async def open(self, request: Request) -> Stream:
        """Sends the request and returns once the head of the response has arrived."""
        ...

    async def close(self) -> None:
        """Closes all connections."""
        ...


class NotConnectedError(ConnectionError):
    """No connection could be established, or no credentials obtained: nothing was sent."""


class AnswerTooLongError(ConnectionError):
    """A response body exceeds `Request.max_answer`; the rest was not read."""
