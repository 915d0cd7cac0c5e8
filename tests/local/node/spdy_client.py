"""The client's half of SPDY/3.1 in a WebSocket, written from the protocol's drafts, for tests of the server."""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections import defaultdict
from collections.abc import Callable

import aiohttp

from tests.patience import PATIENCE
from trainop.local.api.serving.spdy import DICTIONARY

SYN_STREAM, SYN_REPLY, RST_STREAM, SETTINGS, PING, GOAWAY, HEADERS, WINDOW_UPDATE = 1, 2, 3, 4, 6, 7, 8, 9
FIN = 1


def control(kind: int, payload: bytes, flags: int = 0, version: int = 3) -> bytes:
    return struct.pack(">HHI", 0x8000 | version, kind, flags << 24 | len(payload)) + payload


def data(stream: int, content: bytes, flags: int = 0) -> bytes:
    return struct.pack(">II", stream, flags << 24 | len(content)) + content


def header_block(headers: dict[str, str]) -> bytes:
    words = [word.encode() for pair in headers.items() for word in pair]
    return struct.pack(">I", len(headers)) + b"".join(struct.pack(">I", len(word)) + word for word in words)


class Compressor:
    """One per connection, because header blocks share its state."""

    def __init__(self) -> None:
        self._deflater = zlib.compressobj(9, zdict=DICTIONARY)

    def __call__(self, block: bytes) -> bytes:
        return self._deflater.compress(block) + self._deflater.flush(zlib.Z_SYNC_FLUSH)

    def syn_stream(self, stream: int, headers: dict[str, str], flags: int = 0) -> bytes:
        fixed = struct.pack(">IIBB", stream, 0, 0, 0)
        return control(SYN_STREAM, fixed + self(header_block(headers)), flags)


class Spdy:
    """A client that keeps all that it receives."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.compress = Compressor()
        self.received: dict[int, bytes] = defaultdict(bytes)
        self.ended: set[int] = set()
        """Streams whose end has come."""
        self.controls: list[tuple[int, bytes]] = []
        """Kind and payload of all control frames."""
        self._inflater = zlib.decompressobj(zdict=DICTIONARY)
        self._buffer = b""
        self._next = 1
        self._request = 0

    async def send(self, frame: bytes) -> None:
        await self.socket.send_bytes(frame)

    async def open(self, kind: str, port: str, request: str) -> int:
        stream, self._next = self._next, self._next + 2
        await self.send(self.compress.syn_stream(stream, {"streamtype": kind, "port": port, "requestid": request}))
        return stream

    async def connect(self, port: int) -> tuple[int, int]:
        """The streams for errors and data of a new connection, opened as kubectl does."""
        self._request += 1
        streams = []
        for kind in ("error", "data"):
            stream = await self.open(kind, str(port), str(self._request))
            await self.until_answered(stream)
            if kind == "error":
                await self.send(data(stream, b"", FIN))
            streams.append(stream)
        return streams[0], streams[1]

    async def until_answered(self, stream: int) -> None:
        await self.until(lambda: stream in self.replies() or stream in self.resets())

    def _streams(self, kind: int) -> set[int]:
        return {struct.unpack_from(">I", payload)[0] for found, payload in self.controls if found == kind}

    def replies(self) -> set[int]:
        return self._streams(SYN_REPLY)

    def resets(self) -> dict[int, int]:
        """The status of each stream that was reset."""
        return dict(struct.unpack(">II", payload) for kind, payload in self.controls if kind == RST_STREAM)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Receives until this holds."""
        async with asyncio.timeout(PATIENCE):
            while not holds():
                message = await self.socket.receive()
                assert message.type is aiohttp.WSMsgType.BINARY, message
                self._take(message.data)

    async def until_closed(self) -> None:
        async with asyncio.timeout(PATIENCE):
            async for message in self.socket:
                self._take(message.data)

    def _take(self, message: bytes) -> None:
        self._buffer += message
        while len(self._buffer) >= 8:
            first, second = struct.unpack_from(">II", self._buffer)
            end = 8 + (second & 0xFFFFFF)
            if len(self._buffer) < end:
                return
            payload, self._buffer = self._buffer[8:end], self._buffer[end:]
            if first & 0x80000000:
                assert first >> 16 == 0x8003
                self.controls.append((first & 0xFFFF, payload))
                if first & 0xFFFF == SYN_REPLY:
                    assert self._inflater.decompress(payload[4:]) == bytes(4)  # no headers
                continue
            assert first not in self.ended
            self.received[first] += payload
            if second >> 24 & FIN:
                self.ended.add(first)
