"""A client of the embedded API server and a second writer that acts between two of its requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from trainop.local.api.serving.server import ApiServer
from trainop.runtime.client.client import Client
from trainop.runtime.client.transport import Request, Response, Stream, Transport


class Racing:
    """A transport that runs `before[method]` once, or `always[method]` every time, right before it answers a request of
    that method, and records the methods."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.before: dict[str, Callable[[], Awaitable[object]]] = {}
        self.always: dict[str, Callable[[], Awaitable[object]]] = {}
        self.verbs: list[str] = []

    async def send(self, request: Request) -> Response:
        self.verbs.append(request.method)
        race = self.before.pop(request.method, None) or self.always.get(request.method)
        if race is not None:
            await race()
        return await self._inner.send(request)

    async def open(self, request: Request) -> Stream:
        return await self._inner.open(request)

    async def close(self) -> None:
        await self._inner.close()


def race() -> tuple[Client, Racing, Client]:
    """The client under test, its transport, and the client of another writer."""
    api = ApiServer()
    racing = Racing(api.transport())
    return Client(racing), racing, Client(api.transport())
