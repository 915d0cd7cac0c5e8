"""The protocol between agent, supervisor and container inits: JSON lines and file descriptors over a Unix socket.

A message that carries descriptors states their number in `fds`. The descriptors arrive in message order, at the latest
with the end of the message's line. This module is the blocking side; `link.Link` is its asyncio counterpart.
"""

from __future__ import annotations

import json
import select
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]

_CHUNK = 65536
_MAX_DESCRIPTORS = 16


def encode(message: Message, fds: Sequence[int] = ()) -> bytes:
    """One line that includes the number of `fds`."""
    return json.dumps({**message, "fds": len(fds)} if fds else message).encode() + b"\n"


@dataclass(slots=True)
class Inbox:
    """Assembles messages from received chunks."""

    _buffer: bytearray = field(default_factory=bytearray)
    _fds: deque[int] = field(default_factory=deque)

    def feed(self, data: bytes, fds: Sequence[int]) -> Iterator[tuple[Message, list[int]]]:
        """Yields the messages that `data` completes, each with its descriptors."""
        self._buffer += data
        self._fds.extend(fds)
        while (end := self._buffer.find(b"\n")) >= 0:
            message: Message = json.loads(self._buffer[:end])
            del self._buffer[: end + 1]
            yield message, [self._fds.popleft() for _ in range(message.get("fds", 0))]


class Channel:
    """The blocking end of a channel, used by the supervisor and the inits."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._inbox = Inbox()

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Sends one message. Raises `BrokenPipeError` or `ConnectionError` if the peer has closed."""
        data = encode(message, fds)
        sent = socket.send_fds(self.socket, [data], fds) if fds else self.socket.send(data)
        if sent < len(data):  # the receiver may have closed its end after the whole message
            self.socket.sendall(data[sent:])

    def receive(self) -> list[tuple[Message, list[int]]] | None:
        """The messages completed by one read, possibly none; None if the peer has closed."""
        try:
            data, fds, _, _ = socket.recv_fds(self.socket, _CHUNK, _MAX_DESCRIPTORS)
        except ConnectionError:
            return None
        return list(self._inbox.feed(data, fds)) if data else None


def wait_readable(*fds: int) -> set[int]:
    """Blocks until at least one of `fds` is readable or closed by its peer, and returns those.

    Uses poll(2), which unlike select(2) has no limit on descriptor numbers.
    """
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll()}
