"""What a client without credentials may read, of the embedded and the real API server."""

from __future__ import annotations

import http.client
import ssl
from urllib.parse import urlsplit

import pytest

from tests.conformance.client import Backend
from tests.patience import PATIENCE

PUBLIC = ("/version", "/version/", "/healthz", "/livez", "/readyz")
PRIVATE = ("/", "/api", "/apis", "/api/v1/pods", "/openapi/v3", "/versions", "/healthz/../api/v1/pods")


def ask(backend: Backend, path: str, method: str = "GET", **headers: str) -> int:
    parts = urlsplit(backend.url)
    assert parts.hostname
    connection: http.client.HTTPConnection
    if backend.context:
        unverified = ssl.create_default_context()
        unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=PATIENCE, context=unverified)
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=PATIENCE)
    try:
        connection.request(method, path, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def check(backend: Backend) -> None:
    assert {path: ask(backend, path) for path in PUBLIC} == dict.fromkeys(PUBLIC, 200)
    answers = {path: ask(backend, path) for path in PRIVATE}
    assert set(answers.values()) <= {401, 403}, answers
    assert ask(backend, "/version", Authorization="Bearer wrong") == 401
    assert ask(backend, "/version", "POST") in {401, 403}


def test_embedded(embedded: Backend):
    check(embedded)


@pytest.mark.server
def test_real(real: Backend):
    check(real)
