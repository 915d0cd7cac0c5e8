"""A session with a container over a WebSocket: the protocols `v5.channel.k8s.io` and `v4.channel.k8s.io`.

Each message begins with one byte, the number of its channel. Version 5 adds the message with which a client closes
stdin. Sources: apimachinery `pkg/util/remotecommand/constants.go`, kubelet
`pkg/kubelet/server/streaming`, client-go `tools/remotecommand/websocket.go`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated, Any

import msgspec
from aiohttp import WSMsgType, web

from trainop.local.api import status_errors
from trainop.local.api.request.pod_streams import Exit, Session
from trainop.runtime import Json

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")

_STDIN, _ERROR, _RESIZE, _CLOSE = 0, 3, 4, 255
_OUTPUTS = {"stdout": 1, "stderr": 2}
_MAX_MESSAGE = 1024 * 1024
_PING_INTERVAL = 15.0
"""Seconds. A write is what notices that a client is gone while its input is not read."""


class _Size(msgspec.Struct):
    """The size of a terminal, from its channel."""

    Width: Annotated[int, msgspec.Meta(ge=0, le=65535)]
    Height: Annotated[int, msgspec.Meta(ge=0, le=65535)]


async def serve_session(incoming: web.Request, session: Session) -> web.WebSocketResponse:
    """Answers the WebSocket handshake, and connects client and session until either has ended."""
    websocket = web.WebSocketResponse(protocols=PROTOCOLS, compress=False, max_msg_size=_MAX_MESSAGE)
    await websocket.prepare(incoming)
    try:
        async with session:
            ended = await _Connection(websocket, session).run()
            if ended is None:
                return websocket
        status = _status(ended)
    except OSError as error:  # the container has ended meanwhile, or this process has run out of descriptors
        status = _start_error(str(error))
    with suppress(ConnectionError):
        await websocket.send_bytes(bytes([_ERROR]) + msgspec.json.encode(status))
        await websocket.close()
    return websocket


class _Connection:
    """Copies between a WebSocket and a session. Neither side is read faster than the other takes it."""

    def __init__(self, websocket: web.WebSocketResponse, session: Session) -> None:
        self._websocket = websocket
        self._session = session

    async def run(self) -> Exit | None:
        """How the process has ended, after all its output was sent; None if the client was first to leave."""
        async with asyncio.TaskGroup() as tasks:
            outputs = [tasks.create_task(self._send(name)) for name in self._session.outputs]
            ended = tasks.create_task(self._end(outputs))
            others = [tasks.create_task(self._receive()), tasks.create_task(self._ping())]
            await asyncio.wait({ended, *others}, return_when=asyncio.FIRST_COMPLETED)
            for task in (*outputs, *others, ended):
                task.cancel()
        return None if ended.cancelled() else ended.result()

    async def _end(self, outputs: list[asyncio.Task[None]]) -> Exit:
        if outputs:
            await asyncio.wait(outputs)
        return await self._session.wait()

    async def _send(self, output: str) -> None:
        prefix = bytes([_OUTPUTS[output]])
        with suppress(ConnectionError):
            while data := await self._session.read(output):
                await self._websocket.send_bytes(prefix + data)

    async def _ping(self) -> None:
        with suppress(ConnectionError):
            while True:
                await asyncio.sleep(_PING_INTERVAL)
                await self._websocket.ping()

    async def _receive(self) -> None:
        """Returns when the client closes the connection or violates the protocol."""
        async for message in self._websocket:
            if message.type is WSMsgType.ERROR:
                return
            data: bytes = message.data.encode() if message.type is WSMsgType.TEXT else message.data
            if data:
                await self._take(data[0], data[1:])

    async def _take(self, channel: int, data: bytes) -> None:
        """Messages of other channels are ignored, as by kubelet."""
        if channel == _STDIN:
            await self._session.write(data)
        elif channel == _CLOSE and data == bytes([_STDIN]) and self._websocket.ws_protocol == PROTOCOLS[0]:
            self._session.end_input()
        elif channel == _RESIZE:
            with suppress(msgspec.DecodeError, UnicodeError, OSError):
                size = msgspec.json.decode(data, type=_Size)
                self._session.resize(size.Width, size.Height)


def _status(ended: Exit) -> Json:
    """The Status of the error channel (kubelet `pkg/kubelet/server/remotecommand/exec.go`)."""
    if ended.start_error:
        return _start_error(ended.start_error)
    if ended.code == 0:
        return {"metadata": {}, "status": "Success"}
    causes: list[Any] = [{"reason": "ExitCode", "message": str(ended.code)}]
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: {ended.code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": causes},
    }


def _start_error(message: str) -> Json:
    return status_errors.internal_error(f"error executing command in container: {message}").status
