"""SPDY/3.1 framing without I/O: what a server needs for the streams that clients open, as `kubectl port-forward` does.

Source: SPDY Protocol, draft 3 and 3.1 (chromium.org); the peer is github.com/moby/spdystream, which neither sends nor
obeys WINDOW_UPDATE, so that each side holds the other back by not reading.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

PROTOCOL_ERROR, REFUSED_STREAM, CANCEL = 1, 3, 5
"""Status codes of RST_STREAM; PROTOCOL_ERROR also of GOAWAY."""

MAX_FRAME = 1024 * 1024
MAX_HEADERS = 16 * 1024
"""Bytes of one header block, decompressed."""

_SYN_STREAM, _SYN_REPLY, _RST_STREAM, _PING, _GOAWAY, _HEADERS = 1, 2, 3, 6, 7, 8
_HEADERS_OFFSET = {_SYN_STREAM: 10, _SYN_REPLY: 4, _HEADERS: 4}
_CONTROL = 0x80000000
_STREAM_ID = 0x7FFFFFFF
_VERSION = 3
_FIN = 1

_WORDS = (
    b"options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow "
    b"authorization cache-control connection content-base content-encoding content-language content-length "
    b"content-location content-md5 content-range content-type date etag expect expires from host if-match "
    b"if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma "
    b"proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade "
    b"user-agent vary via warning www-authenticate method get status 200_OK version HTTP/1.1 url public set-cookie "
    b"keep-alive origin"
)
_TAIL = (
    b"100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 Non-Authoritative "
    b"Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden404 Not Found500 "
    b"Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec "
    b"00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,application/xml,"
    b"application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8"
    b"charset=iso-8859-1,utf-,*,enq=0."
)
DICTIONARY = b"".join(struct.pack(">I", len(word)) + word.replace(b"_", b" ") for word in _WORDS.split(b" ")) + _TAIL
"""What both sides have seen before the first header block (section 2.6.10.1)."""


class ProtocolError(Exception):
    """The peer has violated the protocol; nothing that it sends later can be understood."""


@dataclass(frozen=True, slots=True)
class SynStream:
    """The peer opens a stream. Header names are in lower case."""

    stream: int
    headers: Mapping[str, str]
    fin: bool = False


@dataclass(frozen=True, slots=True)
class Data:
    """Content of a stream; with `fin` the peer sends no more."""

    stream: int
    data: bytes
    fin: bool = False


@dataclass(frozen=True, slots=True)
class Reset:
    """The peer has ended a stream in both directions."""

    stream: int


@dataclass(frozen=True, slots=True)
class Ping:
    """A PING to be sent back, if its `number` is odd: those are the client's."""

    number: int


@dataclass(frozen=True, slots=True)
class GoAway:
    """The peer is about to close the connection."""


Frame: TypeAlias = SynStream | Data | Reset | Ping | GoAway


class Decoder:
    """Splits what a client sends into frames. Frames that a server needs not act on, or does not know, are skipped."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._inflater = zlib.decompressobj(zdict=DICTIONARY)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yields the frames that `data` completes. Raises `ProtocolError`."""
        self._buffer += data
        while len(self._buffer) >= 8:
            first, second = struct.unpack_from(">II", self._buffer)
            flags, end = second >> 24, 8 + (second & 0xFFFFFF)
            if end > 8 + MAX_FRAME:
                raise ProtocolError("a frame is too large")
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[8:end])
            del self._buffer[:end]
            if not first & _CONTROL:
                yield Data(first, payload, bool(flags & _FIN))
            elif (frame := self._control(first & _STREAM_ID, flags, payload)) is not None:
                yield frame

    def _control(self, version_and_kind: int, flags: int, payload: bytes) -> Frame | None:
        version, kind = divmod(version_and_kind, 1 << 16)
        if version != _VERSION:
            raise ProtocolError(f"version {version} is not supported")
        try:
            number = struct.unpack_from(">I", payload)[0] if kind in {*_HEADERS_OFFSET, _RST_STREAM, _PING} else 0
            # of all frames with headers, because they share the state of the compression
            headers = self._headers(payload[_HEADERS_OFFSET[kind] :]) if kind in _HEADERS_OFFSET else {}
        except (struct.error, zlib.error) as error:
            raise ProtocolError(str(error)) from error
        match kind:
            case 1:
                return SynStream(number & _STREAM_ID, headers, bool(flags & _FIN))
            case 3:
                return Reset(number & _STREAM_ID)
            case 6:
                return Ping(number)
            case 7:
                return GoAway()
        return None

    def _headers(self, compressed: bytes) -> dict[str, str]:
        """Of a header with several values, the first."""
        block = self._inflater.decompress(compressed, MAX_HEADERS)
        if len(block) >= MAX_HEADERS:
            raise ProtocolError("a header block is too large")
        (count,) = struct.unpack_from(">I", block)
        words, at = [], 4
        for _ in range(2 * count):
            (length,) = struct.unpack_from(">I", block, at)
            word = block[at + 4 : at + 4 + length]
            if len(word) < length:
                raise ProtocolError("a header block is too short")
            words.append(word.partition(b"\0")[0].decode("latin-1"))
            at += 4 + length
        return {name.lower(): value for name, value in zip(words[::2], words[1::2], strict=True)}


class Encoder:
    """Makes the frames of a server. SYN_REPLYs must be sent in the order in which they were made."""

    def __init__(self) -> None:
        # small, because no header is ever sent
        self._deflater = zlib.compressobj(wbits=9, memLevel=1, zdict=DICTIONARY)

    def syn_reply(self, stream: int) -> bytes:
        """Accepts a stream, without headers."""
        block = self._deflater.compress(struct.pack(">I", 0)) + self._deflater.flush(zlib.Z_SYNC_FLUSH)
        return _control(_SYN_REPLY, struct.pack(">I", stream) + block)


def encode_data(stream: int, data: bytes, *, fin: bool = False) -> bytes:
    """DATA."""
    return struct.pack(">II", stream, (_FIN if fin else 0) << 24 | len(data)) + data


def encode_reset(stream: int, status: int) -> bytes:
    """RST_STREAM."""
    return _control(_RST_STREAM, struct.pack(">II", stream, status))


def encode_ping(number: int) -> bytes:
    """PING, as an answer."""
    return _control(_PING, struct.pack(">I", number))


def encode_goaway(last_stream: int, status: int) -> bytes:
    """GOAWAY, with the last stream that was accepted."""
    return _control(_GOAWAY, struct.pack(">II", last_stream, status))


def _control(kind: int, payload: bytes) -> bytes:
    return struct.pack(">II", _CONTROL | _VERSION << 16 | kind, len(payload)) + payload
