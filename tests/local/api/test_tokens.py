"""Tokens of service accounts over time and over restarts; what they contain is compared in tests/conformance."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.local.api.support import PODS, Api, pod
from trainop.local.api.serving.server import ApiServer

ACCOUNT = "/api/v1/namespaces/default/serviceaccounts/default"
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
BOUND = {"kind": "Pod", "apiVersion": "v1", "name": "p"}


async def issue(api: Api, **spec: Any) -> str:
    answer = await api("POST", f"{ACCOUNT}/token", {"spec": spec})
    assert answer.code == 201, answer.raw
    token: str = answer.json["status"]["token"]
    return token


async def review(api: Api, token: str, *audiences: str) -> Any:
    answer = await api("POST", REVIEWS, {"spec": {"token": token, "audiences": list(audiences)}})
    assert answer.code == 201, answer.raw
    return answer.json["status"]


async def test_a_token_is_valid_until_it_expires_and_a_minute_longer():
    api = Api()
    made = await api("POST", f"{ACCOUNT}/token", {"spec": {"expirationSeconds": 600}})
    assert made.json["status"]["expirationTimestamp"] == "2026-01-02T03:14:05Z"
    token = made.json["status"]["token"]
    await api.clock.advance(659)
    assert (await review(api, token))["authenticated"] is True
    await api.clock.advance(2)
    expired = {"user": {}, "error": "[invalid bearer token, service account token has expired]"}
    assert await review(api, token) == expired


async def test_a_token_ends_a_minute_after_the_grace_period_of_a_pod_that_does_not_go():
    api = Api()
    await api.create(PODS, pod(node="n", finalizers=["example.com/hold"]))
    token = await issue(api, audiences=["job"], boundObjectRef=BOUND)
    await api("DELETE", f"{PODS}/p")
    await api.clock.advance(30 + 59)
    assert (await review(api, token, "job"))["authenticated"] is True
    await api.clock.advance(2)
    assert "has been invalidated" in (await review(api, token, "job"))["error"]


@pytest.mark.parametrize("kept", [True, False])
async def test_tokens_outlive_a_cluster_that_keeps_its_data(tmp_path: Path, kept: bool):
    path = tmp_path / "objects.db" if kept else None
    api = Api(persist=path)
    await api.create(PODS, pod())
    token = await issue(api, audiences=["job"], boundObjectRef=BOUND)
    await api.server.close()
    again = Api(persist=path)
    status = await review(again, token, "job")
    if kept:
        assert status["user"]["extra"]["authentication.kubernetes.io/pod-name"] == ["p"]
    else:
        assert "error in cryptographic primitive" in status["error"]
    await again.server.close()


async def test_clusters_do_not_accept_the_tokens_of_each_other(tmp_path: Path):
    first, second = Api(persist=tmp_path / "1.db"), Api(persist=tmp_path / "2.db")
    token = await issue(first)
    assert "error in cryptographic primitive" in (await review(second, token))["error"]
    for api in (first, second):
        await api.server.close()


async def test_the_administrator_has_no_token_for_another_audience():
    api = Api()
    await api.server.serve(token="secret", tls=False)
    try:
        assert (await review(api, "secret"))["user"]["username"] == "system:admin"
        assert await review(api, "secret", "job") == {"user": {}, "error": "invalid bearer token"}
    finally:
        await api.server.close()


@pytest.mark.parametrize("text", ["é", "\ud800", "a" * 2_000_000, "." * 2_000_000, f"e30.{'W1tb' * 500_000}.e30", "\0"])
async def test_no_token_is_too_strange_for_an_answer(text: str):
    api = Api()
    body = b'{"spec":{"token":"%s"}}' % text.encode("unicode_escape" if text in "\ud800\0" else "utf-8")
    answer = await api("POST", REVIEWS, body.replace(b"\\x00", b"\\u0000"))
    assert answer.code in {201, 400}
    assert answer.code == 400 or answer.json["status"] == {"user": {}, "error": "invalid bearer token"}


@pytest.mark.parametrize(
    "value", [b"Bearer ", b"Bearer", b"Basic x", "bearer é".encode(), b"Bearer \xff", b"Bearer a.b.c", b"Bearer ..."]
)
async def test_no_header_is_too_strange_for_an_answer(value: bytes):
    server = ApiServer()
    address = urlsplit(await server.serve(token="secret", tls=False))
    try:
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        head = b"GET /api/v1/pods HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: "
        writer.write(head + value + b"\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 401 ")
        writer.close()
        await writer.wait_closed()
    finally:
        await server.close()
