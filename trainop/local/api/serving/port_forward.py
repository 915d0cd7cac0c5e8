"""`kubectl port-forward`: connections to the ports of a pod, as SPDY streams in the messages of one WebSocket.

For each connection the client opens two streams with the same request ID: one for data, one for an error message.
Sources: KEP-4006, kubelet `pkg/kubelet/server/streaming` (`portforward/httpstream.go`), client-go `tools/portforward`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

from aiohttp import WSMsgType, web

from trainop.local.api.request.pod_streams import PodPorts
from trainop.local.api.serving import spdy

PROTOCOLS = ("SPDY/3.1+portforward.k8s.io",)

MAX_CONNECTIONS = 500
"""Open connections of one client. Each takes a descriptor."""
_DATA, _ERROR = "data", "error"
_CHUNK = 32 * 1024
_MAX_MESSAGE = 1024 * 1024
_MAX_UNREAD = 1024 * 1024
"""Bytes that wait for a program in the pod. With more, the client is not read: there is no flow control per stream."""
_PAIRING_TIMEOUT = 30.0  # seconds for the second of two streams
_CONNECT_TIMEOUT = 10.0
_PING_INTERVAL = 15.0
"""Seconds. A write is what notices that a client is gone while it is not read."""


@dataclass(slots=True, eq=False)
class _Connection:
    """One connection to a port: its streams by type, and where data for the pod goes once `connected` is set."""

    request: str
    port: int = 0
    streams: dict[str, int] = field(default_factory=dict)
    paired: asyncio.Event = field(default_factory=asyncio.Event)
    connected: asyncio.Event = field(default_factory=asyncio.Event)
    writer: asyncio.StreamWriter | None = None
    input_ended: bool = False
    task: asyncio.Task[None] | None = None


async def serve_port_forward(incoming: web.Request, ports: PodPorts) -> web.WebSocketResponse:
    """Answers the WebSocket handshake, and forwards until the client leaves or violates the protocol."""
    websocket = web.WebSocketResponse(protocols=PROTOCOLS, compress=False, max_msg_size=_MAX_MESSAGE)
    await websocket.prepare(incoming)
    with suppress(ConnectionError):
        async with asyncio.TaskGroup() as tasks:
            forwarder = _Forwarder(websocket, ports, tasks)
            either = [tasks.create_task(forwarder.receive()), tasks.create_task(_ping(websocket))]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            forwarder.close()
            for task in either:
                task.cancel()
        await websocket.close()
    return websocket


async def _ping(websocket: web.WebSocketResponse) -> None:
    with suppress(ConnectionError):
        while True:
            await asyncio.sleep(_PING_INTERVAL)
            await websocket.ping()


class _Forwarder:
    """Serves one client."""

    def __init__(self, websocket: web.WebSocketResponse, ports: PodPorts, tasks: asyncio.TaskGroup) -> None:
        self._websocket = websocket
        self._ports = ports
        self._tasks = tasks
        self._encoder = spdy.Encoder()
        self._last_stream = 0
        self._connections: set[_Connection] = set()
        self._unpaired: dict[str, _Connection] = {}
        self._by_stream: dict[int, _Connection] = {}

    async def receive(self) -> None:
        """Returns when the client leaves or violates the protocol."""
        decoder = spdy.Decoder()
        with suppress(ConnectionError):
            try:
                async for message in self._websocket:
                    if message.type is not WSMsgType.BINARY:
                        return
                    for frame in decoder.feed(message.data):
                        if isinstance(frame, spdy.GoAway):
                            return
                        await self._take(frame)
            except spdy.ProtocolError:
                await self._send(spdy.encode_goaway(self._last_stream, spdy.PROTOCOL_ERROR))

    def close(self) -> None:
        """Ends all connections."""
        for connection in self._connections:
            if connection.task is not None:
                connection.task.cancel()

    async def _take(self, frame: spdy.SynStream | spdy.Data | spdy.Reset | spdy.Ping) -> None:
        match frame:
            case spdy.SynStream():
                await self._open(frame)
            case spdy.Data():
                await self._write(frame)
            case spdy.Reset():
                await self._cancel(frame.stream)
            case spdy.Ping(number) if number % 2:
                await self._send(spdy.encode_ping(number))

    async def _open(self, frame: spdy.SynStream) -> None:
        """Accepts or resets a stream."""
        if frame.stream % 2 == 0 or frame.stream <= self._last_stream:
            await self._send(spdy.encode_reset(frame.stream, spdy.PROTOCOL_ERROR))
            return
        self._last_stream = frame.stream
        kind, port = frame.headers.get("streamtype", ""), _parse_port(frame.headers.get("port", ""))
        request = frame.headers.get("requestid", "")
        connection = self._unpaired.get(request)
        if kind not in {_DATA, _ERROR} or not port or (connection and kind in connection.streams):
            await self._send(spdy.encode_reset(frame.stream, spdy.CANCEL))
            return
        if connection is None:
            if len(self._connections) >= MAX_CONNECTIONS:
                await self._send(spdy.encode_reset(frame.stream, spdy.REFUSED_STREAM))
                return
            connection = self._unpaired[request] = _Connection(request)
            self._connections.add(connection)
            connection.task = self._tasks.create_task(self._serve(connection))
            connection.task.add_done_callback(lambda _: self._forget(connection))
        connection.streams[kind] = frame.stream
        self._by_stream[frame.stream] = connection
        await self._send(self._encoder.syn_reply(frame.stream))
        if kind == _DATA:
            connection.port = port
        if len(connection.streams) == 2:
            self._unpaired.pop(request, None)
            connection.paired.set()
        if frame.fin:
            await self._write(spdy.Data(frame.stream, b"", fin=True))

    async def _cancel(self, stream: int) -> None:
        """Ends the connection whose data stream this is; the client then waits for the end of the errors."""
        connection = self._by_stream.get(stream)
        if connection is None or connection.streams.get(_DATA) != stream or connection.task is None:
            return
        connection.task.cancel()
        if (errors := connection.streams.get(_ERROR)) is not None:
            await self._send(spdy.encode_data(errors, b"", fin=True))

    async def _write(self, frame: spdy.Data) -> None:
        """Passes data on to the pod. Data of a stream that is closed, or that is for errors, is dropped."""
        connection = self._by_stream.get(frame.stream)
        if connection is None or connection.streams.get(_DATA) != frame.stream or connection.input_ended:
            return
        connection.input_ended = frame.fin
        await connection.connected.wait()
        if (writer := connection.writer) is not None:
            with suppress(OSError):
                writer.write(frame.data)
                await writer.drain()
                if frame.fin:
                    writer.write_eof()

    async def _serve(self, connection: _Connection) -> None:
        """Runs one connection and closes its streams."""
        with suppress(ConnectionError):  # of the WebSocket: `receive` notices it, too
            error = await self._forward(connection)
            for kind, stream in connection.streams.items():
                await self._send(spdy.encode_data(stream, error.encode() if kind == _ERROR else b"", fin=True))

    def _forget(self, connection: _Connection) -> None:
        """Frees what a connection holds, once its task has ended or was cancelled."""
        connection.connected.set()
        if connection.writer is not None:
            connection.writer.transport.abort()
        self._connections.discard(connection)
        if self._unpaired.get(connection.request) is connection:
            del self._unpaired[connection.request]
        for stream in connection.streams.values():
            self._by_stream.pop(stream, None)

    async def _forward(self, connection: _Connection) -> str:
        """Copies what the pod sends until its end; returns the message for the error stream, which may be empty."""
        try:
            async with asyncio.timeout(_PAIRING_TIMEOUT):
                await connection.paired.wait()
        except TimeoutError:
            return f"request {connection.request}: timed out waiting for streams"
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT):
                reader, writer = await self._ports.connect(connection.port)
        except OSError as error:  # also TimeoutError
            reason = str(error) or "timed out"
            return f"error forwarding port {connection.port} to pod {self._ports.pod}, uid {self._ports.uid}: {reason}"
        writer.transport.set_write_buffer_limits(_MAX_UNREAD)
        connection.writer = writer
        connection.connected.set()
        while data := await _read(reader):
            await self._send(spdy.encode_data(connection.streams[_DATA], data))
        return ""

    async def _send(self, frame: bytes) -> None:
        await self._websocket.send_bytes(frame)


async def _read(reader: asyncio.StreamReader) -> bytes:
    """The next bytes; empty at the end, also of a connection that the pod has reset."""
    try:
        return await reader.read(_CHUNK)
    except OSError:
        return b""


def _parse_port(text: str) -> int:
    """The number of a port; 0 if it is not one."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 5 and int(text) < 65536 else 0
