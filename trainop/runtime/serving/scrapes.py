"""Answers scrapes of metrics. Encoding blocks the event loop, and anybody may scrape at any rate: so encodings pause
for several times their duration, and requests that wait for the same get one together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

PAUSE = 3.0
"""From one encoding to the next, in times of its duration: at most a quarter of the time is spent on them."""


class _Lane:
    """Runs one function at a time, with pauses."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._ready_at = 0.0

    async def run(self, encode: Callable[[], bytes]) -> bytes:
        async with self._turn:
            await asyncio.sleep(max(self._ready_at - time.monotonic(), 0.0))
            began = time.monotonic()
            body = encode()
            self._ready_at = time.monotonic() + PAUSE * (time.monotonic() - began)
            return body


def metrics_handler(registry: CollectorRegistry) -> Handler:
    """Answers with all metrics, or with those that the query names (`name[]`), as of a moment after the request."""
    whole, parts = _Lane(), _Lane()
    waiting: dict[str, asyncio.Task[bytes]] = {}

    async def answer(request: web.Request) -> web.StreamResponse:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        names = request.query.getall("name[]", [])

        def encode_whole() -> bytes:
            waiting.pop(content_type)  # who comes from now on gets the next
            return encode(registry)

        if names:
            body = await parts.run(lambda: encode(registry.restricted_registry(names)))
        else:
            if content_type not in waiting:
                waiting[content_type] = asyncio.create_task(whole.run(encode_whole), name="scrape")
            body = await asyncio.shield(waiting[content_type])
        response = web.Response(body=body, headers={"Content-Type": content_type})
        response.enable_compression()
        return response

    return answer
