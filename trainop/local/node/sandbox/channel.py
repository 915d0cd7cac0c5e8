"""Messages between the agent, the supervisor and the inits: JSON lines over a Unix stream socket, with descriptors.

A message that carries descriptors says how many in `fds`; they arrive in order, no later than the end of its line.
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
_MOST_DESCRIPTORS = 16


def encode(message: Message, fds: Sequence[int] = ()) -> bytes:
    """One line; `fds` are announced in it."""
    return json.dumps({**message, "fds": len(fds)} if fds else message).encode() + b"\n"


@dataclass(slots=True)
class Inbox:
    """Puts messages together from what arrives."""

    _buffer: bytearray = field(default_factory=bytearray)
    _fds: deque[int] = field(default_factory=deque)

    def feed(self, data: bytes, fds: Sequence[int]) -> Iterator[tuple[Message, list[int]]]:
        """The messages that `data` completes, each with its descriptors."""
        self._buffer += data
        self._fds.extend(fds)
        while (end := self._buffer.find(b"\n")) >= 0:
            message: Message = json.loads(self._buffer[:end])
            del self._buffer[: end + 1]
            yield message, [self._fds.popleft() for _ in range(message.get("fds", 0))]


class Channel:
    """The blocking end of the fork side."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._inbox = Inbox()

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Raises `BrokenPipeError` or `ConnectionError` when the other end is gone."""
        data = encode(message, fds)
        sent = socket.send_fds(self.socket, [data], fds) if fds else self.socket.send(data)
        self.socket.sendall(data[sent:])

    def receive(self) -> list[tuple[Message, list[int]]] | None:
        """What one read brings, perhaps nothing whole yet; None when the other end is gone."""
        try:
            data, fds, _, _ = socket.recv_fds(self.socket, _CHUNK, _MOST_DESCRIPTORS)
        except ConnectionError:
            return None
        return list(self._inbox.feed(data, fds)) if data else None


def wait_readable(*fds: int) -> set[int]:
    """Those of `fds` that can be read from, or whose other end is gone; waits for one. Any number of descriptors."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll()}
