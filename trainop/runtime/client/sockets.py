"""The sockets of connections to the API server."""

from __future__ import annotations

import os
import socket
import warnings

SOCKET_OPTIONS = tuple(
    (socket.IPPROTO_TCP, getattr(socket, name), value)
    for name, value in (
        ("TCP_KEEPIDLE", 15),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 30_000),
    )
    if hasattr(socket, name)  # availability depends on the system
)
"""TCP keepalive settings that detect a dead peer within 30 s (`TCP_USER_TIMEOUT` is in milliseconds)."""


class OwnedSocket(socket.socket):
    """A socket that, when it is garbage-collected, never closes a descriptor which has become something else's.

    If the server resets a connection at the moment it is made, uvloop closes the descriptor, and attaches the socket to
    the connection only afterwards (`loop.pyx`, `create_connection`, as of 0.23). So the socket does not learn that its
    descriptor is gone. It would close that number once more, which may be another connection by then: whoever reads
    from that would wait forever, and no new connection could be made.
    """

    def __init__(self, family: int, kind: int, protocol: int) -> None:
        super().__init__(family, kind, protocol)
        self._identity = _identity(self.fileno())

    def __del__(self) -> None:
        descriptor = self.detach()
        if descriptor >= 0 and _identity(descriptor) == self._identity:
            os.close(descriptor)  # first, since a warning may be an error
            warnings.warn(f"unclosed socket with descriptor {descriptor}", ResourceWarning, source=self, stacklevel=2)


def _identity(descriptor: int) -> tuple[int, int] | None:
    """What distinguishes an open file from a later one with the same descriptor; None if it is closed."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def keepalive_socket(address: tuple[int, int, int, str, tuple[object, ...]]) -> socket.socket:
    """A new socket for an address as of `socket.getaddrinfo`."""
    family, kind, protocol, _, _ = address
    made = OwnedSocket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for level, option, value in SOCKET_OPTIONS:
        made.setsockopt(level, option, value)
    return made
