"""The content of the webhook certificate Secret, and the state machine that rotates it. Pure.

The CA is rotated in three steps. At any time the published `caBundle` verifies the certificate that is served, also
while replicas or API servers lag behind:

    1. the Secret and the bundle contain the current and the next CA; the old server certificate is still served
    2. once all webhook configurations contain both, the next CA becomes current and signs a new server certificate
    3. after 24 h the previous CA is removed from the bundle

Import this module lazily: it imports `cryptography`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from trainop.runtime.clock import parse_timestamp, timestamp
from trainop.runtime.webhook.certificates import Pair, authority_fault, issue, make_authority, server_fault, vouch_for

OVERLAP = timedelta(hours=24)

FIELDS = (
    "ca.crt",
    "ca.key",
    "tls.crt",
    "tls.key",
    "next-ca.crt",
    "next-ca.key",
    "previous-ca.crt",
    "previous-ca-until",
)
"""Keys of the Secret's `data`. The first four are those of cert-controller."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of the certificates.

    `names` are the DNS names of the server certificate, the first of which is its common name. `authority` and
    `organization` are those of the CA certificate.
    """

    names: tuple[str, ...]
    authority: str = "webhook-ca"
    organization: str = "webhook"


@dataclass(frozen=True, slots=True)
class Keyring:
    """The parsed content of the Secret. Missing pairs are empty.

    `successor` is the next CA (step 1), `previous` the certificate of the previous CA (step 3), which is trusted until
    `previous_until`.
    """

    authority: Pair = field(default_factory=lambda: Pair(b"", b""))
    server: Pair = field(default_factory=lambda: Pair(b"", b""))
    successor: Pair | None = None
    previous: bytes = b""
    previous_until: datetime | None = None

    @classmethod
    def parse(cls, data: Mapping[str, str]) -> Keyring:
        """From `data` of a Secret. Values that cannot be decoded count as missing."""
        read = {name: _decode(data.get(name) or "") for name in FIELDS}
        successor = Pair(read["next-ca.crt"], read["next-ca.key"])
        return cls(
            Pair(read["ca.crt"], read["ca.key"]),
            Pair(read["tls.crt"], read["tls.key"]),
            successor if successor.certificate else None,
            read["previous-ca.crt"],
            _instant(read["previous-ca-until"]),
        )

    def data(self) -> dict[str, str]:
        """As `data` of a Secret, without empty values."""
        values = (
            *(self.authority.certificate, self.authority.key, self.server.certificate, self.server.key),
            *((self.successor.certificate, self.successor.key) if self.successor else (b"", b"")),
            self.previous,
            timestamp(self.previous_until).encode() if self.previous_until else b"",
        )
        named = zip(FIELDS, values, strict=True)
        return {name: base64.b64encode(value).decode() for name, value in named if value}

    @property
    def bundle(self) -> bytes:
        """The CA certificates (PEM) that clients must trust: current, next and previous."""
        parts = (self.authority.certificate, self.successor.certificate if self.successor else b"", self.previous)
        given = [part for part in parts if part]
        return given[0] if len(given) == 1 else b"".join(part.rstrip(b"\n") + b"\n" for part in given)


def advance(ring: Keyring, subject: Subject, now: datetime, *, published: bool) -> tuple[Keyring, str]:
    """The next state of the Secret and the reason for the change; `ring` itself and "" if no change is due.

    `published` says whether all webhook configurations contain the bundle of `ring`.
    """
    if ring.successor is not None:
        return _succeed(ring, ring.successor, subject, now, published=published)
    if fault := authority_fault(ring.authority, now):
        return _replace_authority(ring, subject, now), f"CA: {fault}"
    if fault := server_fault(ring.server, ring.authority.certificate, subject.names, now):
        return replace(ring, server=issue(ring.authority, subject.names, now)), f"certificate: {fault}"
    if ring.previous and (ring.previous_until is None or ring.previous_until <= now):
        return replace(ring, previous=b"", previous_until=None), "previous CA: its overlap has ended"
    return ring, ""


def _replace_authority(ring: Keyring, subject: Subject, now: datetime) -> Keyring:
    authority = make_authority(subject.authority, subject.organization, now)
    if _is_served(ring, subject, now):
        return replace(ring, successor=authority)
    return Keyring(authority, issue(authority, subject.names, now))


def _succeed(
    ring: Keyring, successor: Pair, subject: Subject, now: datetime, *, published: bool
) -> tuple[Keyring, str]:
    if fault := authority_fault(successor, now):
        return replace(ring, successor=None), f"next CA: {fault}"
    if not published and _is_served(ring, subject, now):
        return ring, ""
    server = _accepted_by_both(issue(successor, subject.names, now), successor, ring.authority, now)
    return Keyring(successor, server, None, ring.authority.certificate, now + OVERLAP), "next CA: it becomes current"


def _accepted_by_both(server: Pair, successor: Pair, authority: Pair, now: datetime) -> Pair:
    """The server certificate with that by which the current CA vouches for the next, as far as it can."""
    try:
        return replace(server, certificate=server.certificate + vouch_for(successor.certificate, authority, now))
    except ValueError:  # it has expired, or has lost its key
        return server


def _is_served(ring: Keyring, subject: Subject, now: datetime) -> bool:
    """Whether clients that trust the current CA accept the server certificate. If so, rotation must be gradual."""
    authority = ring.authority.certificate
    return not server_fault(ring.server, authority, subject.names, now, renew_early=False)


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _instant(text: bytes) -> datetime | None:
    try:
        return parse_timestamp(text.decode()) if text else None
    except ValueError:
        return None
