"""One replica of di-server: started, killed, frozen, restarted. Clients call its application without sockets."""

from __future__ import annotations

import asyncio
import functools
import random
from typing import TYPE_CHECKING, Any
from unittest import mock

from aiohttp import StreamReader, web
from aiohttp.test_utils import make_mocked_request

from tests.simulation.loop import Process, Wall
from tests.simulation.wire import Wire
from trainop.diserver.metrics import DiServerMetrics
from trainop.diserver.server import DiServer, declare
from trainop.programs.di_server import DiServerSettings
from trainop.runtime.manager.manager import Group

if TYPE_CHECKING:
    from tests.simulation.world import World

LEASES_IN = "di-system"
SETTINGS = DiServerSettings(bind_address=None, lease_namespace=LEASES_IN, caller_check=False, caller_rate=0.0)


@functools.cache
def metrics() -> DiServerMetrics:
    """One registry for all runs."""
    return DiServerMetrics()


class Unjudged:
    """Takes the place of the judge, whose rules are those of the operator."""

    def asks(self, *_: object) -> None: ...
    def sends(self, *_: object) -> None: ...
    def received(self, *_: object) -> None: ...
    def shows(self, *_: object) -> None: ...


class Connection:
    """The connection of one request, which its client may close."""

    def __init__(self, peer: str, answer: asyncio.Future[tuple[int, bytes] | None]) -> None:
        """`answer` gets status and body as soon as the server has sent them; None if the connection breaks."""
        self._peer = peer
        self.answer = answer
        self._closed = False
        self._status = 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self._peer, 40000) if name == "peername" else default

    def is_closing(self) -> bool:
        return self._closed

    def abort(self) -> None:
        self._closed = True
        self._resolve(None)

    def _resolve(self, answer: tuple[int, bytes] | None) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)

    # The writer of the answer, as aiohttp calls it --------------------------------------------------------------------

    length = None
    output_size = 0
    transport = None

    async def write_headers(self, status_line: str, _headers: object) -> None:
        self._status = int(status_line.split()[1])

    async def write_eof(self, chunk: bytes = b"") -> None:
        if self._closed:
            raise ConnectionResetError("the client has closed the connection")
        self._resolve((self._status, bytes(chunk)))

    def send_headers(self) -> None: ...
    async def drain(self) -> None: ...


class DiServerReplica:
    """A pod that runs di-server and restarts it whenever it ends."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self._world = world
        self._lives = 0
        self._over = False
        self._process = Process(name)
        self._wire: Wire
        self._server: DiServer
        self._task: asyncio.Task[int] | None = None
        self._requests: set[asyncio.Task[Any]] = set()

    @property
    def runs(self) -> bool:
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        if self._over or self.runs:
            return
        world = self._world
        self._lives += 1
        life = f"{self.name}.{self._lives}"
        self._process = Process(life)
        rng = random.Random(f"{world.script.seed}/di/{life}")
        self._wire = Wire(world, life, rng, judge=Unjudged())
        operator, counted, made = declare(SETTINGS), metrics(), list[DiServer]()
        operator.setup(lambda parts: made.append(DiServer(SETTINGS, counted, parts)))
        operator.build(self._wire, clock=Wall(world.loop), rng=rng, metrics=counted, signals=False)
        self._server = made[0]
        self._server.manager._abort = lambda _code: self.kill(2.0)
        world.note(life, "starts")
        self._task = world.loop.spawn(self._process, self._server.manager.run(), life)
        self._task.add_done_callback(self._ended)

    def kill(self, restart_after: float | None = None) -> None:
        """End at once: requests to the API server in flight still arrive, and clients lose their connections."""
        if self._task is None or self._task.done():
            return
        self._world.note(self._process.name, "killed")
        self._wire.dead = True
        self._world.loop.thaw(self._process)
        for task in (self._task, *sorted(self._requests, key=hash)):
            task.cancel()
        self._task = None  # what it still does in vain takes time
        if restart_after is not None:
            self._world.loop.outside(restart_after, self.start)

    def stop(self) -> None:
        """SIGTERM."""
        self._world.note(self._process.name, "stops")
        self._server.manager.stop()

    def freeze(self, seconds: float) -> None:
        self._world.loop.freeze(self._process)
        self._world.loop.outside(seconds, self._world.loop.thaw, self._process)

    def recover(self) -> None:
        """The faults are over."""
        self._world.loop.thaw(self._process)
        self.start()

    def end(self) -> None:
        self._over = True
        self.kill()

    def _ended(self, task: asyncio.Task[int]) -> None:
        if task is self._task and not task.cancelled():
            if task.exception() is not None or task.result():
                self._world.judge.flag("no crash", f"{self._process.name} ended: {task.exception() or task.result()!r}")
            self._world.loop.outside(1.5, self.start)

    def open(self, method: str, path: str, body: bytes, connection: Connection) -> None:
        """Serve a request; its connection breaks if the process dies."""
        task = self._world.loop.spawn(self._process, self._serve(method, path, body, connection), "http")
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)
        task.add_done_callback(lambda _: connection.abort())

    async def _serve(self, method: str, path: str, body: bytes, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        content = StreamReader(mock.Mock(_reading_paused=False), 2**16, loop=loop)
        content.feed_data(body)
        content.feed_eof()
        request = make_mocked_request(method, path, payload=content, transport=connection, writer=connection)
        runner: web.AppRunner = self._server.http._runner
        found = await runner.app.router.resolve(request)
        await found.handler(request)

    @property
    def stands(self) -> bool:
        """It runs, and its watches stand."""
        if not self.runs or self._wire.mute:
            return False
        caches: Any = [cache for _, cache in self._server.manager._runnables[Group.CACHES]]
        informers = [informer for cache in caches for informer in cache._informers.values()]
        return all(reflector._connection is not None for each in informers for reflector in each._reflectors)
