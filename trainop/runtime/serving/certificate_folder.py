"""The serving certificate of HTTPS servers, replaceable while they run.

`ServingCertificate` holds the TLS context. It is loaded either by `webhook.rotation` or by `CertificateFolder` from a
mounted Secret, such as cert-manager maintains. A new certificate is used for new handshakes; open connections stay.
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import structlog

from trainop.runtime.client.tls import load_pair
from trainop.runtime.clock import Clock, SystemClock
from trainop.runtime.metrics.metrics import Metrics
from trainop.runtime.serving.expiry import not_after

POLL_INTERVAL = 10.0
"""Seconds between two reads of the folder."""

log = structlog.get_logger(__name__)


class CertificateError(Exception):
    """The certificate and key cannot be loaded; the message is one line."""


class ServingCertificate:
    """A TLS server context whose certificate can be replaced.

    `context` stays the same object. `server_name` is the DNS name and `authority` (PEM) the CA bundle with which
    clients verify the certificate; None if unknown.
    """

    def __init__(self, *, server_name: str | None = None, client_ca: bytes | None = None) -> None:
        """`client_ca` (PEM) requires client certificates that are signed by that CA (mutual TLS)."""
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        if client_ca is not None:
            self.context.load_verify_locations(cadata=client_ca.decode())
            self.context.verify_mode = ssl.CERT_REQUIRED
        self.server_name = server_name
        self.authority: bytes | None = None
        self.mounted_authority: bytes | None = None
        """`ca.crt` of a mounted Secret: what clients are told. Self-checks do not rely on it."""
        self._pair: tuple[bytes, bytes] | None = None

    @property
    def loaded(self) -> bool:
        return self._pair is not None

    @property
    def identity(self) -> tuple[object, ...]:
        """Changes with what clients see and trust."""
        return self._pair, self.authority, self.server_name

    @property
    def expires(self) -> float:
        """The end of its validity in seconds since the epoch. Raises `ValueError` if none is loaded."""
        return not_after(self._pair[0] if self._pair else b"")

    def load(self, certificate: bytes, key: bytes) -> bool:
        """Replaces the pair (PEM); returns False if it is the current one.

        Raises `CertificateError` if the pair is invalid; the current pair is then kept.
        """
        if self._pair == (certificate, key):
            return False
        try:
            # Validated in a temporary context first: a failed load leaves a context with a certificate but no key.
            load_pair(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), certificate, key)
            load_pair(self.context, certificate, key)
        except (ssl.SSLError, ValueError) as error:
            raise CertificateError(f"certificate and key cannot be loaded: {error}") from error
        self._pair = (certificate, key)
        return True

    def client_context(self) -> ssl.SSLContext:
        """A client context for self-checks: trusts `authority`, or any certificate if that is unknown."""
        context = ssl.create_default_context(cadata=self.authority.decode() if self.authority else None)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # CA certificates of cert-controller have serial number 0
        if self.authority is None:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


class CertificateFolder:
    """A runnable that loads `tls.crt` and `tls.key` from a folder whenever they change.

    If files are missing or do not match, the last valid pair is kept (as in controller-runtime `pkg/certwatcher`).
    """

    def __init__(
        self,
        folder: Path,
        certificate: ServingCertificate,
        *,
        metrics: Metrics | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._folder = folder
        self._certificate = certificate
        self._metrics = metrics or Metrics()
        self._clock = clock or SystemClock()
        self._last_error = ""

    async def run(self) -> None:
        """Polls the folder until cancelled."""
        while True:
            await self.reload()
            await self._clock.sleep(POLL_INTERVAL)

    async def reload(self) -> None:
        """Reads the folder and loads the pair. Logs an error once, until it changes."""
        try:
            pair = await asyncio.to_thread(self._read)
            if self._certificate.load(*pair):
                log.info("serving certificate loaded", folder=str(self._folder))
                self._metrics.certificate_loaded(str(self._folder), self._certificate.expires)
            self._certificate.mounted_authority = await asyncio.to_thread(self._read_authority)
            self._last_error = ""
        except (OSError, CertificateError) as error:
            self._metrics.certificate_read_errors.inc()
            if str(error) != self._last_error:
                log.warning("cannot load serving certificate", folder=str(self._folder), error=str(error))
            self._last_error = str(error)

    def _read_authority(self) -> bytes | None:
        file = self._folder / "ca.crt"
        return file.read_bytes() if file.exists() else None

    def _read(self) -> tuple[bytes, bytes]:
        return (self._folder / "tls.crt").read_bytes(), (self._folder / "tls.key").read_bytes()
