"""Connections that a program has configured with kubernetes_asyncio. The library is not imported, which costs 37 MiB:
its objects are only read."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from trainop.runtime.client.cluster import AuthHeaders, ClusterConfig, ConfigError
from trainop.runtime.client.credentials import TOKEN_TTL, SharedCredentials
from trainop.runtime.client.proxy import proxy_for
from trainop.runtime.client.transport import NotConnectedError
from trainop.runtime.clock import Clock, SystemClock


class LibraryConfiguration(Protocol):
    """`kubernetes_asyncio.client.Configuration`, as type checkers see it."""

    @property
    def host(self) -> str | None: ...
    async def auth_settings(self) -> dict[Any, Any]: ...


class LibraryClient(Protocol):
    """`kubernetes_asyncio.client.ApiClient`, as type checkers see it."""

    @property
    def configuration(self) -> LibraryConfiguration: ...
    @property
    def default_headers(self) -> Mapping[str, str]: ...


ConnectionSource: TypeAlias = ClusterConfig | LibraryConfiguration | LibraryClient
"""What describes a connection: the result of `load_config`, or a `Configuration` or `ApiClient` of
kubernetes_asyncio."""


class LibraryCredentials(SharedCredentials):
    """The headers of a configuration, asked for again after 50 s and after a 401: its `refresh_api_key_hook` may have a
    new token by then."""

    def __init__(self, configuration: LibraryConfiguration, clock: Clock) -> None:
        super().__init__(clock)
        self._configuration = configuration

    async def fetch(self) -> tuple[AuthHeaders, float]:
        # The hook is code of the program and may raise anything; a login that fails is tried again.
        settings: Any = (await asyncio.gather(self._configuration.auth_settings(), return_exceptions=True))[0]
        if isinstance(settings, Exception):
            text = f"{self._configuration.host}: kubernetes_asyncio gives no credentials: {settings!r}"
            raise NotConnectedError(text) from settings
        if isinstance(settings, BaseException):
            raise settings
        used = (each for each in settings.values() if each.get("in") == "header" and each.get("value"))
        auth = AuthHeaders({str(each["key"]).lower(): str(each["value"]) for each in used})
        return self._auth if self._auth == auth else auth, TOKEN_TTL


def cluster_config(
    source: ConnectionSource, *, clock: Clock | None = None, environ: Mapping[str, str] | None = None
) -> ClusterConfig:
    """The connection that `source` describes. Files of certificates are read again when they change. Of an `ApiClient`,
    the default headers are sent too, except the user agent; its connections are not used. The namespace is that of the
    service account if the CA is in its folder. Raises `TypeError` for anything else, and `ConfigError` for headers of
    a proxy."""
    if isinstance(source, ClusterConfig):
        return source
    configuration: Any = getattr(source, "configuration", source)
    if not inspect.iscoroutinefunction(getattr(configuration, "auth_settings", None)):
        raise TypeError(
            "expected a ClusterConfig of load_config, or a Configuration or ApiClient of kubernetes_asyncio, "
            f"not {type(source).__name__}"
        )
    if configuration.proxy_headers:
        raise ConfigError("proxy_headers of the Configuration are not supported; put user and password into proxy")
    ca = _path(configuration.ssl_ca_cert)
    return ClusterConfig(
        server=configuration.host,
        credentials=LibraryCredentials(configuration, clock or SystemClock()),
        ca=ca,
        client_certificate=_path(configuration.cert_file),
        client_key=_path(configuration.key_file),
        insecure=not configuration.verify_ssl,
        tls_server_name=configuration.tls_server_name,
        proxy=configuration.proxy or proxy_for(configuration.host, os.environ if environ is None else environ),
        namespace=_namespace_beside(ca),
        headers=tuple(
            (name, str(value))
            for name, value in getattr(source, "default_headers", {}).items()
            if name.lower() != "user-agent"
        ),
    )


def _path(name: str | None) -> Path | None:
    return Path(name) if name else None


def _namespace_beside(ca: Path | None) -> str:
    """That of a pod, whose service account is a folder with `ca.crt`, `token` and `namespace`."""
    file = ca.parent / "namespace" if ca is not None and (ca.parent / "token").is_file() else None
    return file.read_text(encoding="utf-8").strip() if file is not None and file.is_file() else "default"
