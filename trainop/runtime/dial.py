"""New connections to a server: names looked up, addresses tried, sockets that notice dead peers, TLS."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import aiohappyeyeballs
from yarl import URL

from trainop.runtime.wire import Line

CONNECT_TIMEOUT = 10.0
OTHER_FAMILY_AFTER = 0.25
"""Seconds until the next address is tried beside one that does not answer (RFC 8305)."""

SOCKET_OPTIONS = tuple(
    (socket.IPPROTO_TCP, getattr(socket, name), value)
    for name, value in (
        ("TCP_NODELAY", 1),
        ("TCP_KEEPIDLE", 15),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 30_000),
    )
    if hasattr(socket, name)  # not every system has all of them
)
"""A peer that vanished without a word is noticed within 30 s (`TCP_USER_TIMEOUT` in milliseconds)."""


class DialError(Exception):
    """No connection could be made: nothing was sent."""


class Place(NamedTuple):
    """Where a server is, taken from its URL."""

    host: str
    port: int
    authority: str
    """As the header Host has it."""
    origin: str
    prefix: str
    """The path before all paths, without a slash at its end."""

    @classmethod
    @lru_cache(maxsize=16)
    def of(cls, server: str) -> Place:
        url = URL(server)
        authority = url.host_port_subcomponent or ""
        return cls(
            url.raw_host or "", url.port or 0, authority, f"{url.scheme}://{authority}", url.raw_path.rstrip("/")
        )


Resolved: TypeAlias = Callable[[str, float], None]
"""Told of a name that was looked up, and of the seconds that it took."""

_Address: TypeAlias = tuple[int, int, int, str, tuple[Any, ...]]


async def dial(place: Place, tls: ssl.SSLContext | None, name: str | None, resolved: Resolved | None) -> Line:
    """A new connection; the server's certificate has to be for `name` if that is given. Raises `DialError`."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            sock = await aiohappyeyeballs.start_connection(
                await _look_up(place, resolved),
                happy_eyeballs_delay=OTHER_FAMILY_AFTER,
                interleave=1,
                socket_factory=make_socket,
                loop=loop,
            )
            hostname = (name or place.host) if tls is not None else None
            _, line = await loop.create_connection(Line, sock=sock, ssl=tls, server_hostname=hostname)
    except ssl.CertificateError as error:
        raise DialError(unaccepted(place.host, place.port, error)) from error
    except TimeoutError as error:
        raise DialError(f"cannot connect to {place.host}:{place.port}: no answer in time") from error
    except OSError as error:
        raise DialError(unreachable(place.host, place.port, error)) from error
    return line


async def _look_up(place: Place, resolved: Resolved | None) -> Sequence[_Address]:
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        return await loop.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    finally:
        if resolved is not None and not _is_address(place.host):
            resolved(place.host, loop.time() - began)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def make_socket(address: _Address) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for level, option, value in SOCKET_OPTIONS:
        made.setsockopt(level, option, value)
    return made


def unaccepted(host: str, port: int | None, error: Exception) -> str:
    return f"certificate of {host}:{port} is not accepted: {error}"


def unreachable(host: str, port: int | None, error: OSError) -> str:
    return f"cannot connect to {host}:{port}: {_reason(error)}"


def _reason(error: OSError) -> str:
    if error.errno and not isinstance(error, ssl.SSLError | socket.gaierror):
        return os.strerror(error.errno)  # asyncio writes the address there, once more
    return " ".join((error.strerror or str(error)).split())
