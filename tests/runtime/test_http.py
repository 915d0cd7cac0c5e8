"""The aiohttp transport against real servers on loopback."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime as dt
import gc
import json
import os
import re
import socket
import ssl
import struct
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import aiohttp
import pytest
from aiohttp import web
from aiohttp.http_writer import StreamWriter
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.patience import PATIENCE
from tests.runtime.virtual_time import VirtualClock
from trainop.runtime.client.auth import ClusterConfig, ConfigError, load_config
from trainop.runtime.client.client import Client
from trainop.runtime.client.cluster import AuthHeaders, Pem
from trainop.runtime.client.credentials import StaticCredentials, TokenFile
from trainop.runtime.client.http import HttpTransport
from trainop.runtime.client.identity import CredentialsCheck
from trainop.runtime.client.sockets import keepalive_socket
from trainop.runtime.client.transport import NotConnectedError, Request, Stream
from trainop.runtime.errors import UnhealthyError

Answer: TypeAlias = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class SteppedClock(VirtualClock):
    """A clock that only the test advances, independent of the real duration of socket operations."""

    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


@contextlib.asynccontextmanager
async def serving(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    runner = web.ServerRunner(web.Server(answer, access_log=None), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]  # asyncio's Server has them
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def transport_of(server: str, clock: VirtualClock | None = None, **config: Any) -> AsyncIterator[HttpTransport]:
    transport = HttpTransport(ClusterConfig(server, **config), clock=clock)
    try:
        yield transport
    finally:
        await transport.close()


GET = Request("GET", "/x", timeout=PATIENCE)


async def test_request_and_response_keep_their_parts():
    async def echo(request: web.BaseRequest) -> web.Response:
        headers = {name: request.headers.get(name, "") for name in ("content-type", "accept", "authorization", "x-own")}
        groups = request.headers.getall("impersonate-group")
        body = (await request.read()).decode()
        return web.json_response(
            [request.method, request.path_qs, headers, groups, body], status=418, headers={"X-Answer": "yes"}
        )

    async with (
        serving(echo) as server,
        transport_of(
            server + "/k8s/clusters/c1/",
            credentials=StaticCredentials.token("secret"),
            headers=(("impersonate-group", "a"), ("impersonate-group", "b")),
        ) as transport,
    ):
        request = Request(
            "PATCH",
            "/api/v1/pods/a b%2F?#é",
            {"labelSelector": "a in (b,c),d=e", "fieldManager": "x&y"},
            b'{"z": 1}',
            "application/merge-patch+json",
            "application/json;as=Table",
            headers={"x-own": "mine"},
        )
        response = await transport.send(request)
        assert response.status == 418
        assert response.headers["x-answer"] == "yes"
        method, url, headers, groups, body = json.loads(response.body)
        assert method == "PATCH"
        assert url == (
            "/k8s/clusters/c1/api/v1/pods/a%20b%252F%3F%23%C3%A9"
            "?labelSelector=a%20in%20%28b%2Cc%29%2Cd%3De&fieldManager=x%26y"
        )
        assert headers == {
            "content-type": "application/merge-patch+json",
            "accept": "application/json;as=Table",
            "authorization": "Bearer secret",
            "x-own": "mine",
        }
        assert groups == ["a", "b"]
        assert body == '{"z": 1}'
        assert transport.host == server.removeprefix("http://")


@pytest.mark.parametrize(
    ("server", "host"),
    [("https://api", "api:443"), ("http://api/path", "api:80"), ("https://[fd00::1]:6443", "[fd00::1]:6443")],
)
async def test_host_always_has_a_port(server: str, host: str):
    assert HttpTransport(ClusterConfig(server)).host == host


async def test_stream_gives_bytes_as_they_come():
    more = asyncio.Event()

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"one\n")
        await more.wait()
        await response.write(b"two\n")
        return response

    async with serving(answer) as server, transport_of(server) as transport:
        stream = await transport.open(GET)
        chunks = stream.chunks()
        assert await anext(chunks) == b"one\n"
        more.set()
        assert await anext(chunks) == b"two\n"
        with pytest.raises(StopAsyncIteration):
            await anext(chunks)
        await stream.close()


async def test_refused_connection_was_never_sent():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    async with transport_of(f"http://127.0.0.1:{port}") as transport:
        with pytest.raises(NotConnectedError) as caught:
            await transport.send(GET)
        assert str(caught.value) == f"GET /x: cannot connect to 127.0.0.1:{port}: Connection refused"
        with pytest.raises(NotConnectedError):
            await transport.open(GET)


@pytest.mark.case("runtime-38", "a")
async def test_cut_connection_may_have_been_sent():
    """Because of this distinction, a POST is never sent twice."""
    seen = 0

    async def cut(request: web.BaseRequest) -> web.Response:
        nonlocal seen
        seen += 1
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with serving(cut) as server, transport_of(server) as transport:
        with pytest.raises(ConnectionError) as caught:
            await transport.send(Request("POST", "/x", body=b"{}"))
        assert not isinstance(caught.value, NotConnectedError)
    assert seen == 1


async def read_all(stream: Stream) -> bytes:
    return b"".join([chunk async for chunk in stream.chunks()])


async def test_cut_stream_is_a_connection_error():
    async def cut(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"half a li")
        assert request.transport is not None
        request.transport.abort()
        return response

    async with serving(cut) as server, transport_of(server) as transport:
        stream = await transport.open(GET)
        with pytest.raises(ConnectionError):
            await read_all(stream)
        await stream.close()


async def test_timeout_covers_the_whole_exchange():
    async def trickle(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"x")
        await asyncio.sleep(30)
        return response

    async with serving(trickle) as server, transport_of(server) as transport:
        with pytest.raises(TimeoutError, match="GET /x: no answer in time"):
            await transport.send(Request("GET", "/x", timeout=0.05))
        stream = await transport.open(Request("GET", "/x", timeout=PATIENCE))
        await stream.close()


async def test_redirects_are_answers():
    async def away(_: web.BaseRequest) -> web.Response:
        return web.Response(status=302, headers={"Location": "http://example.org/"})

    async with serving(away) as server, transport_of(server) as transport:
        assert (await transport.send(GET)).status == 302


async def test_sockets_notice_dead_peers():
    async def ok(_: web.BaseRequest) -> web.Response:
        return web.Response()

    async with serving(ok) as server, transport_of(server) as transport:
        stream = await transport.open(GET)
        assert transport._pool is not None
        for session in (transport._pool.requests, transport._pool.watches):
            async with session.get(server) as response:
                assert response.connection is not None or response.content.at_eof()
            assert session.connector is not None
            (connections,) = session.connector._conns.values()
            connected = connections[0][0].transport
            assert connected is not None
            sock = connected.get_extra_info("socket")
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 5
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 3
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
        await stream.close()


async def test_watches_do_not_use_the_connections_of_requests():
    async def endless(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        if request.path == "/watch":
            await asyncio.sleep(30)
        return response

    async with serving(endless) as server, transport_of(server) as transport:
        streams = [await transport.open(Request("GET", "/watch", timeout=PATIENCE)) for _ in range(80)]
        assert (await transport.send(GET)).status == 200
        for stream in streams:
            await stream.close()


@pytest.mark.case("runtime-37", "c")
async def test_refused_token_is_read_again_once(tmp_path: Path):
    token = tmp_path / "token"
    token.write_text("old")
    seen = []

    async def guard(request: web.BaseRequest) -> web.Response:
        seen.append(request.headers["authorization"])
        return web.Response(status=200 if seen[-1] == "Bearer new" else 401)

    credentials = TokenFile(token, SteppedClock())
    async with serving(guard) as server, transport_of(server, credentials=credentials) as transport:
        assert (await transport.send(GET)).status == 401
        token.write_text("new")
        assert (await transport.send(GET)).status == 200
        assert (await transport.open(GET)).status == 200
    assert seen == ["Bearer old"] * 3 + ["Bearer new"] * 2


# Certificates ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Authority:
    """A CA without key identifiers, which OpenSSL's strict mode refuses although clusters use such CAs."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def make(cls) -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ca")])
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        return cls(key, builder(name, name, key).add_extension(constraints, critical=True).sign(key, hashes.SHA256()))

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, common_name: str, dns: str = "api") -> tuple[bytes, bytes]:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        names = x509.SubjectAlternativeName([x509.DNSName(dns)])
        certificate = builder(name, self.certificate.subject, key).add_extension(names, critical=False)
        signed = certificate.sign(self.key, hashes.SHA256())
        return (
            signed.public_bytes(serialization.Encoding.PEM),
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
        )


def builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
    )


def server_context(folder: Path, authority: Authority) -> ssl.SSLContext:
    """The TLS context of a server named `api` that requests client certificates without requiring them."""
    certificate, key = authority.issue("server")
    (folder / "server.pem").write_bytes(certificate + key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=authority.pem.decode())
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_cert_chain(folder / "server.pem")
    return context


async def whoami(request: web.BaseRequest) -> web.Response:
    assert request.transport is not None
    certificate = request.transport.get_extra_info("peercert")
    return web.Response(text=certificate["subject"][0][0][1] if certificate else "nobody")


@pytest.mark.parametrize("in_files", [True, False])
async def test_client_certificate_authenticates_us(tmp_path: Path, in_files: bool):
    authority = Authority.make()
    pems = dict(zip(("crt", "key"), authority.issue("operator"), strict=True)) | {"ca": authority.pem}

    def pem(name: str) -> Pem:
        if not in_files:
            return pems[name]
        (tmp_path / name).write_bytes(pems[name])
        return tmp_path / name

    async with (
        serving(whoami, server_context(tmp_path, authority)) as server,
        transport_of(
            server, ca=pem("ca"), client_certificate=pem("crt"), client_key=pem("key"), tls_server_name="api"
        ) as transport,
    ):
        assert (await transport.send(GET)).body == b"operator"


async def test_a_certificate_renewed_inside_the_kubeconfig_is_shown(tmp_path: Path):
    """The renewed certificate is used right after a 401, by all concurrent requests."""
    authority = Authority.make()
    path, clock = tmp_path / "kubeconfig", SteppedClock()

    def text(data: bytes) -> str:
        return base64.b64encode(data).decode()

    async def known(request: web.BaseRequest) -> web.Response:
        shown = (await whoami(request)).text
        return web.Response(text=shown, status=200 if shown == "renewed" else 401)

    async with serving(known, server_context(tmp_path, authority)) as server:

        def renew(name: str) -> None:
            certificate, key = authority.issue(name)
            cluster = {"server": server, "certificate-authority-data": text(authority.pem), "tls-server-name": "api"}
            user = {"client-certificate-data": text(certificate), "client-key-data": text(key)}
            context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
            clusters, users = [{"name": "c", "cluster": cluster}], [{"name": "u", "user": user}]
            content = {"current-context": "x", "contexts": [context], "clusters": clusters, "users": users}
            path.write_text(json.dumps(content))

        renew("expired")
        transport = HttpTransport(load_config(str(path), clock=clock, environ={}), clock=clock)
        ready = CredentialsCheck(Client(transport, urgent=True), transport.refused, clock).check
        await ready()
        assert (await transport.send(GET)).status == 401
        with pytest.raises(UnhealthyError, match="401 Unauthorized"):
            await ready()
        renew("renewed")
        clock.seconds += 5
        answers = await asyncio.gather(*[transport.send(GET) for _ in range(20)])
        assert {(answer.status, answer.body) for answer in answers} == {(200, b"renewed")}
        await ready()
        await transport.close()


async def test_after_a_401_readiness_probes_whether_the_server_accepts_us_again():
    status, asked, clock = 401, 0, SteppedClock()

    async def answer(_: web.BaseRequest) -> web.Response:
        nonlocal asked
        asked += 1
        return web.json_response({}, status=status)

    async with serving(answer) as server, transport_of(server, clock) as transport:
        ready = CredentialsCheck(Client(transport, urgent=True), transport.refused, clock).check
        await ready()
        assert asked == 0, "only after a 401"
        await transport.send(GET)
        for _ in range(50):
            with pytest.raises(UnhealthyError):
                await ready()
        assert asked == 2, "frequent probes do not increase the number of requests"
        status = 403
        clock.seconds += 5
        await ready()


async def test_server_is_verified_unless_disabled(tmp_path: Path):
    authority, stranger = Authority.make(), Authority.make()
    async with serving(whoami, server_context(tmp_path, authority)) as server:
        async with transport_of(server, ca=stranger.pem, tls_server_name="api") as transport:
            with pytest.raises(NotConnectedError, match="CERTIFICATE_VERIFY_FAILED"):
                await transport.send(GET)
        async with transport_of(server, ca=authority.pem) as transport:
            with pytest.raises(NotConnectedError, match=r"127\.0\.0\.1"):
                await transport.send(GET)
        async with transport_of(server, insecure=True) as transport:
            assert (await transport.send(GET)).body == b"nobody"


@pytest.mark.case("runtime-37", "d")
async def test_rotated_authority_is_used_for_new_connections(tmp_path: Path):
    before, after = Authority.make(), Authority.make()
    ca = tmp_path / "ca.crt"
    ca.write_bytes(before.pem)
    clock = SteppedClock()
    async with (
        serving(whoami, server_context(tmp_path, before)) as old_server,
        serving(whoami, server_context(tmp_path, after)) as new_server,
        transport_of(old_server, clock, ca=ca, tls_server_name="api") as transport,
    ):
        stream = await transport.open(GET)
        retired = transport._pool
        assert retired is not None
        closed = []
        object.__setattr__(
            transport._config, "server", new_server
        )  # the server changes to a certificate of the new authority
        ca.write_bytes(b"")
        clock.seconds += 60
        with pytest.raises(NotConnectedError):
            await transport.send(GET)
        ca.write_bytes(after.pem)
        for _ in range(2):
            clock.seconds += 60
            assert (await transport.send(GET)).status == 200
            closed.append(retired.watches.closed)
        assert closed == [False, True], "open watches may continue for a while"
        await stream.close()


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"ca": b"nonsense"}, "https://api: certificate authority"),
        ({"ca": Path("/does/not/exist")}, "/does/not/exist: No such file"),
        ({"client_certificate": b"x", "client_key": b"y"}, "https://api: .*client certificate"),
    ],
)
def test_invalid_certificates_are_reported_at_once(config: dict[str, Any], complaint: str):
    with pytest.raises(ConfigError, match=complaint):
        HttpTransport(ClusterConfig("https://api", **config))


class Issued:
    """Credentials with a client certificate, such as exec plugins return."""

    def __init__(self, certificate: bytes, key: bytes) -> None:
        self.pair = certificate, key

    async def auth_headers(self) -> AuthHeaders:
        return AuthHeaders({}, *self.pair)

    def refused(self) -> bool:
        return False


async def test_a_certificate_of_the_credentials_is_used_at_once(tmp_path: Path):
    authority = Authority.make()
    credentials = Issued(*authority.issue("first"))
    async with (
        serving(whoami, server_context(tmp_path, authority)) as server,
        transport_of(
            server, SteppedClock(), ca=authority.pem, tls_server_name="api", credentials=credentials
        ) as transport,
    ):
        seen = [(await transport.send(GET)).body for _ in range(2)]
        credentials.pair = authority.issue("second")
        seen += [(await transport.send(GET)).body for _ in range(2)]
    assert seen == [b"first", b"first", b"second", b"second"]


async def test_the_environment_does_not_affect_requests(monkeypatch: pytest.MonkeyPatch):
    """Requests use no proxy variables (`load_config` evaluates them), no cookies and no compression."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    seen: list[tuple[str | None, str | None]] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        seen.append((request.headers.get("cookie"), request.headers.get("accept-encoding")))
        response = web.Response()
        response.set_cookie("who", "me")
        return response

    async with serving(answer) as server, transport_of(server.replace("127.0.0.1", "localhost")) as transport:
        for _ in range(2):
            assert (await transport.send(GET)).status == 200
    assert seen == [(None, "identity")] * 2


# One-line error messages -----------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def saying(text: bytes) -> AsyncIterator[int]:
    """A server that answers every request with `text` and closes the connection."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1024)
        writer.write(text)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def test_a_closed_stream_does_not_wait_for_a_server_that_reads_nothing(tmp_path: Path):
    authority, done = Authority.make(), asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await writer.drain()
        reading: Any = writer.transport
        reading.pause_reading()
        await done.wait()
        reading.abort()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=server_context(tmp_path, authority))
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with transport_of(url, ca=authority.pem, tls_server_name="api") as transport:
        stream: Any = await transport.open(GET)
        connection = stream._response.connection
        assert connection is not None
        assert connection.transport is not None
        socket = connection.transport.get_extra_info("socket")
        await stream.close()
        for _ in range(10):  # rounds of the event loop, without any answer of the server
            await asyncio.sleep(0)
        assert socket.fileno() == -1
    done.set()
    server.close()
    await server.wait_closed()


async def complaint_about(server: str, **config: Any) -> ConnectionError:
    async with transport_of(server, **config) as transport:
        with pytest.raises(ConnectionError) as caught:
            await transport.send(GET)
    words = str(caught.value)
    assert words.startswith("GET /x: ")
    assert "\n" not in words
    assert " at 0x" not in words
    return caught.value


async def test_an_unknown_host_name_is_reported():
    reported = await complaint_about("http://no-such-host.invalid:80")
    assert isinstance(reported, NotConnectedError)
    assert "cannot connect to no-such-host.invalid:80: " in str(reported)


async def test_an_answer_that_is_no_http_may_have_been_an_action():
    async with saying(b"220 smtp ready\r\n") as port:
        reported = await complaint_about(f"http://127.0.0.1:{port}")
    assert not isinstance(reported, NotConnectedError)
    assert str(reported) == "GET /x: the answer is not HTTP: Bad status line"


async def test_a_closed_connection_is_reported_in_words():
    async with saying(b"") as port:
        reported = await complaint_about(f"http://127.0.0.1:{port}")
    assert str(reported) == "GET /x: Server disconnected"


async def test_tls_to_a_plain_server_is_reported():
    async with saying(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        reported = await complaint_about(f"https://127.0.0.1:{port}")
    assert isinstance(reported, NotConnectedError)
    assert f"cannot connect to 127.0.0.1:{port}: " in str(reported)
    assert "SSL" in str(reported).upper()


async def test_a_certificate_of_another_authority_is_reported(tmp_path: Path):
    ours, theirs = Authority.make(), Authority.make()
    async with serving(whoami, server_context(tmp_path, theirs)) as server:
        reported = await complaint_about(server, ca=ours.pem, tls_server_name="api")
        assert isinstance(reported, NotConnectedError)
        port = server.rpartition(":")[2]
        assert str(reported).startswith(f"GET /x: certificate of 127.0.0.1:{port} is not accepted: ")
        assert "verify failed" in str(reported)
        wrong = await complaint_about(server, ca=theirs.pem, tls_server_name="other")
        assert "Hostname mismatch" in str(wrong)


async def test_a_refusing_proxy_is_reported_and_nothing_was_sent(tmp_path: Path):
    async with saying(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n") as port:
        reported = await complaint_about("https://api.invalid", proxy=f"http://127.0.0.1:{port}")
    assert isinstance(reported, NotConnectedError)
    assert str(reported) == "GET /x: the proxy refuses: 403 Forbidden"


async def test_name_look_ups_are_measured():
    async def ok(_: web.BaseRequest) -> web.Response:
        return web.Response()

    reported: list[tuple[str, float]] = []
    async with serving(ok) as server:
        config = ClusterConfig(server.replace("127.0.0.1", "localhost"))
        transport = HttpTransport(config, resolved=lambda host, seconds: reported.append((host, seconds)))
        assert (await transport.send(GET)).status == 200
        assert (await transport.send(GET)).status == 200
        await transport.close()
    assert [host for host, _ in reported] == ["localhost"], "one look-up for the connection that both requests used"
    assert reported[0][1] >= 0


@pytest.mark.parametrize(
    ("path", "query", "asked"),
    [
        ("/api/v1/pods", {}, "/api/v1/pods"),
        (
            "/x",
            {"labelSelector": "a in (b,c),!d", "limit": "5"},
            "/x?labelSelector=a%20in%20%28b%2Cc%29%2C%21d&limit=5",
        ),
        ("/x/with space/%41", {"q": "a+b&c"}, "/x/with%20space/%2541?q=a%2Bb%26c"),
        ("/x/system:node", {}, "/x/system:node"),
    ],
)
async def test_paths_and_queries_arrive_unchanged(path: str, query: dict[str, str], asked: str):
    seen = []

    async def answer(request: web.BaseRequest) -> web.Response:
        seen.append(request.raw_path)
        return web.Response()

    async with serving(answer) as server, transport_of(server) as transport:
        await transport.send(Request("GET", path, query, timeout=PATIENCE))
    assert seen == [asked]


@pytest.mark.parametrize("size", [0, 1, 128 * 1024, 128 * 1024 + 1, 3_000_000])
async def test_a_body_of_any_size_arrives_unchanged(size: int, monkeypatch: pytest.MonkeyPatch):
    """Large bodies are sent in pieces, so that the event loop runs other tasks in between."""
    pieces = []
    write = StreamWriter.write

    async def spy(self: StreamWriter, chunk: Any, **how: Any) -> None:
        pieces.append(len(chunk))
        await write(self, chunk, **how)

    async def answer(request: web.BaseRequest) -> web.Response:
        return web.json_response({"equal": await request.content.read() == body})

    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    async with serving(answer) as server, transport_of(server) as transport:
        monkeypatch.setattr(StreamWriter, "write", spy)
        response = await transport.send(Request("POST", "/api/v1/pods", body=body))
    assert json.loads(response.body) == {"equal": True}
    assert max(pieces, default=0) <= 128 * 1024


@pytest.mark.parametrize(
    ("message", "expected"),
    [("File descriptor 14 is used by transport <TCPTransport closed=False>", NotConnectedError), ("x", RuntimeError)],
)
async def test_a_descriptor_that_uvloop_still_uses_is_a_failed_connection(
    message: str, expected: type[Exception], monkeypatch: pytest.MonkeyPatch
):
    """Other code of the process has closed that descriptor. Nothing was sent, so the request is repeated."""

    async def connect(*_: Any, **__: Any) -> NoReturn:
        raise RuntimeError(message)

    monkeypatch.setattr(aiohttp.TCPConnector, "connect", connect)
    transport = HttpTransport(ClusterConfig(server="http://127.0.0.1:1"))
    try:
        with pytest.raises(expected, match=re.escape(message)):
            await transport.send(Request("POST", "/x"))
    finally:
        await transport.close()


@contextlib.contextmanager
def resetting() -> Iterator[int]:
    """The port of a server that accepts connections and resets each at once."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):  # the end of the test
                while True:
                    accepted, _ = server.accept()
                    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    accepted.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_connections_that_are_reset_at_once_close_no_other_descriptor():
    """About every tenth made uvloop and Python close the same descriptor, the second time as somebody else's."""
    uvloop = pytest.importorskip("uvloop")
    files: list[int] = []

    async def meet_resets(port: int) -> None:
        async with transport_of(f"https://127.0.0.1:{port}") as transport:
            failures: list[object] = []  # which hold the sockets, by their tracebacks
            for _ in range(20):
                failures += await asyncio.gather(*[transport.send(GET) for _ in range(20)], return_exceptions=True)
            assert all(isinstance(failure, ConnectionError) for failure in failures)
            files.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(200))
            failures.clear()
            gc.collect()

    gc.disable()
    try:
        with resetting() as port, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(meet_resets(port))
        for each in files:
            os.fstat(each)
    finally:
        gc.enable()
        for each in files:
            with contextlib.suppress(OSError):
                os.close(each)


def test_a_socket_that_nobody_closed_is_closed_with_a_warning():
    made = keepalive_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ()))
    descriptor = made.fileno()
    with pytest.warns(ResourceWarning, match=f"unclosed socket with descriptor {descriptor}"):
        del made
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


ANY_ADDRESS = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ())


def test_a_socket_never_closes_a_descriptor_that_is_something_elses_by_now():
    """As after uvloop has closed it behind the socket's back."""
    made = keepalive_socket(ANY_ADDRESS)
    descriptor = made.fileno()
    with Path(os.devnull).open("rb") as other:
        os.dup2(other.fileno(), descriptor)
        try:
            del made
            assert os.path.sameopenfile(descriptor, other.fileno())
        finally:
            os.close(descriptor)


def test_a_socket_is_closed_even_where_its_warning_is_an_error(monkeypatch: pytest.MonkeyPatch):
    raised: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: raised.append(unraisable.exc_type))
    made = keepalive_socket(ANY_ADDRESS)
    descriptor = made.fileno()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del made
    assert raised == [ResourceWarning]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_dead_peer_is_noticed_within_half_a_minute():
    """By the kernel, whether data is on its way to the peer or not."""
    with keepalive_socket(ANY_ADDRESS) as made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        idle, interval, count = (
            made.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
            for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
            if hasattr(socket, name)
        )
        assert 0 < idle + interval * count <= 30
        if sys.platform == "linux":
            assert 0 < made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 30_000
