"""Idle, slow or excessive connections to the operator's ports do not block other clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from unittest.mock import patch

import aiohttp
import pytest
from aiohttp import web

from e2e.cluster.daemons import free_ports
from tests.runtime.test_server import fetch, make_certificate, make_health, serving
from trainop.local.api.serving.server import ApiServer
from trainop.runtime.client.client import Client
from trainop.runtime.metrics.metrics import Metrics
from trainop.runtime.objects.metadata import LEASES
from trainop.runtime.serving import listener
from trainop.runtime.serving.server import Address, BindError, HttpServer, health_application, metrics_application

SERVER = Address("127.0.0.1", 0)
ROOT = Path(__file__).parent.parent.parent
IDLE = 1_300


async def idle_connection(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port)


def open_descriptors(process: int) -> list[int]:
    return [int(path.name) for path in Path(f"/proc/{process}/fd").iterdir()]


async def until(condition: Callable[[], Awaitable[bool]], within: float = 30.0) -> None:
    async with asyncio.timeout(within):
        while not await condition():  # noqa: ASYNC110  # of another process
            await asyncio.sleep(0.05)


async def test_the_longest_idle_connection_is_closed_for_a_new_one():
    server = HttpServer("metrics", SERVER, metrics_application(Metrics().registry), connections=5)
    async with serving(server) as url:
        assert server.port
        opened = [await idle_connection(server.port) for _ in range(20)]
        assert (await fetch(url + "/metrics"))[0] == 200
        for reader, _ in opened[:15]:
            assert await reader.read() == b"", "closed by the server"
        for _, writer in opened:
            writer.close()


async def test_connections_in_use_are_not_closed_and_a_new_one_is_refused():
    busy, go_on = asyncio.Semaphore(0), asyncio.Event()

    async def wait(_: web.Request) -> web.Response:
        busy.release()
        await go_on.wait()
        return web.Response(text="done")

    application = web.Application()
    application.router.add_get("/", wait)
    server = HttpServer("slow", SERVER, application, connections=4)
    async with serving(server) as url:
        asking = [asyncio.create_task(fetch(url)) for _ in range(4)]
        for _ in asking:
            await busy.acquire()
        with pytest.raises((aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)):
            await fetch(url)
        go_on.set()
        assert [status for status, _, _ in await asyncio.gather(*asking)] == [200] * 4


async def test_a_new_connection_waits_a_moment_for_one_in_use():
    busy, go_on = asyncio.Semaphore(0), asyncio.Event()

    async def wait(_: web.Request) -> web.Response:
        busy.release()
        await go_on.wait()
        return web.Response(text="done")

    application = web.Application()
    application.router.add_get("/", wait)
    server = HttpServer("slow", SERVER, application, connections=4)
    async with serving(server) as url:
        asking = [asyncio.create_task(fetch(url)) for _ in range(4)]
        for _ in asking:
            await busy.acquire()
        looked, has_place = asyncio.Event(), listener.Listener._has_place

        async def look(self: listener.Listener, newcomer: str) -> bool:
            looked.set()
            return await has_place(self, newcomer)

        with patch.object(listener.Listener, "_has_place", look):
            assert server.port
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)  # aiohttp would try again
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            await looked.wait()
            go_on.set()
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
            writer.close()
        await asyncio.gather(*asking)


async def test_a_client_that_floods_a_server_closes_its_own_connections():
    server = HttpServer("metrics", SERVER, metrics_application(Metrics().registry), connections=5)
    async with serving(server) as url:
        assert server.port
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, local_addr=("127.0.0.2", 0))
        opened = [await idle_connection(server.port) for _ in range(40)]
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert (await fetch(url + "/metrics"))[0] == 200
        for _, each in (*opened, (reader, writer)):
            each.close()


async def test_a_connection_whose_body_arrives_may_be_closed_and_one_whose_handler_runs_may_not():
    arrived, go_on = asyncio.Semaphore(0), asyncio.Event()

    async def wait(request: web.Request) -> web.Response:
        arrived.release()
        body = await request.read()
        arrived.release()
        await go_on.wait()
        return web.Response(body=body)

    application = web.Application()
    application.router.add_post("/", wait)
    server = HttpServer("bodies", SERVER, application, connections=4)
    async with serving(server):
        assert server.port
        head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n"
        whole, half = [await idle_connection(server.port) for _ in range(2)]
        for (_, writer), body in ((whole, b"ab"), (half, b"a")):
            writer.write(head + body)
        for _ in range(3):
            await arrived.acquire()
        more = [await idle_connection(server.port) for _ in range(8)]
        assert await half[0].read() == b"", "closed for another"
        go_on.set()
        assert (await whole[0].readuntil(b"ab")).startswith(b"HTTP/1.1 200")
        for _, writer in (whole, half, *more):
            writer.close()


@pytest.mark.parametrize("size", [listener.MAX_HEAD - 10_000, listener.MAX_HEAD + 10_000])
async def test_a_head_that_does_not_end_is_limited_as_a_whole(size: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(listener, "HEADER_TIMEOUT", 3600.0)  # it is not the time that ends it
    server, _, _ = make_health()
    async with serving(server):
        assert server.port
        reader, writer = await idle_connection(server.port)
        line = b"X-Long: " + b"x" * 4_000 + b"\r\n"
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + line * (size // len(line)))
        answer = b""
        with contextlib.suppress(ConnectionError):
            await writer.drain()
            if size < listener.MAX_HEAD:
                writer.write(b"\r\n")
            async with asyncio.timeout(30):
                answer = await reader.readline()
        assert bool(answer) == (size < listener.MAX_HEAD)
        writer.close()


async def test_the_longest_head_is_closed_when_those_of_all_are_too_much(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(listener, "MAX_HEADS", 20_000)
    server, _, _ = make_health()
    async with serving(server) as url:
        assert server.port
        assert server._listener is not None
        opened = []
        for size in (4_000, 9_000, 6_000):
            before = sum(server._listener.heads.values())
            opened.append(await idle_connection(server.port))
            opened[-1][1].write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * size)
            while sum(server._listener.heads.values()) < before + size:  # noqa: ASYNC110  # no event
                await asyncio.sleep(0.01)
        opened[0][1].write(b"x" * 3_000)
        with contextlib.suppress(ConnectionError):
            assert await opened[1][0].read() == b""
        for reader, writer in (opened[0], opened[2]):
            writer.write(b"\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        for _, writer in opened:
            writer.close()
        assert (await fetch(url + "/healthz"))[0] == 200
        assert not server._listener.heads


async def test_what_is_no_http_gets_one_answer_and_no_traceback(caplog: pytest.LogCaptureFixture):
    server, _, _ = make_health()
    async with serving(server):
        assert server.port
        reader, writer = await idle_connection(server.port)
        writer.write(b"\x16\x03\x01" * 1000)
        assert (await reader.read()).count(b" 400 Bad Request") == 1
        writer.close()
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: "], ids=["nothing", "half"])
async def test_incomplete_headers_time_out(sent: bytes, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(listener, "HEADER_TIMEOUT", 0.3)
    server, _, _ = make_health()
    async with serving(server) as url:
        assert server.port
        reader, writer = await idle_connection(server.port)
        writer.write(sent)

        async def trickle() -> None:
            with contextlib.suppress(OSError):
                while True:
                    writer.write(b"x" if sent else b"")
                    await writer.drain()
                    await asyncio.sleep(0.02)

        slow_loris = asyncio.create_task(trickle())
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 30) == b""
        slow_loris.cancel()
        writer.close()
        assert (await fetch(url + "/healthz"))[0] == 200


@pytest.mark.parametrize("more", [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: "], ids=["nothing", "half"])
async def test_a_connection_that_was_used_is_closed_when_it_is_idle(more: bytes, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(listener, "IDLE_TIMEOUT", 0.3)
    server, _, _ = make_health()
    async with serving(server):
        assert server.port
        reader, writer = await idle_connection(server.port)
        for _ in range(2):
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            assert await reader.readexactly(2) == b"ok"
        writer.write(more)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()


async def test_a_response_that_is_not_read_times_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(listener, "IDLE_TIMEOUT", 0.3)

    async def much(_: web.Request) -> web.Response:
        return web.Response(body=bytes(64 * 1024 * 1024))

    application = web.Application()
    application.router.add_get("/", much)
    server = HttpServer("much", SERVER, application)
    async with serving(server):
        assert server.port
        _, writer = await idle_connection(server.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert server._listener is not None
        connections = server._listener

        async def none_open() -> bool:
            return not connections.open

        await until(lambda: asyncio.sleep(0, bool(connections.open)))
        await until(none_open)
        writer.close()


async def test_an_unfinished_handshake_is_closed_for_a_new_connection(tmp_path: Path):
    tls = make_certificate(tmp_path)
    server = HttpServer("metrics", SERVER, metrics_application(Metrics().registry), tls, connections=5)
    async with serving(server):
        assert server.port
        opened = [await idle_connection(server.port) for _ in range(20)]
        async with aiohttp.ClientSession() as session:
            url = f"https://127.0.0.1:{server.port}/metrics"
            async with session.get(url, ssl=False) as response:
                assert response.status == 200
        for _, writer in opened:
            writer.close()


async def test_one_port_for_both_is_an_error_of_the_second():
    """A shared listener would share one connection limit, so scrapers could starve probes."""
    probes = HttpServer("health probes", SERVER, health_application())
    async with serving(probes):
        assert probes.port
        server = HttpServer("metrics", Address("127.0.0.1", probes.port), metrics_application(Metrics().registry))
        with pytest.raises(BindError, match=r"cannot listen on .* for metrics: .*in use"):
            await server.bind()


async def test_without_file_descriptors_the_server_neither_spins_nor_stops(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(listener, "ACCEPT_RETRY", 0.2)
    server, _, _ = make_health()
    async with serving(server) as url:
        assert server.port
        waiting = socket.socket()
        waiting.setblocking(False)
        loop = asyncio.get_running_loop()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        used = max(open_descriptors(os.getpid()))
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (used - 1, hard)
        )  # below the number of open descriptors, so that no more can be opened
        try:
            await loop.sock_connect(waiting, ("127.0.0.1", server.port))
            before, began = time.process_time(), time.monotonic()
            await asyncio.sleep(1.0)
            used_up = (time.process_time() - before) / (time.monotonic() - began)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert used_up < 0.5, "no hot loop"
        assert (await fetch(url + "/healthz"))[0] == 200
        waiting.close()


@contextlib.asynccontextmanager
async def operator(
    tmp_path: Path, api: ApiServer, metrics: int, probes: int
) -> AsyncIterator[asyncio.subprocess.Process]:
    """The operator as a separate process with a hard limit of 256 open files and a soft limit of 64."""
    await api.serve(token="secret")
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(api.kubeconfig("secret")))
    flags = (
        f"--kubeconfig={kubeconfig}",
        f"--metrics-bind-address=127.0.0.1:{metrics}",
        f"--health-probe-bind-address=127.0.0.1:{probes}",
        "--leader-elect",
        "--leader-election-namespace=default",
    )
    limits = ("prlimit", "--nofile=64:256")
    with (tmp_path / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *limits, sys.executable, "-m", "trainop", "operator", *flags, cwd=ROOT, stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        await api.close()


async def test_thirteen_hundred_idle_connections_block_neither_probes_nor_requests(tmp_path: Path):
    api = ApiServer()
    metrics, probes = free_ports(2)
    client = Client(api.transport())
    idle: list[socket.socket] = []

    async def is_well() -> bool:
        try:
            return (await fetch(f"http://127.0.0.1:{probes}/healthz"))[:2] == (200, "ok")
        except aiohttp.ClientError:
            return False

    async def renewed() -> str:
        leases = (await client.list(LEASES, "default")).items
        return str(leases[0]["spec"]["renewTime"]) if leases else ""

    async with operator(tmp_path, api, metrics, probes) as process:
        await until(is_well, 60)
        await until(lambda: _differs(renewed, ""), 60)
        try:
            for number in range(IDLE):
                idle.append(socket.create_connection(("127.0.0.1", metrics), timeout=30))
                if number % 100 == 0:
                    assert await is_well(), f"with {number} idle connections"
            before = await renewed()
            await until(lambda: _differs(renewed, before))
            for _ in range(10):
                assert await is_well()
            assert (await fetch(f"http://127.0.0.1:{metrics}/metrics"))[0] == 200
            assert len(open_descriptors(process.pid)) < 128
            assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (256, 256)
        finally:
            for connection in idle:
                connection.close()


async def _differs(ask: Callable[[], Awaitable[str]], before: str) -> bool:
    return await ask() != before
