"""The framing of SPDY/3.1, with frames that are made from the drafts of the protocol."""

from __future__ import annotations

import os
import struct
import zlib

import pytest

from tests.local.node import spdy_client as client
from trainop.local.api.serving.spdy import (
    DICTIONARY,
    MAX_FRAME,
    MAX_HEADERS,
    Data,
    Decoder,
    Encoder,
    Frame,
    GoAway,
    Ping,
    ProtocolError,
    Reset,
    SynStream,
    encode_data,
    encode_goaway,
    encode_ping,
    encode_reset,
)

HEADERS = {"streamtype": "data", "port": "80", "requestid": "7"}


def test_the_dictionary_is_that_of_version_3():
    assert zlib.adler32(DICTIONARY) == 0xE3C6A7C2  # the DICTID that every peer sends


def sample() -> tuple[bytes, list[Frame]]:
    """Frames of each kind, and how they are understood."""
    compress = client.Compressor()
    sent = [
        client.control(client.SETTINGS, struct.pack(">III", 1, 4, 100)),
        compress.syn_stream(1, HEADERS),
        client.control(client.HEADERS, struct.pack(">I", 1) + compress(client.header_block({"a": "b"}))),
        client.control(client.WINDOW_UPDATE, struct.pack(">II", 1, 65536)),
        client.control(99, b"of a later version"),
        compress.syn_stream(3, {**HEADERS, "Port": "81\0second"}, client.FIN),
        client.data(1, b"hello"),
        client.data(1, b"", client.FIN),
        client.control(client.RST_STREAM, struct.pack(">II", 3, 5)),
        client.control(client.PING, struct.pack(">I", 5)),
        client.control(client.GOAWAY, struct.pack(">II", 3, 0)),
    ]
    understood: list[Frame] = [
        SynStream(1, HEADERS),
        SynStream(3, {**HEADERS, "port": "81"}, fin=True),
        Data(1, b"hello"),
        Data(1, b"", fin=True),
        Reset(3),
        Ping(5),
        GoAway(),
    ]
    return b"".join(sent), understood


@pytest.mark.parametrize("size", [1, 3, 8, 1000])
def test_frames_may_arrive_in_pieces(size: int):
    sent, understood = sample()
    decoder = Decoder()
    pieces = [sent[at : at + size] for at in range(0, len(sent), size)]
    assert [frame for piece in pieces for frame in decoder.feed(piece)] == understood


def bomb() -> bytes:
    return client.Compressor()(bytes(100_000_000))


def opening(block: bytes) -> bytes:
    return client.control(client.SYN_STREAM, bytes(10) + block)


VIOLATIONS = {
    "large frame": client.data(1, bytes(MAX_FRAME + 1))[:8],
    "short SYN_STREAM": client.control(client.SYN_STREAM, b"short"),
    "short RST_STREAM": client.control(client.RST_STREAM, b""),
    "short PING": client.control(client.PING, b"abc"),
    "other version": client.control(client.PING, bytes(4), version=2),
    "no headers": opening(b""),
    "not compressed": opening(b"not zlib"),
    "end of the compressed stream": opening(zlib.compress(bytes(4))) + opening(zlib.compress(bytes(4))),
    "too many headers": opening(client.Compressor()(struct.pack(">I", 0xFFFFFFFF))),
    "long name": opening(client.Compressor()(struct.pack(">II", 1, 0xFFFFFFFF))),
    "missing end of a name": opening(client.Compressor()(struct.pack(">II", 1, 9) + b"name")),
    "large headers": client.Compressor().syn_stream(1, {"a": "b" * MAX_HEADERS}),
}


@pytest.mark.parametrize("frame", VIOLATIONS.values(), ids=VIOLATIONS)
def test_a_violation_of_the_protocol_ends_the_connection(frame: bytes):
    with pytest.raises(ProtocolError):
        list(Decoder().feed(frame))


def test_a_compressed_bomb_is_not_expanded():
    with pytest.raises(ProtocolError):
        list(Decoder().feed(client.control(client.HEADERS, bytes(4) + bomb())))


def test_noise_is_never_more_than_a_violation():
    for _ in range(300):
        decoder = Decoder()
        noise = os.urandom(200)
        for start in (b"", b"\x80\x03\x00\x01\x00\x00\x00\x40", b"\x80\x03\x00\x08\x00\x00\x00\x09"):
            try:
                list(decoder.feed(start + noise))
            except ProtocolError:
                break


def test_what_a_server_sends():
    encoder, inflater = Encoder(), zlib.decompressobj(zdict=DICTIONARY)
    for stream in (1, 3):  # the second is understood only after the first
        reply = encoder.syn_reply(stream)
        kind, length, number = struct.unpack_from(">III", reply)
        assert (kind, length, number) == (0x80030002, len(reply) - 8, stream)
        assert inflater.decompress(reply[12:]) == bytes(4)
    assert encode_data(5, b"abc") == client.data(5, b"abc")
    assert encode_data(5, b"", fin=True) == client.data(5, b"", client.FIN)
    assert encode_reset(5, 3) == client.control(client.RST_STREAM, struct.pack(">II", 5, 3))
    assert encode_ping(7) == client.control(client.PING, struct.pack(">I", 7))
    assert encode_goaway(9, 1) == client.control(client.GOAWAY, struct.pack(">II", 9, 1))
