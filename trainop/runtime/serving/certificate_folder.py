"""The certificate of our own HTTPS servers, exchanged while they run.

`ServingCertificate` holds the TLS context; what fills it is the rotator (`rotation.py`) or a mounted folder
(`CertificateFolder`), as cert-manager writes it. New handshakes see a new certificate, open connections go on.
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import structlog

from trainop.runtime.client.tls import load_pair
from trainop.runtime.clock import Clock, SystemClock
from trainop.runtime.metrics.metrics import Metrics

POLL_INTERVAL = 10.0

log = structlog.get_logger(__name__)


class CertificateError(Exception):
    """A certificate and key that cannot be served: one line."""


class ServingCertificate:
    """`context` is for servers and stays the same object. `server_name` and `authority` (PEM) are what clients check
    with, as far as that is known."""

    def __init__(self, *, server_name: str | None = None, client_ca: bytes | None = None) -> None:
        """`client_ca` (PEM) makes clients show a certificate of that authority (mutual TLS)."""
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        if client_ca is not None:
            self.context.load_verify_locations(cadata=client_ca.decode())
            self.context.verify_mode = ssl.CERT_REQUIRED
        self.server_name = server_name
        self.authority: bytes | None = None
        self._pair: tuple[bytes, bytes] | None = None

    @property
    def loaded(self) -> bool:
        return self._pair is not None

    def load(self, certificate: bytes, key: bytes) -> bool:
        """Serves this pair (PEM) from now on; false if it is the one served already. Raises `CertificateError`, and
        then the old one stays."""
        if self._pair == (certificate, key):
            return False
        try:
            # A context that failed half-way would serve a certificate without its key: the first try is not its.
            load_pair(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), certificate, key)
            load_pair(self.context, certificate, key)
        except (ssl.SSLError, ValueError) as error:
            raise CertificateError(f"certificate and key cannot be served: {error}") from error
        self._pair = (certificate, key)
        return True

    def client_context(self) -> ssl.SSLContext:
        """For a connection to ourselves: trusts what our clients are told to trust."""
        context = ssl.create_default_context(cadata=self.authority.decode() if self.authority else None)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # authorities of cert-controller have serial number 0
        if self.authority is None:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


class CertificateFolder:
    """Keeps a `ServingCertificate` up to date with `tls.crt` and `tls.key` in a folder; runs beside the server.

    Files that are missing or do not match leave the last good pair in place (controller-runtime `pkg/certwatcher`).
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
        self._told = ""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.reload()
            await self._clock.sleep(POLL_INTERVAL)

    async def reload(self) -> None:
        """Reads the folder now."""
        try:
            pair = await asyncio.to_thread(self._read)
            if self._certificate.load(*pair):
                log.info("serving certificate loaded", folder=str(self._folder))
                self._metrics.certificate_reads.inc()
            self._told = ""
        except (OSError, CertificateError) as error:
            self._metrics.certificate_read_errors.inc()
            if str(error) != self._told:
                log.warning("serving certificate cannot be loaded", folder=str(self._folder), error=str(error))
            self._told = str(error)

    def _read(self) -> tuple[bytes, bytes]:
        return (self._folder / "tls.crt").read_bytes(), (self._folder / "tls.key").read_bytes()
