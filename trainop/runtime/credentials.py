"""Tokens: given once, kept in a file that changes, or fetched by the login library."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import structlog

from trainop.runtime.clock import Clock
from trainop.runtime.cluster import Proof
from trainop.runtime.transport import NotConnectedError

TOKEN_AGE = 50.0
"""Seconds after which a token file is read again: kubelets renew tokens long before they expire."""

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

    def refused(self) -> bool:
        return False


class TokenFile:
    """A token that somebody else renews in place. An unreadable or empty file leaves the last token in use."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._proof: Proof | None = None
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()

    async def proof(self) -> Proof:
        if self._proof is not None and self._fresh():
            return self._proof
        async with self._reading:
            if self._proof is None or not self._fresh():
                await self._read()
        if self._proof is None:
            raise NotConnectedError(f"{self._path}: no token there")
        return self._proof

    def refused(self) -> bool:
        self._read_at = float("-inf")
        return True

    def _fresh(self) -> bool:
        return self._clock.monotonic() - self._read_at < TOKEN_AGE

    async def _read(self) -> None:
        try:
            token = (await asyncio.to_thread(self._path.read_text)).strip()
        except OSError as error:
            log.warning("token file cannot be read", path=str(self._path), error=str(error))
            token = ""
        if token:
            self._proof = bearer(token)
            self._read_at = self._clock.monotonic()


class LibraryCredentials:
    """Legacy `auth-provider` users (OIDC, GCP): kubernetes_asyncio logs in and refreshes.

    Imported only here and only then: the import costs 36 MiB.
    """

    def __init__(self, path: Path, context: str, clock: Clock) -> None:
        self._path = path
        self._context = context
        self._clock = clock
        self._proof: Proof | None = None
        self._asked_at = float("-inf")
        self._asking = asyncio.Lock()

    async def proof(self) -> Proof:
        async with self._asking:
            if self._proof is None or self._clock.monotonic() - self._asked_at >= TOKEN_AGE:
                self._proof = await self._ask()
                self._asked_at = self._clock.monotonic()
            return self._proof

    def refused(self) -> bool:
        self._asked_at = float("-inf")
        return True

    async def _ask(self) -> Proof:
        from kubernetes_asyncio import client, config  # noqa: PLC0415  # 36 MiB, only for those who need it

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
        return Proof({"authorization": str(authorization)})
