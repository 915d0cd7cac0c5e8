"""TLS: certificates as bytes, and the contexts made of them."""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from trainop.runtime.client.cluster import ClusterConfig, ConfigError, Pem, Proof


@dataclass(frozen=True, slots=True)
class Material:
    """What a TLS context is made of; equal material needs no new context."""

    ca: bytes | None
    certificate: bytes | None
    key: bytes | None = field(repr=False)


def read_material(config: ClusterConfig, proof: Proof | None) -> Material:
    """Reads the files now; a certificate among the credentials wins. Raises `OSError` or `ConfigError`."""
    if proof is not None and proof.certificate:
        return Material(_bytes(config.ca), proof.certificate, proof.key)
    return Material(_bytes(config.ca), _bytes(config.client_certificate), _bytes(config.client_key))


def _bytes(pem: Pem | None) -> bytes | None:
    if callable(pem):
        return pem()
    if not isinstance(pem, Path):
        return pem
    content = pem.read_bytes()
    if not content.strip():
        # Not "no authority at all", which would mean the system's: somebody is just writing the file.
        raise ConfigError(f"{pem}: the file is empty; it must hold PEM text")
    return content


def tls_context(config: ClusterConfig, material: Material) -> ssl.SSLContext:
    """Trusts the cluster's CA, or the system's if there is none; raises `ConfigError` on what is no certificate."""
    try:
        context = ssl.create_default_context(cadata=material.ca.decode() if material.ca else None)
        # Python 3.13 refuses CAs without key identifiers; those of many clusters have none.
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
    """A path for OpenSSL's sake, of a file that only this process sees: keys never reach a disk, and a pod without a
    writable one can load them."""
    if not hasattr(os, "memfd_create"):  # Linux has it
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
    """Instead of OpenSSL's question on the terminal."""
    raise ValueError("the key is encrypted; it must be stored without a password")
