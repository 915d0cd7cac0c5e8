"""What the Secret of the webhook certificates holds, and how one Secret follows another. Pure.

A change of the authority takes three steps, so that whoever trusts the published bundle trusts what is served at every
moment, however late the other replicas and the API servers are:

    1. the next authority is written beside the old one, and published with it; the old certificate is served on
    2. once all configurations show both, the next becomes the authority and its certificate is served
    3. after 24 h the previous one is dropped

Import it lazily: it makes certificates.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from trainop.runtime.clock import parse_timestamp, timestamp
from trainop.runtime.webhook.certificates import Pair, authority_fault, issue, make_authority, server_fault

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
"""The first four are those of cert-controller."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom certificates are for: `names` are DNS names, the first of which is the certificate's subject."""

    names: tuple[str, ...]
    authority: str = "webhook-ca"
    organization: str = "webhook"


@dataclass(frozen=True, slots=True)
class Keyring:
    """The content of one Secret; pairs that are missing are empty."""

    authority: Pair = field(default_factory=lambda: Pair(b"", b""))
    server: Pair = field(default_factory=lambda: Pair(b"", b""))
    successor: Pair | None = None
    previous: bytes = b""
    previous_until: datetime | None = None

    @classmethod
    def parse(cls, data: Mapping[str, str]) -> Keyring:
        """Of `data` of a Secret; what cannot be read counts as missing."""
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
        """As `data` of a Secret, without what is empty."""
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
        """What clients are told to trust."""
        parts = (self.authority.certificate, self.successor.certificate if self.successor else b"", self.previous)
        given = [part for part in parts if part]
        return given[0] if len(given) == 1 else b"".join(part.rstrip(b"\n") + b"\n" for part in given)


def advance(ring: Keyring, subject: Subject, now: datetime, *, published: bool) -> tuple[Keyring, str]:
    """The Secret that should be instead of `ring`, and why; `ring` itself and an empty reason if it is good.
    `published`: all configurations show its bundle."""
    if ring.successor is not None:
        return _succeed(ring, ring.successor, subject, now, published=published)
    if fault := authority_fault(ring.authority, now):
        return _replace_authority(ring, subject, now), f"authority: {fault}"
    if fault := server_fault(ring.server, ring.authority.certificate, subject.names, now):
        return replace(ring, server=issue(ring.authority, subject.names, now)), f"certificate: {fault}"
    if ring.previous and (ring.previous_until is None or ring.previous_until <= now):
        return replace(ring, previous=b"", previous_until=None), "the previous authority has retired"
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
        return replace(ring, successor=None), f"next authority: {fault}"
    if not published and _is_served(ring, subject, now):
        return ring, ""
    server = issue(successor, subject.names, now)
    return Keyring(successor, server, None, ring.authority.certificate, now + OVERLAP), "the next authority takes over"


def _is_served(ring: Keyring, subject: Subject, now: datetime) -> bool:
    """Whether there are clients that accept the certificate as it is, and would not a new one."""
    authority = ring.authority.certificate
    return not server_fault(ring.server, authority, subject.names, now, due_early=False)


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
