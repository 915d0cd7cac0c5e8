"""Connects a command to the cluster of a kubeconfig, as kubectl does."""

from __future__ import annotations

import platform
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import trainop
from trainop.errors import StartError
from trainop.runtime import Client, ConfigError, HttpTransport, load_config
from trainop.runtime.lowlevel import ClusterConfig


@dataclass(frozen=True, slots=True)
class Connection:
    """A client with the user's own rights, and the namespace that applies where the command names none."""

    client: Client
    namespace: str
    server: str
    config: ClusterConfig | None = None
    """Of a cluster that is reached over the network."""
    now: datetime | None = None
    """Of a run that has ended: until when it is known."""


@asynccontextmanager
async def connect(kubeconfig: str | Path | None = None, context: str | None = None) -> AsyncIterator[Connection]:
    """Connects to the cluster of a kubeconfig's context. Raises `StartError` if none is configured, or if its
    certificates cannot be read; the first request shows whether the server can be reached."""
    try:
        config = load_config(str(kubeconfig) if kubeconfig else None, context)
        transport = HttpTransport(config)
    except ConfigError as error:
        raise StartError(str(error)) from None
    agent = f"trainop-cli/{trainop.__version__} ({platform.system().lower()}/{platform.machine()})"
    client = Client(transport, user_agent=agent, field_manager="trainop-cli")
    try:
        yield Connection(client, config.namespace or "default", config.server, config)
    finally:
        await transport.close()
