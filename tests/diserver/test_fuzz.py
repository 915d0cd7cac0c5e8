"""Any request over HTTP gets one answer of the documented form. `make fuzz` does the same with schemathesis."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.diserver.test_bodies import ANY, BODIES, QUANTITIES
from tests.diserver.world import Running, request, world
from trainop.diserver.openapi import ERRORS
from trainop.diserver.replies import BAD_QUANTITY

PATHS = ("/v1alpha1/replicas", "/v1alpha1/replicas/failed")
METHODS = st.sampled_from(["GET", "POST", "DELETE", "PUT", "OPTIONS"])
SECTIONS = st.fixed_dictionaries({}, optional={"collectors": QUANTITIES | ANY, "learners": QUANTITIES | ANY})
OWN = SECTIONS.map(lambda body: {**request(), **body})
"""Requests of a job that exists."""
RAW = st.binary(max_size=200) | (BODIES | OWN).map(lambda body: json.dumps(body).encode())
QUERIES = st.dictionaries(st.sampled_from(["namespace", "name", "coordinator", "aggregator", "Name", "x"]), st.text())
HEADERS = st.sampled_from([{}, {"Authorization": "Bearer x"}, {"Content-Type": "text/xml"}, {"X-Forwarded-For": "::1"}])


@pytest.fixture(scope="module")
def fuzzed() -> Any:
    """A loop with a server in it, for all examples."""
    with asyncio.Runner() as runner:
        opened = _open()
        server, session = runner.run(_next(opened))
        yield lambda *call, **more: runner.run(_ask(session, server, *call, **more))
        runner.run(_close(opened))


async def _open() -> AsyncIterator[tuple[Running, aiohttp.ClientSession]]:
    async with world() as here, here.di_server() as server, aiohttp.ClientSession() as session:
        await here.nodes(8)
        await here.aggregator_config()
        await here.job()
        yield server, session


async def _next(opened: AsyncIterator[tuple[Running, aiohttp.ClientSession]]) -> tuple[Running, aiohttp.ClientSession]:
    return await anext(opened)


async def _close(opened: AsyncIterator[Any]) -> None:
    async for _ in opened:
        pass


async def _ask(session: aiohttp.ClientSession, server: Running, method: str, path: str, **more: Any) -> tuple[int, Any]:
    async with session.request(method, server.url + path, **more) as response:
        assert response.headers["Content-Type"].startswith("application/json"), await response.text()
        return response.status, json.loads(await response.read())


def examine(status: int, body: Any) -> None:
    """An answer of the documented form, with nothing that the CLI rewrites."""
    assert str(status) in {"200", "501", *ERRORS}
    assert list(body) == ["success", "code", "message", "data"]
    assert (body["success"], body["code"]) == ((True, 0) if status == 200 else (False, 1))
    text = body["message"].replace(BAD_QUANTITY, "")
    assert not any(word in text for word in ("'", '"', "None", ": True", ": False"))
    if status == 200:
        for each in body["data"] if isinstance(body["data"], list) else [body["data"]]:
            assert each.get("name") or (isinstance(each["collectors"], list) and isinstance(each["learners"], list))


BOUNDED = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@BOUNDED
@given(METHODS, st.sampled_from(PATHS), RAW, QUERIES, HEADERS)
def test_any_request_gets_one_answer(
    fuzzed: Any, method: str, path: str, raw: bytes, query: dict[str, str], headers: dict[str, str]
):
    examine(*fuzzed(method, path, data=raw, params=query, headers=headers))


@BOUNDED
@given(st.sampled_from(["POST", "DELETE"]), OWN)
def test_any_request_of_a_coordinator_gets_one_answer(fuzzed: Any, method: str, body: dict[str, Any]):
    status, answer = fuzzed(method, PATHS[0], json=body)
    examine(status, answer)
    if status == 200:
        removed = fuzzed("DELETE", PATHS[0], json=request(2000, 2000))
        examine(*removed)


def test_the_server_still_works_afterwards(fuzzed: Any):
    status, answer = fuzzed("POST", PATHS[0], json=request(1, 1))
    examine(status, answer)
    assert status == 200
    assert len(answer["data"]["collectors"]) == 1
