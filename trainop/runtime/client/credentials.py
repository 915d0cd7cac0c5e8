"""Tokens: given once, kept in a file that changes, or fetched by the login library."""

from __future__ import annotations

import abc
import asyncio
import base64
import math
from collections.abc import Callable
from pathlib import Path

import structlog

from trainop.runtime.client.cluster import ConfigError, Proof
from trainop.runtime.client.transport import NotConnectedError
from trainop.runtime.clock import Clock

TOKEN_AGE = 50.0
"""Seconds after which a token file is read again: kubelets renew tokens long before they expire."""

FAILED_FOR = 1.0
"""Seconds for which a failure answers whoever asks."""

REFUSED_AGAIN = 10.0
"""Seconds between two times that refused credentials are had anew."""

log = structlog.get_logger(__name__)


def bearer(token: str) -> Proof:
    return Proof({"authorization": f"Bearer {token}"})


class StaticCredentials:
    """The same proof for ever."""

    def __init__(self, proof: Proof) -> None:
        self._proof = proof

    @classmethod
    def token(cls, token: str) -> StaticCredentials:
        return cls(bearer(token))

    @classmethod
    def basic(cls, username: str, password: str) -> StaticCredentials:
        return cls(Proof({"authorization": "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()}))

    async def proof(self) -> Proof:
        return self._proof

    def refused(self, _proof: Proof) -> bool:
        return False


class SharedCredentials(abc.ABC):
    """Credentials that take time to get: all who need them at the same time share one try, also if it fails."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._proof: Proof | None = None
        self._until = -math.inf
        self._refused_at = -math.inf
        self._failure: NotConnectedError | None = None
        self._failed_at = -math.inf
        self._renewing = asyncio.Lock()

    @abc.abstractmethod
    async def fetch(self) -> tuple[Proof, float]:
        """What to show, and for how many seconds; raises `NotConnectedError`."""

    async def proof(self) -> Proof:
        if self._proof is not None and self._clock.monotonic() < self._until:
            return self._proof
        asked = self._clock.monotonic()
        async with self._renewing:
            if self._proof is not None and self._clock.monotonic() < self._until:
                return self._proof
            failed_since = self._failed_at > asked or self._clock.monotonic() - self._failed_at < FAILED_FOR
            if self._failure is not None and failed_since:
                raise NotConnectedError(str(self._failure)) from self._failure
            return await self._renew()

    async def _renew(self) -> Proof:
        try:
            self._proof, lifetime = await self.fetch()
        except NotConnectedError as error:
            self._failure, self._failed_at = error, self._clock.monotonic()
            raise
        self._failure = None
        self._until = self._clock.monotonic() + lifetime
        return self._proof

    def refused(self, proof: Proof) -> bool:
        """Only what was refused is had anew, and not at once again: a server that refuses everything is not asked with
        ever new credentials."""
        if proof is not self._proof or self._until == -math.inf:
            return True  # another request was refused before: a newer one is there or on its way
        if self._clock.monotonic() - self._refused_at < REFUSED_AGAIN:
            return False
        self._refused_at = self._clock.monotonic()
        self._until = -math.inf
        return True


class TokenText(SharedCredentials):
    """A token that somebody else renews in place, which `read` reads. One that is unreadable or empty leaves the last
    one in use."""

    def __init__(self, read: Callable[[], str], where: str, clock: Clock) -> None:
        """`read` raises `OSError` or `ConfigError`; `where` is for logs."""
        super().__init__(clock)
        self._read = read
        self._where = where

    async def fetch(self) -> tuple[Proof, float]:
        try:
            token = (await asyncio.to_thread(self._read)).strip()
        except (OSError, ValueError, ConfigError) as error:
            log.warning("token file cannot be read", path=self._where, error=str(error))
            token = ""
        if token:
            proof = bearer(token)
            return self._proof if self._proof == proof else proof, TOKEN_AGE
        if self._proof is None:
            raise NotConnectedError(f"{self._where}: no token there")
        return self._proof, 0.0

    def refused(self, proof: Proof) -> bool:
        """A file is quickly read."""
        if proof is self._proof:
            self._until = -math.inf
        return True


class TokenFile(TokenText):
    """A token in a file, such as that of a service account."""

    def __init__(self, path: Path, clock: Clock) -> None:
        super().__init__(path.read_text, str(path), clock)


class LibraryCredentials(SharedCredentials):
    """Legacy `auth-provider` users (OIDC, GCP): kubernetes_asyncio logs in and refreshes.

    It is imported only here, because the import costs 36 MiB, and installed by the extra `legacy-auth`.
    """

    def __init__(self, path: Path, context: str, clock: Clock) -> None:
        """Raises `ConfigError` if kubernetes_asyncio is not installed."""
        try:
            import kubernetes_asyncio  # noqa: F401, PLC0415  # 36 MiB, only for those who need it
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"{path}: the auth-provider of context {context!r} needs kubernetes-asyncio: "
                "install the extra legacy-auth of this package"
            ) from error
        super().__init__(clock)
        self._path = path
        self._context = context

    async def fetch(self) -> tuple[Proof, float]:
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
        return Proof({"authorization": str(authorization)}), TOKEN_AGE
