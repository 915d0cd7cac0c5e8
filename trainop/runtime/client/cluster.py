"""One API server and one identity, as values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

Pem: TypeAlias = bytes | Path | Callable[[], bytes]
"""PEM text, the file that holds it and may change, or a function that reads it now (and raises `OSError` or
`ConfigError`)."""


class ConfigError(Exception):
    """The configuration cannot be used: one line with what is wrong, where, and what would be right."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What shows who we are: headers, and a client certificate with its key (PEM) if the credentials bring one."""

    headers: Mapping[str, str] = field(repr=False)
    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)


class Credentials(Protocol):
    """Where a `Proof` comes from; it may change over time."""

    async def proof(self) -> Proof:
        """Cached while it holds; raises `NotConnectedError` if none can be had now."""
        ...

    def refused(self, proof: Proof) -> bool:
        """The server answered 401 to `proof`, which is forgotten if it is still the one in use; true if asking again
        may give something else."""
        ...


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """One API server and one identity. `server` is a URL, with a path behind some proxies; `headers` go with every
    request (impersonation)."""

    server: str
    credentials: Credentials | None = None
    ca: Pem | None = None
    client_certificate: Pem | None = None
    client_key: Pem | None = field(default=None, repr=False)
    insecure: bool = False
    tls_server_name: str | None = None
    proxy: str | None = field(default=None, repr=False)
    """May hold a password."""
    namespace: str = "default"
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
