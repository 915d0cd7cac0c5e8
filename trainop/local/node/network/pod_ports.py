"""Connections from the node to programs in pods, as `kubectl port-forward` makes them.

Source: containerd `internal/cri/server/sandbox_portforward_linux.go`, which connects to localhost in the pod's network.
"""

from __future__ import annotations

import asyncio
import os
from typing import Literal

from trainop.local.node.sandbox.sandbox import ContainerRuntime

_LOCALHOST: list[tuple[Literal["tcp", "tcp6"], str]] = [("tcp", "127.0.0.1"), ("tcp6", "::1")]


async def connect_to_port(
    runtime: ContainerRuntime, pod: str, address: str, port: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to a port of the pod with this UID and address. Raises `OSError`.

    In mode `addresses` it goes to the pod's address only: localhost is shared by all pods, and the client of a
    port-forward itself listens there.
    """
    if runtime.network == "addresses":
        return await _connect(runtime, "tcp", "", address, port)
    errors: list[OSError] = []
    for kind, localhost in _LOCALHOST:
        try:
            return await _connect(runtime, kind, pod, localhost, port)
        except OSError as error:
            errors.append(error)
    raise errors[0]


async def _connect(
    runtime: ContainerRuntime, kind: Literal["tcp", "tcp6"], pod: str, address: str, port: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    sock = await runtime.make_socket(kind, pod=pod)
    try:
        await asyncio.get_running_loop().sock_connect(sock, (address, port))
        return await asyncio.open_connection(sock=sock)
    except OSError as error:
        sock.close()
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        raise OSError(f"failed to connect to port {port} of {address} in the pod: {reason}") from error
    except BaseException:
        sock.close()
        raise
