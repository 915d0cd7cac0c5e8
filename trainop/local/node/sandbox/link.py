"""The agent's end of a channel to the supervisor or an init: the asyncio counterpart of `channel.Channel`."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence

from trainop.local.node.sandbox.channel import Inbox, Message, encode

_CHUNK = 65536
_MAX_DESCRIPTORS = 16


class Link:
    """Calls `on_message` for each received message and `on_close` once when either side closes the channel."""

    def __init__(
        self,
        sock: socket.socket,
        on_message: Callable[[Message, list[int]], None],
        on_close: Callable[[], None],
    ) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._on_message = on_message
        self._on_close = on_close
        self._inbox = Inbox()
        self._outbox: deque[tuple[bytes, Sequence[int]]] = deque()
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._loop.add_reader(sock.fileno(), self._read)

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Queues a message without blocking; ignored if the channel is closed.

        `fds` must stay open until the peer has replied.
        """
        if not self._closed:
            self._outbox.append((encode(message, fds), fds))
            self._write()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()
            self._on_close()

    def _read(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, _CHUNK, _MAX_DESCRIPTORS)
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        for message, received_fds in self._inbox.feed(data, fds):
            self._on_message(message, received_fds)
        if not data:
            self.close()

    def _write(self) -> None:
        """Sends queued messages until the socket would block; descriptors go with the first part of a message."""
        while self._outbox:
            data, fds = self._outbox[0]
            try:
                sent = socket.send_fds(self._socket, [data], fds) if fds else self._socket.send(data)
            except BlockingIOError:
                self._loop.add_writer(self._socket.fileno(), self._write)
                return
            except OSError:
                self.close()
                return
            if sent < len(data):
                self._outbox[0] = (data[sent:], ())
            else:
                self._outbox.popleft()
        self._loop.remove_writer(self._socket.fileno())
