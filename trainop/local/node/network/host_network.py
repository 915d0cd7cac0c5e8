"""The way out for pods in namespaces: TCP to the world beyond, carried by the agent.

The hub takes packets for every address as its own (a `local` default route), so a connection to any server on one of
the listened ports is accepted there and its own address tells where it was meant to go. Nothing in a pod needs to
know: downloads over HTTP and HTTPS work. Other ports are refused at once.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol
from urllib.parse import urlsplit

import structlog

from trainop.local.node.network.accepting import accept_connections

PORTS = (80, 443)
_CHUNK = 65536
_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy")

log = structlog.get_logger(__name__)


class Outside(Protocol):
    """The network of the machine, as pods may use it."""

    async def resolve(self, name: str) -> list[str] | None:
        """IPv4 addresses; None if there is no such name."""
        ...

    async def connect(self, address: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Raises `OSError`."""
        ...


class HostNetwork:
    """What this process reaches itself."""

    async def resolve(self, name: str) -> list[str] | None:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(name, None, family=socket.AF_INET)
        except (OSError, UnicodeError):  # the latter: no name that could exist
            return None
        return list(dict.fromkeys(str(info[4][0]) for info in found))

    async def connect(self, address: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(address, port)


def ports_to_carry(environment: Mapping[str, str]) -> list[int]:
    """HTTP and HTTPS, and the ports of the proxies that the caller's environment names."""
    found = list(PORTS)
    for name in _PROXIES:
        url = environment.get(name) or environment.get(name.upper()) or ""
        with suppress(ValueError):
            port = urlsplit(url if "://" in url else f"//{url}").port
            found += [port] if port else []
    return list(dict.fromkeys(found))


class Gateway:
    """Carries connections from the hub's listening sockets to where they were meant to go."""

    def __init__(self, outside: Outside, inside: str) -> None:
        """`inside` is the pods' own network, to which nothing is carried."""
        self._outside = outside
        self._inside = ipaddress.ip_network(inside)

    async def serve(self, listening: socket.socket) -> None:
        """Until it is cancelled; then all connections are closed."""
        await accept_connections(listening, self._carry)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address, port = writer.get_extra_info("sockname")[:2]
        if ipaddress.ip_address(address) in self._inside:
            return
        try:
            far_reader, far_writer = await self._outside.connect(address, port)
        except OSError as error:
            log.info("connection not carried", address=address, port=port, error=str(error))
            return
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_pump(reader, far_writer))
                tasks.create_task(_pump(far_reader, writer))
        finally:
            far_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One direction; the end of the stream is passed on, a broken connection ends it."""
    with suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
