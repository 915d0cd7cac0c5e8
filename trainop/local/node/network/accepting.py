"""A TCP server whose conversations end with it: each runs in the server's own task group."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import structlog

_PAUSE = 1.0  # seconds after a failed accept, as when descriptors have run out

log = structlog.get_logger(__name__)


async def accept_connections(
    listening: socket.socket, converse: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
) -> None:
    """Until it is cancelled. `converse` must not raise; its connection is closed when it returns."""
    loop = asyncio.get_running_loop()

    async def serve(accepted: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=accepted)
        try:
            await converse(reader, writer)
        finally:
            writer.close()

    with listening:
        async with asyncio.TaskGroup() as tasks:
            while True:
                try:
                    accepted, _ = await loop.sock_accept(listening)
                except OSError as error:
                    log.warning("connection not accepted", error=str(error))
                    await asyncio.sleep(_PAUSE)
                else:
                    tasks.create_task(serve(accepted))
