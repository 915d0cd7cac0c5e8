"""What stands in front of two API servers: a load balancer of TCP connections, and a client that asks both in turn."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

from e2e.cluster.api import Answer, Api

CHUNK = 65_536


class Balancer:
    """Passes each connection to its port of loopback on to the next of the servers that accept one."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = tuple(ports)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._turn = 0
        self.passed: Counter[int] = Counter()
        """Connections by the port of their server."""
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def cut(self) -> None:
        """End all connections; those that follow go to the next server, so that most clients change theirs."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            _end(*pair)
        self._turn += 1

    def close(self) -> None:
        _end(self._listener)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            if (server := self._connect()) is None:
                return
            with server:
                with self._lock:
                    self._pairs.append((client, server))
                back = threading.Thread(target=_pass_on, args=(server, client), daemon=True)
                back.start()
                _pass_on(client, server)
                back.join()

    def _connect(self) -> socket.socket | None:
        for _ in self._ports:
            with self._lock:
                self._turn += 1
                port = self._ports[self._turn % len(self._ports)]
            with contextlib.suppress(OSError):
                server = socket.create_connection(("127.0.0.1", port))
                self.passed[port] += 1
                return server
        return None


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK):
            target.sendall(data)
    _end(source, target)


def _end(*ends: socket.socket) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


class InTurn(Api):
    """A client that sends each request to the next of the servers."""

    def __init__(self, *apis: Api) -> None:
        self._apis = itertools.cycle(apis)

    def __call__(self, *arguments: Any, **named: Any) -> Answer:
        return next(self._apis)(*arguments, **named)
