"""Port-forward: connections to programs in pods, over the protocol of kubectl."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import pytest
import pytest_asyncio

from tests.local.node import spdy_client as spdy
from tests.local.node.spdy_client import Spdy
from tests.local.node.world import World
from tests.patience import PATIENCE
from trainop.local.api.serving import http_server, port_forward

pytestmark = pytest.mark.asyncio(loop_scope="session")

TUNNEL = "SPDY/3.1+portforward.k8s.io"

PROGRAM = """
import asyncio, os, socket, struct, sys

async def echo(reader, writer):
    word = await reader.readline()
    if word == b"reset\\n":
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
        return
    if word == b"stall\\n":
        print("stalled", flush=True)
        await asyncio.sleep(3600)
    if word == b"flood\\n":
        while True:
            writer.write(bytes(65536))
            await writer.drain()
    writer.write(word.upper())
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.write(b"end")
    writer.close()

async def watched(reader, writer):
    print("connected", flush=True)
    try:
        await echo(reader, writer)
    finally:
        print("gone", flush=True)

async def main():
    server = await asyncio.start_server(watched, sys.argv[1] or os.environ["IP"], 8000, limit=1024)
    print("listening", flush=True)
    await server.serve_forever()

asyncio.run(main())
"""
IP = [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]


@dataclass
class Forwarding:
    """A node whose API server is reached over HTTP."""

    world: World
    server: http_server.HttpServer
    url: str
    http: aiohttp.ClientSession

    async def serve(self, host: str = "") -> str:
        """A pod with a server on port 8000 of `host`, by default wherever a client of the pod reaches it."""
        default = "0.0.0.0" if self.world.node.network == "namespaces" else ""
        pod = await self.world.start(
            sys.executable, "-c", PROGRAM, host or default, main={"env": IP}, terminationGracePeriodSeconds=0
        )
        await self.world.log_with(pod, "listening")
        return pod

    @asynccontextmanager
    async def forward(self, pod: str) -> AsyncIterator[Spdy]:
        path = f"{self.url}/api/v1/namespaces/team/pods/{pod}/portforward"
        async with self.http.ws_connect(path, protocols=(TUNNEL,)) as socket:
            assert socket.protocol == TUNNEL
            yield Spdy(socket)

    async def count(self, pod: str, word: str, number: int) -> None:
        """Waits until a pod's log has this word so often."""
        async with asyncio.timeout(PATIENCE):
            while (await self.world.log(pod)).split().count(word) < number:  # noqa: ASYNC110  # another process
                await asyncio.sleep(0.05)


async def reach(world: World) -> AsyncIterator[Forwarding]:
    world.api.port_source = world.node.open_ports
    server = http_server.HttpServer(world.api._backend, world.api.answer, world.api._router.connect)
    world.api._backend.tokens.add("secret")
    url = await server.start("127.0.0.1", 0, None)
    try:
        async with aiohttp.ClientSession(headers={"Authorization": "Bearer secret"}) as session:
            yield Forwarding(world, server, url, session)
    finally:
        await server.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def reached(world: World) -> AsyncIterator[Forwarding]:
    async for found in reach(world):
        yield found


@pytest_asyncio.fixture(loop_scope="session")
async def isolated_one(isolated: World) -> AsyncIterator[Forwarding]:
    async for found in reach(isolated):
        yield found


async def test_several_connections_at_once(reached: Forwarding):
    pod = await reached.serve()
    async with reached.forward(pod) as client:
        pairs = [await client.connect(8000) for _ in range(5)]
        content = {stream: os.urandom(200_000) for _, stream in pairs}
        for stream in content:
            await client.send(spdy.data(stream, b"word\n"))
        for stream, sent in content.items():
            await client.send(spdy.data(stream, sent))
            await client.send(spdy.data(stream, b"", spdy.FIN))
        await client.until(lambda: client.ended == {stream for pair in pairs for stream in pair})
        assert {stream: client.received[stream] for stream in content} == {
            stream: b"WORD\n" + sent + b"end" for stream, sent in content.items()
        }
        assert all(client.received[errors] == b"" for errors, _ in pairs)
        assert client.resets() == {}


async def test_a_closed_port_is_an_error_of_its_connection_only(reached: Forwarding):
    pod = await reached.serve()
    uid = (await reached.world.running(pod))["metadata"]["uid"]
    async with reached.forward(pod) as client:
        errors, stream = await client.connect(9)
        await client.until(lambda: client.ended == {errors, stream})
        message = client.received[errors].decode()
        assert message.startswith(f"error forwarding port 9 to pod {pod}, uid {uid}: failed to connect to port 9 of ")
        assert message.endswith("connection refused")
        _, stream = await client.connect(8000)
        await client.send(spdy.data(stream, b"still here\n"))
        await client.until(lambda: client.received[stream] == b"STILL HERE\n")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_a_server_that_listens_on_localhost_of_the_pod_is_reached(isolated_one: Forwarding, host: str):
    pod = await isolated_one.serve(host)
    async with isolated_one.forward(pod) as client:
        _, stream = await client.connect(8000)
        await client.send(spdy.data(stream, b"local\n"))
        await client.until(lambda: client.received[stream] == b"LOCAL\n")


async def test_a_connection_that_the_program_resets_ends_alone(isolated_one: Forwarding):
    pod = await isolated_one.serve()
    async with isolated_one.forward(pod) as client:
        errors, stream = await client.connect(8000)
        await client.send(spdy.data(stream, b"reset\n"))
        await client.until(lambda: client.ended == {errors, stream})
        assert client.received[errors] == b""


async def test_a_connection_that_the_client_resets_is_closed(isolated_one: Forwarding):
    pod = await isolated_one.serve()
    async with isolated_one.forward(pod) as client:
        errors, stream = await client.connect(8000)
        await isolated_one.count(pod, "connected", 1)
        await client.send(spdy.control(spdy.RST_STREAM, stream.to_bytes(4, "big") + (5).to_bytes(4, "big")))
        await client.until(lambda: errors in client.ended)  # kubectl waits for it
        await isolated_one.count(pod, "gone", 1)
        await client.send(spdy.data(stream, b"late"))
        await client.send(spdy.control(spdy.PING, (3).to_bytes(4, "big")))
        await client.until(lambda: (spdy.PING, (3).to_bytes(4, "big")) in client.controls)


@pytest.mark.parametrize("behaviour", [b"stall\n", b"flood\n"])
async def test_a_client_that_is_killed_frees_everything(isolated_one: Forwarding, behaviour: bytes):
    """Also while a program in the pod does not read, or while the client did not read."""
    pod = await isolated_one.serve()
    async with isolated_one.forward(pod) as client:
        _, stream = await client.connect(8000)
        await client.connect(8000)
        await isolated_one.count(pod, "connected", 2)
        await client.send(spdy.data(stream, behaviour))
        if behaviour == b"stall\n":
            for _ in range(8):
                await client.send(spdy.data(stream, bytes(100_000)))
        client.socket._response.connection.transport.abort()  # type: ignore[union-attr]  # it is open
    await isolated_one.count(pod, "gone", 1 if behaviour == b"stall\n" else 2)  # what does not read does not notice
    async with asyncio.timeout(PATIENCE):
        while isolated_one.server._sessions:  # noqa: ASYNC110  # nothing reports it
            await asyncio.sleep(0.05)


async def test_a_program_that_does_not_read_holds_the_client_back(isolated_one: Forwarding):
    pod = await isolated_one.serve()
    async with isolated_one.forward(pod) as client:
        _, stream = await client.connect(8000)
        await client.send(spdy.data(stream, b"stall\n"))
        sent = 0

        async def upload() -> None:
            nonlocal sent
            while sent < 200_000_000:
                await client.send(spdy.data(stream, bytes(500_000)))
                sent += 500_000

        uploading = asyncio.create_task(upload())
        last = -1
        while last != sent:
            last = sent
            await asyncio.wait({uploading}, timeout=1)
        assert not uploading.done()
        assert sent < 100_000_000  # in the buffers of sockets, and little here
        uploading.cancel()


async def test_the_pod_ends_and_the_connection_with_it(isolated_one: Forwarding):
    pod = await isolated_one.serve()
    async with isolated_one.forward(pod) as client:
        errors, stream = await client.connect(8000)
        await isolated_one.count(pod, "connected", 1)
        await isolated_one.world.delete(pod, grace=0)
        await client.until(lambda: client.ended == {errors, stream})
        async with asyncio.timeout(PATIENCE):
            while not client.received[errors].endswith(b": the pod is not running"):
                errors, stream = await client.connect(8000)
                await client.until(lambda: {errors, stream} <= client.ended)  # noqa: B023  # awaited at once


async def test_streams_that_are_not_as_agreed_are_reset(isolated_one: Forwarding):
    pod = await isolated_one.serve()
    async with isolated_one.forward(pod) as client:
        wrong = [
            await client.open(kind, port, request)
            for kind, port, request in (
                ("other", "8000", "1"),
                ("data", "0", "2"),
                ("data", "65536", "3"),
                ("error", "-1", "4"),
                ("data", "", "5"),
                ("data", "٣", "6"),
            )
        ]
        first = await client.open("data", "8000", "7")
        wrong.append(await client.open("data", "8000", "7"))
        await client.send(client.compress.syn_stream(2, {"streamtype": "data", "port": "8000", "requestid": "8"}))
        await client.send(client.compress.syn_stream(first, {"streamtype": "data", "port": "8000", "requestid": "9"}))
        await client.until(lambda: len(client.resets()) == len(wrong) + 2)
        assert client.resets() == {**dict.fromkeys(wrong, 5), 2: 1, first: 1}
        _, stream = await client.connect(8000)
        await client.send(spdy.data(stream, b"", spdy.FIN))
        await client.send(spdy.data(stream, b"after the end"))
        await client.until(lambda: stream in client.ended)
        assert client.received[stream] == b"end"


async def test_half_of_a_pair_is_not_kept_for_ever(isolated_one: Forwarding, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(port_forward, "_PAIRING_TIMEOUT", 0.2)
    pod = await isolated_one.serve()
    async with isolated_one.forward(pod) as client:
        errors = await client.open("error", "8000", "7")
        await client.until(lambda: errors in client.ended)
        assert client.received[errors] == b"request 7: timed out waiting for streams"
        lone = await client.open("data", "8000", "7")
        await client.send(spdy.data(lone, b"waits\n"))
        await client.until(lambda: lone in client.ended)


async def test_connections_are_limited(isolated_one: Forwarding, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(port_forward, "MAX_CONNECTIONS", 3)
    pod = await isolated_one.serve()
    async with isolated_one.forward(pod) as client:
        pairs = [await client.connect(8000) for _ in range(3)]
        refused = await client.open("error", "8000", "many")
        await client.until(lambda: refused in client.resets())
        assert client.resets() == {refused: 3}
        await client.send(spdy.data(pairs[0][1], b"", spdy.FIN))
        await client.until(lambda: client.ended == set(pairs[0]))
        await client.connect(8000)


@pytest.mark.parametrize("garbage", [b"\x80\x02\x00\x01" + bytes(100), b"\x00\x00\x00\x01\x00\xff\xff\xff"])
async def test_a_violation_of_the_protocol_ends_the_session(isolated_one: Forwarding, garbage: bytes):
    pod = await isolated_one.serve()
    async with isolated_one.forward(pod) as client:
        await client.connect(8000)
        await isolated_one.count(pod, "connected", 1)
        await client.send(garbage)
        await client.until_closed()
        assert (spdy.GOAWAY, (3).to_bytes(4, "big") + (1).to_bytes(4, "big")) in client.controls
        await isolated_one.count(pod, "gone", 1)


async def test_a_pod_that_does_not_run_is_refused(isolated_one: Forwarding):
    pod = await isolated_one.world.start("true")
    await isolated_one.world.finish(pod)
    for name, message in (("none", 'pods "none" not found'), (pod, "unable to upgrade connection: pod does not exist")):
        with pytest.raises(aiohttp.WSServerHandshakeError) as error:
            async with isolated_one.forward(name):
                pass
        assert error.value.status == 404
        async with isolated_one.http.get(
            f"{isolated_one.url}/api/v1/namespaces/team/pods/{name}/portforward", headers={"Upgrade": "websocket"}
        ) as answer:
            assert (await answer.json())["message"] == message
