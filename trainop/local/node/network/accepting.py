"""A TCP accept loop with structured concurrency: each connection is a task of the server and ends with it.

Used by the DNS server (DNS over TCP) and the outbound gateway.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import structlog

_ACCEPT_RETRY_DELAY = 1.0  # seconds; accept fails for example when file descriptors have run out

log = structlog.get_logger(__name__)


async def accept_connections(
    listening: socket.socket, serve_connection: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
) -> None:
    """Accepts connections until cancelled. `serve_connection` must not raise; the connection is closed afterwards."""
    loop = asyncio.get_running_loop()

    async def serve_and_close(accepted: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=accepted)
        try:
            await serve_connection(reader, writer)
        finally:
            writer.close()

    with listening:
        async with asyncio.TaskGroup() as tasks:
            while True:
                try:
                    accepted, _ = await loop.sock_accept(listening)
                except OSError as error:
                    log.warning("accept failed", error=str(error))
                    await asyncio.sleep(_ACCEPT_RETRY_DELAY)
                else:
                    tasks.create_task(serve_and_close(accepted))
