"""Messages with descriptors between the agent and the fork side."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

from tests.patience import PATIENCE
from trainop.local.node.sandbox.channel import Channel, Inbox, encode, wait_readable
from trainop.local.node.sandbox.link import Link


def test_messages_are_put_together_from_any_pieces() -> None:
    inbox = Inbox()
    data = encode({"a": 1}) + encode({"b": 2}, [7, 8]) + encode({"c": "ü"}, [9])
    found: list[Any] = []
    for at in range(len(data)):
        # The kernel hands descriptors over with the first byte of the message that carries them, or later.
        fds = {len(encode({"a": 1})): [7, 8], len(data) - 1: [9]}.get(at, [])
        found += inbox.feed(data[at : at + 1], fds)
    assert found == [({"a": 1}, []), ({"b": 2, "fds": 2}, [7, 8]), ({"c": "ü", "fds": 1}, [9])]


def test_descriptors_arrive_with_their_message() -> None:
    here, there = (Channel(sock) for sock in socket.socketpair())
    reader, writer = os.pipe()
    here.send({"op": "take"}, [writer])
    os.close(writer)
    ((message, (fd,)),) = there.receive() or []
    assert message["op"] == "take"
    os.write(fd, b"x")
    assert os.read(reader, 10) == b"x"
    os.close(fd)
    os.close(reader)
    here.socket.close()
    assert there.fileno() in wait_readable(there.fileno())
    assert there.receive() is None
    there.socket.close()


async def test_a_message_larger_than_the_sockets_buffer_arrives_whole() -> None:
    ours, theirs = socket.socketpair()
    closed = asyncio.Event()
    link = Link(ours, lambda message, fds: None, closed.set)
    link.send({"text": "x" * 2_000_000})
    link.send({"last": True})
    channel = Channel(theirs)

    def read_all() -> list[Any]:
        found: list[Any] = []
        while not (found and found[-1].get("last")):
            found += [message for message, _ in channel.receive() or []]
        return found

    first, last = await asyncio.to_thread(read_all)
    assert len(first["text"]) == 2_000_000
    assert last == {"last": True}
    theirs.close()
    await asyncio.wait_for(closed.wait(), PATIENCE)
    link.send({"nobody": "hears"})
