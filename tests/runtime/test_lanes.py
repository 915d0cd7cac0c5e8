"""Separate connections for leases, and the write gate right before sending, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest
from aiohttp import web

from tests.patience import PATIENCE
from tests.runtime.scripted import Streamed, json_response, refusal
from tests.runtime.test_http import serving, transport_of
from tests.runtime.virtual_time import VirtualClock, virtual_time
from trainop.programs.operator import build
from trainop.programs.settings import Settings
from trainop.runtime.client.client import Client
from trainop.runtime.client.cluster import AuthHeaders
from trainop.runtime.client.http import WRITE_CHUNK, HttpTransport
from trainop.runtime.client.pool import MAX_REQUESTS
from trainop.runtime.client.transport import Request, Response
from trainop.runtime.errors import NotLeaderError
from trainop.runtime.manager.leader import LeaderElector, Timing
from trainop.runtime.objects.metadata import PODS, Json

POD: Json = {"metadata": {"name": "p", "namespace": "ns"}}
CROWD = MAX_REQUESTS + 8
"""Number of concurrent requests, more than there are connections."""


class HoldingServer:
    """A server that holds pod creations until `release` is set, like a slow admission webhook, and answers Leases at
    once."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.held = 0
        self.full = asyncio.Event()
        self.written: list[str] = []
        self.renewals = 0
        self.renewed = asyncio.Condition()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        body: Any = await request.json() if request.can_read_body else {}
        if "/leases" in request.path:
            return await self._lease(request, body)
        if request.method != "GET":
            self.written.append(f"{request.method} {request.path}")
        self.held += 1
        if self.held >= MAX_REQUESTS:
            self.full.set()
        await self.release.wait()
        return web.json_response(body or POD)

    async def _lease(self, request: web.BaseRequest, body: Any) -> web.Response:
        if request.method == "GET":
            return web.json_response({"reason": "NotFound"}, status=404)
        async with self.renewed:
            self.renewals += 1
            self.renewed.notify_all()
        body["metadata"] |= {"uid": "u", "resourceVersion": str(self.renewals)}
        return web.json_response(body)

    async def wait_renewals(self, count: int) -> None:
        async with self.renewed:
            await self.renewed.wait_for(lambda: self.renewals >= count)


@contextlib.asynccontextmanager
async def crowded(server: HoldingServer, **client: Any) -> AsyncIterator[tuple[HttpTransport, Client]]:
    """A transport whose request connections are all occupied by hanging pod creations."""
    async with serving(server.answer) as url, transport_of(url) as transport:
        writer = Client(transport, **client)
        creating = [asyncio.create_task(writer.create(PODS, POD)) for _ in range(CROWD)]
        await server.full.wait()
        try:
            yield transport, writer
        finally:
            server.release.set()
            await asyncio.gather(*creating, return_exceptions=True)


async def test_a_lease_is_renewed_while_every_other_request_hangs():
    server = HoldingServer()
    async with crowded(server) as (transport, _):
        timing = Timing(lease=5.0, renew=4.0, retry=0.05)
        elector = LeaderElector(Client(transport, urgent=True), "ns", ["lease"], "me", timing=timing)
        leading = asyncio.create_task(elector.run())
        renewing = asyncio.create_task(server.wait_renewals(5))
        await asyncio.wait((leading, renewing), return_when=asyncio.FIRST_COMPLETED, timeout=30)
        assert renewing.done(), "the lease was renewed, not only acquired, while no pod creation was answered"
        assert not server.release.is_set()
        assert elector.leading
        leading.cancel()
        await asyncio.wait((leading,))


async def test_watches_leave_room_for_each_other_and_for_requests():
    """There is one per kind and namespace, and each stays open."""
    opened, release = 0, asyncio.Event()

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        nonlocal opened
        if request.path != "/watch":
            return web.json_response({})
        opened += 1
        response = web.StreamResponse()
        await response.prepare(request)
        await release.wait()
        return response

    async with serving(answer) as url, transport_of(url) as transport, asyncio.timeout(PATIENCE):
        streams = [await transport.open(Request("GET", "/watch")) for _ in range(CROWD)]
        assert opened == CROWD
        assert (await transport.send(Request("GET", "/x"))).status == 200
        release.set()
        for stream in streams:
            await stream.close()


async def test_a_write_waiting_for_a_connection_is_not_sent_once_another_may_lead():
    server = HoldingServer()
    leads = True

    def gate() -> None:
        if not leads:
            raise NotLeaderError("another may lead")

    async with serving(server.answer) as url, transport_of(url) as transport:
        client = Client(transport, gate=gate)
        creating = [asyncio.create_task(client.create(PODS, POD)) for _ in range(CROWD)]
        deleting = [asyncio.create_task(client.delete(PODS, f"d{n}", "ns")) for n in range(4)]
        await server.full.wait()
        leads = False
        server.release.set()
        outcomes = await asyncio.gather(*creating, *deleting, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, NotLeaderError)]
    assert len(server.written) == MAX_REQUESTS, "only the requests that were sent before"
    assert len(refused) == CROWD + 4 - MAX_REQUESTS, outcomes


class Renewable:
    """Credentials that can be renewed after every 401."""

    def __init__(self) -> None:
        self.answers = 0

    async def auth_headers(self) -> AuthHeaders:
        self.answers += 1
        return AuthHeaders({"authorization": f"Bearer {self.answers}"})

    def refused(self, *_auth: AuthHeaders) -> bool:
        return True


async def test_a_write_answered_with_401_is_not_retried_once_another_may_lead():
    received: list[str] = []

    async def refuse(request: web.BaseRequest) -> web.Response:
        received.append(request.headers["authorization"])
        return web.json_response({"reason": "Unauthorized"}, status=401)

    def gate() -> None:
        if received:
            raise NotLeaderError("another may lead")

    async with serving(refuse) as url, transport_of(url, credentials=Renewable()) as transport:
        with pytest.raises(NotLeaderError):
            await Client(transport, gate=gate).create(PODS, POD)
    assert received == ["Bearer 1"]


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
async def test_a_write_whose_connection_broke_is_not_retried_once_another_may_lead(method: str):
    """aiohttp itself retries a request whose reused connection was closed."""
    received: list[str] = []

    async def cut(request: web.BaseRequest) -> web.Response:
        if request.method == "GET":
            return web.Response()
        received.append(request.method)
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    def gate() -> None:
        if received:
            raise NotLeaderError("another may lead")

    async with serving(cut) as url, transport_of(url) as transport:
        await transport.send(Request("GET", "/x", timeout=PATIENCE))  # opens a connection that is reused
        with pytest.raises(NotLeaderError):
            await transport.send(Request(method, "/x", body=b"{}", timeout=5, gate=gate))
    assert received == [method]


async def test_not_one_byte_of_a_refused_write_is_sent():
    """The gate is checked after all waiting; here it closes while the connection is being established."""
    received = bytearray()
    connected = asyncio.Event()

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        received.extend(await reader.read())
        writer.close()

    def gate() -> None:
        if connected.is_set():
            raise NotLeaderError("another may lead")

    listener = await asyncio.start_server(receive, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with listener, transport_of(f"http://127.0.0.1:{port}") as transport:
        pool = await transport._current_pool(None)
        connect = pool.requests.connector.connect  # type: ignore[union-attr]  # it has one until it is closed

        async def connect_slowly(*args: Any, **kwargs: Any) -> Any:
            connection = await connect(*args, **kwargs)
            await connected.wait()
            return connection

        pool.requests.connector.connect = connect_slowly  # type: ignore[method-assign,union-attr]
        with pytest.raises(NotLeaderError):
            await Client(transport, gate=gate).create(PODS, POD)
    assert bytes(received) == b""


async def test_a_large_write_is_not_completed_once_another_may_lead():
    asked = 0

    def gate() -> None:
        nonlocal asked
        asked += 1
        if asked > 2:
            raise NotLeaderError("another may lead")

    ended = asyncio.Event()
    received = bytearray()

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionResetError):
            while more := await reader.read(65536):
                received.extend(more)
        writer.close()
        ended.set()

    listener = await asyncio.start_server(receive, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    body = b"x" * (4 * WRITE_CHUNK)
    async with listener, transport_of(f"http://127.0.0.1:{port}") as transport:
        with pytest.raises(NotLeaderError):
            await transport.send(Request("POST", "/x", body=body, timeout=5, gate=gate))
        await ended.wait()
    assert received.count(b"x") < 3 * WRITE_CHUNK, "less than the four pieces of the body"


class LeaseServer:
    """A server that implements Leases; all other requests hang."""

    def __init__(self) -> None:
        self.lease: Json | None = None
        self.renewals: list[float] = []
        self.lanes: set[bool] = set()

    async def send(self, request: Request) -> Response:
        if "/leases" not in request.path:
            await asyncio.Event().wait()
        self.lanes.add(request.urgent)
        if request.method != "GET":
            self.renewals.append(asyncio.get_running_loop().time())
            self.lease = json.loads(request.body)
            self.lease["metadata"] |= {"resourceVersion": str(len(self.renewals))}
        return json_response(self.lease) if self.lease else refusal(404, "NotFound")

    async def open(self, _request: Request) -> Streamed:
        await asyncio.Event().wait()
        raise AssertionError("an event that is never set")

    async def close(self) -> None: ...


@virtual_time
async def test_the_operators_limit_of_requests_does_not_delay_its_lease():
    """`--kube-api-qps` allows one request per thousand seconds here."""
    server = LeaseServer()
    settings = Settings(
        leader_elect=True,
        leader_election_namespace="ns",
        kube_api_qps=0.001,
        kube_api_burst=1,
        metrics_bind_address="0",
        health_probe_bind_address="0",
    )
    manager = build(settings, server, clock=VirtualClock(), signals=False)
    running = asyncio.create_task(manager.run())
    await asyncio.sleep(60)
    assert len(server.renewals) >= 25
    assert max(after - before for before, after in pairwise(server.renewals)) < 3
    assert server.lanes == {True}
    manager.stop()
    assert await running == 0
