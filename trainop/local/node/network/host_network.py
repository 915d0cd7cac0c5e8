"""Outbound TCP for pods in mode `namespaces`: a transparent proxy in the agent.

The hub's routing table treats every address as local (a `local` default route). A connection from a pod to any server
on one of the listening ports is therefore accepted by the gateway, and the socket's local address is the original
destination. The agent then connects there from the host network. Pods need no proxy settings, so downloads over HTTP
and HTTPS work. Connections to other ports are refused.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

import structlog

from trainop.local.node.network.accepting import accept_connections

DEFAULT_PORTS = (80, 443)
_CHUNK = 65536
_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy")

log = structlog.get_logger(__name__)


class HostNetwork(Protocol):
    """Network access outside the cluster, used on behalf of pods."""

    async def resolve(self, name: str) -> list[str] | None:
        """IPv4 addresses of `name`; None if it does not resolve."""
        ...

    async def connect(self, address: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Opens a TCP connection. Raises `OSError`."""
        ...


class DirectHostNetwork:
    """Uses the resolver and sockets of this process."""

    async def resolve(self, name: str) -> list[str] | None:
        try:
            infos = await asyncio.get_running_loop().getaddrinfo(name, None, family=socket.AF_INET)
        except (OSError, UnicodeError):  # UnicodeError: not encodable as a DNS name
            return None
        return list(dict.fromkeys(str(info[4][0]) for info in infos))

    async def connect(self, address: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(address, port)


class NoHostNetwork:
    """Nothing is outside of the cluster."""

    async def resolve(self, _name: str) -> list[str] | None:
        return None

    async def connect(self, address: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        raise ConnectionRefusedError(f"{address}:{port} is outside of the cluster")


@dataclass(frozen=True, slots=True)
class RedirectedNetwork:
    """A network in which some addresses, with their ports, stand for others: as a ClusterIP does."""

    network: HostNetwork
    redirected: Mapping[tuple[str, int], tuple[str, int]]

    async def resolve(self, name: str) -> list[str] | None:
        return await self.network.resolve(name)

    async def connect(self, address: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if (found := self.redirected.get((address, port))) is not None:
            return await asyncio.open_connection(*found)
        return await self.network.connect(address, port)


def forwarded_ports(environment: Mapping[str, str]) -> list[int]:
    """The ports that the gateway forwards: HTTP, HTTPS, and the ports of proxies configured in `environment`."""
    ports = list(DEFAULT_PORTS)
    for name in _PROXIES:
        url = environment.get(name) or environment.get(name.upper()) or ""
        with suppress(ValueError):
            port = urlsplit(url if "://" in url else f"//{url}").port
            ports += [port] if port else []
    return list(dict.fromkeys(ports))


class Gateway:
    """Forwards connections accepted by the hub's listening sockets to their original destination."""

    def __init__(self, host_network: HostNetwork, pod_network: str) -> None:
        """`pod_network` in CIDR notation; connections to addresses inside it are closed, not forwarded."""
        self._host_network = host_network
        self._pod_network = ipaddress.ip_network(pod_network)

    async def serve(self, listening: socket.socket) -> None:
        """Forwards connections until cancelled, then closes all of them."""
        await accept_connections(listening, self._forward)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connects to the original destination and copies data in both directions."""
        address, port = writer.get_extra_info("sockname")[:2]
        if ipaddress.ip_address(address) in self._pod_network:
            return
        try:
            remote_reader, remote_writer = await self._host_network.connect(address, port)
        except OSError as error:
            log.info("outbound connection failed", address=address, port=port, error=str(error))
            return
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_copy_stream(reader, remote_writer))
                tasks.create_task(_copy_stream(remote_reader, writer))
        finally:
            remote_writer.close()


async def _copy_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copies one direction until end-of-file, which is passed on, or until either connection breaks."""
    with suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
