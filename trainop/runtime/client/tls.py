"""TLS client contexts from PEM certificates and keys, which are compared by content to detect rotation."""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from trainop.runtime.client.cluster import AuthHeaders, ClusterConfig, ConfigError, Pem


@dataclass(frozen=True, slots=True)
class Material:
    """Certificates and key (PEM) for a TLS context. A new context is only needed if they differ."""

    ca: bytes | None
    certificate: bytes | None
    key: bytes | None = field(repr=False)


def read_material(config: ClusterConfig, auth: AuthHeaders | None) -> Material:
    """Reads the current certificates and key. A client certificate in `auth` takes precedence over the configuration.
    Raises `OSError` or `ConfigError`."""
    if auth is not None and auth.certificate:
        return Material(_bytes(config.ca), auth.certificate, auth.key)
    return Material(_bytes(config.ca), _bytes(config.client_certificate), _bytes(config.client_key))


def _bytes(pem: Pem | None) -> bytes | None:
    if callable(pem):
        return pem()
    if not isinstance(pem, Path):
        return pem
    content = pem.read_bytes()
    if not content.strip():
        # The file is probably being written. "No CA" would mean trusting the system's authorities instead.
        raise ConfigError(f"{pem}: the file is empty; it must hold PEM text")
    return content


def tls_context(config: ClusterConfig, material: Material) -> ssl.SSLContext:
    """Builds a context that trusts the cluster's CA, or the system's authorities if there is none. Raises `ConfigError`
    for invalid certificates or keys."""
    try:
        context = ssl.create_default_context(cadata=material.ca.decode() if material.ca else None)
        # Python 3.13 rejects CAs without key identifiers, which many clusters have.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if config.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if material.certificate:
            load_pair(context, material.certificate, material.key)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"{config.server}: certificate authority, client certificate or key: {error}") from error
    return context


def load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes | None) -> None:
    """Loads a certificate and its key (PEM); raises `ssl.SSLError` or `ValueError`."""
    with _as_file(certificate) as certificate_file, _as_file(key or certificate) as key_file:
        context.load_cert_chain(certificate_file, key_file, _no_password)


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """The path of a temporary file, because OpenSSL only loads files. On Linux the file is in memory: keys never reach
    a disk, and pods with a read-only file system work."""
    if not hasattr(os, "memfd_create"):  # only Linux has it
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "pem")
            path.touch(mode=0o600)
            path.write_bytes(content)
            yield str(path)
        return
    with os.fdopen(os.memfd_create("pem"), "r+b") as file:
        file.write(content)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"


def _no_password() -> str:
    """Raises for an encrypted key; OpenSSL would ask for the password on the terminal."""
    raise ValueError("the key is encrypted; it must be stored without a password")
