"""The cluster DNS server over UDP and TCP: A records only (RFC 1035; RFC 2308 for answers without data).

It parses and encodes messages; `Lookup` resolves the name (see `names` for cluster names).
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeAlias, cast

from trainop.local.node.network.accepting import accept_connections

Lookup: TypeAlias = Callable[[str], Awaitable[list[str] | None]]
"""Returns the IPv4 addresses of a fully qualified name, or None if it does not exist (NXDOMAIN)."""

_A, _ANY, _IN = 1, 255, 1
_NXDOMAIN, _NOTIMP, _FORMERR = 3, 4, 1
_TTL = 0  # no caching: addresses change when pods are recreated
_UDP_LIMIT = 512
_TRUNCATED = 0x0200


async def answer(query: bytes, lookup: Lookup, limit: int = 65535) -> bytes:
    """The response to one query message, or b"" if `query` is not a query.

    A response that would exceed `limit` bytes is cut and has the TC flag set.
    """
    if len(query) < 12:
        return b""
    number, flags, questions = struct.unpack_from("!HHH", query)
    if flags & 0x8000:
        return b""
    if flags & 0x7800 or questions != 1:
        return _refuse(number, flags, _NOTIMP if flags & 0x7800 else _FORMERR)
    try:
        name, end = _name(query, 12)
        kind, class_ = struct.unpack_from("!HH", query, end)
    except (struct.error, UnicodeDecodeError, IndexError):
        return _refuse(number, flags, _FORMERR)
    addresses = await lookup(name)
    code = _NXDOMAIN if addresses is None else 0
    answers = addresses or [] if kind in {_A, _ANY} and class_ == _IN else []
    question = query[12 : end + 4]
    records = [struct.pack("!HHHIH4s", 0xC00C, _A, _IN, _TTL, 4, socket.inet_aton(address)) for address in answers]
    room = (limit - 12 - len(question)) // 16
    truncated = _TRUNCATED if len(records) > room else 0
    records = records[:room]
    header = struct.pack("!HHHHHH", number, _flags(flags, code) | truncated, 1, len(records), 0, 0)
    return header + question + b"".join(records)


def _refuse(number: int, flags: int, code: int) -> bytes:
    return struct.pack("!HHHHHH", number, _flags(flags, code), 0, 0, 0, 0)


def _flags(query: int, code: int) -> int:
    # QR, AA, RD copied from the query, RA: some resolvers warn if recursion is not available.
    return 0x8000 | 0x0400 | (query & 0x0100) | 0x0080 | code


def _name(query: bytes, at: int) -> tuple[str, int]:
    labels: list[str] = []
    while (length := query[at]) != 0:
        if length > 63 or at + 1 + length >= len(query):
            raise IndexError("a label exceeds the message")
        labels.append(query[at + 1 : at + 1 + length].decode("ascii"))
        at += 1 + length
    return ".".join(labels), at + 1


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, lookup: Lookup, tasks: asyncio.TaskGroup) -> None:
        self._lookup = lookup
        self._tasks = tasks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)  # not declared as one before Python 3.12

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._tasks.create_task(self._respond(data, addr))

    async def _respond(self, data: bytes, addr: tuple[str, int]) -> None:
        if response := await answer(data, self._lookup, _UDP_LIMIT):
            self._transport.sendto(response, addr)


class DnsServer:
    """Answers queries on one UDP and one TCP socket; `serve` runs until cancelled."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup

    async def serve(self, datagrams: socket.socket, streams: socket.socket) -> None:
        async with asyncio.TaskGroup() as tasks:
            transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
                lambda: _Datagrams(self._lookup, tasks), sock=datagrams
            )
            try:
                await accept_connections(streams, self._serve_stream)
            finally:
                transport.close()

    async def _serve_stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (length,) = struct.unpack("!H", await reader.readexactly(2))
                response = await answer(await reader.readexactly(length), self._lookup)
                writer.write(struct.pack("!H", len(response)) + response)
                await writer.drain()
