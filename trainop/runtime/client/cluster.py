"""The configuration of one API server and one identity, and the interface of credentials.

`auth.load_config` builds a `ClusterConfig`; `HttpTransport` uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

Pem: TypeAlias = bytes | Path | Callable[[], bytes]
"""PEM text, a file that is reread when it changes, or a function that returns the current text (and may raise `OSError`
or `ConfigError`)."""


class ConfigError(Exception):
    """The cluster configuration is invalid. The message is one line: the place, the problem and the expected value."""


@dataclass(frozen=True, slots=True)
class AuthHeaders:
    """Authenticates requests: HTTP headers, and a client certificate with its key (PEM) if the credentials include
    one."""

    headers: Mapping[str, str] = field(repr=False)
    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)


class Credentials(Protocol):
    """Source of `AuthHeaders`, which may be renewed over time."""

    async def auth_headers(self) -> AuthHeaders:
        """The current headers, cached while they are valid. Raises `NotConnectedError` if none are available."""
        ...

    def refused(self, auth: AuthHeaders) -> bool:
        """Reports that the server answered 401 to `auth`, which is discarded if it is still in use. Returns whether
        `auth_headers` may now return different ones, so that a retry makes sense."""
        ...


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """One API server and one identity. `server` is its URL, which may include a path; `headers` are sent with every
    request (impersonation). Without `ca`, the system's certificate authorities are trusted."""

    server: str
    credentials: Credentials | None = None
    ca: Pem | None = None
    client_certificate: Pem | None = None
    client_key: Pem | None = field(default=None, repr=False)
    insecure: bool = False
    tls_server_name: str | None = None
    proxy: str | None = field(default=None, repr=False)
    """URL of an HTTP proxy. Left out of `repr` because it may contain a password."""
    namespace: str = "default"
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
