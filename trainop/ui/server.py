"""Answers browsers: the page, which has no data, to anybody; data to those whom the gate admits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from trainop.errors import StartError
from trainop.runtime import Json
from trainop.runtime.lowlevel import Address, BindError, HttpServer, Limits
from trainop.ui.board import FAILURES, JobBoard, TooManyError
from trainop.ui.gate import HOST, Gate, RefusedError, Seat, TokenGate
from trainop.ui.page import read_page
from trainop.ui.source import JobId, Source, read_id

CONNECTIONS = 256
FIELD = 96 * 1024
"""Bytes of one header: a proxy passes its cookies on, which may contain two tokens of 16 KiB, encoded twice."""
HEAD = 160 * 1024
"""Bytes of all headers of a request."""
SLOW = 20.0
"""Seconds in which a viewer has to take what was written; then its stream ends, and it may come back."""
BEAT = 15.0
"""Seconds without news after which a line shows that the stream lives."""

_Read: TypeAlias = Callable[[Seat, JobId], Awaitable[Json]]
_SEAT = web.RequestKey("seat", Seat)


class PageServer:
    """Serves the page to those whom the gate admits."""

    def __init__(self, gate: Gate, address: Address) -> None:
        self._gate = gate
        self._page = read_page(choose=gate.choose)
        application = web.Application(middlewares=[self._guard])
        application.router.add_get("/", self._show)
        application.router.add_get("/healthz", self._say_ok)
        application.router.add_get("/events", self._stream)
        application.router.add_get("/why", self._answer(lambda seat, job: seat.source.why(job)))
        application.router.add_get("/yaml", self._answer(lambda seat, job: seat.source.yaml(job)))
        application.router.add_post("/stacks", self._answer(_read_stacks))
        self._server = HttpServer(
            "page",
            address,
            application,
            connections=CONNECTIONS,
            limits=Limits(head=HEAD, response=None),
            grace=0.1,
            handler_cancellation=True,
            max_field_size=FIELD,
        )

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[int]:
        """Serves within the context, which gets the port. Raises `StartError` if it cannot listen."""
        try:
            await self._server.bind()
        except BindError as error:
            raise StartError(str(error)) from None
        tasks = [asyncio.create_task(each) for each in (self._server.run(), self._gate.run())]
        try:
            yield self._server.port or 0
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # Who may ask ------------------------------------------------------------------------------------------------------

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            self._gate.check(request)
            if request.path in self._gate.public:
                response = await handler(request)
            else:
                async with self._gate.seat(request) as request[_SEAT]:
                    response = await handler(request)
        except RefusedError as refusal:
            return self._refuse(refusal.status, str(refusal))
        except web.HTTPException as error:
            return self._refuse(error.status, error.reason)
        if not response.prepared:
            response.headers.update(self._page.headers)
        return response

    def _refuse(self, status: int, text: str) -> web.Response:
        challenge = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
        return web.json_response({"error": text}, status=status, headers={**self._page.headers, **challenge})

    # Answers ----------------------------------------------------------------------------------------------------------

    async def _show(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._page.body, content_type="text/html", charset="utf-8")

    async def _say_ok(self, _request: web.Request) -> web.Response:
        """For probes: that the process serves. Whether the API server answers is another question."""
        return web.Response(text="ok")

    def _answer(self, read: _Read) -> Handler:
        async def answer(request: web.Request) -> web.Response:
            try:
                wanted = read_id(request.query.get("job", ""))
                return web.Response(
                    body=msgspec.json.encode(await read(request[_SEAT], wanted)), content_type="application/json"
                )
            except ValueError as error:
                raise RefusedError(400, str(error)) from None
            except FAILURES as error:
                raise RefusedError(502, " ".join(str(error).split())[:500]) from None

        return answer

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """The jobs, one of them and its log, as server-sent events, until the viewer leaves or is too slow."""
        try:
            wanted = read_id(request.query["job"]) if "job" in request.query else None
        except ValueError as error:
            raise RefusedError(400, str(error)) from None
        seat = request[_SEAT]
        self._gate.check_room(seat, wanted)
        bell = asyncio.Event()
        seat.bells.add(bell)
        try:
            with seat.board.viewer(bell, wanted) as followed:
                headers = {**self._page.headers, "Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
                response = web.StreamResponse(headers=headers)
                await response.prepare(request)
                try:
                    await _Viewer(response, bell, seat, followed).run(request.headers.get("Last-Event-ID", ""))
                except (ConnectionError, TimeoutError):
                    if request.transport is not None:
                        request.transport.abort()
                return response
        except TooManyError as error:
            raise RefusedError(503, str(error)) from None
        finally:
            seat.bells.discard(bell)


async def _read_stacks(seat: Seat, wanted: JobId) -> Json:
    async with seat.stacks:
        return await seat.source.stacks(wanted)


@asynccontextmanager
async def serve_alone(source: Source, port: int = 0) -> AsyncIterator[str]:
    """Serves the page to one user on this machine, within the context, which gets the URL. It has the token: whoever
    has it sees what the page shows. Raises `StartError` if it cannot listen."""
    gate = TokenGate(source)
    async with PageServer(gate, Address(HOST, port)).serve() as chosen:
        yield f"http://{HOST}:{chosen}/#token={gate.token}"


class _Viewer:
    """Writes one stream. All that it keeps is a position in the log; what waits to be sent is one block."""

    def __init__(
        self, response: web.StreamResponse, bell: asyncio.Event, seat: Seat, followed: JobBoard | None
    ) -> None:
        self._response, self._bell, self._seat, self._followed = response, bell, seat, followed
        self._topics = [seat.board.jobs, *([followed.job, followed.plots] if followed is not None else [])]
        self._seen = [0 for _ in self._topics]

    async def run(self, last_event: str) -> None:
        """Raises `TimeoutError` if the viewer is too slow, `ConnectionError` if it is gone."""
        position = 0
        if self._followed is not None:
            feed = self._followed.feed
            position = feed.position(last_event)
            await self._write(b"event: begin\ndata: %s\n\n" % msgspec.json.encode([feed.identity, position]))
        while not self._seat.ended:
            self._bell.clear()
            await self._write_topics()
            position = await self._write_lines(position)
            await self._wait()
        await self._write(b"event: login\ndata: true\n\n")

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
        while not self._seat.ended:
            skipped, block = self._followed.feed.after(position)
            if block is None:
                return position
            if skipped:
                await self._write(b'event: skip\ndata: {"lines": %d}\n\n' % skipped)
            await self._write(block.event)
            position = block.end
            await self._write_topics()
        return position

    async def _write(self, event: bytes) -> None:
        """Raises `TimeoutError` if the viewer does not take it."""
        async with asyncio.timeout(SLOW):
            await self._response.write(event)
