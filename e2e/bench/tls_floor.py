"""The least that a report of progress can cost a server of Python: a TLS connection of its own, and a fixed answer.

python -m e2e.bench.tls_floor CERT KEY     prints the port on loopback, and serves until SIGTERM or the end of its input

`e2e.bench.progress` starts it and sends it the same reports, from the same client, as the operator.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from contextlib import suppress
from typing import cast

import uvloop

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"


class Floor(asyncio.Protocol):
    """Answers the first bytes that come, whatever they say, and closes."""

    _transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        if b"\r\n\r\n" in data and not self._transport.is_closing():
            self._transport.write(ANSWER)
            self._transport.close()


async def serve(cert: str, key: str) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Floor, "127.0.0.1", 0, ssl=context, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)  # ends with the program that started it


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        uvloop.run(serve(*sys.argv[1:]))
