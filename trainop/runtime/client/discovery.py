"""API discovery: whether the server serves a kind. Informers of optional kinds poll it until their CRD is installed."""

from __future__ import annotations

import asyncio
from typing import Literal

import msgspec

from trainop.runtime.client.client import Client
from trainop.runtime.client.decoding import read
from trainop.runtime.client.transport import Request
from trainop.runtime.clock import Clock
from trainop.runtime.errors import ApiError, DecodeError, NotFoundError
from trainop.runtime.objects.metadata import Resource

CACHE_TTL = 1.0
"""Seconds for which a group version's resources are cached, so that informers of one group share a request."""


class _Served(msgspec.Struct, frozen=True):
    name: str


class _ResourceList(msgspec.Struct, frozen=True):
    kind: Literal["APIResourceList"]
    resources: tuple[_Served, ...] | None = None


_decode = msgspec.json.Decoder(_ResourceList).decode


class Discovery:
    """Looks kinds up in the server's `APIResourceList` of their group version."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._known: dict[str, tuple[float, frozenset[str]]] = {}
        self._asking = asyncio.Lock()

    async def serves(self, resource: Resource) -> bool:
        """Whether the server serves `resource`. Also true if discovery is forbidden (401, 403): then only a request for
        the resource itself can show it.

        Raises `ConnectionError` or `TimeoutError`.
        """
        async with self._asking:
            asked, plurals = self._known.get(resource.api_version, (float("-inf"), frozenset[str]()))
            if self._clock.monotonic() - asked <= CACHE_TTL:
                return resource.plural in plurals
            try:
                plurals = await self._plurals(resource)
            except ApiError as error:
                if error.code in (401, 403):
                    return True
                raise ConnectionError(f"discovery of {resource.api_version}: {error}") from error
            self._known[resource.api_version] = (self._clock.monotonic(), plurals)
            return resource.plural in plurals

    async def _plurals(self, resource: Resource) -> frozenset[str]:
        root = f"/apis/{resource.api_version}" if resource.group else f"/api/{resource.version}"
        try:
            response = await self._client.request(Request("GET", root))
        except NotFoundError:
            return frozenset()
        try:
            served = (await read(_decode, response.body)).resources or ()
            return frozenset(resource.name for resource in served)
        except DecodeError as error:
            raise ConnectionError(f"discovery of {resource.api_version} returned an invalid answer: {error}") from error
