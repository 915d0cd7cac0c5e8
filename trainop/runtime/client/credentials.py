"""Credentials that authenticate by header: static ones, token files that are reread, and legacy `auth-provider` logins.

Credentials from exec plugins are in `execplugin.py`.
"""

from __future__ import annotations

import abc
import asyncio
import base64
import math
from collections.abc import Callable
from pathlib import Path

import structlog

from trainop.runtime.client.cluster import AuthHeaders, ConfigError
from trainop.runtime.client.transport import NotConnectedError
from trainop.runtime.clock import Clock

TOKEN_TTL = 50.0
"""Seconds after which a token file is reread. Kubelets renew tokens long before they expire."""

FAILURE_TTL = 1.0
"""Seconds for which a failure to fetch credentials is returned to further callers, without another try."""

MIN_RENEWAL_INTERVAL = 10.0
"""Minimum seconds between two renewals that a 401 has caused."""

log = structlog.get_logger(__name__)


def bearer(token: str) -> AuthHeaders:
    """The headers for a bearer token."""
    return AuthHeaders({"authorization": f"Bearer {token}"})


class StaticCredentials:
    """Credentials that never change."""

    def __init__(self, auth: AuthHeaders) -> None:
        self._auth = auth

    @classmethod
    def token(cls, token: str) -> StaticCredentials:
        return cls(bearer(token))

    @classmethod
    def basic(cls, username: str, password: str) -> StaticCredentials:
        encoded = base64.b64encode(f"{username}:{password}".encode()).decode()
        return cls(AuthHeaders({"authorization": f"Basic {encoded}"}))

    async def auth_headers(self) -> AuthHeaders:
        return self._auth

    def refused(self, _auth: AuthHeaders) -> bool:
        return False


class SharedCredentials(abc.ABC):
    """Base of credentials that are fetched and expire. Concurrent callers share one fetch, including its failure."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._auth: AuthHeaders | None = None
        self._until = -math.inf
        self._refused_at = -math.inf
        self._failure: NotConnectedError | None = None
        self._failed_at = -math.inf
        self._renewing = asyncio.Lock()

    @abc.abstractmethod
    async def fetch(self) -> tuple[AuthHeaders, float]:
        """Fetches headers; returns them with the seconds for which they are valid. Raises `NotConnectedError`."""

    async def auth_headers(self) -> AuthHeaders:
        if self._auth is not None and self._clock.monotonic() < self._until:
            return self._auth
        asked = self._clock.monotonic()
        async with self._renewing:
            if self._auth is not None and self._clock.monotonic() < self._until:
                return self._auth
            failed_since = self._failed_at > asked or self._clock.monotonic() - self._failed_at < FAILURE_TTL
            if self._failure is not None and failed_since:
                raise NotConnectedError(str(self._failure)) from self._failure
            return await self._renew()

    async def _renew(self) -> AuthHeaders:
        try:
            self._auth, lifetime = await self.fetch()
        except NotConnectedError as error:
            self._failure, self._failed_at = error, self._clock.monotonic()
            raise
        self._failure = None
        self._until = self._clock.monotonic() + lifetime
        return self._auth

    def refused(self, auth: AuthHeaders) -> bool:
        """Expires the current headers if they are `auth`, at most once per `MIN_RENEWAL_INTERVAL`, so that a server
        that answers 401 to everything does not cause endless renewals."""
        if auth is not self._auth or self._until == -math.inf:
            return True  # a 401 to another request has already caused a renewal
        if self._clock.monotonic() - self._refused_at < MIN_RENEWAL_INTERVAL:
            return False
        self._refused_at = self._clock.monotonic()
        self._until = -math.inf
        return True


class TokenText(SharedCredentials):
    """A bearer token that is renewed from outside and reread with `read`. While it is unreadable or empty, the last
    token stays in use."""

    def __init__(self, read: Callable[[], str], where: str, clock: Clock) -> None:
        """`read` returns the current token and may raise `OSError` or `ConfigError`; `where` is the path for logs."""
        super().__init__(clock)
        self._read = read
        self._where = where

    async def fetch(self) -> tuple[AuthHeaders, float]:
        try:
            token = (await asyncio.to_thread(self._read)).strip()
        except (OSError, ValueError, ConfigError) as error:
            log.warning("token file cannot be read", path=self._where, error=str(error))
            token = ""
        if token:
            auth = bearer(token)
            return self._auth if self._auth == auth else auth, TOKEN_TTL
        if self._auth is None:
            raise NotConnectedError(f"{self._where}: contains no token")
        return self._auth, 0.0

    def refused(self, auth: AuthHeaders) -> bool:
        """Rereads the token without a minimum interval: reading a file is cheap."""
        if auth is self._auth:
            self._until = -math.inf
        return True


class TokenFile(TokenText):
    """A bearer token in a file, such as that of a service account."""

    def __init__(self, path: Path, clock: Clock) -> None:
        super().__init__(path.read_text, str(path), clock)


class AuthProviderCredentials(SharedCredentials):
    """Credentials of legacy `auth-provider` users (OIDC, GCP), whose login and refresh kubernetes_asyncio does.

    It is imported only here, because the import costs 36 MiB, and installed by the extra `legacy-auth`.
    """

    def __init__(self, path: Path, context: str, clock: Clock) -> None:
        """Raises `ConfigError` if kubernetes_asyncio is not installed."""
        try:
            import kubernetes_asyncio  # noqa: F401, PLC0415  # the import costs 36 MiB
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"{path}: the auth-provider of context {context!r} needs kubernetes-asyncio: "
                "install the extra legacy-auth of this package"
            ) from error
        super().__init__(clock)
        self._path = path
        self._context = context

    async def fetch(self) -> tuple[AuthHeaders, float]:
        from kubernetes_asyncio import client, config  # noqa: PLC0415  # as above

        configuration = client.Configuration()
        try:
            await config.load_kube_config(
                config_file=str(self._path), context=self._context, client_configuration=configuration
            )
        except (config.ConfigException, OSError, ValueError, KeyError) as error:
            raise NotConnectedError(f"{self._path}: login of context {self._context!r} failed: {error}") from error
        authorization = configuration.api_key.get("BearerToken")
        if not authorization:
            raise NotConnectedError(f"{self._path}: login of context {self._context!r} gave no token")
        return AuthHeaders({"authorization": str(authorization)}), TOKEN_TTL
