"""Health, readiness and metrics over real sockets on loopback."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from trainop.runtime.errors import UnhealthyError
from trainop.runtime.metrics.metrics import Metrics
from trainop.runtime.serving.server import (
    Address,
    BindError,
    Checks,
    HttpServer,
    health_application,
    metrics_application,
    parse_address,
)


@asynccontextmanager
async def serving(server: HttpServer) -> AsyncIterator[str]:
    await server.bind()
    task = asyncio.create_task(server.run())
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        task.cancel()
        await asyncio.wait([task])


async def fetch(url: str, accept: str = "*/*") -> tuple[int, str, dict[str, str]]:
    async with aiohttp.ClientSession() as session, session.get(url, headers={"Accept": accept}) as response:
        return response.status, await response.text(), dict(response.headers)


def fail() -> None:
    raise UnhealthyError("certificates are not ready")


async def pass_later() -> None:
    await asyncio.sleep(0)


def make_health() -> tuple[HttpServer, Checks, Checks]:
    health, ready = Checks("healthz"), Checks("readyz")
    return HttpServer("probes", Address("127.0.0.1", 0), health_application(health, ready)), health, ready


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("", None),
        ("0", None),
        (":8080", Address(None, 8080)),
        ("127.0.0.1:0", Address("127.0.0.1", 0)),
        ("[::1]:8081", Address("::1", 8081)),
        ("localhost:99", Address("localhost", 99)),
    ],
)
def test_addresses_are_written_as_in_go(text: str, address: Address | None):
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["8080", "host", "host:", ":http", ":70000", ":-1"])
def test_other_addresses_are_refused(text: str):
    with pytest.raises(ValueError, match="not of the form host:port"):
        parse_address(text)


@pytest.mark.case("runtime-34", "abc")
async def test_texts_of_health_checks():
    server, _, ready = make_health()
    ready.add("webhook", fail)
    ready.add("cache", pass_later)
    ready.add("ping", lambda: None)
    failed = "[+]cache ok\n[+]ping ok\n[-]webhook failed: reason withheld\nhealthz check failed\n"
    excluded = "[+]cache ok\n[+]ping ok\n[+]webhook excluded: ok\nhealthz check passed\n"
    unknown = (
        "[+]cache ok\n[+]ping excluded: ok\n[+]webhook excluded: ok\n"
        'warn: some health checks cannot be excluded: no matches for "a","b"\nhealthz check passed\n'
    )
    async with serving(server) as url:
        for path, status, text in [
            ("/healthz", 200, "ok"),
            ("/healthz?verbose", 200, "[+]ping ok\nhealthz check passed\n"),
            ("/healthz/ping", 200, "ok"),
            ("/healthz/", 200, "ok"),
            ("/readyz", 500, failed),
            ("/readyz?verbose", 500, failed),
            ("/readyz?exclude=webhook", 200, "ok"),
            ("/readyz?verbose&exclude=webhook", 200, excluded),
            ("/readyz?verbose=1&exclude=webhook&exclude=ping&exclude=a&exclude=b", 200, unknown),
            ("/readyz/cache", 200, "ok"),
            ("/readyz/webhook", 500, "internal server error: certificates are not ready\n"),
            ("/healthz/unknown", 404, "404 page not found\n"),
        ]:
            found_status, found_text, headers = await fetch(url + path)
            assert (found_status, found_text) == (status, text), path
            assert headers["Content-Type"] == "text/plain; charset=utf-8"
            assert headers["X-Content-Type-Options"] == "nosniff"


async def test_a_check_that_raises_a_connection_error_fails():
    checks = Checks("readyz")

    async def connect() -> None:
        raise ConnectionRefusedError("connection refused")

    checks.add("port", connect)
    assert await checks.one("port") == (500, "internal server error: connection refused\n")


def test_the_name_of_a_check_is_unique():
    checks = Checks("healthz")
    checks.add("ping", lambda: None)
    with pytest.raises(ValueError, match="exists"):
        checks.add("ping", fail)


async def test_metrics_are_served_in_the_format_that_is_asked_for():
    metrics = Metrics()
    metrics.informer_objects.labels("pods").set(3)
    server = HttpServer("metrics", Address("127.0.0.1", 0), metrics_application(metrics.registry))
    async with serving(server) as url:
        status, text, headers = await fetch(url + "/metrics")
        assert status == 200
        assert headers["Content-Type"].startswith("text/plain; version=")
        assert 'runtime_informer_objects{resource="pods"} 3.0\n' in text
        status, text, headers = await fetch(url + "/metrics", "application/openmetrics-text; version=1.0.0")
        assert headers["Content-Type"].startswith("application/openmetrics-text")
        assert text.endswith("# EOF\n")
        assert (await fetch(url + "/other"))[0] == 404


async def test_a_port_in_use_is_one_clear_error():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = HttpServer("metrics", Address("127.0.0.1", port), metrics_application(Metrics().registry))
        with pytest.raises(BindError, match=rf"^cannot listen on 127\.0\.0\.1:{port} for metrics: .*in use"):
            await server.bind()


async def test_a_disabled_server_runs_without_a_port():
    server = HttpServer("metrics", None, metrics_application(Metrics().registry))
    await server.bind()
    assert server.port is None
    task = asyncio.create_task(server.run())
    await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    await asyncio.wait([task])


def make_certificate(directory: Path) -> ssl.SSLContext:
    """A TLS server context with a self-signed certificate for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "metrics")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, private = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (directory / "tls.crt").write_bytes(certificate.public_bytes(pem))
    (directory / "tls.key").write_bytes(key.private_bytes(pem, private, serialization.NoEncryption()))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(directory / "tls.crt", directory / "tls.key")
    return context


async def test_metrics_over_tls(tmp_path: Path):
    tls = make_certificate(tmp_path)
    server = HttpServer("metrics", Address("127.0.0.1", 0), metrics_application(Metrics().registry), tls)
    trust = ssl.create_default_context(cafile=tmp_path / "tls.crt")
    async with serving(server):
        url = f"https://127.0.0.1:{server.port}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url, ssl=trust) as response:
            assert response.status == 200


async def test_every_scrape_shows_the_metrics_of_a_moment_after_it():
    metrics = Metrics()
    server = HttpServer("metrics", Address("127.0.0.1", 0), metrics_application(metrics.registry))
    async with serving(server) as url:
        for count in range(1, 4):
            metrics.certificate_reads.inc()
            for query in ("", "?name[]=certwatcher_read_certificate_total"):
                assert f"certwatcher_read_certificate_total {count}.0" in (await fetch(f"{url}/metrics{query}"))[1]
        found = await asyncio.gather(*(fetch(f"{url}/metrics") for _ in range(20)))
        assert {status for status, _, _ in found} == {200}
