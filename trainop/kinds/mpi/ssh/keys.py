"""The key of an MPIJob with transport ssh: one ECDSA key per job, shared by launcher and workers."""

from __future__ import annotations

import base64
import re

from trainop.kinds.mpi.ssh.objects import PRIVATE_KEY, PUBLIC_KEY
from trainop.runtime import Json

_PUBLIC = re.compile(rb"\b(?:ssh|ecdsa|sk)-\S{1,64} {1,8}[A-Za-z0-9+/=]{1,8192}")
"""The first key of a file authorized_keys, whose lines may begin with options. Bounded, since others may write it."""

_MAX_SIZE = 8192
"""Bytes of a private key; an RSA key of 8,192 bits is smaller. Larger ones would take long to check."""


def make_keys() -> Json:
    """The `data` of the Secret: a new P-521 key pair in the formats of mpi-operator (`newSSHAuthSecret`)."""
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415  # takes 20 MiB
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415  # the same

    key = ec.generate_private_key(ec.SECP521R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    encoded = {PRIVATE_KEY: private, PUBLIC_KEY: public + b"\n"}
    return {"data": {name: base64.b64encode(value).decode() for name, value in encoded.items()}}


def are_usable(secret: Json) -> bool:
    """Whether ssh can read both keys of a Secret, in any of its formats: another client may have written them."""
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415  # takes 20 MiB
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415  # the same

    data = secret.get("data")
    try:
        private, public = (base64.b64decode((data or {})[name]) for name in (PRIVATE_KEY, PUBLIC_KEY))
        if len(private) > _MAX_SIZE:
            return False
        found = _PUBLIC.search(public, 0, 65536)
        serialization.load_ssh_public_key(found[0] if found else b"")
        if b"OPENSSH" in private.split(b"\n", 1)[0]:
            serialization.load_ssh_private_key(private, None)
        else:
            serialization.load_pem_private_key(private, None, unsafe_skip_rsa_key_validation=True)  # it is not used
    except (KeyError, TypeError, ValueError, UnsupportedAlgorithm):
        return False
    return True
