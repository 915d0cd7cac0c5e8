"""Bodies of requests: how they are validated, the options of deletions, whether a patch may be sent twice, and how much
memory those in flight may have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from trainop.runtime.objects.metadata import Json

OWN_FIELDS = {"fieldValidation": "Ignore"}
"""The query for bodies into which no field of a user flows. By default the API server compares each body with the
schema, for warnings about unknown fields."""

_encode = msgspec.json.Encoder().encode


def delete_options(options: Mapping[str, Any]) -> bytes:
    """The body of a deletion; empty if no option is given."""
    given = {name: value for name, value in options.items() if value is not None}
    return _encode({"apiVersion": "v1", "kind": "DeleteOptions"} | given) if given else b""


def names_version(patch: Json | Sequence[Json]) -> bool:
    """Whether the patch demands a resourceVersion, so that it cannot be applied twice."""
    if isinstance(patch, dict):
        return bool((patch.get("metadata") or {}).get("resourceVersion"))
    return any(op.get("op") == "test" and op.get("path") == "/metadata/resourceVersion" for op in patch)


LARGE_BODY = 64 * 1024
"""Bytes from which on a body counts against the budget."""

CAPACITY = 4 * 1024 * 1024
"""Bytes of large bodies in flight, for all jobs together: about three pods of the largest template that etcd can store,
which is enough to keep an API server busy. Each body is copied about five times before it is sent."""


class BodyBudget:
    """Limits the memory of request bodies in flight: a pod template may exceed a megabyte and is encoded once per pod,
    so that many concurrent creates could use hundreds of megabytes.

    One per process. Waiting requests are admitted in order of arrival. `capacity` is in bytes."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._free = capacity
        self._turn = asyncio.Lock()
        self._returned = asyncio.Event()

    @asynccontextmanager
    async def reserve(self, encode: Callable[[], bytes]) -> AsyncIterator[msgspec.Raw]:
        """Yields the result of `encode` for the duration of a request. A large body is encoded again once the budget
        has room, so that no body is held in memory while it waits. A body above the whole capacity is sent alone."""
        body = encode()
        if len(body) < LARGE_BODY:
            yield msgspec.Raw(body)
            return
        size = min(len(body), self._capacity)
        del body
        async with self._turn:
            while self._free < size:
                self._returned.clear()
                await self._returned.wait()
            self._free -= size
        try:
            yield msgspec.Raw(encode())
        finally:
            self._free += size
            self._returned.set()
