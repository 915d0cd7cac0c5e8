"""Answers browsers on a loopback address: the page, which has no data, to anybody; data to those who have the token.

The token is in the fragment of the URL, which no browser sends; the page sends it as a bearer token, so that no other
site can make a browser send it. `Host` must name this machine, so that no site can pass itself off as this one.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from trainop.errors import StartError
from trainop.runtime import Json
from trainop.runtime.lowlevel import Address, BindError, HttpServer, Limits
from trainop.ui.board import FAILURES, Board, JobBoard, TooManyError
from trainop.ui.page import read_page
from trainop.ui.source import JobId, Source, read_id

HOST = "127.0.0.1"
NAMES = frozenset({HOST, "localhost", "[::1]"})
"""That `Host` may have, with any port: one of another machine may be forwarded."""
CONNECTIONS = 256
VIEWERS = 64
"""Streams at once. Tabs that are not seen have none."""
SLOW = 20.0
"""Seconds in which a viewer has to take what was written; then its stream ends, and it may come back."""
BEAT = 15.0
"""Seconds without news after which a line shows that the stream lives."""
STACKS_AT_ONCE = 1

_Read: TypeAlias = Callable[[Source, JobId], Awaitable[Json]]


class PageServer:
    """Serves the page of one source."""

    def __init__(self, source: Source, port: int = 0) -> None:
        self.source = source
        self.board = Board(source)
        self._token = secrets.token_urlsafe(24)
        self._page = read_page()
        self._viewers = 0
        self._stacks = asyncio.Semaphore(STACKS_AT_ONCE)
        application = web.Application(middlewares=[self._guard])
        application.router.add_get("/", self._show)
        application.router.add_get("/events", self._stream)
        application.router.add_get("/why", self._answer(lambda source, job: source.why(job)))
        application.router.add_get("/yaml", self._answer(lambda source, job: source.yaml(job)))
        application.router.add_post("/stacks", self._answer(self._read_stacks))
        self._server = HttpServer(
            "page",
            Address(HOST, port),
            application,
            connections=CONNECTIONS,
            limits=Limits(response=None),
            grace=0.1,
            handler_cancellation=True,
        )

    @property
    def url(self) -> str:
        """With the token: whoever has it sees what the page shows."""
        return f"http://{HOST}:{self._server.port}/#token={self._token}"

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Serves within the context, which gets the URL. Raises `StartError` if it cannot listen."""
        try:
            await self._server.bind()
        except BindError as error:
            raise StartError(str(error)) from None
        tasks = [asyncio.create_task(each) for each in (self._server.run(), self.board.run())]
        try:
            yield self.url
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # Who may ask ------------------------------------------------------------------------------------------------------

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        host = request.headers.get("Host", "")
        name = host[: host.rfind("]") + 1] if host.startswith("[") else host.partition(":")[0]
        if name.lower() not in NAMES:
            return self._refuse(421, "this page is served to this machine only, as localhost or 127.0.0.1")
        if request.path != "/" and not self._is_allowed(request):
            return self._refuse(403, "the token is missing or wrong; use the address that trainop has printed")
        try:
            response = await handler(request)
        except web.HTTPException as error:
            return self._refuse(error.status, error.reason)
        if not response.prepared:
            response.headers.update(self._page.headers)
        return response

    def _is_allowed(self, request: web.Request) -> bool:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        return secrets.compare_digest(given.encode("utf-8", "surrogateescape"), self._token.encode())

    def _refuse(self, status: int, text: str) -> web.Response:
        return web.json_response({"error": text}, status=status, headers=self._page.headers)

    # Answers ----------------------------------------------------------------------------------------------------------

    async def _show(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._page.body, content_type="text/html", charset="utf-8")

    def _answer(self, read: _Read) -> Handler:
        async def answer(request: web.Request) -> web.Response:
            try:
                wanted = read_id(request.query.get("job", ""))
                return web.Response(
                    body=msgspec.json.encode(await read(self.source, wanted)), content_type="application/json"
                )
            except ValueError as error:
                return self._refuse(400, str(error))
            except FAILURES as error:
                return self._refuse(502, " ".join(str(error).split())[:500])

        return answer

    async def _read_stacks(self, source: Source, wanted: JobId) -> Json:
        async with self._stacks:
            return await source.stacks(wanted)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """The jobs, one of them and its log, as server-sent events, until the viewer leaves or is too slow."""
        try:
            wanted = read_id(request.query["job"]) if "job" in request.query else None
        except ValueError as error:
            return self._refuse(400, str(error))
        if self._viewers >= VIEWERS:
            return self._refuse(503, f"at most {VIEWERS} tabs are served at once")
        bell = asyncio.Event()
        self._viewers += 1
        try:
            with self.board.viewer(bell, wanted) as followed:
                headers = {**self._page.headers, "Content-Type": "text/event-stream"}
                response = web.StreamResponse(headers=headers)
                await response.prepare(request)
                try:
                    await _Viewer(response, bell, self.board, followed).run(request.headers.get("Last-Event-ID", ""))
                except (ConnectionError, TimeoutError):
                    if request.transport is not None:
                        request.transport.abort()
                return response
        except TooManyError as error:
            return self._refuse(503, str(error))
        finally:
            self._viewers -= 1


class _Viewer:
    """Writes one stream. All that it keeps is a position in the log; what waits to be sent is one block."""

    def __init__(
        self, response: web.StreamResponse, bell: asyncio.Event, board: Board, followed: JobBoard | None
    ) -> None:
        self._response, self._bell, self._followed = response, bell, followed
        self._topics = [board.jobs, *([followed.job, followed.plots] if followed is not None else [])]
        self._seen = [0 for _ in self._topics]

    async def run(self, last_event: str) -> None:
        """Raises `TimeoutError` if the viewer is too slow, `ConnectionError` if it is gone."""
        position = 0
        if self._followed is not None:
            feed = self._followed.feed
            position = feed.position(last_event)
            await self._write(b"event: begin\ndata: %s\n\n" % msgspec.json.encode([feed.identity, position]))
        while True:
            self._bell.clear()
            await self._write_topics()
            position = await self._write_lines(position)
            await self._wait()

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(BEAT):
                await self._bell.wait()
        except TimeoutError:
            await self._write(b": \n\n")

    async def _write_topics(self) -> None:
        for number, topic in enumerate(self._topics):
            if topic.version != self._seen[number]:
                self._seen[number] = topic.version
                await self._write(topic.event)

    async def _write_lines(self, position: int) -> int:
        """Returns the position after all that there is."""
        if self._followed is None:
            return position
        while True:
            skipped, block = self._followed.feed.after(position)
            if block is None:
                return position
            if skipped:
                await self._write(b'event: skip\ndata: {"lines": %d}\n\n' % skipped)
            await self._write(block.event)
            position = block.end
            await self._write_topics()

    async def _write(self, event: bytes) -> None:
        """Raises `TimeoutError` if the viewer does not take it."""
        async with asyncio.timeout(SLOW):
            await self._response.write(event)
