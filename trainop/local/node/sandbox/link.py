"""The agent's end of a channel to the fork side: what `channel.Channel` is there, on the event loop."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence

from trainop.local.node.sandbox.channel import Inbox, Message, encode

_CHUNK = 65536
_MOST_DESCRIPTORS = 16


class Link:
    """Hands each message to `on_message` and tells the end once by `on_close`; both are plain functions."""

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
        """Never blocks; `fds` must stay open until the other end answers. Nothing happens if it is gone."""
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
            data, fds, _, _ = socket.recv_fds(self._socket, _CHUNK, _MOST_DESCRIPTORS)
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        for message, given in self._inbox.feed(data, fds):
            self._on_message(message, given)
        if not data:
            self.close()

    def _write(self) -> None:
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
